"""What the protocol makes of faults while a request is read, and of input that waits."""

from __future__ import annotations

import asyncio
import functools
import gc
import itertools
import logging
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, cast

import httptools
import pytest
import uvicorn
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from uvicorn.server import ServerState

from app.errors import Code, GatherError
from app.main import create_app
from app.memory.budget import Budget
from app.server import request_header_cache
from app.server.connection_limit import ConnectionLimit
from app.server.http1_connection import Http1Connection
from app.server.raw_error_response import RenderedError
from app.server.write_batch import flush
from app.settings import Settings
from app.telemetry.shared_counters import unshared_counters

Application = Callable[..., Coroutine[Any, Any, None]]


class FakeTransport(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.reads = True
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def can_write_eof(self) -> bool:
        return False

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Bring no more to the connection."""


@pytest.fixture(autouse=True)
def configured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give connections what a server without any settings gives them."""
    monkeypatch.setattr(Http1Connection, "settings", Settings(), raising=False)
    monkeypatch.setattr(Http1Connection, "limit", ConnectionLimit(100, set(), unshared_counters()), raising=False)


def connect(app: Application) -> tuple[Http1Connection, FakeTransport]:
    """A new connection to `app`. Call it in a running loop."""
    config = uvicorn.Config(cast(Any, app), lifespan="off", log_config=None)
    config.load()
    connection = Http1Connection(config=config, server_state=ServerState(), app_state={})
    transport = FakeTransport()
    connection.connection_made(transport)
    return connection, transport


async def until(state: Callable[[], bool]) -> None:
    """Wait for a state."""
    async with asyncio.timeout(60):
        while not state():  # noqa: ASYNC110  (nothing says when it comes)
            await asyncio.sleep(0)


GET = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"
BROKEN_BODY = b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test in an event loop of its own."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


class Held:
    """An application whose answers wait for `go`; it counts its requests."""

    def __init__(self) -> None:
        self.asked = 0
        self.go = asyncio.Event()

    async def __call__(self, _: Any, __: Any, send: Any) -> None:
        self.asked += 1
        await self.go.wait()
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})


@pytest.fixture(autouse=True)
def budget(monkeypatch: pytest.MonkeyPatch) -> Budget:
    found = Budget(1 << 20)
    monkeypatch.setattr(Http1Connection, "budget", found, raising=False)
    return found


@pytest.fixture(autouse=True)
def refused(monkeypatch: pytest.MonkeyPatch) -> list[Code]:
    """The codes of what was refused."""
    codes: list[Code] = []

    def count(error: GatherError, _: str, __: str | None) -> None:
        codes.append(error.code)

    monkeypatch.setattr(Http1Connection, "count_refusal", staticmethod(count), raising=False)
    rendered = RenderedError(400, (), b"text/plain", b"refused")
    monkeypatch.setattr(Http1Connection, "render_error", staticmethod(lambda *_: rendered), raising=False)
    return codes


@in_loop
async def test_a_fault_while_a_request_is_read_is_answered_with_500_and_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, refused: list[Code]
) -> None:
    def fail(_: object) -> None:
        raise KeyError("what was wrong")

    connection, _ = connect(Held())
    monkeypatch.setattr(connection, "on_message_begin", fail.__get__(connection))
    connection.parser = httptools.HttpRequestParser(connection)
    with caplog.at_level(logging.ERROR, "gathernd"):
        connection.data_received(GET)
    assert refused == ["internal"]
    assert "what was wrong" in caplog.text


@in_loop
async def test_requests_behind_one_that_is_answered_wait_as_bytes_that_are_charged(budget: Budget) -> None:
    app = Held()
    connection, transport = connect(app)
    sent = GET * 1000
    connection.data_received(sent)
    await asyncio.sleep(0)
    assert (app.asked, transport.reads) == (1, False)
    assert 0.9 * len(sent) < budget.connection_used <= len(sent)
    app.go.set()
    await until(lambda: transport.written.count(b"HTTP/1.1 204") == 1000)
    assert (app.asked, transport.reads, budget.connection_used) == (1000, True, 0)


