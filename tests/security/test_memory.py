"""No key stays in the service's memory once the request that brought it is over."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.security import api_keys
from tests.http.raw import TINY, Wire, request
from tests.http.server import Server, serving

RAW = "Content-Type: application/octet-stream"
SECRET = "a-secret-of-some-other-service"


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A keys file and the text of its key."""
    file = tmp_path_factory.mktemp("keys") / "keys"
    return file, api_keys.add(file, "caller", ["gather", "tensors"])


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("", marks=pytest.mark.slow),
        pytest.param("--access-log", marks=pytest.mark.slow),
        "--cors-origins https://app.example",
    ],
)
def searched(
    request: pytest.FixtureRequest,
    warmed: Path,
    tmp_path_factory: pytest.TempPathFactory,
    key: tuple[Path, str],
) -> Iterator[Server]:
    """A server that asks for the key and searches its own memory."""
    flags = ["--api-keys-file", str(key[0]), *request.param.split()]
    command = (sys.executable, "-m", "tests.security.searched_app")
    with serving(warmed, tmp_path_factory.mktemp("server"), *flags, command=command) as server:
        yield server


def holders(server: Server, text: str, *fields: str) -> int:
    """How many texts in the server's memory contain `text`. Asks for it with a key, if at all, on a connection that is
    then closed.
    """
    with Wire(server) as wire:
        wire.send(request(b"", *fields, line=f"GET /holders?text={text[::-1]} HTTP/1.1"))
        answer = wire.read()
        assert answer.status == 200, answer.body
        return int(answer.body)


def use(wire: Wire, *fields: str) -> None:
    """A gather, a large one, the control plane, an upload, errors: each twice, for the second finds more remembered."""
    large = TINY[:-1] + b" " * (1 << 17) + TINY[-1:]
    for _ in range(2):
        for data in (
            request(TINY, *fields),
            request(large, *fields),
            request(b"", *fields, line="GET /v2 HTTP/1.1"),
            request(b"", *fields, line="GET /nowhere HTTP/1.1"),
            request(bytes(8), *fields, RAW, line="PUT /tensors/x?dtype=int64&shape=1 HTTP/1.1"),
            request(b"", *fields, line="GET /tensors/x/content HTTP/1.1"),
            request(b"{", *fields),
            request(TINY, *fields, "Origin: https://app.example"),
            request(TINY, *fields, "X-Request-ID: mine", "Idempotency-Key: 5"),
        ):
            wire.send(data)
            assert wire.read().status in (200, 201, 400, 403, 404)


def test_a_key_is_found_nowhere_while_its_connections_wait_for_more(searched: Server, key: tuple[Path, str]) -> None:
    fields = (f"Authorization: Bearer {key[1]}", f"Cookie: session={SECRET}", f"Proxy-Authorization: Basic {SECRET}")
    with Wire(searched) as first, Wire(searched) as second:
        for wire in (first, second):
            use(wire, *fields)
        # The question itself has the key in its header, at which its own connection is while it is answered.
        assert holders(searched, key[1], fields[0]) == 0
        assert holders(searched, SECRET, fields[0]) == 0
        use(first, *fields)


def test_what_is_found_is_seen(searched: Server, key: tuple[Path, str]) -> None:
    agent = "a-text-that-is-no-secret"
    with Wire(searched) as wire:
        use(wire, f"Authorization: Bearer {key[1]}", f"User-Agent: {agent}")
        assert holders(searched, agent, f"Authorization: Bearer {key[1]}") > 0


@pytest.mark.parametrize(
    "field", ["Authorization: Bearer unknown-", "Authorization: Basic unknown-", "authorization:bearer unknown-"]
)
def test_a_key_that_is_refused_is_found_nowhere(searched: Server, key: tuple[Path, str], field: str) -> None:
    text = f"unknown-{len(field)}-key"
    with Wire(searched) as wire:
        for _ in range(2):
            for data in (
                request(TINY, field.removesuffix("unknown-") + text),
                request(b"", field.removesuffix("unknown-") + text, line="GET /livez HTTP/1.1"),
                request(TINY, field.removesuffix("unknown-") + text, "Host: again"),
            ):
                wire.send(data)
                assert wire.read().status in (200, 401, 400)
        assert holders(searched, text, f"Authorization: Bearer {key[1]}") == 0
