"""One exchange of a native operator over HTTP, from the bytes of a request to the bytes of its response.

Every operator, gradient and lookup is handled here: the request is read, decompressed and parsed; the call is explained
or run; and the result is written. The format handles the encoding of a call, and the service handles its execution.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from time import perf_counter

from app.api.accept_header import media_weights, preferred_type
from app.api.asgi_request import RequestContext
from app.api.request_body import check_json_type, inflate_in, read_body, whole_body
from app.api.schemas.explain_answer import explanation_body
from app.formats.body_formats import JSON, Codec, formats_of
from app.services.runner import AnyCall
from app.services.service import Service
from app.surrogate_safe_json import dump
from app.tensors.gather_call import Answer, Call
from app.tensors.operator_signature import Signature
from app.tensors.tensor import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class BodyLimits:
    """Size limits in bytes for JSON and binary bodies."""

    json: int
    binary: int


class Exchange:
    """The handler of one operator, gradient or lookup; its signature defines how requests are read."""

    def __init__(self, signature: Signature, service: Service, body_limits: BodyLimits) -> None:
        self.formats = formats = formats_of(signature)
        self.signature = signature
        self.service = service
        self.limits = service.limits
        self.json = formats[JSON]
        self.body_limits = body_limits

    async def __call__(self, context: RequestContext) -> None:
        """Read the request, run it, and respond. Raises GatherError for every refusal."""
        headers, formats, service = context.headers, self.formats, self.service
        content_type = headers.get(b"content-type")
        codec = self.json if content_type is None else formats.get(content_type) or format_of(content_type, formats)
        limit = self.body_limits.binary if codec.binary else self.body_limits.json
        body = whole_body(context, limit)
        if body is None:
            body = await read_body(context, limit)
        if b"content-encoding" in headers:
            body = await inflate_in(service.pool, context, body, limit)
        if len(body) <= codec.short_body or not codec.is_long_body(body):
            call, encoding = codec.read(body, context.query, self.signature, self.limits, context.memory)
        else:
            call, encoding = await service.pool.run(
                lambda: codec.read(body, context.query, self.signature, self.limits, context.memory), context
            )
        accept = headers.get(b"accept")
        answered = codec
        if accept is not None and accept != codec.media_type:
            answered = formats[preferred_type(accept, formats, codec.media_type)]
        # JSON, which most responses use, supports all types; some binary formats do not.
        if answered.binary and type(call) is Call:
            data = call.data
            if isinstance(data, Tensor) and data.dtype.name not in answered.dtypes:
                answered = self._json_fallback(answered, call, 0, data, accept)
        context.parsed = perf_counter()
        if call.explain:
            found = await service.with_shards(service.explain(call, context.memory), context)
            await context.send(200, JSON, dump(explanation_body(found)))
            return
        answer = await service.run(call, context)
        context.gathered = context.kernel_end
        if answer.tables:
            context.metrics.count_lookup(answer.tensors)
        if answered.binary:
            for number, output in enumerate(answer.outputs.values()):
                if output.dtype.name not in answered.dtypes:
                    answered = self._json_fallback(answered, call, number, output, accept)
                    break
        if answered.is_long_answer(answer):
            content = await service.pool.run(lambda: answered.write(answer, encoding, context.memory), context)
        else:
            content = answered.write(answer, encoding, context.memory)
        facts = headers_of(answer) if answered.binary else ()
        if not context.send_at_once(200, answered.media_type, content, facts):
            await context.send(200, answered.media_type, content, *facts)

    def _json_fallback(self, codec: Codec, call: AnyCall, number: int, output: Tensor, accept: bytes | None) -> Codec:
        """Return the JSON codec as a fallback for `codec`, which does not support the type of output `number`.

        Raises unsupported_dtype unless Accept lists JSON.
        """
        if not media_weights(accept or b"").get(JSON):
            codec.check_writable(output.dtype, call.dtype_pointer(number))
        return self.json


def format_of(content_type: bytes | None, formats: Mapping[bytes, Codec]) -> Codec:
    """Return the format of a request's body; JSON if there is no Content-Type. Raises unsupported_media_type."""
    if content_type is None:
        return formats[JSON]
    codec = formats.get(content_type.partition(b";")[0].strip().lower(), formats[JSON])
    if codec.media_type == JSON:
        check_json_type(content_type, formats)
    return codec


def headers_of(answer: Answer) -> tuple[tuple[bytes, bytes], ...]:
    """Return a binary response's header fields, which correspond to the JSON members other than `outputs`."""
    return gathernd_fields(
        answer.dialect, answer.device, answer.data_etag, answer.data_version, answer.replaced, answer.missing
    )


@lru_cache(1 << 10)
def gathernd_fields(
    dialect: str, device: str, etag: str | None, version: int | None, replaced: int | None, missing: int | None
) -> tuple[tuple[bytes, bytes], ...]:
    """Return the X-Gathernd-* header fields of a response; None and empty values are left out."""
    fields: dict[bytes, str | int | None] = {
        b"x-gathernd-dialect": dialect,
        b"x-gathernd-device": device,
        b"x-gathernd-data-etag": etag,
        b"x-gathernd-data-version": version,
        b"x-gathernd-replaced": replaced,
        b"x-gathernd-missing": missing,
    }
    return tuple((name, str(value).encode()) for name, value in fields.items() if value is not None and value != "")