@in_loop
async def test_beyond_the_budget_of_connections_the_answer_under_way_is_the_last(
    budget: Budget, refused: list[Code]
) -> None:
    app = Held()
    connection, transport = connect(app)
    budget.connection_used = budget.connection_total
    connection.data_received(GET * 1000)
    app.go.set()
    await until(lambda: transport.closed)
    assert (app.asked, refused) == (1, ["overloaded"])
    assert b"connection: close" in transport.written


@pytest.mark.parametrize("sent", [GET, GET * 100, GET[:-2], BROKEN_BODY, BROKEN_BODY[:-4], b"garbage\r\n\r\n"])
@in_loop
async def test_a_connection_that_has_ended_is_freed_without_a_garbage_collection(sent: bytes) -> None:
    connection, transport = connect(Held())
    found = weakref.ref(connection)
    gc.collect()
    gc.disable()
    try:
        connection.data_received(sent)
        await asyncio.sleep(0)
        connection.connection_lost(None)
        tasks = connection.tasks
        for task in tuple(tasks):
            task.cancel()
        await until(lambda: not tasks)
        del connection, transport
        await until(lambda: found() is None)
    finally:
        gc.enable()


@in_loop
async def test_no_cached_header_holds_a_key() -> None:
    request_header_cache.clear()
    connection, transport = connect(create_app(Settings()))
    secrets = b"Authorization: Bearer the-key\r\nCookie: the-cookie\r\nProxy-Authorization: Basic the-other\r\n"
    head = b"POST /gathernd HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n"
    connection.data_received(head + secrets + b"\r\n1")
    await until(lambda: connection.cycle.response_complete)
    flush()
    assert transport.written.startswith(b"HTTP/1.1 503")
    (cached,) = request_header_cache.known.items()
    request_header_cache.clear()
    assert "the-" not in repr(cached)


def _chunked(pieces: list[bytes], trailer: bytes) -> bytes:
    body = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    return b"POST /chunked HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + body + b"0\r\n" + trailer + b"\r\n"


PIECES = st.sampled_from([b"a", b"\r", b"\r\n", b"\r\n\r\n", b"0\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"b" * 9000])
BODIES = st.lists(PIECES, max_size=5)
TRAILERS = st.sampled_from([b"", b"A: b\r\n"])
REQUESTS = st.one_of(
    st.just((b"", GET)),
    st.just((b"", GET[:-2] + b"Connection: upgrade\r\nUpgrade: x\r\n\r\n")),
    st.builds(lambda body, trailer: (b"".join(body), _chunked(body, trailer)), BODIES, TRAILERS),
    BODIES.map(b"".join).map(lambda b: (b, b"POST /l HTTP/1.1\r\nContent-Length: %d\r\n\r\n%b" % (len(b), b))),
)


class Echo:
    """An application that takes each body whole, at once or after a turn of the event loop, and keeps it."""

    def __init__(self, waits: bool) -> None:
        self.bodies: list[bytes] = []
        self.waits = waits

    async def __call__(self, _: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        if self.waits:
            await asyncio.sleep(0)
        self.bodies.append(body)
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})


@given(sent=st.lists(REQUESTS, min_size=1, max_size=8), cuts=st.lists(st.integers(0, 40_000)), waits=st.booleans())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_requests_are_answered_in_order_however_they_are_cut(
    sent: list[tuple[bytes, bytes]], cuts: list[int], waits: bool
) -> None:
    async def run() -> None:
        app = Echo(waits)
        connection, transport = connect(app)
        stream = b"".join(request for _, request in sent)
        places = [0, *sorted({cut % len(stream) for cut in cuts}), len(stream)]
        for start, end in itertools.pairwise(places):
            await until(lambda: transport.reads)
            connection.data_received(stream[start:end])
        await until(lambda: len(app.bodies) == len(sent))
        assert app.bodies == [body for body, _ in sent]
        await until(lambda: transport.written.count(b"HTTP/1.1 204") == len(sent))
        assert transport.reads
        connection.connection_lost(None)

    asyncio.run(run())
