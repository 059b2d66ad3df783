"""The service: hands each call to the runner of its family, which resolves the data, validates the call, chooses a
route, and runs it.

It takes a call, and returns an `Answer` or raises a `GatherError`. It is independent of HTTP and of every format.
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
    """Runs calls, each with the runner of its type."""

    @cached_property
    def runners(self) -> Mapping[type, Runner]:
        """The runners, by type of call."""
        return {Call: Gathers(self), LookupCall: Lookups(self), BackwardCall: Gradients(self)}

    def run(self, call: AnyCall, request: ServedRequest) -> Coroutine[Any, Any, Answer]:
        """Resolve the data, validate the call, and choose a route immediately; await the result to run the call.

        The bytes of the output and of the kernel's working memory are charged to the request's memory before they are
        allocated.

        May raise, now or when awaited, any error of the operator, tensor_not_found, device_unavailable, overloaded,
        deadline_exceeded and ClientGone.
        """
        runner = self.runners[type(call)]
        prepared = runner.prepare(call)
        request.memory.charge(prepared.size)
        return runner.start(prepared, request)

    def explain(self, call: AnyCall, memory: MemoryReservation, *, on_device: bool = False) -> Explanation:
        """Do everything that `run` does before it runs the call, and return the decision with its reasons.

        Does not read the values of the indices, and allocates and charges nothing. `on_device` treats the data as
        resident on a GPU. Raises the errors of `run`, except index_out_of_bounds, overloaded and deadline_exceeded.
        """
        prepared = self.runners[type(call)].prepare(call, on_device=on_device)
        memory.admit(prepared.size)
        return prepared.explanation

    async def with_shards(self, found: Explanation, request: ServedRequest) -> Explanation:
        """Add to an explanation the shards to which the call would be sent."""
        return await self.runners[type(found.call)].with_shards(found, request)
