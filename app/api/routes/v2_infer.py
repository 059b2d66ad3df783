"""Infer requests of the Open Inference Protocol v2: one exchange from bytes to bytes."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any, Final, NamedTuple

from app.api.asgi_request import RequestContext
from app.api.content_codings import coding_of_answer, compressed
from app.api.error_responses import JSON
from app.api.exchange import UNCOUNTED, BodyLimits, fact_fields, is_short
from app.api.request_body import inflate_in, read_body
from app.api.unknown_length_body import too_large
from app.api.v2_model_lookup import Models, counted_as
from app.errors import GatherError
from app.tensors.buffer_type import Buffer
from app.tensors.gather_call import Answer
from app.tensors.shape_limits import Limits
from app.wire import body_formats, v2_answer, v2_lookup
from app.wire.json.write_values import is_long
from app.wire.little_endian_items import Charge, Memory
from app.wire.v2_answer import VERSION
from app.wire.v2_lookup import LookupModel, LookupRequest, read_lookup_request, write_lookup_answer
from app.wire.v2_request_tensors import LARGE, Request, is_heavy, read_request

_OCTETS: Final = body_formats.RAW.media_type.encode()
_ALIGNMENT: Final = 64


class _Form(NamedTuple):
    """How the requests to one kind of model are read, and their answers written."""

    read: Callable[[Buffer, int | None, Any, Limits, Charge | None], Request | LookupRequest]
    """Of a body, the size of the JSON at its start, the model and the limits."""
    is_long_body: Callable[[Buffer, int | None, Any], bool]
    write: Callable[[Answer, Any, Any, Memory | None], tuple[list[Buffer], int | None]]
    """Of an answer, the model, the request, and where memory is charged."""
    is_long_answer: Callable[[Answer, Any], bool]


def _is_long_output(answer: Answer, request: Request) -> bool:
    """Whether writing it takes long: texts do, and strings, whose frames are copied."""
    output = answer.output
    return not (request.binary and output.dtype.item_size) and is_long(output)


_GATHER: Final = _Form(
    read_request,
    lambda body, json_size, model: len(body) > LARGE and is_heavy(body, json_size, model),
    v2_answer.write_answer,
    _is_long_output,
)
_LOOKUP: Final = _Form(
    lambda body, json_size, model, limits, charge: read_lookup_request(body, json_size, limits, charge),
    lambda body, json_size, model: v2_lookup.is_heavy(body, json_size),
    lambda answer, model, request, memory: write_lookup_answer(answer, request, memory),
    v2_lookup.is_long_answer,
)


class InferRoute:
    """`POST /v2/models/{name}[/versions/{version}]/infer`."""

    def __init__(self, models: Models, limits: BodyLimits) -> None:
        self.models = models
        self.service = models.service
        self.max_json_bytes = int(limits.max_json_bytes)
        self.max_body_bytes = int(limits.max_body_bytes)

    async def __call__(self, context: RequestContext) -> None:
        """Read, run, answer. Raises GatherError for everything it refuses."""
        timings, reservation, service, models = context.timings, context.reservation, self.service, self.models
        model = models.find_quickly(*context.parameters)
        form = _LOOKUP if isinstance(model, LookupModel) else _GATHER
        try:
            json_size, body = await self._read_body(context)
            arrived = perf_counter()
            charge = reservation.charge if len(body) > UNCOUNTED else None
            if form.is_long_body(body, json_size, model):
                request = await service.pool.run(
                    lambda: form.read(body, json_size, model, service.limits, charge), timings
                )
            else:
                request = form.read(body, json_size, model, service.limits, charge)
            if request.timeout is not None:
                timings.wait_at_most(request.timeout)
            timings.parsed = perf_counter()
            answer = await service.run(request.call, timings, reservation)
            timings.gathered = timings.kernel_end
            if answer.tables:
                context.metrics.count_lookup(answer.tensors)
            memory = None if is_short(answer) else reservation
            if memory is None or not form.is_long_answer(answer, request):
                pieces, json_size = form.write(answer, model, request, memory)
            else:
                pieces, json_size = await service.pool.run(lambda: form.write(answer, model, request, memory), timings)
            counted = counted_as(model.name, answer.data_version or VERSION)
            models.statistics.of(counted).succeeded(timings, arrived)
        except Exception as error:
            models.statistics.of(models.counted_now(model)).failed(timings.start)
            if model.resident and isinstance(error, GatherError) and error.code == "tensor_not_found":
                models.forget(model.name)
                raise models.not_found(*context.parameters) from None
            raise
        headers = fact_fields("", "", answer.data_etag, answer.data_version, answer.replaced)
        if json_size is not None:
            headers = ((b"inference-header-content-length", b"%d" % json_size), *headers)
        coding = coding_of_answer(context.headers.get(b"accept-encoding"))
        if coding is not None:
            whole, short = pieces, sum(map(len, pieces)) <= LARGE
            pieces = await service.pool.run_unless(
                short, lambda: compressed(whole, coding, reservation.charge), timings
            )
            headers = (*headers, (b"content-encoding", coding))
        await context.send(200, JSON if json_size is None else _OCTETS, pieces, *headers)

    async def _read_body(self, context: RequestContext) -> tuple[int | None, Buffer]:
        """The bytes of JSON at the start of the body, and the body."""
        json_size = read_json_size(context.headers)
        limit, lead = self.max_json_bytes, 0
        if json_size is not None:
            if json_size > limit:
                raise too_large(limit, "json_bytes")
            limit, lead = self.max_body_bytes, -json_size % _ALIGNMENT
        body = await read_body(context, limit, lead)
        if b"content-encoding" in context.headers:
            body = await inflate_in(self.service.pool, context, body, limit, lead)
        return json_size, body


def read_json_size(headers: dict[bytes, bytes]) -> int | None:
    """The bytes of JSON at the start of the body, None where all of it is. Raises malformed_request."""
    text = headers.get(b"inference-header-content-length")
    if text is None:
        return None
    text = text.strip()
    if not text.isdigit() or len(text) > 18:
        raise GatherError(
            "malformed_request",
            f"Inference-Header-Content-Length is {text[:64].decode('latin-1')!r}; it must be a number of bytes",
            hint="Send in Inference-Header-Content-Length the number of bytes of the JSON, with which the body starts.",
        )
    return int(text)
