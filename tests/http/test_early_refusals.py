"""A refusal before the body is read reaches clients that send all of it first, as `urllib` and proxies do."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest

from app.security import api_keys
from tests.conftest import slow_but_for
from tests.http.conftest import Start
from tests.http.held import metric
from tests.http.raw import TINY, Answer, Wire, request
from tests.http.server import Server
from tests.http.test_connections import PART, wait_for_connections, wires
from tests.http.test_tls import Pair, pair
from tests.http.test_uds import wire_on_socket

__all__ = ["pair"]
LARGE = 20_000_000
"""Bytes of a body, more than the sockets between hold."""
RAW = "Content-Type: application/octet-stream"
PUT = f"PUT /tensors/{{}}?dtype=int8&shape={LARGE}"
LONG_FIELD = "X-Long: " + "a" * 100_000
EARLY: dict[int, tuple[str, tuple[str, ...]]] = {
    400: ("POST /gathernd", ("no field",)),
    401: ("POST /gathernd", ("Authorization: Bearer wrong",)),
    403: ("POST /gathernd", ("Origin: http://example.com",)),
    404: ("POST /nowhere", ()),
    405: ("PUT /gathernd", ()),
    412: (PUT.format("new"), (RAW, 'If-Match: "1"')),
    413: ("POST /gathernd", ()),
    415: ("POST /gathernd", ("Content-Type: text/plain",)),
    422: (PUT.format("gathernd"), (RAW,)),
    431: ("POST /gathernd", (LONG_FIELD,)),
}
"""Requests by the status with which they are refused before their body is read."""
KINDS = {"keep-alive": ("1.1", ()), "close": ("1.1", ("Connection: close",)), "HTTP/1.0": ("1.0", ())}


@dataclass
class Refusing:
    """A server that asks for a key, over TCP and on a Unix socket."""

    server: Server
    path: Path
    key: str

    def refused(self, wire: Wire, status: int, kind: str, size: int = LARGE) -> Answer:
        """The answer to a request of which all is sent before any of it is read."""
        (line, fields), (version, close) = EARLY[status], KINDS[kind]
        if status != 401:
            fields = (*fields, f"Authorization: Bearer {self.key}")
        fields = (f"Content-Length: {size}", *fields, *close)
        wire.send(request(b"", *fields, line=f"{line} HTTP/{version}", length=False))
        piece = bytes(1 << 20)
        for place in range(0, size, len(piece)):
            wire.send(piece[: size - place])
        return wire.read()


def serving(start: Start, folder: Path, *flags: str, **options: Any) -> Iterator[Refusing]:
    keys, path = folder / "keys", folder / "a.sock"
    key = api_keys.add(keys, "all", ["gather", "tensors"])
    with start(
        "--api-keys-file", str(keys), "--uds", str(path), "--max-json-bytes", "1MiB", *flags, **options
    ) as server:
        yield Refusing(server, path, key)


@pytest.fixture(scope="module")
def refusing(start: Start, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Refusing]:
    yield from serving(start, tmp_path_factory.mktemp("refusing"))


@pytest.fixture(scope="module")
def refusing_tls(start: Start, tmp_path_factory: pytest.TempPathFactory, pair: Pair) -> Iterator[Refusing]:
    yield from serving(start, tmp_path_factory.mktemp("refusing-tls"), *pair.flags(), tls=pair.trusting())


def check_refused(refusing: Refusing, wire: Wire, status: int, kind: str) -> None:
    answer = refusing.refused(wire, status, kind)
    assert answer.status == status, answer
    if answer.headers.get("connection") == "close":
        assert wire.closed()
    else:
        wire.send(request(TINY, f"Authorization: Bearer {refusing.key}"))
        assert wire.read().status == 200


@pytest.mark.parametrize("status", EARLY)
@pytest.mark.parametrize("kind", KINDS)
def test_a_refusal_reaches_a_client_that_sends_its_whole_body_first(refusing: Refusing, kind: str, status: int) -> None:
    with Wire(refusing.server) as wire:
        check_refused(refusing, wire, status, kind)


@pytest.mark.parametrize("status", [422, 431])
def test_a_refusal_reaches_such_a_client_on_a_unix_socket(refusing: Refusing, status: int) -> None:
    with wire_on_socket(refusing.server, refusing.path) as wire:
        check_refused(refusing, wire, status, "close")


@pytest.mark.parametrize("status", [415, 422, 431])
@pytest.mark.parametrize("kind", KINDS)
def test_a_refusal_reaches_such_a_client_over_tls(refusing_tls: Refusing, kind: str, status: int) -> None:
    tls = refusing_tls.server.tls
    assert tls is not None
    with Wire(refusing_tls.server) as wire:
        wire.socket = tls.wrap_socket(wire.socket, server_hostname="localhost")
        check_refused(refusing_tls, wire, status, kind)


def test_urllib_gets_the_refusal_of_an_upload(refusing: Refusing) -> None:
    url = f"{refusing.server.url}/tensors/gathernd?dtype=int8&shape={LARGE}"
    fields = {"Content-Type": "application/octet-stream", "Authorization": f"Bearer {refusing.key}"}
    upload = urllib.request.Request(url, bytes(LARGE), fields, method="PUT")
    with pytest.raises(urllib.error.HTTPError) as raised:
        urllib.request.urlopen(upload, timeout=60)
    assert raised.value.code == 422
    raised.value.close()


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


@pytest.mark.parametrize("goes_on", slow_but_for((False,), (False, True)))
def test_what_a_refused_client_sends_is_dropped_for_a_bounded_time(start: Start, goes_on: bool) -> None:
    endless = request(b"", "Transfer-Encoding: chunked", "Connection: close", line="PUT / HTTP/1.1", length=False)
    with start() as server, Wire(server) as wire, suppress(ConnectionError):
        wire.send(endless + b"ffffffff\r\n")
        assert wire.read().status == 405
        end = monotonic() + 60
        while metric(server, "gathernd_connections") > 1:
            assert monotonic() < end
            if goes_on:
                wire.send(b"x")
            sleep(0.01)


def test_requests_are_answered_beside_refused_clients_that_send_on(refusing: Refusing) -> None:
    key = f"Authorization: Bearer {refusing.key}"
    with ExitStack() as stack:
        uploads = [stack.enter_context(Wire(refusing.server)) for _ in range(4)]
        threads = stack.enter_context(ThreadPoolExecutor(len(uploads)))
        sent = [threads.submit(check_refused, refusing, upload, 422, "close") for upload in uploads]
        with Wire(refusing.server) as wire:
            while not all(one.done() for one in sent):
                wire.send(request(TINY, key))
                assert wire.read().status == 200
        for one in sent:
            one.result()


def test_a_stop_closes_connections_of_refused_clients(start: Start) -> None:
    with start("--drain-timeout", "60") as server, wires(server, 3) as refused:
        for wire, sent in zip(refused, (REFUSED, b"garbage\r\n\r\n", REFUSED + b"x"), strict=True):
            wire.send(sent)
            assert wire.read().status in (400, 415)
        assert server.stop(within=60) == 0
