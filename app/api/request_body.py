"""The body of a request: read within its limit, charged to the memory budget, inflated; and JSON's media type."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from time import monotonic, perf_counter
from typing import Any, Final

import numpy as np

from app.api.asgi_request import RequestContext
from app.api.caller_deadline import TIMEOUT
from app.api.content_codings import inflater
from app.api.error_responses import JSON
from app.api.unknown_length_body import BODY_BYTES, UnknownLengthBody, too_large
from app.dispatch.admission_control import SMALL_BODY_BYTES
from app.dispatch.request_thread_pool import ClientGone, RequestThreadPool
from app.errors import GatherError
from app.json_text import lossless_json
from app.json_text.grammar import check_framing
from app.memory.budget import Memory
from app.near_name import near_name
from app.tensors.buffer_type import Buffer

_MOST_JSON: Final = 1 << 14
"""Most bytes of a JSON body without arrays."""
_FORM: Final = b"application/x-www-form-urlencoded"
_MEND: Final = "Send 'Content-Type: application/json' with JSON in UTF-8, with curl by -H."


async def read_body(context: RequestContext, limit: int, lead: int = 0, name: str = BODY_BYTES) -> Buffer:
    """The body as sent, charged to the budget as it arrives; in one block of memory unless it came in one piece.

    A body in several pieces starts `lead` bytes, modulo 16, behind an aligned address, so that arrays whose place in
    the body is known are aligned and need no copy. Raises payload_too_large above `limit` bytes, the limit of this
    `name` (before reading, if the length is declared), overloaded, and ClientGone.
    """
    if (body := context.exchange.whole_body()) is not None:
        if len(body) > limit:
            raise too_large(limit, name)
        context.memory.charge(len(body))
        return body
    declared = context.content_length()
    if declared is not None and declared > limit:
        raise too_large(limit, name)
    context.admission.admit(declared)
    begun = perf_counter()
    if declared is not None and declared <= SMALL_BODY_BYTES:
        found = await _receive(context, declared, limit, lead, name)
    else:
        body_reads = context.admission.body_reads
        patience = context.deadline - begun if TIMEOUT in context.headers else inf
        await body_reads.acquire(context.exchange, declared, patience)
        try:
            found = await _receive(context, declared, limit, lead, name)
            body_reads.expect_answer(context.memory, len(found))
        finally:
            body_reads.release(context.exchange)
    # A large request that has arrived is no longer refused where threads are busy. The service's own deadline
    # counts only the time that it takes itself, the caller's all of it.
    if len(found) > SMALL_BODY_BYTES:
        context.admitted = True
    if TIMEOUT not in context.headers:
        context.deadline += perf_counter() - begun
    return found


async def _receive(context: RequestContext, declared: int | None, limit: int, lead: int, name: str) -> Buffer:
    """The body as it arrives, into memory of the declared size or into a growing block."""
    if TIMEOUT in context.headers:
        context.exchange.deadline = monotonic() + context.deadline - perf_counter()
    message = await context.receive()
    if message["type"] == "http.disconnect":
        raise ClientGone
    first: bytes = message["body"]
    if len(first) > limit:
        raise too_large(limit, name)
    if not message["more_body"]:
        context.memory.charge(len(first))
        return first
    if declared is not None:
        context.memory.charge(len(first))
        # Pages that are not written to take no memory: what is announced and never comes costs nothing.
        view: memoryview = np.empty(lead + declared, np.uint8).data[lead:]
        view[: len(first)] = first
        if not await context.exchange.read_into(view[len(first) :], context.memory.charge):
            raise ClientGone
        return view
    grown = UnknownLengthBody(context.memory, limit, lead, name)
    grown.add(first)
    del first, message
    if not await context.exchange.collect(grown.add):
        raise ClientGone
    return grown.finish()


async def inflate_in(
    pool: RequestThreadPool, context: RequestContext, body: Buffer, limit: int, lead: int = 0
) -> Buffer:
    """The body without its Content-Encoding, made in a thread of `pool`; see `inflate`."""
    encoding = context.headers[b"content-encoding"]
    return await pool.run(lambda: inflate(body, encoding, limit, context.memory, lead), context)


def inflate(body: Buffer, encoding: bytes, limit: int, memory: Memory, lead: int = 0, name: str = BODY_BYTES) -> Buffer:
    """The body without its Content-Encoding (gzip or deflate, with or without the zlib header).

    Never holds more than `limit` bytes of result, of which `memory` is told before they are taken; `lead` and
    `name` as in `read_body`. Raises payload_too_large, unsupported_media_type, overloaded, and malformed_request for a
    stream that is damaged, cut short or followed by other bytes; limit_exceeded, see `Inflater`.
    """
    stream = inflater(encoding)
    if stream is None:
        return body
    grown = UnknownLengthBody(memory, limit, lead, name)
    for piece in stream.pieces(body):
        grown.add(piece)
    stream.finish()
    return grown.finish()


async def read_json(context: RequestContext) -> Any:
    """The document of a small JSON body, which has no arrays. Raises what `read_body` and `inflate` raise."""
    body = await read_body(context, _MOST_JSON, name="small_body_bytes")
    encoding = context.headers.get(b"content-encoding")
    if encoding is not None:
        body = inflate(body, encoding, _MOST_JSON, context.memory, name="small_body_bytes")
    check_framing(body, context.memory)
    return lossless_json.loads(bytes(body).decode())


def check_json_type(content_type: bytes, also_read: Iterable[bytes] = ()) -> None:
    """Raises unsupported_media_type unless `content_type` is JSON in UTF-8; an empty one counts as none.

    `also_read` are the media types that the route reads, with or without JSON.
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
    mend = _MEND if near is None else f"Send 'Content-Type: {near}' if the body is that."
    raise GatherError("unsupported_media_type", f"{shown!r} is not read here; {read}{hint}", hint=mend)
