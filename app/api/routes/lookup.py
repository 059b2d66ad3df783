"""`POST /lookup`: rows of many resident tensors in one request, from bytes to bytes."""

from __future__ import annotations

from time import perf_counter

from app.api.accept_header import media_weights, preferred
from app.api.asgi_request import RequestContext
from app.api.error_responses import JSON
from app.api.json_content_type import check_json_type
from app.api.request_body import inflate, read_body
from app.api.routes.gather import UNCOUNTED
from app.api.schemas.explain_answer import lookup_explanation_body
from app.lookup_service import LookupService
from app.surrogate_safe_json import dump
from app.tensors.gather_call import Encoding
from app.tensors.lookup_call import LookupAnswer, LookupCall
from app.wire import safetensors
from app.wire.body_formats import LOOKUPS, LookupCodec
from app.wire.json import write_values


class LookupRoute:
    """Lookups over HTTP."""

    def __init__(self, lookups: LookupService, max_json_bytes: int, max_body_bytes: int) -> None:
        self.lookups = lookups
        self.service = lookups.service
        self.max_json_bytes = max_json_bytes
        self.max_body_bytes = max_body_bytes

    async def __call__(self, context: RequestContext) -> None:
        """Read, look up, answer. Raises GatherError for everything it refuses."""
        codec = codec_of(context.headers.get(b"content-type", JSON))
        limit = self.max_body_bytes if codec.binary else self.max_json_bytes
        service, timings, reservation = self.service, context.timings, context.reservation
        body = await read_body(context, limit)
        encoded = context.headers.get(b"content-encoding")
        if encoded is not None:
            sent = body
            body = await service.pool.run(lambda: inflate(sent, encoded, limit, reservation), timings)
        whole, limits = body, service.limits
        call: LookupCall
        encoding: Encoding
        if codec.is_long_body(whole):
            call, encoding = await service.pool.run(
                lambda: codec.read(whole, context.query, limits, reservation.charge), timings
            )
        else:
            charge = reservation.charge if len(whole) > UNCOUNTED else None
            call, encoding = codec.read(whole, context.query, limits, charge)
        timings.parsed = perf_counter()
        if call.explain:
            explanation = self.lookups.explain(call, reservation)
            explanation = await self.lookups.with_shards(explanation, timings, reservation)
            await context.send(200, JSON, dump(lookup_explanation_body(explanation)))
            return
        answer = await self.lookups.lookup(call, timings, reservation)
        timings.gathered = timings.kernel_end
        context.metrics.count_lookup(answer.tensors)
        await self._answer(context, call, answer, encoding, codec_of_answer(context, codec, call, answer))

    async def _answer(
        self, context: RequestContext, call: LookupCall, answer: LookupAnswer, encoding: Encoding, codec: LookupCodec
    ) -> None:
        reservation = context.reservation
        if codec.binary or not any(map(write_values.is_long, answer.outputs)):
            content = codec.write(answer, encoding, reservation)
        else:
            content = await self.service.pool.run(lambda: codec.write(answer, encoding, reservation), context.timings)
        if not codec.binary:
            await context.send(200, JSON, content)
            return
        headers = [(b"x-gathernd-device", b"cpu")]
        if answer.replaced is not None:
            headers.append((b"x-gathernd-replaced", b"%d" % answer.replaced))
        await context.send(200, codec.media_type, content, *headers)


def codec_of(content_type: bytes) -> LookupCodec:
    """The format of a request's body. Raises unsupported_media_type."""
    codec = LOOKUPS.get(content_type.partition(b";")[0].strip().lower(), LOOKUPS[JSON])
    if not codec.binary:
        check_json_type(content_type, LOOKUPS)
    return codec


def codec_of_answer(context: RequestContext, codec: LookupCodec, call: LookupCall, answer: LookupAnswer) -> LookupCodec:
    """The format of the answer, by Accept, or else the request's; JSON, if Accept names it, for types that it lacks.

    Raises unsupported_dtype at the first feature of such a type.
    """
    accept = context.headers.get(b"accept")
    if accept is not None and accept != codec.media_type:
        codec = LOOKUPS[preferred(accept, LOOKUPS, codec.media_type)]
    lacking = [number for number, output in enumerate(answer.outputs) if output.dtype.name not in codec.dtypes]
    if not lacking:
        return codec
    if not media_weights(accept or b"").get(JSON):
        safetensors.check_writable(answer.outputs[lacking[0]].dtype, f"{call.features[lacking[0]].pointer}/tensor")
    return LOOKUPS[JSON]
