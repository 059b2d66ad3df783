"""The routes of the operators, `POST /gathernd` and the others: one exchange from bytes to bytes."""

from __future__ import annotations

from functools import lru_cache
from time import perf_counter
from typing import Final

from app.api.accept_header import media_weights, preferred
from app.api.asgi_request import RequestContext
from app.api.error_responses import JSON
from app.api.json_content_type import check_json_type
from app.api.request_body import inflate, read_body
from app.api.schemas.explain_answer import explanation_body
from app.service import Service
from app.surrogate_safe_json import dump
from app.tensors.buffer_type import Buffer
from app.tensors.gather_call import Answer, Call, Encoding
from app.tensors.operator_signature import Signature
from app.tensors.tensor import Tensor
from app.wire import body_formats
from app.wire.body_formats import GATHERS, GatherCodec
from app.wire.json import write_values

UNCOUNTED: Final = 1 << 9
"""Bodies and outputs of up to this many bytes become so little that it is not charged (see `MIN_UNCHARGED_BYTES`)."""


class NativeRoute:
    """One operator over HTTP."""

    def __init__(self, signature: Signature, service: Service, max_json_bytes: int, max_body_bytes: int) -> None:
        self.signature = signature
        self.service = service
        self.limits = service.limits
        self.max_json_bytes = max_json_bytes
        self.max_body_bytes = max_body_bytes

    async def __call__(self, context: RequestContext) -> None:
        """Read, gather, answer. Raises GatherError for everything it refuses."""
        content_type = context.headers.get(b"content-type")
        codec = body_formats.JSON if content_type is None else GATHERS.get(content_type) or codec_of(content_type)
        limit = self.max_body_bytes if codec.binary else self.max_json_bytes
        body = await read_body(context, limit)
        if b"content-encoding" in context.headers:
            body = await self._inflate(context, body, limit)
        charge = context.reservation.charge if len(body) > UNCOUNTED else None
        if len(body) <= codec.short_body or not codec.is_long_body(body):
            call, encoding = codec.read(body, context.query, self.signature, self.limits, charge)
        else:
            call, encoding = await self.service.pool.run(
                lambda: codec.read(body, context.query, self.signature, self.limits, charge), context.timings
            )
        accept = context.headers.get(b"accept")
        if accept is not None and accept != codec.media_type:
            codec = GATHERS[preferred(accept, GATHERS, codec.media_type)]
        await self._answer(context, call, encoding, codec)

    async def _answer(self, context: RequestContext, call: Call, encoding: Encoding, codec: GatherCodec) -> None:
        timings, service = context.timings, self.service
        # JSON, which most answers are, has every type: nothing is looked up for it.
        if codec.binary and isinstance(call.data, Tensor) and call.data.dtype.name not in codec.dtypes:
            codec = other_codec(codec, context, call, call.data)
        timings.parsed = perf_counter()
        if call.explain:
            found = service.explain(call, context.reservation)
            explanation = await service.with_shards(found, timings, context.reservation)
            await context.send(200, JSON, dump(explanation_body(explanation)))
            return
        answer = await service.gather(call, timings, context.reservation)
        timings.gathered = timings.kernel_end
        output, reservation = answer.output, context.reservation
        if codec.binary and output.dtype.name not in codec.dtypes:
            codec = other_codec(codec, context, call, output)
        content: bytes | list[Buffer]
        if output.array.nbytes <= UNCOUNTED and output.dtype.item_size:
            content = codec.write(answer, encoding, None)
        elif codec.binary or not write_values.is_long(output):
            content = codec.write(answer, encoding, reservation)
        else:
            chosen = codec
            content = await service.pool.run(lambda: chosen.write(answer, encoding, reservation), timings)
        if codec.binary:
            await context.send(200, codec.media_type, content, *_binary_headers(answer))
        else:
            await context.send(200, JSON, content)

    async def _inflate(self, context: RequestContext, body: Buffer, limit: int) -> Buffer:
        """The body without its Content-Encoding."""
        encoding = context.headers[b"content-encoding"]
        return await self.service.pool.run(lambda: inflate(body, encoding, limit, context.reservation), context.timings)


def codec_of(content_type: bytes) -> GatherCodec:
    """The format of a request's body. Raises unsupported_media_type."""
    codec = GATHERS.get(content_type.partition(b";")[0].strip().lower(), body_formats.JSON)
    if codec is body_formats.JSON:
        check_json_type(content_type, GATHERS)
    return codec


def other_codec(codec: GatherCodec, context: RequestContext, call: Call, tensor: Tensor) -> GatherCodec:
    """JSON, which has every type, where `codec` lacks that of `tensor`.

    Raises unsupported_dtype unless Accept names JSON.
    """
    if not media_weights(context.headers.get(b"accept", b"")).get(JSON):
        pointer = tensor.dtype_pointer if isinstance(call.data, Tensor) else call.data_pointer
        codec.check_writable(tensor.dtype, pointer)
    return body_formats.JSON


def _binary_headers(answer: Answer) -> tuple[tuple[bytes, bytes], ...]:
    """What a JSON answer says beside its output, as header fields."""
    return _fields(answer.dialect, answer.device, answer.data_etag, answer.data_version, answer.replaced)


@lru_cache(1 << 10)
def _fields(
    dialect: str, device: str, etag: str | None, version: int | None, replaced: int | None
) -> tuple[tuple[bytes, bytes], ...]:
    fields: dict[bytes, str | int | None] = {
        b"x-gathernd-dialect": dialect,
        b"x-gathernd-device": device,
        b"x-gathernd-data-etag": etag,
        b"x-gathernd-data-version": version,
        b"x-gathernd-replaced": replaced,
    }
    return tuple((name, str(value).encode()) for name, value in fields.items() if value is not None)
