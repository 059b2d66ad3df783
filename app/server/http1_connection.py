"""What ASGI cannot reach: unfinished headers, header size, bad framing, slow senders, and their error bodies.

A small subclass of uvicorn's httptools protocol. It adds no work to a request but a few comparisons: slow senders are
found by one sweep a second over all connections (`sweep`), not by a timer for each request, and so are clients that do
not read their answers.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import struct
from collections.abc import Callable
from hashlib import sha256
from time import monotonic
from typing import Any, ClassVar, Final
from urllib.parse import unquote

import httptools
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from app.api.asgi_request import REQUEST_ID
from app.api.error_responses import STATUS, error_body, problem_headers
from app.errors import GatherError
from app.server import request_header_cache
from app.server.body_reader import BodyReader
from app.server.connection_limit import ALWAYS_ANSWERED, IDLE_S, SPARE, ConnectionLimit
from app.server.header_fields import combined
from app.server.http_exchange import DIRECT, HttpExchange, deliver, resumed
from app.server.timeouts import Timeouts, WriteProgress

_TCP_CLOSE: Final = 7
"""The state, in the first byte of TCP_INFO, of a connection that was reset."""
_PROBE_S: Final = 0.1
_PROBE_MOST_S: Final = 5.0
_AT_ONCE: Final = struct.pack("ii", 1, 0)
"""For SO_LINGER: what has not been sent when a connection is closed is dropped, and the peer told so."""


logger = logging.getLogger("gathernd")


class Protocol(HttpToolsProtocol):
    """httptools with limits. `timeouts` and `limit` are set once per process, before the server starts.

    So is `count_refusal`, which is told the error, the id and the caller's address of each request that is refused
    before the application sees it.
    A request whose body has come with its header is carried out at once, up to its first wait, without a task of its
    own: most gathers never wait.
    """

    timeouts: ClassVar[Timeouts] = Timeouts(10.0, 10.0, 1024, 65536, 100)
    count_refusal: ClassVar[Callable[[GatherError, str, str | None], None]]
    limit: ClassVar[ConnectionLimit | None] = None
    leaving: bool = False
    """Whether each answer is the last of its connection: of this one, or set on the class, of all."""
    _defaults: ClassVar[tuple[object, bytes]] = (None, b"")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.in_header = False
        self.header_size = 0
        self.between = True
        self.began = monotonic()
        self.heard = self.answered = self.began
        self.refused = False
        self.url = b""
        self.starting: HttpExchange | None = None
        self.running: HttpExchange | None = None
        self.reading: WriteProgress | None = None
        self.over = False
        self.mark = 0
        self.head: request_header_cache.CachedHeader | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A connection is open: find room for it, or refuse it."""
        super().connection_made(transport)
        limit = self.limit
        if limit is None or limit.admit(self):
            return
        self.over = self.leaving = True
        if len(limit.over) > SPARE:
            self.over = False
            limit.forget(self)
            self.refuse(limit.refusal())

    def data_received(self, data: bytes) -> None:
        """Feed the parser, start the request that it completes, refuse what can never become one."""
        if self.refused:
            return
        self.heard = monotonic()
        end = data.find(b"\r\n\r\n", 0, request_header_cache.LARGEST) + 4 if self.between else 0
        if end > 4:
            start = data[:end]
            hashed = request_header_cache.hashed
            head = self._hashed_head(start) if hashed else request_header_cache.known.get(start)
            if head is not None and len(data) - end == head.length and self._free() and not self.leaving:
                self._repeat(head, data, end)
                return
        try:
            self._feed(data)
        except httptools.HttpParserError as error:
            cause = error.__context__
            if self.starting is not None and not self.starting.more_body:
                # The request before the fault is whole, and is answered if that can be done at once.
                cycle, self.starting = self.starting, None
                self._start(cycle)
            self.refuse(cause if isinstance(cause, GatherError) else _bad_framing(error, cause))
            return
        if self.starting is not None:
            cycle, self.starting = self.starting, None
            self._start(cycle)
            if end > 4 and cycle.route_match is not None and cycle.keep_alive and cycle.received == len(data) - end:
                scope: dict[str, Any] = cycle.scope  # type: ignore[assignment]
                request_header_cache.remember(data[:end], scope, cycle.received, cycle.route_match, secret=cycle.secret)
        elif self.in_header:
            # What came with the end of another request is not counted: how much of that is header is not known.
            self.header_size += len(data) if self.header_size >= 0 else 1
            if self.header_size > self.timeouts.header_bytes:
                self.refuse(_header_too_large(self.timeouts))
        else:
            self._count_framing(len(data))

    def _hashed_head(self, start: bytes) -> request_header_cache.CachedHeader | None:
        """The header of these bytes, if it came before, where headers are kept by their SHA-256.

        The last one of this connection is known by Python's own hash of it, which takes a tenth of the time: 64 bits
        under a random key, of a text that whoever does not know the API key in it cannot aim at.
        """
        mark = hash(start)
        if mark == self.mark:
            return self.head
        head = request_header_cache.known.get(sha256(start).digest())
        if head is not None:
            self.mark, self.head = mark, head
        return head

    def _count_framing(self, size: int) -> None:
        """Chunks may have extensions and a trailer, but not without end: what brings nothing of the body is limited."""
        cycle: HttpExchange | None = self.cycle  # type: ignore[assignment]
        if cycle is None or not cycle.more_body:
            return
        if cycle.received != cycle.counted:
            cycle.counted = cycle.received
            self.header_size = 0
            return
        self.header_size += size
        if self.header_size > self.timeouts.header_bytes:
            self.refuse(_header_too_large(self.timeouts))

    def _free(self) -> bool:
        """Whether the next request can be carried out at once."""
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is None or cycle.response_complete

    def _repeat(self, head: request_header_cache.CachedHeader, data: bytes, end: int) -> None:
        """Carry out a request whose header, the first `end` bytes of `data`, came before."""
        self.began = self.heard
        self.expect_100_continue = False
        scope = head.scope.copy()
        self.cycle = cycle = self._cycle(scope, keep_alive=True)
        cycle.route_match = head.route_match
        cycle.body = data[end:]  # type: ignore[assignment]
        cycle.received = head.length
        cycle.more_body = False
        self._start(cycle)

    def _cycle(self, scope: dict[str, Any], *, keep_alive: bool) -> HttpExchange:
        """A cycle for the request of `scope`, to which what belongs to this connection is added."""
        cycle = HttpExchange(self, scope, keep_alive=keep_alive, expect=self.expect_100_continue)
        cycle.defaults = self._default_fields()
        scope["server"] = self.server
        scope["client"] = self.client
        scope["state"] = self.app_state.copy()
        scope["extensions"] = {"gathernd": cycle}
        return cycle

    def _feed(self, data: bytes) -> None:
        """Feed the parser. Nobody takes an upgrade here, and yet the parser skips the body of a request that offers one
        (as Java's HTTP client does by default): such a header is fed once more, without the offer.
        """
        while True:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as offer:
                data = self._header_without_offer() + data[offer.args[0] :]
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
            else:
                return

    def _header_without_offer(self) -> bytes:
        lines = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())]
        for name, value in self.headers:
            if name == b"connection":
                tokens = [token for token in value.split(b",") if token.strip().lower() != b"upgrade"]
                lines.append(b"connection:" + b",".join(tokens))
            elif name != b"upgrade":
                lines.append(b"%b: %b" % (name, value))
        return b"\r\n".join((*lines, b"", b""))

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client sends no more: what has arrived whole is answered, the connection closes with the last answer.

        True keeps it open until then. With TLS an end of one direction is the end of both, as asyncio has it: the
        client gets what was answered by now.
        """
        deliver()
        if self.refused or self.scheme == "https":
            return False
        self.in_header = False
        last: HttpExchange | None = self.cycle  # type: ignore[assignment]
        if last is not None and last.more_body and self.pipeline:
            self.pipeline.popleft()  # a request that will never be whole, behind others that are
            last = self.pipeline[0][0] if self.pipeline else self.running  # type: ignore[assignment]
            self.cycle = last
        if last is None or last.more_body or last.response_complete:
            return False
        last.keep_alive = False
        self.loop.call_later(_PROBE_S, self._probe, 2 * _PROBE_S)
        return True

    def _probe(self, interval: float) -> None:
        """Find out whether a client that sends no more still reads, while its request waits for a thread.

        One that has closed its connection looks the same until it is sent something, which it answers with a reset. So
        it is sent `100 Continue`, which every client of HTTP/1.1 takes and drops.
        """
        running = self.running
        if self.transport.is_closing() or running is None or running.response_complete:
            return
        if running.waiting is not None and not running.response_started and running.scope["http_version"] == "1.1":
            connection = self.transport.get_extra_info("socket")
            if connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _TCP_CLOSE:
                self.transport.abort()
                return
            deliver()
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self.loop.call_later(interval, self._probe, min(2 * interval, _PROBE_MOST_S))

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone: nothing more is written for any of its requests."""
        if self.over and self.limit is not None:
            self.limit.forget(self)
        self._abandon()
        super().connection_lost(exc)

    def _abandon(self) -> None:
        """Whatever runs or waits on this connection has nobody left to answer."""
        for cycle in (self.running, self.cycle, *(waiting for waiting, _ in self.pipeline)):
            if cycle is not None and not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
        self.pipeline.clear()
        if self.running is not None and self.running.waiting is not None:
            self.running.waiting()

    def on_message_begin(self) -> None:
        """A request starts."""
        self.url = b""
        self.expect_100_continue = False
        self.headers = []
        self.in_header = True
        self.between = False
        self.began = self.heard

    def on_headers_complete(self) -> None:
        """The header is whole: judge its size, and make the request's cycle."""
        if self.over:
            self._claim_place()
        headers, url, parser = self.headers, self.url, self.parser
        size = len(url)
        for name, value in headers:
            size += len(name) + len(value)
        if size > self.timeouts.header_bytes:
            raise _header_too_large(self.timeouts)
        if len(headers) > self.timeouts.header_fields:
            raise _too_many_fields(self.timeouts)
        if parser.should_upgrade():
            if parser.get_method() == b"CONNECT":
                raise GatherError("malformed_request", "this is no proxy: CONNECT is not taken")
            return  # see `_feed`
        self.in_header = False
        self.headers = _TRAILER
        version = parser.get_http_version()
        raw_path, query = _split_url(url)
        path = raw_path.decode("ascii")
        scope = {
            "type": "http",
            "asgi": {"version": self.asgi_version, "spec_version": "2.3"},
            "http_version": version,
            "scheme": self.scheme,
            "root_path": "",
            "headers": headers,
            "method": parser.get_method().decode("ascii"),
            "path": unquote(path) if "%" in path else path,
            "raw_path": raw_path,
            "query_string": query,
        }
        free = self._free()
        keep_alive = version != "1.0" and parser.should_keep_alive() and not self.leaving
        self.cycle = cycle = self._cycle(scope, keep_alive=keep_alive)
        if free:
            self.starting = cycle
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((cycle, self.app))

    def _claim_place(self) -> None:
        """Take the place of a connection that has ended meanwhile. Raises overloaded where there is none.

        Whoever looks after the service is answered all the same, and then the connection closes.
        """
        assert self.limit is not None
        if self.limit.admit(self):
            self.over = False
            del self.leaving  # the class's, which holds for all
        elif self.url.partition(b"?")[0] not in ALWAYS_ANSWERED:
            raise self.limit.refusal()

    def _default_fields(self) -> bytes:
        """The server's own header fields (Date) as bytes; uvicorn makes a new list of them every second."""
        fields = self.server_state.default_headers
        if Protocol._defaults[0] is not fields:
            Protocol._defaults = fields, b"".join(b"%b: %b\r\n" % field for field in fields)
        return Protocol._defaults[1]

    def _start(self, cycle: HttpExchange) -> None:
        """Run the application up to its first wait; a task carries on with the rest, if there is one."""
        self.running = cycle
        coroutine: Any = cycle.run_asgi(self.app)
        if not cycle.more_body:
            try:
                waiting = coroutine.send(None)
            except StopIteration:
                return
            coroutine = resumed(coroutine, waiting)
        else:
            cycle.owner = self
        task = self.loop.create_task(coroutine)
        task.add_done_callback(self.tasks.discard)
        self.tasks.add(task)

    def on_body(self, body: bytes) -> None:
        """A piece of the body arrives."""
        cycle: HttpExchange = self.cycle  # type: ignore[assignment]
        cycle.received += len(body)
        if cycle.response_complete:
            self._drop_rest(cycle)
            return
        if cycle.feed(body):
            return
        cycle.body += body
        if len(cycle.body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()
        cycle.message_event.set()

    def read_into(self, cycle: HttpExchange, view: memoryview, taken: Callable[[int], None]) -> None:
        """Read the rest of the body of `cycle`, the request that the parser is at, straight into `view`."""
        self.transport.set_protocol(BodyReader(self, cycle, len(view), view, taken))

    def _drop_rest(self, cycle: HttpExchange) -> None:
        """The rest of this body is for nobody: the parser need not look at it if there is much of it."""
        cycle.body = bytearray()
        for name, value in cycle.scope["headers"]:
            if name == b"content-length" and int(value) - cycle.received >= DIRECT:
                self.transport.set_protocol(BodyReader(self, cycle, int(value) - cycle.received))

    def on_message_complete(self) -> None:
        """The body is whole."""
        if self.in_header:
            return  # see `_feed`
        self.between = True
        self.header_size = -1
        cycle = self.cycle
        cycle.more_body = False
        if not cycle.response_complete:
            cycle.message_event.set()

    def on_response_complete(self) -> None:
        """An answer has been written: start the next request that waits. No timer: `sweep` closes idle connections."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.heard = self.answered = monotonic()
        self.flow.resume_reading()
        if self.pipeline:
            waiting, app = self.pipeline.pop()
            self.running = waiting  # type: ignore[assignment]
            self._start_asgi_task(waiting, app)

    def _should_upgrade(self) -> bool:
        return False

    def refuse(self, error: GatherError) -> None:
        """Answer `error` without the application, and close."""
        deliver()
        self.refused = True
        cycle: RequestResponseCycle | None = self.cycle
        request_id = self._request_id()
        added = b""
        if self.running is not None and not self.running.response_complete:
            self.running.refusal, self.running.refusal_id = error.code, request_id
            added = self.running.added
        else:
            Protocol.count_refusal(error, request_id, self.client[0] if self.client else None)
        self._abandon()
        if self.transport.is_closing():
            return
        if cycle is None or not cycle.response_started or (cycle.response_complete and not cycle.more_body):
            self.transport.write(error_response(error, request_id, self.url, added))
        if self.over and self.transport.can_write_eof():
            # What the client still sends is dropped until `sweep` closes: a reset might overtake the answer.
            self.transport.write_eof()
        else:
            self.transport.close()

    def _request_id(self) -> str:
        """The id of the request that is being read or carried out: its own, if it came with a valid one."""
        running = self.running
        fields: Any = ()
        if self.in_header:
            fields = self.headers
        elif running is not None and not running.response_complete:
            fields = running.scope["headers"]
        given = combined(fields).get(b"x-request-id", b"").decode("latin-1")
        return given if REQUEST_ID.fullmatch(given) else secrets.token_hex(8)

    def quiet(self, now: float, seconds: float) -> bool:
        """Whether no request is under way, its answer has left, and nothing has come for so many seconds."""
        if self.in_header or now - self.heard < seconds or self.transport.is_closing():
            return False
        cycle: RequestResponseCycle | None = self.cycle
        answered = cycle is None or (cycle.response_complete and not cycle.more_body)
        return answered and not self.transport.get_write_buffer_size()

    def idle(self, now: float) -> bool:
        """Whether no request is under way and none has come for too long.

        The rest of a body that was answered before it was whole is read and dropped for a while, so that the client
        comes to read the answer instead of finding the connection reset.
        """
        cycle: RequestResponseCycle | None = self.cycle
        if self.in_header or (cycle is not None and not cycle.response_complete):
            return False
        if cycle is not None and cycle.more_body:
            return now - self.answered > self.timeouts.body
        return now - self.heard > self.timeouts.idle

    def unread(self, now: float) -> bool:
        """Whether the client has been too slow until `now` in reading its answer, which is held in memory meanwhile.

        To be asked once a second: what has been read since is the bytes written less those that still wait.
        """
        left = self.transport.get_write_buffer_size()
        if not left:
            self.reading = None
            return False
        cycle, limits, before = self.running, self.timeouts, self.reading
        read = (0 if cycle is None else cycle.sent) - left
        if before is None or before.cycle is not cycle:
            self.reading = WriteProgress(cycle, now, now, read, read)
            return False
        if read > before.read:
            before = self.reading = before._replace(moved=now, read=read)
        waited = now - before.began
        too_little = waited > limits.answer and read - before.first < (waited - limits.answer) * limits.answer_rate
        return too_little or now - before.moved > limits.answer

    def cut_off(self) -> None:
        """End a connection whose client does not read; what was to be sent is let go of, by the kernel too."""
        cycle = self.running
        if cycle is not None and not cycle.response_complete:
            cycle.refusal = "request_timeout"
        self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
        self.transport.abort()

    def leave(self, now: float, quiet: float) -> None:
        """Close, unless a request is under way, which then is the last, or one came within `quiet` seconds."""
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is not None and not cycle.response_complete:
            if not cycle.response_started:
                cycle.keep_alive = False
        elif not self.in_header and now - self.heard >= quiet:
            self.transport.close()

    def overdue(self, now: float) -> GatherError | None:
        """What a sender that has been too slow until `now` is told, if it has been."""
        limits = self.timeouts
        cycle: HttpExchange | None = self.cycle  # type: ignore[assignment]
        if self.over and cycle is None and self.limit is not None and now - self.began > IDLE_S:
            return self.limit.refusal()
        if self.in_header:
            if now - self.began > limits.header:
                return GatherError("request_timeout", f"the header did not arrive within {limits.header:g} s")
            return None
        if cycle is None or not cycle.more_body or cycle.response_complete:
            return None
        if cycle.deadline and now > cycle.deadline:
            return GatherError("deadline_exceeded", "the body had not arrived when the request's deadline passed")
        if self.flow.read_paused:
            return None
        waited = now - self.began
        if now - self.heard > limits.body:
            return GatherError("request_timeout", f"the body paused for more than {limits.body:g} s")
        if waited > limits.body and cycle.received < (waited - limits.body) * limits.rate:
            return GatherError("request_timeout", f"the body arrived with less than {limits.rate} bytes a second")
        return None


class _Trailer(list[tuple[bytes, bytes]]):
    """Takes the fields of a trailer, which follow the last chunk, and keeps none: they are no part of the header."""

    def append(self, field: tuple[bytes, bytes]) -> None:
        """Drop the field."""


_TRAILER: Final = _Trailer()


def _split_url(url: bytes) -> tuple[bytes, bytes]:
    """Path and query of a request target, which is a path in all but requests to proxies. Raises malformed_request."""
    if url[:1] == b"/" and b"#" not in url and url.isascii():
        path, _, query = url.partition(b"?")
        return path, query
    if url == b"*":
        return url, b""
    try:
        parsed = httptools.parse_url(url)
        (parsed.path or b"").decode("ascii")
    except (httptools.HttpParserInvalidURLError, UnicodeDecodeError):
        raise GatherError("malformed_request", "the target of the request is neither a path nor an address") from None
    return parsed.path or b"/", parsed.query or b""


def _bad_framing(error: Exception, cause: BaseException | None) -> GatherError:
    if isinstance(error, httptools.HttpParserCallbackError):
        logger.error("a request could not be read", exc_info=cause)
        return GatherError("internal", "the service failed; its log says how")
    return GatherError("malformed_request", f"this is not a valid HTTP/1.1 request: {error}")


def _header_too_large(limits: Timeouts) -> GatherError:
    return GatherError(
        "header_too_large",
        f"the header has more than {limits.header_bytes} bytes",
        facts={"limit": "header_bytes", "maximum": limits.header_bytes},
    )


def _too_many_fields(limits: Timeouts) -> GatherError:
    return GatherError(
        "header_too_large",
        f"the header has more than {limits.header_fields} fields",
        facts={"limit": "header_fields", "maximum": limits.header_fields},
    )


def error_response(error: GatherError, request_id: str, url: bytes = b"", added: bytes = b"") -> bytes:
    """A whole HTTP response for a request that the application did not answer.

    `url` is as much of its URL as is known, `added` are header lines of the application's (see
    `HttpExchange.add_fields`).
    """
    content_type, body = error_body(error, request_id, url.partition(b"?")[0].decode("latin-1"))
    return b"".join(
        (
            STATUS_LINE[STATUS[error.code]],
            *(b"%b: %b\r\n" % field for field in problem_headers(error)),
            b"content-type: ",
            content_type,
            b"\r\ncontent-length: %d\r\nx-request-id: %b\r\n" % (len(body), request_id.encode()),
            added,
            b"server-timing: parse;dur=0\r\nconnection: close\r\n\r\n",
            body,
        )
    )


async def sweep(connections: set[Any], interval: float = 1.0) -> None:
    """Until cancelled, every `interval` seconds refuse slow senders, cut off slow readers, close idle connections."""
    while True:
        await asyncio.sleep(interval)
        now = monotonic()
        for connection in list(connections):
            if not isinstance(connection, Protocol):
                continue
            if connection.unread(now):
                connection.cut_off()
            elif not connection.refused:
                error = connection.overdue(now)
                if error is not None:
                    connection.refuse(error)
                elif connection.idle(now):
                    connection.transport.close()
            else:
                connection.transport.close()
