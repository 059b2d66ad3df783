"""Infer requests of the Open Inference Protocol v2: one exchange from bytes to bytes."""

from __future__ import annotations

from time import perf_counter
from typing import Final

from app.api.asgi_request import RequestContext
from app.api.content_codings import coding_of_answer, compressed
from app.api.error_responses import JSON
from app.api.request_body import inflate, read_body
from app.api.routes.gather import UNCOUNTED
from app.api.unknown_length_body import too_large
from app.api.v2_model_lookup import Models, counted_as
from app.errors import GatherError
from app.lookup_service import LookupService
from app.tensors.buffer_type import Buffer
from app.wire import body_formats, v2_answer, v2_lookup
from app.wire.json.write_values import is_long
from app.wire.v2_answer import VERSION
from app.wire.v2_lookup import LookupModel, LookupRequest, read_lookup_request, write_lookup_answer
from app.wire.v2_request_json import Model
from app.wire.v2_request_tensors import LARGE, Request, is_heavy, read_request

_OCTETS: Final = body_formats.RAW.media_type.encode()
_ALIGNMENT: Final = 64


class InferRoute:
    """`POST /v2/models/{name}[/versions/{version}]/infer`."""

    def __init__(self, models: Models, lookups: LookupService, max_json_bytes: int, max_body_bytes: int) -> None:
        self.models = models
        self.lookups = lookups
        self.service = models.service
        self.max_json_bytes = max_json_bytes
        self.max_body_bytes = max_body_bytes

    async def __call__(self, context: RequestContext) -> None:
        """Read, gather, answer. Raises GatherError for everything it refuses."""
        timings = context.timings
        model = self.models.find_quickly(*context.parameters)
        if isinstance(model, LookupModel):
            await self._look_up(context, model)
            return
        try:
            arrived, request = await self._read(context, model)
            timings.parsed = perf_counter()
            answer = await self.service.gather(request.call, timings, context.reservation)
            timings.gathered = timings.kernel_end
            output = answer.output
            reservation = context.reservation
            if output.dtype.item_size and (request.binary or output.array.nbytes <= UNCOUNTED):
                pieces, json_size = v2_answer.write_answer(answer, model, request)
            elif not is_long(output):
                pieces, json_size = v2_answer.write_answer(answer, model, request, reservation)
            else:
                known = model
                pieces, json_size = await self.service.pool.run(
                    lambda: v2_answer.write_answer(answer, known, request, reservation), timings
                )
            counted = counted_as(model.name, answer.data_version or VERSION)
            self.models.statistics.of(counted).succeeded(timings, arrived)
        except Exception as error:
            self.models.statistics.of(self.models.counted_now(model)).failed(timings.start)
            if isinstance(error, GatherError) and error.code == "tensor_not_found":
                self.models.forget(model.name)
                raise self.models.not_found(*context.parameters) from None
            raise
        headers = []
        if json_size is not None:
            headers.append((b"inference-header-content-length", b"%d" % json_size))
        if answer.data_etag is not None:
            headers.append((b"x-gathernd-data-etag", answer.data_etag.encode()))
        if answer.data_version is not None:
            headers.append((b"x-gathernd-data-version", b"%d" % answer.data_version))
        if answer.replaced is not None:
            headers.append((b"x-gathernd-replaced", b"%d" % answer.replaced))
        await self._send(context, pieces, json_size, headers)

    async def _look_up(self, context: RequestContext, model: LookupModel) -> None:
        """The same for the model `lookup`."""
        timings, service, reservation = context.timings, self.service, context.reservation
        statistics = self.models.statistics.of(counted_as(model.name, VERSION))
        try:
            arrived, json_size, body = await self._read_body(context)

            def read() -> LookupRequest:
                return read_lookup_request(body, json_size, service.limits, reservation.charge)

            heavy = v2_lookup.is_heavy(body, json_size)
            request = await service.pool.run(read, timings) if heavy else read()
            if request.timeout is not None:
                timings.wait_at_most(request.timeout)
            timings.parsed = perf_counter()
            answer = await self.lookups.lookup(request.call, timings, reservation)
            timings.gathered = timings.kernel_end
            context.metrics.count_lookup(answer.tensors)

            def write() -> tuple[list[Buffer], int | None]:
                return write_lookup_answer(answer, request, reservation)

            long = v2_lookup.is_long_answer(answer, request)
            pieces, json_size = await service.pool.run(write, timings) if long else write()
            statistics.succeeded(timings, arrived)
        except Exception:
            statistics.failed(timings.start)
            raise
        headers = [] if json_size is None else [(b"inference-header-content-length", b"%d" % json_size)]
        if answer.replaced is not None:
            headers.append((b"x-gathernd-replaced", b"%d" % answer.replaced))
        await self._send(context, pieces, json_size, headers)

    async def _send(
        self, context: RequestContext, pieces: list[Buffer], json_size: int | None, headers: list[tuple[bytes, bytes]]
    ) -> None:
        """Send an answer, compressed where the caller asks for that."""
        coding = coding_of_answer(context.headers.get(b"accept-encoding"))
        if coding is not None:
            pieces = await self._compress(pieces, coding, context)
            headers.append((b"content-encoding", coding))
        await context.send(200, JSON if json_size is None else _OCTETS, pieces, *headers)

    async def _read_body(self, context: RequestContext) -> tuple[float, int | None, Buffer]:
        """When the body had arrived, the bytes of JSON at its start, and the body."""
        timings, service = context.timings, self.service
        json_size = read_json_size(context.headers)
        limit, lead = self.max_json_bytes, 0
        if json_size is not None:
            if json_size > limit:
                raise too_large(limit, "json_bytes")
            limit, lead = self.max_body_bytes, -json_size % _ALIGNMENT
        body = await read_body(context, limit, lead)
        arrived = perf_counter()
        encoding = context.headers.get(b"content-encoding")
        if encoding is not None:
            sent = body
            body = await service.pool.run(lambda: inflate(sent, encoding, limit, context.reservation, lead), timings)
        return arrived, json_size, body

    async def _read(self, context: RequestContext, model: Model) -> tuple[float, Request]:
        """When the body had arrived, and what it asks for. Its timeout becomes the deadline."""
        timings, service = context.timings, self.service
        arrived, json_size, body = await self._read_body(context)
        if len(body) <= LARGE or not is_heavy(body, json_size, model):
            charge = context.reservation.charge if len(body) > UNCOUNTED else None
            request = read_request(body, json_size, model, service.limits, charge)
        else:
            whole = body
            request = await service.pool.run(
                lambda: read_request(whole, json_size, model, service.limits, context.reservation.charge),
                timings,
            )
        if request.timeout is not None:
            timings.wait_at_most(request.timeout)
        return arrived, request

    async def _compress(self, pieces: list[Buffer], coding: bytes, context: RequestContext) -> list[Buffer]:
        charge = context.reservation.charge
        if sum(map(len, pieces)) <= LARGE:
            return compressed(pieces, coding, charge)
        return await self.service.pool.run(lambda: compressed(pieces, coding, charge), context.timings)


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
