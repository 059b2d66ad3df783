"""Infer requests over gRPC: bytes of a message to bytes of its answer, as `app.api.routes.v2_infer` over REST."""

from __future__ import annotations

from time import perf_counter
from typing import Final

from app.api.v2_model_lookup import Models, counted_as
from app.errors import GatherError
from app.formats.grpc.infer_answer import write_grpc_answer, write_grpc_lookup
from app.formats.grpc.infer_request import LONG_REST, ParsedMessage, parse, read_grpc_lookup, read_grpc_request
from app.formats.grpc.message_fields import split
from app.grpc_api.rpc_request import RpcRequest
from app.telemetry.request_metrics import Metrics
from app.tensors.gather_call import Answer
from app.tensors.lookup_call import ARRAYS
from app.wire.v2_answer import VERSION
from app.wire.v2_lookup import LookupModel, LookupRequest
from app.wire.v2_request_json import Model
from app.wire.v2_request_tensors import Request

_FEW_FIELDS: Final = 1 << 9
"""A message with more fields is cut in a thread: each takes up to half a microsecond."""
_RAW_BYTES: Final = 256
"""Bytes that the objects take which stand for a raw array."""
_LARGE_INPUT, _LARGE_OUTPUT = 1 << 20, 1 << 18
"""Bytes of items, of which longer ones are read, looked at and copied in a thread."""


class Inference:
    """Carries out infer requests."""

    def __init__(self, models: Models, metrics: Metrics) -> None:
        self._models = models
        self._service = models.service
        self._metrics = metrics

    async def parse(self, message: bytes, request: RpcRequest) -> ParsedMessage:
        """What a message says. Raises malformed_request and limit_exceeded, and what charging raises."""
        features, charge = self._service.limits.features, request.reservation.charge
        few = split(message, features, _FEW_FIELDS)
        if few is not None and len(few.rest) <= LONG_REST:
            return parse(few, None)

        def parse_long() -> ParsedMessage:
            found = few
            if found is None:
                charge(_RAW_BYTES * min(len(ARRAYS) * features, len(message)))
                found = split(message, features)
                assert found is not None
            return parse(found, charge)

        return await self._service.pool.run(parse_long, request.timings)

    async def infer(self, message: bytes, request: RpcRequest, *, stream: bool = False) -> bytes:
        """Answer a ModelInferRequest; with `stream` by a ModelStreamInferResponse.

        Raises GatherError and ClientGone.
        """
        parsed = await self.parse(message, request)
        models, timings = self._models, request.timings
        model = models.find_quickly(parsed.model, parsed.version)
        try:
            read = await self._read(parsed, model, request)
            if read.timeout is not None:
                timings.wait_at_most(read.timeout)
            timings.parsed = perf_counter()
            answer = await self._service.run(read.call, timings, request.reservation)
            if answer.tables:
                self._metrics.count_lookup(answer.tensors)
            timings.gathered = timings.kernel_end
            written = await self._write(answer, model.name, read, request, stream)
        except Exception as error:
            models.statistics.of(models.counted_now(model)).failed(timings.start)
            if isinstance(error, GatherError) and error.code == "tensor_not_found" and isinstance(model, Model):
                models.forget(model.name)
                raise models.not_found(model.name, parsed.version) from None
            raise
        counted = counted_as(model.name, answer.data_version or VERSION)
        models.statistics.of(counted).succeeded(timings, timings.start)
        return written

    async def _read(
        self, parsed: ParsedMessage, model: Model | LookupModel, request: RpcRequest
    ) -> Request | LookupRequest:
        limits, charge, split = self._service.limits, request.reservation.charge, parsed.split

        def read() -> Request | LookupRequest:
            if isinstance(model, LookupModel):
                return read_grpc_lookup(parsed, limits, charge)
            return read_grpc_request(parsed, model, limits, charge)

        is_short = len(split.rest) <= LONG_REST and sum(map(len, split.raws)) <= _LARGE_INPUT
        return await self._service.pool.run_unless(is_short, read, request.timings)

    async def _write(
        self, answer: Answer, name: str, read: Request | LookupRequest, request: RpcRequest, stream: bool
    ) -> bytes:
        reservation = request.reservation

        def write() -> bytes:
            if isinstance(read, LookupRequest):
                return write_grpc_lookup(answer, read, reservation, stream=stream)
            return write_grpc_answer(answer, name, read.identifier, reservation, stream=stream)

        outputs = answer.outputs.values()
        is_short = sum(output.array.nbytes for output in outputs) <= _LARGE_OUTPUT and all(
            output.dtype.item_size for output in outputs
        )
        return await self._service.pool.run_unless(is_short, write, request.timings)
