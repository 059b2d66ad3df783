"""A refusal before the body is read reaches clients that send all of it first, as `urllib` and proxies do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from app.security import api_keys
from tests.http.conftest import Start
from tests.http.held import metric
from tests.http.raw import TINY, Wire, request
from tests.http.server import Server
from tests.http.test_connections import PART, wait_for_connections, wires
from tests.http.test_tls import Pair, pair

__all__ = ["pair"]
LARGE = 8_000_000
"""Bytes of a body, more than the sockets between hold."""
RAW = "Content-Type: application/octet-stream"
PUT = f"PUT /tensors/{{}}?dtype=int8&shape={LARGE}"
LONG_FIELD = "X-Long: " + "a" * 100_000
EARLY: dict[int, tuple[str, tuple[str, ...]]] = {
    400: ("POST /gathernd", ("no field",)),
    401: ("POST /gathernd", ("Authorization: Bearer wrong",)),
    403: ("POST /gathernd", ("Origin: http://example.com",)),
    412: (PUT.format("new"), (RAW, 'If-Match: "1"')),
    413: ("POST /gathernd", ()),
    415: ("POST /gathernd", ("Content-Type: text/plain",)),
    422: (PUT.format("gathernd"), (RAW,)),
    431: ("POST /gathernd", (LONG_FIELD,)),
}
"""Requests by the status with which they are refused before their body is read."""
KINDS = {"keep-alive": ("1.1", ()), "close": ("1.1", ("Connection: close",)), "HTTP/1.0": ("1.0", ())}


Refusing = tuple[Server, str]
"""A server that asks for a key, and the key."""


@contextmanager
def keyed(start: Start, folder: Path, *flags: str, **options: Any) -> Iterator[Refusing]:
    key = api_keys.add(folder / "keys", "all", ["gather", "tensors"])
    with start("--api-keys-file", str(folder / "keys"), "--max-json-bytes", "1MiB", *flags, **options) as server:
        yield server, key


@pytest.fixture(scope="module")
def refusing(start: Start, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Refusing]:
    with keyed(start, tmp_path_factory.mktemp("refusing")) as made:
        yield made


@pytest.fixture(scope="module")
def refusing_tls(start: Start, tmp_path_factory: pytest.TempPathFactory, pair: Pair) -> Iterator[Refusing]:
    with keyed(start, tmp_path_factory.mktemp("tls"), *pair.flags(), tls=pair.trusting()) as made:
        yield made


def check_refused(key: str, wire: Wire, status: int, kind: str) -> None:
    """A request all of which is sent before any of its answer is read is refused with this status."""
    (line, fields), (version, close) = EARLY[status], KINDS[kind]
    bearer = f"Authorization: Bearer {key}"
    fields = (f"Content-Length: {LARGE}", *fields, *close, *(() if status == 401 else (bearer,)))
    wire.send(request(b"", *fields, line=f"{line} HTTP/{version}", length=False), bytes(LARGE))
    answer = wire.read()
    assert answer.status == status, answer
    if answer.headers.get("connection") == "close":
        assert wire.closed()
    else:
        wire.send(request(TINY, bearer))
        assert wire.read().status == 200


@pytest.mark.parametrize("status", EARLY)
@pytest.mark.parametrize("kind", KINDS)
def test_a_refusal_reaches_a_client_that_sends_its_whole_body_first(refusing: Refusing, kind: str, status: int) -> None:
    server, key = refusing
    with Wire(server) as wire:
        check_refused(key, wire, status, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_a_refusal_reaches_such_a_client_over_tls(refusing_tls: Refusing, kind: str) -> None:
    server, key = refusing_tls
    assert server.tls is not None
    with Wire(server) as wire:
        wire.socket = server.tls.wrap_socket(wire.socket, server_hostname="localhost")
        check_refused(key, wire, 422, kind)


REFUSED = request(b"", "Content-Length: 1000000", "Content-Type: text/plain", "Connection: close", length=False)
"""The header of a request that is refused before its body is read, and is the last one of its connection."""


def test_refused_clients_that_never_close_take_nobody_a_place(start: Start) -> None:
    with start("--max-connections", "20") as server, ExitStack() as stack:
        for _ in range(100):
            wire = stack.enter_context(Wire(server))
            wire.send(REFUSED)
            assert wire.read().status == 415
        with wires(server, 19, PART) as busy:
            for wire in busy:
                wire.send(request(TINY)[len(PART) :])
                assert wire.read().status == 200
        assert metric(server, "gathernd_connections_refused_total") == 0
        wait_for_connections(server, 0)


def test_a_stop_closes_connections_of_refused_clients(start: Start) -> None:
    with start("--drain-timeout", "60") as server, wires(server, 3) as refused:
        for wire, sent in zip(refused, (REFUSED, b"garbage\r\n\r\n", REFUSED + b"x"), strict=True):
            wire.send(sent)
            assert wire.read().status in (400, 415)
        assert server.stop(within=60) == 0
