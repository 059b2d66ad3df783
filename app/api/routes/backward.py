"""The routes of gradients, `POST /gathernd/backward` and `POST /gather/backward`: one exchange from bytes to bytes."""

from __future__ import annotations

from time import perf_counter
from typing import Final

from app.api.accept_header import preferred
from app.api.asgi_request import RequestContext
from app.api.error_responses import JSON
from app.api.json_content_type import check_json_type
from app.api.request_body import inflate, read_body
from app.api.schemas.explain_answer import backward_explanation_body
from app.backward_service import BackwardService
from app.surrogate_safe_json import dump
from app.tensors.backward_call import BackwardSignature
from app.tensors.buffer_type import Buffer
from app.wire.body_formats import BACKWARDS, BackwardCodec

_LONG_TEXT: Final = 1 << 16
"""Bytes of an answer's items, from which on their JSON is not written on the event loop."""


class BackwardRoute:
    """One gradient over HTTP."""

    def __init__(
        self, signature: BackwardSignature, backward: BackwardService, max_json_bytes: int, max_body_bytes: int
    ) -> None:
        self.signature = signature
        self.backward = backward
        self.max_json_bytes = max_json_bytes
        self.max_body_bytes = max_body_bytes

    async def __call__(self, context: RequestContext) -> None:
        """Read, run, answer. Raises GatherError for everything it refuses."""
        codec = _codec_of(context.headers.get(b"content-type", JSON))
        pool, timings, reservation = self.backward.service.pool, context.timings, context.reservation
        limit = self.max_body_bytes if codec.binary else self.max_json_bytes
        body: Buffer = await read_body(context, limit)
        encoding = context.headers.get(b"content-encoding")
        if encoding is not None:
            packed = body
            body = await pool.run(lambda: inflate(packed, encoding, limit, reservation), timings)
        limits = self.backward.service.limits
        read = codec.read
        if codec.is_long_body(body):
            call, form = await pool.run(
                lambda: read(body, context.query, self.signature, limits, reservation.charge), timings
            )
        else:
            call, form = read(body, context.query, self.signature, limits, reservation.charge)
        accept = context.headers.get(b"accept")
        if accept is not None:
            codec = BACKWARDS[preferred(accept, BACKWARDS, codec.media_type)]
        timings.parsed = perf_counter()
        if call.explain:
            explanation = self.backward.explain(call, reservation)
            await context.send(200, JSON, dump(backward_explanation_body(explanation)))
            return
        answer = await self.backward.run(call, timings, reservation)
        timings.gathered = timings.kernel_end
        write = codec.write
        long = not codec.binary and sum(each.array.nbytes for each in answer.outputs.values()) > _LONG_TEXT
        if long:
            content = await pool.run(lambda: write(answer, form, reservation), timings)
        else:
            content = write(answer, form, reservation)
        headers = []
        if codec.binary:
            headers = [(b"x-gathernd-dialect", answer.dialect.encode()), (b"x-gathernd-device", answer.device.encode())]
        await context.send(200, codec.media_type, content, *headers)


def _codec_of(content_type: bytes) -> BackwardCodec:
    """The format of a request's body. Raises unsupported_media_type."""
    codec = BACKWARDS.get(content_type.partition(b";")[0].strip().lower(), BACKWARDS[JSON])
    if not codec.binary:
        check_json_type(content_type, BACKWARDS)
    return codec
