"""One HTTP/1.1 connection: a subclass of uvicorn's httptools protocol, with limits and shortcuts.

It refuses requests before ASGI sees them: headers that are too large, invalid framing, and requests beyond the limit on
connections. A sweep over all connections every second finds slow senders and readers (`slow_and_idle_clients`), so
requests need no timers. The shortcuts are separate modules: `request_header_cache`, `start_request`, `body_reader` and
`write_batch`.

Requests are parsed one at a time. The bytes after a request wait until the request is answered and the event loop has
time (`connection_input`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from time import monotonic
from typing import Any, ClassVar, Final

import httptools
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT

from app.errors import GatherError
from app.memory.budget import Budget
from app.memory.error_tracebacks import drop_tracebacks
from app.server import client_presence, connection_input, request_header_cache
from app.server.body_reader import BodyReader
from app.server.connection_input import EMPTY_LINE, PIECE_BYTES, UNCHARGED_BYTES, TimedFlowControl, UnparsedInput
from app.server.connection_interface import Connection
from app.server.connection_limit import SPARE, ConnectionLimit
from app.server.header_fields import TRAILER, check_transfer_coding, combine_repeated, header_too_large, too_many_fields
from app.server.http_exchange import MIN_DIRECT_BYTES, HttpExchange
from app.server.lingering_close import MOST_BYTES, LingeringClose
from app.server.raw_error_response import ErrorRenderer, raw_error_response
from app.server.request_scope import check_size, header_without_offer, request_scope
from app.server.start_request import start_request
from app.server.write_batch import flush
from app.settings import Settings
from app.telemetry.request_id import REQUEST_ID, random_id

logger = logging.getLogger("gathernd")

_FIELD_BYTES: Final = 200
"""Bytes of Python objects per header field, in addition to its text."""


class Http1Connection(Connection):
    """uvicorn's httptools protocol with limits.

                              bytes                header whole               answer written
        [no place] --> idle --------> in the header -----------> answering ------------------> idle
            |           | |                 |                     |     |
            |           | +--- cached header, body whole ---------^     | the last answer, or a refusal
            |           | too long idle     | too slow or large,        v
            |           v                   | or broken             lingering --> closed
            +--------> closed               +-----------------------^

    The states:

    - No place: `beyond_limit` is set until a request arrives and finds room under the limit.
    - Idle: `at_request_start` is set.
    - In the header: `in_header` is set.
    - Answering: `cycle` (uvicorn's name) is the exchange of the last request, not complete yet. `starting` is the same
      exchange until the application has begun to run. While the body arrives (`more_body`), a `BodyReader` may be the
      transport's protocol in place of the connection.
    - Lingering: `refused` is set, and a `LingeringClose` is the transport's protocol.

    If `leaving` is set, the connection closes after its next response. `waiting` holds the bytes that the parser has
    not seen yet. `length` is the length of the request's body, or None if it is chunked.

    The class attributes are set once per process, before the server starts. When a request is refused before the
    application sees it, `count_refusal` is called with the error, the request id and the caller's address.
    `render_error` renders the responses to requests that the server refuses. `budget` is charged with the bytes that
    connections hold outside of requests.
    """

    __slots__ = (  # uvicorn's attributes fill the 30 entries that CPython finds quickly
        *("at_request_start", "beyond_limit", "feeding", "header_size", "header_weight", "in_header", "known_headers"),
        *("last_answered", "last_received", "length", "lingering", "refused", "request_began", "starting", "waiting"),
    )

    cycle: HttpExchange
    settings: ClassVar[Settings]
    count_refusal: ClassVar[Callable[[GatherError, str, str | None], None]]
    render_error: ClassVar[ErrorRenderer]
    limit: ClassVar[ConnectionLimit]
    budget: ClassVar[Budget]
    leaving: bool = False
    """Whether each response closes its connection. This is set on an instance, or on the class for all connections."""
    _defaults: ClassVar[tuple[object, bytes]] = (None, b"")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.in_header = False
        self.headers = []
        self.header_size = 0
        self.at_request_start = True
        self.request_began = monotonic()
        self.last_received = self.last_answered = self.request_began
        self.refused = False
        self.url = b""
        self.starting: HttpExchange | None = None
        self.beyond_limit = False
        self.lingering: LingeringClose | None = None
        self.known_headers = request_header_cache.Lookup()
        self.waiting = UnparsedInput()
        self.length: int | None = 0
        self.header_weight = 0
        self.feeding = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Admit a new connection, or refuse it."""
        super().connection_made(transport)
        self.flow = TimedFlowControl(transport)
        if self.limit.admit(self):
            return
        self.beyond_limit = self.leaving = True
        if len(self.limit.beyond) > SPARE:
            self.refuse(self.limit.refusal())

    def data_received(self, data: bytes) -> None:
        """Start the request that has arrived, or feed the parser."""
        if self.refused:
            return
        self.last_received = monotonic()
        place = 0
        waiting = self.waiting
        if waiting.data:
            waiting.add(data)
            self._charge()
            return
        uncached = False
        if self.at_request_start:
            found = self._find_cached(data, 0)
            if found is None:
                uncached = True
            else:
                cached, header_end, place = found
                self._start_cached(cached, data[header_end:place])
                if place == len(data):
                    return
        waiting.hold(data, place)
        self._feed_waiting(first=uncached and len(data) <= PIECE_BYTES, uncached=uncached)

    def _feed_waiting(self, *, first: bool, only: bool = False, uncached: bool = False) -> None:
        """Feed the parser one request after another while this turn of the event loop has time.

        Bytes after a request wait until it is answered. If `first` is set, the first request or piece is fed regardless
        of the time; if `only` is set, nothing after that one is fed. `uncached` means that the first header was already
        looked up in the cache and not found.
        """
        if self.feeding or self.parser is None:
            return
        self.feeding = True
        waiting = self.waiting
        try:
            while waiting.place < len(waiting.data) and self._may_feed():
                if not first and (only or not connection_input.has_time()):
                    connection_input.enqueue(self._read_next)
                    break
                first = False
                self._feed_next(uncached)
                uncached = False
        except httptools.HttpParserError as error:
            cause = error.__context__
            refusal = cause if isinstance(cause, GatherError) else _bad_framing(error, cause)
            drop_tracebacks(error)
            self.refuse(refusal)
        finally:
            self.feeding = False
        if self.starting is not None:
            self._start_request()
        if waiting.place < len(waiting.data) and not self.refused and not self.transport.is_closing():
            self.flow.hold()
        elif waiting.data:
            waiting.clear()
            self.flow.release()
        if waiting.charged or self.header_weight or self.in_header or waiting.data:
            self._charge()

    def _read_next(self) -> None:
        """Process one request, or one piece, regardless of the time."""
        self._feed_waiting(first=True, only=True)

    def _may_feed(self) -> bool:
        """Return whether the parser may be fed, which is not the case while a complete request is being answered."""
        exchange: HttpExchange | None = self.cycle
        if self.refused or self.transport.is_closing():
            return False
        return exchange is None or exchange.more_body or exchange.response_complete

    def _feed_next(self, uncached: bool) -> None:
        """Feed the parser the next header and the available part of its body, or the next piece of a chunked body."""
        waiting = self.waiting
        data, place = waiting.data, waiting.place
        begins = self.at_request_start
        if begins and not uncached:
            found = self._find_cached(data, place)
            if found is not None:
                cached, header_end, waiting.place = found
                self._start_cached(cached, data[header_end : waiting.place])
                return
        if begins or self.in_header or self.length is None:
            end = waiting.end_of_piece()
            self._feed(end)
            self._count_framing(end - place)
            if self.refused:
                return
        header_end = end_of_body = waiting.place
        if self.length is not None and not (self.at_request_start or self.in_header) and header_end < len(data):
            exchange = self.cycle
            end_of_body = min(len(data), header_end + self.length - exchange.received)
            self._feed(end_of_body)
        if self.at_request_start and self.starting is not None:
            exchange = self.starting
            self._start_request()
            if begins and exchange.route_match is not None and exchange.keep_alive:
                scope: dict[str, Any] = exchange.scope  # type: ignore[assignment]
                header, length = data[place:header_end], end_of_body - header_end
                if len(header) <= request_header_cache.LARGEST:
                    request_header_cache.remember(header, scope, length, exchange.route_match)

    def _feed(self, end: int) -> None:
        """Feed the parser the waiting bytes up to `end`.

        Upgrades are not accepted. The parser skips the body of any request that offers an upgrade, as Java's HTTP
        client does by default, so this method feeds the header again without the offer.
        """
        try:
            self.parser.feed_data(self.waiting.take(end))
        except httptools.HttpParserUpgrade:
            parser = self.parser
            header = header_without_offer(self.url, self.headers, parser.get_method(), parser.get_http_version())
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
            self.parser.feed_data(header)

    def _start_request(self) -> None:
        """Start the request whose header is complete."""
        exchange, self.starting = self.starting, None
        assert exchange is not None
        start_request(self, exchange)

    def _charge(self) -> None:
        """Charge this connection's waiting bytes and large headers. If there is no room, accept no more input."""
        header = self.header_size + _FIELD_BYTES * len(self.headers) if self.in_header else self.header_weight
        if self.waiting.charge(header, self.budget):
            return
        error = self.budget.overloaded()
        if self._may_feed():
            self.refuse(error)
            return
        # Close after the current response. The client will resend the requests that are dropped here.
        Http1Connection.count_refusal(error, random_id(), self.client[0] if self.client else None)
        self.cycle.keep_alive = False
        self.waiting.clear()

    def _count_framing(self, size: int) -> None:
        """Count `size` bytes that were fed, as header or as body framing (chunk extensions and the trailer).

        Refuses the request as soon as the count is too large, even if the rest has not arrived.
        """
        if self.in_header:
            if len(self.headers) > self.settings.max_header_fields:
                self.refuse(too_many_fields(self.settings))
                return
        else:
            exchange: HttpExchange | None = self.cycle
            if exchange is None or not exchange.more_body or self.length is not None:
                return
            if exchange.received != exchange.counted:
                exchange.counted = exchange.received
                self.header_size = 0
                return
        self.header_size += size
        if self.header_size > self.settings.max_header_bytes:
            self.refuse(header_too_large(self.settings))

    def _find_cached(self, data: bytes, place: int) -> tuple[request_header_cache.CachedHeader, int, int] | None:
        """Look up the header at offset `place` of `data`. Returns the cached header, and where header and body end.

        Returns None if the header is not cached, or if the header or body is incomplete.
        """
        end = data.find(EMPTY_LINE, place, place + request_header_cache.LARGEST) + 4
        if end <= place + 4:
            return None
        cached = self.known_headers.find(data[place:end])
        if cached is None or self.leaving:
            return None
        whole = end + cached.length
        if whole > len(data) or not self._may_feed():
            return None
        return cached, end, whole

    def _start_cached(self, cached: request_header_cache.CachedHeader, body: bytes) -> None:
        """Start a request whose header is cached."""
        self.request_began = self.last_received
        scope = cached.scope.copy()
        self.cycle = exchange = self._exchange(scope, keep_alive=True)
        exchange.route_match = cached.route_match
        exchange.body = body
        exchange.received = cached.length
        exchange.more_body = False
        start_request(self, exchange)

    def _exchange(self, scope: dict[str, Any], *, keep_alive: bool) -> HttpExchange:
        """Create the exchange for the request of `scope`, and add the connection's own entries to `scope`."""
        exchange = HttpExchange(self, scope, keep_alive=keep_alive)
        exchange.defaults = self._default_fields()
        scope["server"] = self.server
        scope["scheme"] = self.scheme
        scope["client"] = self.client
        scope["extensions"] = {"gathernd": exchange}
        return exchange

    def eof_received(self) -> bool:  # type: ignore[override]
        """Handle the end of the client's data: answer complete requests, and close after the last response.

        Returns True to keep the connection open until then. With TLS, the end of one direction ends both, as usual in
        asyncio, and the client gets only what has already been written.
        """
        flush()
        self.in_header = False
        exchange: HttpExchange | None = self.cycle
        if self.scheme == "https" or self.refused or exchange is None:
            return False
        if exchange.more_body or exchange.response_complete or exchange.disconnected:
            return False
        exchange.keep_alive = False
        client_presence.watch(self)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle a disconnect. Nothing more is written for any of the client's requests."""
        if self.beyond_limit:
            self.limit.forget(self)
        if self.lingering is not None:
            self.lingering.forget()
            self.lingering = None
        self._abandon()
        super().connection_lost(exc)

    def _abandon(self) -> None:
        """Mark the request as disconnected and discard the bytes after it, because no response can be delivered."""
        self.waiting.clear()
        self.headers = []
        self.header_size = self.header_weight = 0
        self._charge()
        self.flow.release()
        if self.starting is not None:
            # this entry is part of a reference cycle, which would stay until the next garbage collection
            self.starting.scope.pop("extensions")
            self.starting = self.cycle = None  # type: ignore[assignment]
        exchange: HttpExchange | None = self.cycle
        if exchange is not None and not exchange.response_complete:
            exchange.disconnected = True
            exchange.message_event.set()
            if exchange.on_disconnect is not None:
                exchange.on_disconnect()

    def on_message_begin(self) -> None:
        """Begin a new request."""
        self.url = b""
        self.expect_100_continue = False
        self.headers = []
        self.in_header = True
        self.at_request_start = False
        self.header_size = 0
        self.request_began = self.last_received

    def on_headers_complete(self) -> None:
        """Check the size of the complete header and create the request's exchange."""
        if self.beyond_limit:
            self._claim_place()
        headers, parser = self.headers, self.parser
        size, length = check_size(self.url, headers, self.settings)
        version = parser.get_http_version()
        check_transfer_coding(headers, version)
        if parser.should_upgrade():
            if parser.get_method() == b"CONNECT":
                raise GatherError("malformed_request", "this service is not a proxy and does not accept CONNECT")
            return  # `_feed` feeds the header again without the offer
        self.in_header = False
        self.length = length
        self.header_size = 0
        self.header_weight = size + _FIELD_BYTES * len(headers) if size > UNCHARGED_BYTES else 0
        self.headers = TRAILER
        scope = request_scope(self.url, headers, parser.get_method(), version, self.asgi_version)
        keep_alive = version != "1.0" and parser.should_keep_alive() and not self.leaving
        self.cycle = self.starting = exchange = self._exchange(scope, keep_alive=keep_alive)
        exchange.body = bytearray()
        exchange.waiting_for_100_continue = self.expect_100_continue

    def _claim_place(self) -> None:
        """Claim the slot of a connection that has since ended. Raises overloaded if no slot is free.

        Health checks and scrapers are answered in any case, but without a slot, the connection closes afterwards.
        """
        if self.limit.admit(self):
            self.beyond_limit = False
            del self.leaving  # fall back to the attribute of the class, which applies to all connections
        elif self.url.partition(b"?")[0] not in self.limit.always_answered:
            raise self.limit.refusal()

    def _default_fields(self) -> bytes:
        """Return the server's own header fields (Date) as bytes. uvicorn builds a new list of them every second."""
        fields = self.server_state.default_headers
        if Http1Connection._defaults[0] is not fields:
            Http1Connection._defaults = fields, b"".join(b"%b: %b\r\n" % field for field in fields)
        return Http1Connection._defaults[1]

    def on_body(self, body: bytes) -> None:
        """Append a piece of the body."""
        exchange = self.cycle
        exchange.received += len(body)
        if exchange.response_complete:
            self._drop_rest(exchange)
            return
        exchange.body += body
        if len(exchange.body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()
        exchange.message_event.set()

    def read_into(self, exchange: HttpExchange, view: memoryview, taken: Callable[[int], None]) -> None:
        """Read the next bytes of the body of `exchange`, the request that is being parsed, straight into `view`."""
        reader = self.transport.get_protocol()
        if not isinstance(reader, BodyReader):
            missing = exchange.missing()
            assert missing is not None, "the header says how long the body is"
            reader = BodyReader(self, exchange, missing)
            self.transport.set_protocol(reader)
        reader.fill(view, taken)

    def _drop_rest(self, exchange: HttpExchange) -> None:
        """Discard the rest of an answered request's body. If the rest is large, it bypasses the parser."""
        exchange.body = bytearray()
        missing = exchange.missing()
        if missing is not None and missing >= MIN_DIRECT_BYTES:
            self.transport.set_protocol(BodyReader(self, exchange, missing))

    def on_message_complete(self) -> None:
        """Mark the body as complete."""
        if self.in_header:
            return  # `_feed` feeds the header again without the offer
        self.at_request_start = True
        exchange = self.cycle
        exchange.more_body = False
        if not exchange.response_complete:
            exchange.message_event.set()

    def on_response_complete(self) -> None:
        """Continue with the bytes after a request when its response has been written."""
        self.server_state.total_requests += 1
        self.header_weight = 0
        if self.transport.is_closing():
            return
        if not self.cycle.keep_alive:
            self._close_after_answer()
            return
        self.last_received = self.last_answered = monotonic()
        self.flow.resume_reading()
        if self.feeding:
            return
        if self.waiting.data:
            connection_input.enqueue(self._read_next)
        elif self.waiting.charged:
            self._charge()

    def refuse(self, error: GatherError) -> None:
        """Send the response for `error` instead of the application's response, and close.

        The rest of the request is not processed.
        """
        flush()
        self.refused = True
        request_id = self._request_id()
        path = self.url.partition(b"?")[0].decode("latin-1")
        exchange: HttpExchange | None = self.cycle
        added = b""
        if self.starting is None and exchange is not None and not exchange.response_complete:
            exchange.refusal, exchange.refusal_id = error.code, request_id
            added = exchange.added
        else:
            Http1Connection.count_refusal(error, request_id, self.client[0] if self.client else None)
        self._abandon()
        if self.transport.is_closing():
            return
        if exchange is None or not exchange.response_started or (exchange.response_complete and not exchange.more_body):
            rendered = Http1Connection.render_error(error, request_id, path)
            self.transport.write(raw_error_response(rendered, request_id, added))
        self._linger()

    def _close_after_answer(self) -> None:
        """Close after the last response. Linger if bytes from the client may still be unread."""
        flush()
        exchange = self.cycle
        waiting = self.waiting.left
        missing = exchange.missing() if exchange.more_body else None
        left = MOST_BYTES if missing is None else missing - waiting
        if left <= 0 or (self.at_request_start and not waiting):
            self.transport.close()
        else:
            self._linger(left)

    def _linger(self, left: int = MOST_BYTES) -> None:
        """Discard the waiting bytes and up to `left` more, then close.

        The connection no longer counts towards the limit.
        """
        self.refused = True
        self.waiting.clear()
        self._charge()
        self.flow.release()
        self.flow.resume_reading()
        if self.beyond_limit:
            self.beyond_limit = False
            self.limit.forget(self)
        self.lingering = LingeringClose(self, left)
        self.lingering.begin()

    def _request_id(self) -> str:
        """Return the id of the request that is being read: the client's id if that is valid, or else a random one."""
        exchange: HttpExchange | None = self.cycle
        fields: Any = ()
        if self.in_header:
            fields = self.headers
        elif exchange is not None and exchange.more_body:
            fields = exchange.scope["headers"]
        given = combine_repeated(fields).get(b"x-request-id", b"").decode("latin-1")
        return given if REQUEST_ID.fullmatch(given) else random_id()

    def is_idle(self, now: float, seconds: float) -> bool:
        """Return whether no request is in flight, every response has been sent, and nothing has arrived for `seconds`
        seconds.
        """
        if self.lingering is not None or self.in_header or self.waiting.data or now - self.last_received < seconds:
            return False
        if self.transport.is_closing():
            return False
        exchange: HttpExchange | None = self.cycle
        answered = exchange is None or (exchange.response_complete and not exchange.more_body)
        return answered and not self.transport.get_write_buffer_size()

    def close_when_quiet(self, now: float, quiet: float) -> None:
        """Close unless a request arrived within `quiet` seconds. If one is in flight, close after its response."""
        exchange: HttpExchange | None = self.cycle
        if self.lingering is not None:
            if now - self.last_received >= quiet:
                self.transport.close()
        elif exchange is not None and not exchange.response_complete:
            if not exchange.response_started:
                exchange.keep_alive = False
        elif not self.in_header and not self.waiting.data and now - self.last_received >= quiet:
            self.transport.close()


def _bad_framing(error: Exception, cause: BaseException | None) -> GatherError:
    if isinstance(error, httptools.HttpParserCallbackError):
        logger.error("a request could not be read", exc_info=cause)
        return GatherError("internal", "the service failed; its log says how")
    return GatherError("malformed_request", f"this is not a valid HTTP/1.1 request: {error}")
