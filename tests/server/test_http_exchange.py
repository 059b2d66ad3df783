"""Clients that have gone are found, a request knows its connection's scheme, and a finished one leaves nothing behind:
with the collector off, memory stays where it was.
"""

from __future__ import annotations

import asyncio
import gc
import socket
import struct
import tracemalloc
from collections.abc import Awaitable, Callable, Iterator, Mapping
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from app.server import request_header_cache
from app.server.http1_connection import Http1Connection
from app.server.http_exchange import HttpExchange
from app.server.write_batch import flush

SIZE = 1 << 20
HEAD = b"POST /x HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % SIZE
PIECE = 1 << 15


class Pipe:
    """A transport whose other end takes everything at once."""

    def __init__(self, extra: Mapping[str, Any] = MappingProxyType({})) -> None:
        self.protocol: Any = None
        self.written = 0
        self._unread = b""
        self._is_paused = False
        self._extra = {"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 1), **extra}

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._extra.get(name, default)

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def get_protocol(self) -> Any:
        return self.protocol

    def feed(self, data: bytes) -> None:
        """What the event loop does with bytes that have come."""
        self._unread += data
        while self._unread and not self._is_paused:
            data, self._unread = self._unread, b""
            if isinstance(self.protocol, asyncio.BufferedProtocol):
                buffer: Any = self.protocol.get_buffer(-1)
                count = min(len(buffer), len(data))
                buffer[:count] = data[:count]
                self._unread = data[count:]
                self.protocol.buffer_updated(count)
            else:
                self.protocol.data_received(data)

    def write(self, data: Any) -> None:
        self.written += len(data)

    def writelines(self, pieces: Any) -> None:
        self.written += sum(map(len, pieces))

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        self._is_paused = True

    def resume_reading(self) -> None:
        self._is_paused = False
        self.feed(b"")

    def close(self) -> None:
        pass


def exchange(transport: object, scope: dict[str, Any]) -> HttpExchange:
    """The exchange of a request on a connection whose client reads."""
    connection: Any = SimpleNamespace(
        transport=transport,
        flow=SimpleNamespace(write_paused=False),
        server_state=SimpleNamespace(default_headers=[]),
        on_response_complete=lambda: None,
    )
    return HttpExchange(connection, scope, keep_alive=True)


async def filled(cycle: HttpExchange) -> Any:
    body = bytearray(SIZE)
    assert await cycle.read_into(memoryview(body), lambda _: None)
    return body


async def filled_by_pieces(cycle: HttpExchange) -> Any:
    body = bytearray(SIZE)
    place = 0
    for size in (1, PIECE + 1, SIZE // 3, SIZE):
        piece = memoryview(body)[place : place + size]
        assert await cycle.read_into(piece, lambda _: None)
        place += len(piece)
        await asyncio.sleep(0)  # what comes meanwhile waits for the next piece
    return body


async def received(cycle: HttpExchange) -> Any:
    body = bytearray()
    more = True
    while more:
        message: Any = await cycle.receive()
        body += message["body"]
        more = message["more_body"]
    return body


async def failed(cycle: HttpExchange) -> Any:
    def refuse(_: int) -> None:
        raise ValueError(bytes(SIZE))

    try:
        await cycle.read_into(memoryview(bytearray(SIZE)), refuse)
    except ValueError as error:
        return error.args[0]
    raise AssertionError("the failure was lost")


@pytest.mark.parametrize("state", ["free", "paused", "left", "begun"])
def test_a_whole_answer_is_written_at_once_only_where_the_client_takes_it(state: str) -> None:
    cycle = exchange(None, {})
    cycle.flow.write_paused = state == "paused"
    cycle.disconnected = state == "left"
    cycle.response_started = state == "begun"
    assert cycle.ready() == (state == "free")


def test_what_is_said_to_a_client_that_has_left_does_not_count_as_sent() -> None:
    async def said(disconnected: bool) -> int:
        cycle = exchange(SimpleNamespace(write=lambda _: None, is_closing=lambda: False), {"method": "POST"})
        cycle.disconnected, cycle.response_started = disconnected, True
        cycle.chunked_encoding, cycle.expected_content_length = False, 3
        await cycle.send({"type": "http.response.body", "body": b"abc", "more_body": False})
        return cycle.sent

    assert asyncio.run(said(False)) == 3
    assert asyncio.run(said(True)) == 0


def connected(family: socket.AddressFamily) -> tuple[socket.socket, socket.socket]:
    """Both ends of a connection, the server's first."""
    if family == socket.AF_UNIX:
        return socket.socketpair()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        return listener.accept()[0], client


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_UNIX])
@pytest.mark.parametrize(
    ("leaving", "sent", "gone"),
    [("no", 0, False), ("half", 5, True), ("half", 9, False), ("close", 5, True), ("reset", 5, True)],
)
def test_a_client_that_left_its_body_incomplete_is_found_without_reading(
    family: socket.AddressFamily, leaving: str, sent: int, gone: bool
) -> None:
    ours, client = connected(family)
    with ours, client:
        aborted: list[int] = []
        transport = SimpleNamespace(get_extra_info={"socket": ours}.get, abort=lambda: aborted.append(1))
        cycle = exchange(transport, {"headers": [(b"content-length", b"10")]})
        cycle.received = 1
        client.sendall(bytes(sent))
        if leaving == "half":
            client.shutdown(socket.SHUT_WR)
        elif leaving == "close":
            client.close()
        elif leaving == "reset":
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()
        assert cycle.client_has_gone() == bool(aborted) == cycle.disconnected == gone


