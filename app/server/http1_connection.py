"""One HTTP/1.1 connection: a subclass of uvicorn's httptools protocol, with limits and with shorter ways.

It refuses what ASGI never sees: headers that are too large, bad framing, requests beyond the limit on connections. Slow
senders and readers are found by one sweep a second over all connections (`slow_and_idle_clients`), not by a timer for
each request. The shorter ways are modules of their own: `request_header_cache`, `eager_task`, `body_reader`,
`whole_answer_response` and `write_batch`.

Parser callbacks, pipelining and the end of a connection share one state, so they stay in one class.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from hashlib import sha256
from time import monotonic
from typing import Any, ClassVar, Final
from urllib.parse import unquote

import httptools
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from app.errors import GatherError
from app.server import body_reader, eager_task, half_closed_connections, request_header_cache
from app.server.body_reader import BodyReader
from app.server.connection_limit import SPARE, ConnectionLimit
from app.server.header_fields import combined
from app.server.http_exchange import HttpExchange
from app.server.refusal_response import ErrorRenderer, refusal_response
from app.server.request_target import split_target
from app.server.timed_flow_control import TimedFlowControl
from app.server.timeouts import Timeouts, WriteProgress
from app.server.write_batch import flush
from app.telemetry.request_id import REQUEST_ID, random_id

logger = logging.getLogger("gathernd")


class Http1Connection(HttpToolsProtocol):
    """uvicorn's httptools protocol with limits. `cycle` (uvicorn's name) is the exchange that the parser is at,
    `running` the one that the application works on, `starting` one whose header has just come.

    The class attributes are set once per process, before the server starts: `count_refusal` is called with the error,
    the request id and the caller's address of each request that is refused before the application sees it,
    `render_error` makes the answers of the requests that the server refuses.
    """

    flow: TimedFlowControl
    timeouts: ClassVar[Timeouts] = Timeouts(10.0, 10.0, 1024, 65536, 100)
    count_refusal: ClassVar[Callable[[GatherError, str, str | None], None]]
    render_error: ClassVar[ErrorRenderer]
    limit: ClassVar[ConnectionLimit | None] = None
    leaving: bool = False
    """Whether each answer is the last of its connection: of this one, or set on the class, of all."""
    _defaults: ClassVar[tuple[object, bytes]] = (None, b"")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.in_header = False
        self.header_size = 0
        self.at_request_start = True
        self.request_began = monotonic()
        self.last_received = self.last_answered = self.request_began
        self.refused = False
        self.url = b""
        self.starting: HttpExchange | None = None
        self.running: HttpExchange | None = None
        self.write_progress: WriteProgress | None = None
        self.beyond_limit = False
        self.last_header_hash = 0
        self.last_header: request_header_cache.CachedHeader | None = None
        self.refusal_to_send = b""
        """The answer to what follows the requests that came whole; it leaves behind their answers."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A connection is open: find room for it, or refuse it."""
        super().connection_made(transport)
        self.flow = TimedFlowControl(transport)
        limit = self.limit
        if limit is None or limit.admit(self):
            return
        self.beyond_limit = self.leaving = True
        if len(limit.beyond) > SPARE:
            self.beyond_limit = False
            limit.forget(self)
            self.refuse(limit.refusal())

    def data_received(self, data: bytes) -> None:
        """Feed the parser, start the request that it completes, refuse what can never become one."""
        if self.refused:
            return
        self.last_received = monotonic()
        end = data.find(b"\r\n\r\n", 0, request_header_cache.LARGEST) + 4 if self.at_request_start else 0
        if end > 4:
            header = data[:end]
            hashed = request_header_cache.hashed
            cached = self._cached_by_hash(header) if hashed else request_header_cache.known.get(header)
            if cached is not None and len(data) - end == cached.length and self._can_start() and not self.leaving:
                self._start_cached(cached, data, end)
                return
        try:
            self._feed(data)
        except httptools.HttpParserError as error:
            cause = error.__context__
            if self.starting is not None and not self.starting.more_body:
                # The request before the fault is whole, and is answered.
                exchange, self.starting = self.starting, None
                eager_task.start(self, exchange)
            self.refuse(cause if isinstance(cause, GatherError) else _bad_framing(error, cause))
            return
        if self.starting is not None:
            exchange, self.starting = self.starting, None
            eager_task.start(self, exchange)
            received, route_match = exchange.received, exchange.route_match
            if end > 4 and route_match is not None and exchange.keep_alive and received == len(data) - end:
                scope: dict[str, Any] = exchange.scope  # type: ignore[assignment]
                request_header_cache.remember(data[:end], scope, received, route_match, secret=exchange.secret)
        elif self.in_header:
            # What came with the end of another request is not counted: how much of that is header is not known.
            self.header_size += len(data) if self.header_size >= 0 else 1
            if self.header_size > self.timeouts.header_bytes:
                self.refuse(_header_too_large(self.timeouts))
        else:
            self._count_framing(len(data))

    def _cached_by_hash(self, header: bytes) -> request_header_cache.CachedHeader | None:
        """The cached header of these bytes, where headers are kept by their SHA-256.

        The last one of this connection is recognised by Python's own hash, which takes a tenth of the time: 64 bits
        under a random key, of a text that holds an API key, so that nobody who does not know that key can make another
        text of the same hash.
        """
        own_hash = hash(header)
        if own_hash == self.last_header_hash:
            return self.last_header
        cached = request_header_cache.known.get(sha256(header).digest())
        if cached is not None:
            self.last_header_hash, self.last_header = own_hash, cached
        return cached

    def _count_framing(self, size: int) -> None:
        """Limit the bytes that bring nothing of a body: the extensions of chunks, and the trailer."""
        exchange: HttpExchange | None = self.cycle  # type: ignore[assignment]
        if exchange is None or not exchange.more_body:
            return
        if exchange.received != exchange.counted:
            exchange.counted = exchange.received
            self.header_size = 0
            return
        self.header_size += size
        if self.header_size > self.timeouts.header_bytes:
            self.refuse(_header_too_large(self.timeouts))

    def _can_start(self) -> bool:
        """Whether the next request can be carried out at once."""
        exchange: RequestResponseCycle | None = self.cycle
        return exchange is None or exchange.response_complete

    def _start_cached(self, cached: request_header_cache.CachedHeader, data: bytes, end: int) -> None:
        """Carry out a request whose header, the first `end` bytes of `data`, is cached."""
        self.request_began = self.last_received
        self.expect_100_continue = False
        scope = cached.scope.copy()
        self.cycle = exchange = self._exchange(scope, keep_alive=True)
        exchange.route_match = cached.route_match
        exchange.body = data[end:]  # type: ignore[assignment]
        exchange.received = cached.length
        exchange.more_body = False
        eager_task.start(self, exchange)

    def _exchange(self, scope: dict[str, Any], *, keep_alive: bool) -> HttpExchange:
        """An exchange for the request of `scope`, to which the connection's own entries are added."""
        exchange = HttpExchange(self, scope, keep_alive=keep_alive, expect=self.expect_100_continue)
        exchange.defaults = self._default_fields()
        scope["server"] = self.server
        scope["scheme"] = self.scheme
        scope["client"] = self.client
        scope["state"] = self.app_state.copy()
        scope["extensions"] = {"gathernd": exchange}
        return exchange

    def _feed(self, data: bytes) -> None:
        """Feed the parser. No upgrade is accepted here, and yet the parser skips the body of a request that offers one
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
        flush()
        if self.scheme == "https" or (self.refused and not self.refusal_to_send):
            return False
        last = self._forget_unfinished()
        if last is None:
            return False
        if not self.refused:  # else the error is the last answer
            last.keep_alive = False
        half_closed_connections.watch(self)
        return True

    def _forget_unfinished(self) -> HttpExchange | None:
        """Of a connection from which no more is taken, forget the request that is not whole: the last one that is, if
        it is not answered yet.
        """
        self.in_header = False
        last: HttpExchange | None = self.cycle  # type: ignore[assignment]
        if last is not None and last.more_body and self.pipeline:
            self.pipeline.popleft()  # which is `last`: the requests that wait are before it
            last = self.pipeline[0][0] if self.pipeline else self.running  # type: ignore[assignment]
            self.cycle = last
        return None if last is None or last.more_body or last.response_complete or last.disconnected else last

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone: nothing more is written for any of its requests."""
        if self.beyond_limit and self.limit is not None:
            self.limit.forget(self)
        self._abandon()
        super().connection_lost(exc)

    def _abandon(self) -> None:
        """Mark all requests of this connection as disconnected: their answers would reach nobody."""
        for exchange in (self.running, self.cycle, *(waiting for waiting, _ in self.pipeline)):
            if exchange is not None and not exchange.response_complete:
                exchange.disconnected = True
                exchange.message_event.set()
        self.pipeline.clear()
        if self.running is not None and self.running.on_disconnect is not None:
            self.running.on_disconnect()

    def on_message_begin(self) -> None:
        """A request starts."""
        self.url = b""
        self.expect_100_continue = False
        self.headers = []
        self.in_header = True
        self.at_request_start = False
        self.request_began = self.last_received

    def on_headers_complete(self) -> None:
        """The header is whole: check its size, and make the request's exchange."""
        if self.beyond_limit:
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
        raw_path, query = split_target(url)
        path = raw_path.decode("ascii")
        scope = {
            "type": "http",
            "asgi": {"version": self.asgi_version, "spec_version": "2.3"},
            "http_version": version,
            "root_path": "",
            "headers": headers,
            "method": parser.get_method().decode("ascii"),
            "path": unquote(path) if "%" in path else path,
            "raw_path": raw_path,
            "query_string": query,
        }
        free = self._can_start()
        keep_alive = version != "1.0" and parser.should_keep_alive() and not self.leaving
        self.cycle = exchange = self._exchange(scope, keep_alive=keep_alive)
        if free:
            self.starting = exchange
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((exchange, self.app))

    def _claim_place(self) -> None:
        """Take the place of a connection that has ended meanwhile. Raises overloaded where there is none.

        Health checks and scrapers are answered all the same, and then the connection closes.
        """
        assert self.limit is not None
        if self.limit.admit(self):
            self.beyond_limit = False
            del self.leaving  # the class's, which holds for all
        elif self.url.partition(b"?")[0] not in self.limit.always_answered:
            raise self.limit.refusal()

    def _default_fields(self) -> bytes:
        """The server's own header fields (Date) as bytes; uvicorn makes a new list of them every second."""
        fields = self.server_state.default_headers
        if Http1Connection._defaults[0] is not fields:
            Http1Connection._defaults = fields, b"".join(b"%b: %b\r\n" % field for field in fields)
        return Http1Connection._defaults[1]

    def on_body(self, body: bytes) -> None:
        """A piece of the body arrives."""
        exchange: HttpExchange = self.cycle  # type: ignore[assignment]
        exchange.received += len(body)
        if exchange.response_complete:
            self._drop_rest(exchange)
            return
        if exchange.feed(body):
            return
        exchange.body += body
        if len(exchange.body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()
        exchange.message_event.set()

    def read_into(self, exchange: HttpExchange, view: memoryview, taken: Callable[[int], None]) -> None:
        """Read the rest of the body of `exchange`, the request that the parser is at, straight into `view`."""
        self.transport.set_protocol(BodyReader(self, exchange, len(view), view, taken))

    def _drop_rest(self, exchange: HttpExchange) -> None:
        """Drop the rest of the body of a request that is answered; much of it without the parser."""
        exchange.body = bytearray()
        for name, value in exchange.scope["headers"]:
            if name == b"content-length" and int(value) - exchange.received >= body_reader.MIN_DIRECT_BYTES:
                self.transport.set_protocol(BodyReader(self, exchange, int(value) - exchange.received))

    def on_message_complete(self) -> None:
        """The body is whole."""
        if self.in_header:
            return  # see `_feed`
        self.at_request_start = True
        self.header_size = -1
        exchange = self.cycle
        exchange.more_body = False
        if not exchange.response_complete:
            exchange.message_event.set()

    def on_response_complete(self) -> None:
        """An answer has been written: start the next request that waits, or answer what came last and is refused."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.last_received = self.last_answered = monotonic()
        if self.flow.read_paused:
            self.request_began = self.last_received  # what comes of a request from now on could not come before
        self.flow.resume_reading()
        if self.pipeline:
            waiting, app = self.pipeline.pop()
            self.running = waiting  # type: ignore[assignment]
            self._start_asgi_task(waiting, app)
        elif self.refusal_to_send:
            flush()
            self.transport.write(self.refusal_to_send)
            self.transport.close()

    def refuse(self, error: GatherError) -> None:
        """Answer `error` without the application, behind the answers to what came whole before, and close.

        It is counted now; where one of those answers is the last of the connection, or breaks off, it never leaves.
        """
        flush()
        self.refused = True
        request_id = self._request_id()
        path = self.url.partition(b"?")[0].decode("latin-1")
        added = b""
        if self._forget_unfinished() is not None:
            Http1Connection.count_refusal(error, request_id, self.client[0] if self.client else None)
            self.refusal_to_send = refusal_response(Http1Connection.render_error(error, request_id, path), request_id)
            self.flow.resume_reading()  # what still comes is dropped: left unread, it would reset the connection
            return
        exchange: RequestResponseCycle | None = self.cycle
        if self.running is not None and not self.running.response_complete:
            self.running.refusal, self.running.refusal_id = error.code, request_id
            added = self.running.added
        else:
            Http1Connection.count_refusal(error, request_id, self.client[0] if self.client else None)
        self._abandon()
        if self.transport.is_closing():
            return
        if exchange is None or not exchange.response_started or (exchange.response_complete and not exchange.more_body):
            rendered = Http1Connection.render_error(error, request_id, path)
            self.transport.write(refusal_response(rendered, request_id, added))
        if self.beyond_limit and self.transport.can_write_eof():
            # What the client still sends is dropped until the sweep closes: a reset might overtake the answer.
            self.transport.write_eof()
        else:
            self.transport.close()

    def _request_id(self) -> str:
        """The id of the request that is being read: its own, if it came with a valid one."""
        exchange: HttpExchange | None = self.cycle  # type: ignore[assignment]
        fields: Any = ()
        if self.in_header:
            fields = self.headers
        elif exchange is not None and exchange.more_body:
            fields = exchange.scope["headers"]
        given = combined(fields).get(b"x-request-id", b"").decode("latin-1")
        return given if REQUEST_ID.fullmatch(given) else random_id()

    def is_idle(self, now: float, seconds: float) -> bool:
        """Whether no request is under way, its answer has left, and nothing has come for so many seconds."""
        if self.in_header or now - self.last_received < seconds or self.transport.is_closing():
            return False
        exchange: RequestResponseCycle | None = self.cycle
        answered = exchange is None or (exchange.response_complete and not exchange.more_body)
        return answered and not self.transport.get_write_buffer_size()

    def close_when_quiet(self, now: float, quiet: float) -> None:
        """Close, unless a request is under way, which then is the last, or one came within `quiet` seconds."""
        exchange: RequestResponseCycle | None = self.cycle
        if exchange is not None and not exchange.response_complete:
            if not exchange.response_started:
                exchange.keep_alive = False
        elif not self.in_header and now - self.last_received >= quiet:
            self.transport.close()


class _Trailer(list[tuple[bytes, bytes]]):
    """Takes the fields of a trailer, which follow the last chunk, and keeps none: they are no part of the header."""

    def append(self, field: tuple[bytes, bytes]) -> None:
        """Drop the field."""


_TRAILER: Final = _Trailer()


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
