"""One request and its response: the header's fields, the request's state, and the functions that send the response.

Every response passes through `RequestContext`, so that each carries Server-Timing and X-Request-ID.
`app.api.request_body` reads the body.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Final, TypeAlias
from urllib.parse import unquote_to_bytes

from app.api.error_responses import render_error
from app.api.route_rows.operation import Plane, Route
from app.bounded_cache import BoundedCache
from app.dispatch.admission_control import Admission
from app.errors import Code, GatherError
from app.memory.budget import MemoryReservation
from app.requests.split_query_string import read_query
from app.security.api_keys import key_digest
from app.server import tls
from app.server.header_fields import SECRETS, combine_repeated, find_repeated_single
from app.server.http_exchange import HttpExchange
from app.telemetry.increments import HEADER_TEMPLATE
from app.telemetry.request_id import COUNTER
from app.telemetry.request_metrics import Metrics
from app.telemetry.served_request import ServedRequest
from app.telemetry.tensor_change_log import Change
from app.tensors.buffer_type import Buffer

Field = tuple[bytes, bytes]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Handler: TypeAlias = "Callable[[RequestContext], Awaitable[None]]"

AT_ONCE: Final = 1 << 18
"""Responses of up to this many bytes are written at once, however slowly the client reads."""
_WRITTEN_IN_A_TURN: Final = 1 << 19
"""Minimum number of bytes of a longer response that are written before other requests get a turn on the event loop.

The operating system copies this many bytes in 0.1 to 0.2 ms.
"""
_MOST_TURNS: Final = 4
"""Maximum number of turns for writing a response. Each turn may wait for one turn of every other long response."""
_CLOSE: Final = (b"connection", b"close")
_LINES: Final[BoundedCache[tuple[Field, ...], bytes]] = BoundedCache(256)
"""Cache of responses' header lines, because gathers from one table repeat them."""


@dataclass(frozen=True, slots=True, eq=False)
class RouteMatch:
    """The route and handler for a header; a gather's match is cached for requests with the same header.

    `plane` is the handler's plane; refused requests are on the control plane. `parameters` are the path segments that
    match the template's braces. `keys_version` is the version of the API keys against which `credential` was checked,
    or None before that check. `fields` are added to every response.
    """

    headers: dict[bytes, bytes]
    route: Route
    parameters: tuple[str, ...]
    plane: Plane
    handler: Handler
    keys_version: object
    credential: bytes | None
    fields: Sequence[Field] = ()


