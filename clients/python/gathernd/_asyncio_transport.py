"""HTTP/1.1 on asyncio's event loop: a pool of keep-alive connections, each with one request at a time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from time import monotonic
from typing import Any, Final, cast

from . import _failures
from ._array_bytes import Buffer, StreamedBytes
from ._connection_settings import ConnectionSettings
from ._http1_messages import AnswerParser, request_header
from ._messages import Answer, Request, body_chunks
from ._socket_transport import IDLE_SECONDS, JOIN_BYTES, MAX_IDLE, readable_check
from .errors import Disconnected, TransportError

_SCRATCH_BYTES: Final = 128 << 10
"""Size of the receive buffer for a header and the start of its body. It is large, because waking the event loop costs
more than a copy.
"""
_CLOSE_SECONDS: Final = 1.0
"""Maximum seconds that `close` waits for the event loop to close the sockets."""


class AsyncioTransport:
    """Sends requests to the service of `settings`, from the running event loop."""

    def __init__(self, settings: ConnectionSettings) -> None:
        self._settings = settings
        self._fields = settings.fields()
        self._tls = settings.tls_context() if settings.address.tls else None
        self._idle: deque[_Connection] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    async def send(self, request: Request[Any], until: float | None, headers: dict[str, str]) -> Answer:
        """Send `request` with additional `headers` and return its answer before `until` (in `monotonic()` time).

        Replaces an idle connection that the service has closed, if that is safe. Raises TransportError.
        """
        if self._closed:
            raise RuntimeError("this client is closed")
        header = request_header(request, self._settings.address.base_path, self._fields, headers)
        while True:
            connection = self._idle_connection()
            used = connection is not None
            if connection is None:
                connection = await self._connect(request, until)
            try:
                answer = await connection.exchange(request, header, until)
            except Disconnected:
                connection.close()
                # The service may have closed the idle connection just as the request was sent.
                if not (used and request.retryable and not connection.parser.begun):
                    raise
            except BaseException:
                connection.close()
                raise
            else:
                self._keep_idle(connection)
                return answer

    async def close(self) -> None:
        """Close the idle connections now, and the others when their answers have arrived."""
        self._closed = True
        lost = []
        if self._loop is asyncio.get_running_loop():
            for connection in self._idle:
                connection.close()
                lost.append(connection.lost)
        self._idle.clear()
        if lost:  # the event loop closes the sockets in one of its next iterations
            await asyncio.wait(lost, timeout=_CLOSE_SECONDS)

    def _idle_connection(self) -> _Connection | None:
        """Return this event loop's most recently used idle connection that is still open, or None."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop = loop
            self._idle.clear()
        while self._idle:
            connection = self._idle.pop()
            # The event loop may not yet have seen that the service closed the connection or sent unexpected bytes.
            if (
                connection.usable
                and loop.time() - connection.idle_since < IDLE_SECONDS
                and not connection.is_readable()
            ):
                return connection
            connection.close()
        return None

    def _keep_idle(self, connection: _Connection) -> None:
        if self._closed or not (connection.usable and connection.parser.reusable) or len(self._idle) >= MAX_IDLE:
            connection.close()
            return
        assert self._loop is not None
        connection.idle_since = now = self._loop.time()
        self._idle.append(connection)
        if now - self._idle[0].idle_since > IDLE_SECONDS:
            self._idle.popleft().close()

    async def _connect(self, request: Request[Any], until: float | None) -> _Connection:
        address, seconds = self._settings.address, self._settings.timeouts.connect
        if until is not None:
            left = max(until - monotonic(), 0.0)
            seconds = left if seconds is None else min(seconds, left)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(seconds):
                if address.socket_path:
                    _, connection = await loop.create_unix_connection(
                        lambda: _Connection(self._settings, loop), address.socket_path
                    )
                else:
                    _, connection = await loop.create_connection(
                        lambda: _Connection(self._settings, loop),
                        address.host,
                        address.port,
                        ssl=self._tls,
                        server_hostname=None if self._tls is None else address.host,
                    )
        except TimeoutError:
            if until is not None and monotonic() >= until:
                raise _failures.not_answered_in_time(address.url, request, seconds, "answered") from None
            raise _failures.not_connected_in_time(address.url, seconds) from None
        except (OSError, UnicodeError) as error:
            raise _failures.not_connected(address.url, error) from error
        return connection