def test_a_header_that_came_in_the_clear_before_has_the_scheme_of_its_own_connection() -> None:
    seen = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        cycle = scope["extensions"]["gathernd"]
        seen.append((scope["scheme"], cycle.route_match is None))
        cycle.route_match = "found"
        cycle.respond(200, b"content-length: 0\r\n", (), 0)

    async def main() -> None:
        config = uvicorn.Config(app, http=Http1Connection, log_config=None, lifespan="off")
        config.load()
        for over_tls in (False, True):
            pipe = Pipe({"sslcontext": over_tls or None})
            protocol = Http1Connection(config, ServerState(), {}, asyncio.get_running_loop())
            protocol.connection_made(pipe)  # type: ignore[arg-type]
            protocol.data_received(b"POST /x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\n1")
        flush()

    request_header_cache.known.clear()
    asyncio.run(main())
    request_header_cache.known.clear()
    assert seen == [("http", True), ("https", False)]


@pytest.fixture
def without_collector() -> Iterator[None]:
    request_header_cache.known.clear()
    gc.collect()
    gc.disable()
    tracemalloc.start()
    yield
    tracemalloc.stop()
    gc.enable()


@pytest.mark.parametrize("read", [filled, filled_by_pieces, received, failed])
@pytest.mark.parametrize("in_scope", [False, True])
@pytest.mark.usefixtures("without_collector")
def test_nothing_is_left_of_a_request(read: Callable[[HttpExchange], Awaitable[Any]], in_scope: bool) -> None:
    # The scope of the last request lives as long as its connection waits for the next: what it holds is one body.
    async def app(scope: Any, receive: Any, send: Any) -> None:
        cycle = scope["extensions"]["gathernd"]
        body = await read(cycle)
        if in_scope:
            scope["kept by the application"] = body
        cycle.route_match = object()
        assert cycle.ready()
        cycle.respond(200, b"content-length: %d\r\n" % len(body), [bytes(body)], len(body))

    async def main() -> int:
        config = uvicorn.Config(app, http=Http1Connection, log_config=None, lifespan="off")
        config.load()
        pipe = Pipe()
        protocol = Http1Connection(config, ServerState(), {}, asyncio.get_running_loop())
        protocol.connection_made(pipe)  # type: ignore[arg-type]
        pipe.protocol = protocol
        body = bytes(SIZE)
        before = tracemalloc.get_traced_memory()[0]
        for number in range(12):
            if number == 2 and in_scope:
                before = tracemalloc.get_traced_memory()[0]
            written = pipe.written
            pipe.feed(HEAD + body[:PIECE])
            await asyncio.sleep(0)
            for start in range(PIECE, SIZE, PIECE):
                pipe.feed(body[start : start + PIECE])
                await asyncio.sleep(0)
            while pipe.written - written < SIZE:
                flush()
                await asyncio.sleep(0)
        await asyncio.sleep(0)
        return tracemalloc.get_traced_memory()[0] - before

    assert asyncio.run(main()) < SIZE