class RequestContext(ServedRequest):
    """The state of one request. The names in `headers` are lowercase; `code` is the code of its error, if any.

    `credential` is the SHA-256 of the request's API key, b"" if the Authorization field has another form, or None if
    there is no such field. The field itself appears in neither `headers` nor `scope`. `repeated` is the name of a field
    that occurs more than once although its value is not a list. `route_match` is set once the route is found. A handler
    sets `changes` to its changes before it responds, so that each change is logged even if the caller never receives
    the response.
    """

    exchange: HttpExchange
    headers: dict[bytes, bytes]
    started = False
    repeated: bytes | None = None
    credential: bytes | None = None

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, admission: Admission, deadline: float, metrics: Metrics
    ) -> None:
        self.exchange = exchange = scope["extensions"]["gathernd"]
        self.code: Code | None = None
        self.changes: Sequence[Change] = ()
        now = perf_counter()
        super().__init__(now, now + deadline, MemoryReservation(admission.budget), exchange)
        self.receive = receive
        self.sender = send
        self.admission = admission
        self.metrics = metrics
        self.method = scope["method"]
        self.path = scope["path"]
        self.query: bytes = scope["query_string"]
        self.number = next(COUNTER)
        self.route_match: RouteMatch | None = exchange.route_match
        if self.route_match is None:
            self._read_header(scope["headers"])
        else:
            self.headers = self.route_match.headers

    def _read_header(self, sent: Sequence[tuple[bytes, bytes]]) -> None:
        """Read the fields of an uncached header, and remove the fields that hold secrets."""
        self.headers = headers = dict(sent)
        if len(headers) != len(sent):
            self.headers = headers = combine_repeated(sent)
            self.repeated = find_repeated_single(sent)
        if not SECRETS.isdisjoint(headers):
            authorization = headers.get(b"authorization")
            if authorization is not None:
                self.credential = key_digest(authorization)
            self.headers = headers = {name: value for name, value in headers.items() if name not in SECRETS}
            self.scope["headers"] = [field for field in sent if field[0] not in SECRETS]
        raw = self.scope["raw_path"]
        if b"%" in raw:
            self.path = self.scope["path"] = decoded_path(raw)
        self.identify()

    @property
    def scope(self) -> Scope:
        """The request's ASGI scope."""
        scope: Scope = self.exchange.scope  # type: ignore[assignment]
        return scope

    @property
    def parameters(self) -> tuple[str, ...]:
        """The path segments that match the braces in the route's template."""
        assert self.route_match is not None
        return self.route_match.parameters

    def query_fields(self) -> dict[str, str]:
        """Return the query fields by name. Raises invalid_field for a field that the operation does not accept."""
        assert self.route_match is not None
        operation = self.route_match.route.operation(self.method)
        return read_query(self.query, () if operation is None else operation.query)

    @property
    def sent_key(self) -> bytes | None:
        """The request's `credential`, whether or not the header was cached."""
        return self.credential if self.route_match is None else self.route_match.credential

    def content_length(self) -> int | None:
        """Return the declared length of the body, or None."""
        declared = self.headers.get(b"content-length")
        return int(declared) if declared is not None and declared.isdigit() else None

    def send_at_once(
        self, status: int, content_type: bytes, pieces: Sequence[Buffer], extra: tuple[Field, ...] = ()
    ) -> bool:
        """Respond with a short body. Returns False, and sends nothing, if the client must first read earlier bytes.

        Also returns False for bodies over AT_ONCE bytes, for HEAD, and for responses that close the connection.
        """
        exchange, size = self.exchange, sum(map(len, pieces))
        if size > AT_ONCE or self.method == "HEAD" or _CLOSE in extra or not exchange.ready():
            return False
        self.started = True
        self.status = status
        if self.gathered and self.given_id is None and self.code is None and self.metrics.count_answered(self, size):
            own = HEADER_TEMPLATE  # the usual case for a gather
        else:
            own = b"x-request-id: %b\r\nserver-timing: %b\r\n" % (self.request_id.encode(), self.server_timing())
        fields = b"content-type: %b\r\ncontent-length: %d\r\n%b" % (content_type, size, own)
        if extra:
            lines = _LINES.get(extra)
            if lines is None:
                lines = _LINES[extra] = b"".join(b"%b: %b\r\n" % field for field in extra)
            fields += lines
        exchange.respond(status, fields, pieces, size)
        return True

    async def send(self, status: int, content_type: bytes, body: bytes | Sequence[Buffer], *extra: Field) -> None:
        """Respond with a whole body; its pieces are not copied.

        Returns only when nearly all of a large body has been sent, so that its bytes stay charged while they are in
        memory, even if the client reads slowly.
        """
        pieces = (body,) if isinstance(body, bytes) else body
        if self.send_at_once(status, content_type, pieces, extra):
            return
        size = sum(map(len, pieces))
        self.admission.body_reads.begin_answer(self.memory)
        await self.begin_answer(status, (b"content-type", content_type), (b"content-length", b"%d" % size), *extra)
        if size <= AT_ONCE:
            await self.end_answer(b"".join(pieces))
            return
        turn = max(_WRITTEN_IN_A_TURN, -(-size // _MOST_TURNS))
        step = tls.WRITE_BYTES if self.scope["scheme"] == "https" else turn
        written = 0
        for piece in pieces:
            view = memoryview(piece)
            for start in range(0, len(view), step):
                if written >= turn:
                    await asyncio.sleep(0)  # other requests get a turn
                    written = 0
                part = piece if len(view) <= step else view[start : start + step]
                await self.send_piece(part)
                written += len(part)
        await self.end_answer()

    async def begin_answer(self, status: int, *fields: Field) -> None:
        """Send the header of a response; `send_piece` and `end_answer` then send the body."""
        self.started = True
        self.status = status
        own = (b"x-request-id", self.request_id.encode()), (b"server-timing", self.server_timing())
        await self.sender({"type": "http.response.start", "status": status, "headers": [*own, *fields]})

    async def send_piece(self, piece: Buffer) -> None:
        """Send a piece of the body."""
        await self.sender({"type": "http.response.body", "body": piece, "more_body": True})

    async def end_answer(self, piece: bytes = b"") -> None:
        """Send the last piece of the body."""
        await self.sender({"type": "http.response.body", "body": piece})

    async def send_empty(self, status: int, *fields: Field) -> None:
        """Respond without a body (204)."""
        await self.begin_answer(status, *fields)
        await self.end_answer()

    async def send_error(self, error: GatherError, *extra: Field) -> None:
        """Respond with the error body of `error`."""
        self.code = error.code
        made = render_error(error, self.request_id, self.path, self.headers.get(b"accept", b""))
        await self.send(made.status, made.content_type, made.body, *made.fields, *extra)


def decoded_path(raw: bytes) -> str:
    """Decode a path one segment at a time. An encoded slash is part of its segment and stays `%2F`."""
    segments = raw.partition(b"?")[0].split(b"/")
    return "/".join(unquote_to_bytes(segment).decode("utf-8", "replace").replace("/", "%2F") for segment in segments)