class _Connection(asyncio.BufferedProtocol):
    """A connection and its answer parser; `usable` is True while a request can be sent."""

    def __init__(self, settings: ConnectionSettings, loop: asyncio.AbstractEventLoop) -> None:
        self._settings = settings
        self._loop = loop
        self._idle_buffer = memoryview(bytearray(1))
        self._answered: asyncio.Future[None] | None = None
        self._may_write: asyncio.Future[None] | None = None
        self._moved = 0.0
        self._limit: float | None = None
        self._until: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.parser = AnswerParser(_SCRATCH_BYTES)
        self.usable = False
        self.lost: asyncio.Future[None] = loop.create_future()
        self.idle_since = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio: the connection is open."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transport has another class, same interface
        self.is_readable = readable_check(transport.get_extra_info("socket").fileno())
        self.usable = True

    def connection_lost(self, error: Exception | None) -> None:
        """asyncio: the connection is closed."""
        self.usable = False
        if not self.lost.done():
            self.lost.set_result(None)
        self._fail(error or ConnectionResetError("closed by the service"))

    def eof_received(self) -> bool:
        """asyncio: the service closed its side, so a pending request gets no answer."""
        return False

    def get_buffer(self, sizehint: int) -> memoryview:
        """asyncio: return the buffer for the next bytes."""
        return self.parser.buffer() if self._answered is not None else self._idle_buffer

    def buffer_updated(self, count: int) -> None:
        """asyncio: `count` bytes were received."""
        if self._answered is None:  # no request is pending
            self.close()
            return
        self._moved = self._loop.time()
        try:
            complete = self.parser.received(count)
        except Exception as error:  # noqa: BLE001  (what the caller's progress raises is the caller's)
            self._fail(error)
        else:
            if complete and not self._answered.done():
                self._answered.set_result(None)

    def pause_writing(self) -> None:
        """asyncio: the write buffer is full."""
        self._may_write = self._loop.create_future()

    def resume_writing(self) -> None:
        """asyncio: the write buffer has room again."""
        self._moved = self._loop.time()
        if self._may_write is not None and not self._may_write.done():
            self._may_write.set_result(None)
        self._may_write = None

    def close(self) -> None:
        """Close the connection immediately."""
        self.usable = False
        self._transport.abort()

    async def exchange(self, request: Request[Any], header: bytes, until: float | None) -> Answer:
        """Send a request and receive its answer. Raises Timeout, Disconnected and UnexpectedAnswer."""
        loop, parser, url = self._loop, self.parser, self._settings.address.url
        parser.start(request)
        begun = self._moved = loop.time()
        self._answered = loop.create_future()
        self._until = None if until is None else begun + until - monotonic()
        try:
            if self._until is not None and self._until <= begun:
                raise TimeoutError  # before anything is sent
            if request.progress is None and sum(map(len, request.body)) <= JOIN_BYTES:
                complete = True
                self._limit = self._settings.timeouts.read
                self._watch()
                self._transport.write(b"".join((header, *body_chunks(request.body))))
            else:
                self._limit = self._settings.timeouts.write
                self._watch()
                complete = await self._write(request, header)
                self._limit, self._moved = self._settings.timeouts.read, loop.time()
                self._watch()
            await self._answered
        except TimeoutError:
            raise _failures.not_answered_in_time(url, request, loop.time() - begun, "answered") from None
        except TransportError:
            raise
        except OSError as error:
            raise _failures.disconnected(url, request, loop.time() - begun, error) from error
        finally:
            self._answered = None
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
        parser.reusable = parser.reusable and complete
        assert parser.answer is not None
        return parser.answer

    async def _write(self, request: Request[Any], header: bytes) -> bool:
        """Send a request. Returns False if an answer arrived early and the rest was not sent."""
        assert self._answered is not None
        self._transport.write(header)
        sent = 0
        async for chunk in _chunks(request.body):
            if self._answered.done() or self.parser.begun:
                return False
            self._transport.write(chunk)
            if self._may_write is not None:
                await asyncio.wait((self._may_write, self._answered), return_when=asyncio.FIRST_COMPLETED)
            self._moved = self._loop.time()
            sent += len(chunk)
            if request.progress is not None and request.method != "GET":
                request.progress(sent)
        return True

    def _watch(self) -> None:
        """Fail the exchange with TimeoutError after `_limit` seconds without progress, or at `_until`."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        ends = [self._moved + self._limit] if self._limit is not None else []
        if self._until is not None:
            ends.append(self._until)
        if not ends:
            return
        if min(ends) <= self._loop.time():
            self._fail(TimeoutError())
        else:
            self._timer = self._loop.call_at(min(ends), self._watch)

    def _fail(self, error: Exception) -> None:
        if self._answered is not None and not self._answered.done():
            self._answered.set_exception(error)


async def _chunks(body: Sequence[Buffer | StreamedBytes]) -> AsyncIterator[memoryview]:
    """Like `body_chunks`, but a thread generates a streamed body's chunks."""
    chunks = body_chunks(body)
    if not any(isinstance(part, StreamedBytes) for part in body):
        for chunk in chunks:
            yield chunk
        return
    while (made := await asyncio.to_thread(next, chunks, None)) is not None:
        yield made
