"""The interface of a runner, which prepares, explains and runs the calls of one family."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from app.dispatch.choose_backend import Decision
from app.operators.gather_plan import Plan
from app.operators.lookup_plan import LookupPlan
from app.services.call_resources import CallResources
from app.store import Resident
from app.telemetry.served_request import ServedRequest
from app.tensors.backward_call import BackwardCall
from app.tensors.dtypes import DType
from app.tensors.gather_call import Answer, Call
from app.tensors.lookup_call import LookupCall
from app.tensors.tensor import Tensor

NO_INPUTS: Final[Mapping[str, tuple[Tensor, object]]] = {}
AnyCall = Call | LookupCall | BackwardCall


class Explanation(NamedTuple):
    """Everything that is known about a call before it runs."""

    call: AnyCall
    data: Sequence[Tensor]
    """The call's data, or the table of each feature of a lookup."""
    outputs: Mapping[str, tuple[DType, tuple[int, ...]]]
    """Types and shapes by output name. This is empty for a sparse gradient, whose shapes depend on the values."""
    plan: Plan | LookupPlan
    decision: Decision
    residents: Sequence[Resident] = ()
    """The resident tensors that the call reads, in the order of `data`."""
    inputs: Mapping[str, tuple[Tensor, object]] = NO_INPUTS
    """The inputs of an operator, each with the value given in the request: a name if it is a resident tensor."""
    shards: Sequence[Sequence[Mapping[str, object]]] = ()
    """For each item of `data` that is split into row ranges, the shards that the call needs, as listed in the
    explanation.
    """


class AnyPrepared(Protocol):
    """A call that has been validated and planned, whose data is resolved, and for which a route has been chosen."""

    @property
    def size(self) -> int:
        """Number of bytes in its outputs and in the kernel's working memory."""
        ...

    @property
    def explanation(self) -> Explanation:
        """Everything that is known about the call before it runs."""
        ...


class Runner:
    """Runs the calls of one family, with the resources shared by all families."""

    def __init__(self, resources: CallResources) -> None:
        self.resources = resources

    def prepare(self, call: Any, *, on_device: bool = False) -> AnyPrepared:
        """Resolve the data, validate the call, and choose a route. Does not read the values of the indices.

        `on_device` treats the data as resident on a GPU. May raise any error of `Service.run` that is found before the
        call runs.
        """
        raise NotImplementedError

    def start(self, prepared: Any, request: ServedRequest) -> Coroutine[Any, Any, Answer]:
        """Run a prepared call. Its size must already be charged to the request's memory.

        Raises errors that depend on the values of the indices, overloaded, deadline_exceeded and ClientGone.
        """
        raise NotImplementedError

    async def with_shards(self, found: Explanation, request: ServedRequest) -> Explanation:
        """Add to an explanation the shards to which the call would be sent; here there are none."""
        del request
        return found
