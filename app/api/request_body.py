"""Reads request bodies within their limits, charges the memory budget, decompresses, and checks the media type of JSON.

The length of a compressed or chunked body is known only at its end, so `UnknownLengthBody` grows with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf
from time import monotonic, perf_counter
from typing import Any, Final

import numpy as np

from app.api.asgi_request import RequestContext
from app.api.content_codings import inflater
from app.api.error_responses import JSON
from app.api.own_header_fields import TIMEOUT
from app.dispatch.admission_control import SMALL_BODY_BYTES
from app.dispatch.request_thread_pool import ClientGone, RequestThreadPool
from app.errors import GatherError
from app.json_text import lossless_json
from app.json_text.grammar import check_framing
from app.memory.budget import Memory
from app.near_name import near_name
from app.tensors.buffer_type import Buffer

BODY_BYTES: Final = "body_bytes"
_LIMITED: Final = {
    BODY_BYTES: "body",
    "json_bytes": "JSON of the request",
    "message_bytes": "message",
    "small_body_bytes": "body",
    "upload_bytes": "upload",
}
"""What each size limit applies to, by the name of the limit."""
_DOUBLED: Final = 1 << 20
_MOST: Final = 1 << 22
_MOST_JSON: Final = 1 << 14
"""Maximum size in bytes of a JSON body without arrays."""
_FORM: Final = b"application/x-www-form-urlencoded"
_FIX: Final = "Send 'Content-Type: application/json' with JSON in UTF-8; with curl, use -H."


def whole_body(context: RequestContext, limit: int, name: str = BODY_BYTES) -> Buffer | None:
    """Return the body if it arrived in one piece with its header, as most bodies do; else None. Charges the budget.

    May raise any error of `read_body`.
    """
    body = context.exchange.whole_body()
    if body is not None:
        if len(body) > limit:
            raise too_large(limit, name)
        context.memory.charge(len(body))
    return body


async def read_body(context: RequestContext, limit: int, lead: int = 0, name: str = BODY_BYTES) -> Buffer:
    """Read the body as sent, into one block of memory, and charge it to the budget as it arrives.

    A body that arrives in several pieces starts `lead` bytes (modulo 16) after an aligned address, so that arrays at
    known offsets are aligned and need no copy. Raises payload_too_large if the body has more than `limit` bytes, where
    `name` is the limit's name; a declared length is checked before reading. Also raises overloaded and ClientGone.
    """
    body = whole_body(context, limit, name)
    if body is not None:
        return body
    declared = context.content_length()
    if declared is not None and declared > limit:
        raise too_large(limit, name)
    context.admission.admit(declared)
    begun = perf_counter()
    if declared is not None and declared <= SMALL_BODY_BYTES:
        found = await _receive_body(context, declared, limit, lead, name)
    else:
        body_reads = context.admission.body_reads
        patience = context.deadline - begun if TIMEOUT in context.headers else inf
        await body_reads.acquire(context.exchange, declared, patience)
        try:
            found = await _receive_body(context, declared, limit, lead, name)
            body_reads.expect_answer(context.memory, len(found))
        finally:
            body_reads.release(context.exchange)
    # A large request that has arrived is not refused merely because threads are busy. The service's own deadline
    # excludes the time of the transfer; the caller's deadline includes it.
    if len(found) > SMALL_BODY_BYTES:
        context.admitted = True
    if TIMEOUT not in context.headers:
        context.deadline += perf_counter() - begun
    return found


async def _receive_body(context: RequestContext, declared: int | None, limit: int, lead: int, name: str) -> Buffer:
    """Receive the body into memory of the declared size, or into a growing block if no size is declared."""
    if TIMEOUT in context.headers:
        context.exchange.deadline = monotonic() + context.deadline - perf_counter()
    message = await _next_piece(context)
    first: bytes = message["body"]
    if len(first) > limit:
        raise too_large(limit, name)
    if not message["more_body"]:
        context.memory.charge(len(first))
        return first
    if declared is not None:
        context.memory.charge(len(first))
        # Untouched pages take no memory, so a declared body that never arrives costs nothing.
        view: memoryview = np.empty(lead + declared, np.uint8).data[lead:]
        view[: len(first)] = first
        if not await context.exchange.read_into(view[len(first) :], context.memory.charge):
            raise ClientGone
        return view
    grown = UnknownLengthBody(context.memory, limit, lead, name)
    grown.add(first)
    while message["more_body"]:
        message = await _next_piece(context)
        grown.add(message["body"])
    return grown.finish()


async def _next_piece(context: RequestContext) -> Mapping[str, Any]:
    """Return the next ASGI message with a piece of the body. Raises ClientGone."""
    message = await context.receive()
    if message["type"] == "http.disconnect":
        raise ClientGone
    return message


class UnknownLengthBody:
    """Collects bytes in one growing block of memory; charges `memory` before the block grows.

    The body may have at most `limit` bytes; `name` is the name of that limit. The block begins with `lead` bytes that
    are not part of the body.
    """

    def __init__(self, memory: Memory, limit: int, lead: int = 0, name: str = BODY_BYTES) -> None:
        self._memory = memory
        self._limit = limit
        self._name = name
        self._lead = lead
        self._block = np.empty(lead, np.uint8)
        self._size = lead

    def add(self, piece: bytes | bytearray) -> None:
        """Append bytes. Raises payload_too_large above the limit, and any error raised by charging the budget."""
        end = self._size + len(piece)
        room = self._block.size
        if end > room:
            most = self._limit + self._lead
            if end > most:
                raise too_large(self._limit, self._name)
            # Double a small block, and grow a larger one by an eighth, so that the total amount of copying stays linear
            # in the size.
            ahead = room if room < _DOUBLED else min(max(_DOUBLED, room // 8), _MOST)
            grown = min(max(end, room + ahead), most)
            self._memory.charge(grown - room)
            self._resize(grown)
        self._block.data[self._size : end] = piece
        self._size = end

    def finish(self) -> memoryview:
        """Return the complete body, and release the unused part of the charge."""
        room = self._block.size
        self._resize(self._size)
        self._memory.adjust(room, self._size)
        return self._block.data[self._lead :]

    def _resize(self, size: int) -> None:  # separate, so that tests can exclude it from memory traces (NumPy 2.5)
        # Only `finish` returns a view of the block, so no view refers to memory that has moved.
        self._block.resize(size, refcheck=False)


def too_large(maximum: int, name: str = BODY_BYTES) -> GatherError:
    """Return the error for a body larger than `maximum` bytes; `name` is the name of that limit."""
    return GatherError(
        "payload_too_large",
        f"the {_LIMITED[name]} is larger than the limit of {maximum} bytes",
        facts={"limit": name, "maximum": maximum},
    )


async def inflate_in(
    pool: RequestThreadPool, context: RequestContext, body: Buffer, limit: int, lead: int = 0
) -> Buffer:
    """Decompress the body in a thread of `pool`; see `inflate`."""
    encoding = context.headers[b"content-encoding"]
    return await pool.run(lambda: inflate(body, encoding, limit, context.memory, lead), context)


def inflate(body: Buffer, encoding: bytes, limit: int, memory: Memory, lead: int = 0, name: str = BODY_BYTES) -> Buffer:
    """Decompress the body (gzip or deflate, with or without the zlib header).

    The result never exceeds `limit` bytes, and `memory` is charged before they are allocated. `lead` and `name` are as
    in `read_body`. Raises payload_too_large, unsupported_media_type, overloaded, limit_exceeded (see `Inflater`), and
    malformed_request if the stream is damaged, truncated or followed by other bytes.
    """
    stream = inflater(encoding)
    if stream is None:
        return body
    grown = UnknownLengthBody(memory, limit, lead, name)
    for piece in stream.pieces(body):
        grown.add(piece)
    stream.finish()
    return grown.finish()


async def read_json(context: RequestContext, most: int = _MOST_JSON) -> Any:
    """Read and parse a JSON body that has at most `most` bytes and no arrays.

    May raise any error of `read_body` and `inflate`, and malformed_request.
    """
    body = await read_body(context, most, name="small_body_bytes")
    encoding = context.headers.get(b"content-encoding")
    if encoding is not None:
        body = inflate(body, encoding, most, context.memory, name="small_body_bytes")
    check_framing(body, context.memory)
    return lossless_json.loads(bytes(body).decode())


def check_json_type(content_type: bytes, also_read: Iterable[bytes] = ()) -> None:
    """Raise unsupported_media_type unless `content_type` is JSON in UTF-8 or empty.

    `also_read` lists the other media types that the route accepts; it may include JSON.
    """
    kind, _, parameters = content_type.partition(b";")
    kind = kind.strip().lower()
    if kind in (JSON, b""):
        charset = parameters.strip().lower().replace(b'"', b"").replace(b" ", b"")
        if not charset or charset in (b"charset=utf-8", b"charset=utf8") or not charset.startswith(b"charset="):
            return
    shown = content_type.decode("latin-1")
    others = sorted(other.decode() for other in also_read if other != JSON)
    read = " and ".join((JSON.decode(), *others)) + (" are" if others else " is")
    hint = "; with curl add -H 'Content-Type: application/json' (curl -d alone sends a form)" if kind == _FORM else ""
    near = near_name(kind.decode("latin-1"), others)
    fix = _FIX if near is None else f"Send 'Content-Type: {near}' if the body has that type."
    raise GatherError("unsupported_media_type", f"{shown!r} is not accepted here; {read}{hint}", hint=fix)
