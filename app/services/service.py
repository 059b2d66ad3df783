"""The service: for each call it finds the runner of its family, which resolves, validates, chooses a route, and runs.

It takes a call and gives an `Answer` or raises a `GatherError`; it knows neither HTTP nor any format.
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from functools import cached_property
from typing import Any

from app.memory.budget import MemoryReservation
from app.services.call_resources import CallResources
from app.services.gathers import Gathers
from app.services.gradients import Gradients
from app.services.lookups import Lookups
from app.services.runner import AnyCall, Explanation, Runner
from app.telemetry.served_request import ServedRequest
from app.tensors.backward_call import BackwardCall
from app.tensors.gather_call import Answer, Call
from app.tensors.lookup_call import LookupCall


class Service(CallResources):
    """Carries out calls, each by the runner of its type."""

    @cached_property
    def runners(self) -> Mapping[type, Runner]:
        """The runners by the types of their calls."""
        return {Call: Gathers(self), LookupCall: Lookups(self), BackwardCall: Gradients(self)}

    def run(self, call: AnyCall, request: ServedRequest) -> Coroutine[Any, Any, Answer]:
        """Resolve, validate and choose at once; what is awaited runs it. The output's bytes, and those that a
        kernel needs beside it, are charged to the request's memory before they are allocated.

        Raises every error of the operator, tensor_not_found, device_unavailable, overloaded and deadline_exceeded, and
        ClientGone, at once or when it is awaited.
        """
        runner = self.runners[type(call)]
        prepared = runner.prepare(call)
        request.memory.charge(prepared.size)
        return runner.start(prepared, request)

    def explain(self, call: AnyCall, memory: MemoryReservation, *, on_device: bool = False) -> Explanation:
        """Everything that `run` does before it runs, and no more: the decision with its reasons.

        The values of the indices are not looked at, nothing is allocated, and nothing is charged.
        `on_device` says that the data counts as resident on a GPU. Raises what `run` raises, but for
        index_out_of_bounds, overloaded and deadline_exceeded.
        """
        prepared = self.runners[type(call)].prepare(call, on_device=on_device)
        memory.admit(prepared.size)
        return prepared.explanation

    async def with_shards(self, found: Explanation, request: ServedRequest) -> Explanation:
        """An explanation with the shards that would be asked."""
        return await self.runners[type(found.call)].with_shards(found, request)
