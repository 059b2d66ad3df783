"""One exchange of the Open Inference Protocol, from the parts of a request to those of its answer, by REST and gRPC."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Generic, Protocol, TypeVar

from app.api.v2_model_lookup import Models, counted_as
from app.errors import GatherError
from app.formats.oip.infer_answer import VERSION
from app.formats.oip.infer_document import AnyModel, AskedInference
from app.memory.budget import Memory, MemoryReservation
from app.telemetry.request_metrics import Metrics
from app.telemetry.server_timing import RequestTimings
from app.tensors.gather_call import Answer
from app.tensors.shape_limits import Limits

Message = TypeVar("Message")
Written = TypeVar("Written")


@dataclass(frozen=True, slots=True, eq=False)
class InferFormat(Generic[Message, Written]):
    """How a transport's requests are read, and their answers written; what is long is done by a thread of the pool."""

    is_long: Callable[[Message, AnyModel], bool]
    read: Callable[[Message, AnyModel, Limits, Memory], AskedInference]
    is_long_answer: Callable[[Answer, AskedInference], bool]
    write: Callable[[Answer, AnyModel, AskedInference, Memory], Written]


class Received(Protocol):
    """A request of either transport."""

    @property
    def timings(self) -> RequestTimings:
        """Its times."""
        ...

    @property
    def reservation(self) -> MemoryReservation:
        """Its memory."""
        ...


class Inference:
    """Carries out infer requests, and counts them by their models."""

    def __init__(self, models: Models, metrics: Metrics) -> None:
        self.models = models
        self.service = models.service
        self._metrics = metrics

    async def infer(
        self,
        kind: InferFormat[Message, Written],
        message: Message,
        model: AnyModel,
        version: str | None,
        request: Received,
    ) -> tuple[Answer, Written]:
        """Read, run, write. `version` is the one that the caller named.

        Raises every error of the operator, and ClientGone; model_not_found if the model has gone.
        """
        service, models = self.service, self.models
        timings, reservation = request.timings, request.reservation
        arrived = perf_counter()
        try:
            if kind.is_long(message, model):
                read = await service.pool.run(lambda: kind.read(message, model, service.limits, reservation), timings)
            else:
                read = kind.read(message, model, service.limits, reservation)
            if read.timeout is not None:
                timings.wait_at_most(read.timeout)
            timings.parsed = perf_counter()
            answer = await service.run(read.call, timings, reservation)
            timings.gathered = timings.kernel_end
            if answer.tables:
                self._metrics.count_lookup(answer.tensors)
            if kind.is_long_answer(answer, read):
                written = await service.pool.run(lambda: kind.write(answer, model, read, reservation), timings)
            else:
                written = kind.write(answer, model, read, reservation)
        except Exception as error:
            self.count_failure(model, timings)
            if model.resident and isinstance(error, GatherError) and error.code == "tensor_not_found":
                models.forget(model.name)
                raise models.not_found(model.name, version) from None
            raise
        models.statistics.of(counted_as(model.name, answer.data_version or VERSION)).succeeded(timings, arrived)
        return answer, written

    def count_failure(self, model: AnyModel, timings: RequestTimings) -> None:
        """Count a request to a model that failed."""
        self.models.statistics.of(self.models.counted_now(model)).failed(timings.start)
