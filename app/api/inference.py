"""Handles Open Inference Protocol requests for REST and gRPC."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Generic, TypeVar

from app.api.v2_model_lookup import Models, statistics_label
from app.errors import GatherError
from app.formats.oip.infer_answer import VERSION
from app.formats.oip.infer_document import AskedInference, Model
from app.memory.budget import Memory
from app.telemetry.request_metrics import Metrics
from app.telemetry.served_request import ServedRequest
from app.tensors.gather_call import Answer
from app.tensors.shape_limits import Limits

Message = TypeVar("Message")
Written = TypeVar("Written")


@dataclass(frozen=True, slots=True, eq=False)
class InferFormat(Generic[Message, Written]):
    """The parser and writer of a transport; long work runs in a thread of the pool."""

    is_long: Callable[[Message, Model], bool]
    read: Callable[[Message, Model, Limits, Memory], AskedInference]
    is_long_answer: Callable[[Answer, AskedInference], bool]
    write: Callable[[Answer, Model, AskedInference, Memory], Written]


class Inference:
    """Runs infer requests, and counts them by model."""

    def __init__(self, models: Models, metrics: Metrics) -> None:
        self.models = models
        self.service = models.service
        self._metrics = metrics

    async def infer(
        self,
        kind: InferFormat[Message, Written],
        message: Message,
        model: Model,
        version: str | None,
        request: ServedRequest,
    ) -> tuple[Answer, Written]:
        """Read a request, run it, and write its response. `version` is the version that the caller requested.

        May raise any error of the operator, ClientGone, and model_not_found if the model was removed.
        """
        service, models = self.service, self.models
        arrived = perf_counter()
        try:
            # `run_unless` is not used here, because its coroutine and closure would add 1 us to a request.
            if kind.is_long(message, model):
                read = await service.pool.run(
                    lambda: kind.read(message, model, service.limits, request.memory), request
                )
            else:
                read = kind.read(message, model, service.limits, request.memory)
            if read.timeout is not None:
                request.wait_at_most(read.timeout)
            request.parsed = perf_counter()
            answer = await service.run(read.call, request)
            request.gathered = request.kernel_end
            if answer.tables:
                self._metrics.count_lookup(answer.tensors)
            if kind.is_long_answer(answer, read):
                written = await service.pool.run(lambda: kind.write(answer, model, read, request.memory), request)
            else:
                written = kind.write(answer, model, read, request.memory)
        except Exception as error:
            self.count_failure(model, request)
            if model.resident and isinstance(error, GatherError) and error.code == "tensor_not_found":
                models.forget(model.name)
                raise models.not_found(model.name, version) from None
            raise
        models.statistics.of(statistics_label(model.name, answer.data_version or VERSION)).count_success(
            request, arrived
        )
        return answer, written

    def count_failure(self, model: Model, request: ServedRequest) -> None:
        """Count a failed request to a model."""
        self.models.statistics.of(self.models.current_statistics_label(model)).count_failure(request.start)
