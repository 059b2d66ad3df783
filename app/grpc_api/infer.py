"""Infer requests over gRPC: bytes of a message to bytes of its answer, as `app.api.routes.v2_infer` over REST."""

from __future__ import annotations

from collections.abc import Coroutine
from contextlib import suppress
from functools import partial
from time import perf_counter
from typing import Any, Final

from app.api.v2_model_lookup import Models, counted_as
from app.errors import GatherError
from app.grpc_api.repeated_gather import LARGE, RepeatedGather, repeated_gather
from app.grpc_api.rpc_request import RpcRequest
from app.lookup_service import LookupService
from app.telemetry.request_metrics import Metrics
from app.tensors.lookup_call import ARRAYS
from app.wire.protobuf_fields import FieldLimit, TooManyFields
from app.wire.v2_answer import VERSION
from app.wire.v2_grpc_answer import write_grpc_answer, write_grpc_lookup
from app.wire.v2_grpc_layouts import RequestLayout, RequestLayouts
from app.wire.v2_grpc_request import SplitRequest, read_grpc_lookup, read_grpc_request, split
from app.wire.v2_lookup import LookupModel
from app.wire.v2_request_json import Model

_SEARCHED: Final = 1 << 16
"""A message with more bytes is cut in a thread."""
_FIELDS: Final = 1 << 10
"""So is one with more fields, each of which takes one to two microseconds to find."""


class Inference:
    """Carries out infer requests."""

    def __init__(self, models: Models, lookups: LookupService, metrics: Metrics) -> None:
        self._models = models
        self._lookups = lookups
        self._service = models.service
        self._metrics = metrics
        self._layouts = RequestLayouts()

    def infer(self, message: bytes, request: RpcRequest, *, stream: bool = False) -> bytes | Coroutine[Any, Any, bytes]:
        """Answer a ModelInferRequest; with `stream` by a ModelStreamInferResponse. Raises GatherError, at once or when
        it is awaited, and ClientGone.
        """
        layout = self._layouts.find(message)
        if layout is not None and self._models.find_quickly(layout.model.name) is layout.model:
            if layout.repeated is not None and not stream:
                written = self._repeat(message, layout, layout.repeated, request)
                if written is not None:
                    return written
            return self._gather(message, layout, layout.model, request, stream)
        return self._infer_unknown(message, request, stream)

    def _repeat(
        self, message: bytes, layout: RequestLayout, repeated: RepeatedGather, request: RpcRequest
    ) -> bytes | None:
        """The answer to a gather like one before; None where it has to be looked at as if it were the first."""
        timings, reservation, statistics = request.timings, request.reservation, self._models.statistics
        held = reservation.held
        try:
            arrays = layout.arrays(message, reservation.charge)
            timings.parsed = perf_counter()
            written = repeated.run(arrays, self._service, timings, reservation)
        except Exception:
            statistics.of(self._models.counted_now(layout.model)).failed(timings.start)
            raise
        if written is None:
            reservation.return_to(held)
            return None
        statistics.of(repeated.counted).succeeded(timings, timings.start)
        return written

    async def _infer_unknown(self, message: bytes, request: RpcRequest, stream: bool) -> bytes:
        found = await self.split(message, request)
        version = found.version or None
        model = self._models.find_quickly(found.model, version)
        if isinstance(model, LookupModel):
            return await self._look_up(found, model, request, stream)
        return await self._gather(message, found, model, request, stream)

    async def split(self, message: bytes, request: RpcRequest) -> SplitRequest:
        """The parts of a message. Raises malformed_request."""
        charge, most = request.reservation.charge, len(ARRAYS) * self._service.limits.features
        if len(message) <= _SEARCHED:
            charges: list[int] = []
            try:
                found = split(message, charges.append, FieldLimit(_FIELDS), most)
            except TooManyFields:
                pass
            else:
                if charges:
                    charge(sum(charges))
                return found
        return await self._service.pool.run(lambda: split(message, charge, None, most), request.timings)

    async def _gather(
        self, message: bytes, found: SplitRequest | RequestLayout, model: Model, request: RpcRequest, stream: bool
    ) -> bytes:
        timings, service, reservation = request.timings, self._service, request.reservation
        models, arrived, name = self._models, timings.start, model.name
        try:
            if isinstance(found, RequestLayout):
                read = found.read(message, reservation.charge)
            elif found.is_heavy:
                read = await service.pool.run(
                    partial(read_grpc_request, found, model, service.limits, reservation.charge), timings
                )
            else:
                read = read_grpc_request(found, model, service.limits, reservation.charge)
                self._layouts.add(message, found, model)
            if read.timeout is not None:
                timings.wait_at_most(read.timeout)
            timings.parsed = perf_counter()
            answer = await service.gather(read.call, timings, reservation)
            timings.gathered = timings.kernel_end
            identifier = read.identifier
            output = answer.output
            if output.dtype.item_size and output.array.nbytes <= LARGE:
                written = write_grpc_answer(answer, name, identifier, reservation, stream=stream)
            else:
                write = partial(write_grpc_answer, answer, name, identifier, reservation, stream=stream)
                written = await service.pool.run(write, timings)
            counted = counted_as(name, answer.data_version or VERSION)
            models.statistics.of(counted).succeeded(timings, arrived)
            if isinstance(found, RequestLayout) and not stream:
                with suppress(GatherError):  # the tensor has gone or is damaged since: who asks next is told
                    found.repeated = repeated_gather(read, answer, written, counted, service, timings)
        except Exception as error:
            models.statistics.of(models.counted_now(model)).failed(timings.start)
            if isinstance(error, GatherError) and error.code == "tensor_not_found":
                models.forget(model.name)
                version = (found.version or None) if isinstance(found, SplitRequest) else None
                raise models.not_found(name, version) from None
            raise
        return written

    async def _look_up(self, found: SplitRequest, model: LookupModel, request: RpcRequest, stream: bool) -> bytes:
        timings, service, reservation = request.timings, self._service, request.reservation
        statistics = self._models.statistics.of(counted_as(model.name, VERSION))
        try:
            if found.is_heavy:
                read = await service.pool.run(
                    lambda: read_grpc_lookup(found, service.limits, reservation.charge), timings
                )
            else:
                read = read_grpc_lookup(found, service.limits, reservation.charge)
            if read.timeout is not None:
                timings.wait_at_most(read.timeout)
            timings.parsed = perf_counter()
            answer = await self._lookups.lookup(read.call, timings, reservation)
            timings.gathered = timings.kernel_end
            self._metrics.count_lookup(answer.tensors)
            if sum(output.array.nbytes for output in answer.outputs) <= LARGE:
                written = write_grpc_lookup(answer, read, reservation, stream=stream)
            else:
                written = await service.pool.run(
                    lambda: write_grpc_lookup(answer, read, reservation, stream=stream), timings
                )
            statistics.succeeded(timings, timings.start)
        except Exception:
            statistics.failed(timings.start)
            raise
        return written
