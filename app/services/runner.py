"""What each family of calls has: a runner, which prepares a call, explains it and carries it out."""

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
    """An explained call: all that is known before it runs."""

    call: AnyCall
    data: Sequence[Tensor]
    """Its data, or the table of each feature of a lookup."""
    outputs: Mapping[str, tuple[DType, tuple[int, ...]]]
    """Their types and shapes; none of a sparse gradient, whose shapes depend on the values."""
    plan: Plan | LookupPlan
    decision: Decision
    residents: Sequence[Resident] = ()
    """The resident tensors that it reads, in the order of `data`."""
    inputs: Mapping[str, tuple[Tensor, object]] = NO_INPUTS
    """The inputs of an operator, each with what the request gives for it: a name if it is a resident tensor."""
    shards: Sequence[Sequence[Mapping[str, object]]] = ()
    """For each of `data` in row ranges the shards that the call needs, as the explanation lists them."""


class AnyPrepared(Protocol):
    """A call whose data is resolved, and that is validated and planned; a route is chosen for it."""

    @property
    def size(self) -> int:
        """Bytes of its outputs, and of what a kernel needs beside them."""
        ...

    @property
    def explanation(self) -> Explanation:
        """All that is known of it."""
        ...


class Runner:
    """Carries out the calls of one family, with what it shares with the other families."""

    def __init__(self, resources: CallResources) -> None:
        self.resources = resources

    def prepare(self, call: Any, *, on_device: bool = False) -> AnyPrepared:
        """Resolve, validate and choose; the values of the indices are not looked at.

        `on_device` says that the data counts as resident on a GPU. Raises what `Service.run` raises before anything
        runs.
        """
        raise NotImplementedError

    def start(self, prepared: Any, request: ServedRequest) -> Coroutine[Any, Any, Answer]:
        """Carry out what was prepared, once its size has been charged to the request's memory.

        Raises what depends on the values of the indices, overloaded, deadline_exceeded and ClientGone.
        """
        raise NotImplementedError

    async def with_shards(self, found: Explanation, request: ServedRequest) -> Explanation:
        """An explanation with the shards that would be asked: here none."""
        del request
        return found
