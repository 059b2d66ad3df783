"""The service itself: resolve the data, validate against the specification, choose a route, run.

It takes a `Call` and gives an `Answer` or raises a `GatherError`; it knows neither HTTP nor any format.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any, Final, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from app.dispatch.allocator import MOST_KEPT
from app.dispatch.budget import Budget, Lease
from app.dispatch.cost import ROUTES, Choice, Chooser, Coefficients, Route, device_bytes, lie_close
from app.dispatch.explain import RouteNote, notes
from app.dispatch.gpu import Gpu, Outcome
from app.dispatch.outputs import Outputs
from app.dispatch.pool import Caller, Pool
from app.errors import GatherError
from app.kernels import Kernel
from app.spec.dialects import DIALECTS
from app.spec.gather import plan_gather
from app.spec.gathernd import plan_gathernd
from app.spec.plan import GatherPlan
from app.spec.rules import check_dtypes, index_error
from app.store import Resident, Store
from app.tensors.call import Answer, Call, Operator
from app.tensors.dtypes import DType
from app.tensors.limits import Limits
from app.tensors.strings import PackedStrings
from app.tensors.tensor import Tensor

PLANNERS: Final[Mapping[Operator, Callable[..., tuple[GatherPlan, tuple[int, ...], int]]]] = {
    "gathernd": plan_gathernd,
    "gather": plan_gather,
}
_LARGE_SCAN: Final = 1 << 16
_PAUSES: Final = (0.0, 0.0002, 0.001, 0.003, 0.01, 0.03)
"""Seconds before each further attempt to read a resident tensor that a scatter is changing."""
_REMEMBERED_PLANS: Final = 4096
_NOT_YET: Final = Choice("loop", 0.0, here=True)


class _Planned(NamedTuple):
    """What is known of a call from its types, shapes and parameters, and the prices that chose its route."""

    plan: GatherPlan
    shape: tuple[int, ...]
    first_axis: int
    route: Route
    choice: Choice
    close: Choice | None
    """What would be chosen if slices lie close together; None where the event loop runs or leads it either way."""
    coefficients: Coefficients


class Explanation(NamedTuple):
    """What a call would come to: its data, the output's shape, the plan, every route, and the choice."""

    call: Call
    data: Tensor
    shape: tuple[int, ...]
    plan: GatherPlan
    routes: list[RouteNote]
    choice: Choice


class Stages:
    """When a request entered its stages, in seconds of `perf_counter`; 0.0 for those it has not reached. `over` is set
    once it has been counted: when the header of a small gather's answer was made, for others when all had been sent.

    `choice` is the route that was chosen with the seconds predicted for it, `route` the one that was taken. It is the
    request's ticket for the pool, too: `caller` is whose it is, `admitted` whether work was done for it before.
    """

    __slots__ = (
        "admitted",
        "caller",
        "choice",
        "deadline",
        "end",
        "kernel",
        "kernel_end",
        "over",
        "parsed",
        "route",
        "start",
    )

    def __init__(self, start: float, deadline: float, caller: Caller | None = None) -> None:
        self.start = start
        self.deadline = deadline
        self.caller = caller
        self.admitted = False
        self.parsed = 0.0
        self.kernel = 0.0
        self.kernel_end = 0.0
        self.end = 0.0
        self.over = 0.0
        self.route: Route | None = None
        self.choice = _NOT_YET


class Service:
    """Carries out calls. One per process; everything it needs is handed to it.

    `gpu` is set once a device was found and measured, and stays None where there is none.
    """

    def __init__(
        self, limits: Limits, store: Store, kernel: Kernel, pool: Pool, chooser: Chooser, budget: Budget
    ) -> None:
        self.limits = limits
        self.store = store
        self.kernel = kernel
        self.pool = pool
        self.chooser = chooser
        self.budget = budget
        self.gpu: Gpu | None = None
        self._outputs = Outputs(min(budget.total // 8, MOST_KEPT))
        self._plans: dict[tuple[object, ...], _Planned] = {}

    async def gather(self, call: Call, stages: Stages, lease: Lease) -> Answer:
        """Resolve, validate, choose, run. The output's bytes are charged to `lease` before they are allocated.

        Raises every error of the operator, tensor_not_found, device_unavailable, overloaded and deadline_exceeded, and
        ClientGone.
        """
        data, resident = self._resolve(call)
        indices = call.indices
        plan, shape, first_axis, route, stages.choice, close, _ = self._plan(call, data, indices)
        if call.over_limit is not None:
            raise call.over_limit
        if call.device == "gpu":
            self._check_device(call, data)
        lease.charge(plan.output_bytes)
        if self.gpu is not None and data.dtype.kind != "string":
            stages.choice = self.gpu.choose(call, plan, resident)
            route = stages.choice.route
        elif close is not None and lie_close(plan, indices.array):
            stages.choice = close
            route = close.route
        here = stages.choice.here
        if here and resident is not None and resident.cold:
            here = False
            if route == "loop":
                route = "thread"
        if here and route == "split" and indices.array.size >= _LARGE_SCAN and indices.array.dtype != np.int64:
            here = False  # to widen that many takes about as long as the gather, and is in no prediction
        stages.route = route
        if route == "gpu":
            on_gpu = await self._run_on_gpu(call, plan, data, resident, stages)
            if on_gpu is not None:
                bad, array, etag = on_gpu
                stages.kernel_end = perf_counter()
                if bad >= 0:
                    await self._raise_index_error(call, plan, data, first_axis, stages)
                return Answer(Tensor(data.dtype, shape, _typed(array, data.dtype)), call.dialect, "gpu", etag)
            route = stages.route
        if here:
            bad, array = self._run(plan, data, indices, stages)
        else:
            bad, array = await self._run_elsewhere(plan, data, indices, stages)
        if resident is not None and not resident.steady:
            resident, bad, array = await self._run_again(resident, plan, indices, stages)
        stages.kernel_end = perf_counter()
        if bad >= 0:
            await self._raise_index_error(call, plan, data, first_axis, stages)
        etag = None if resident is None else resident.etag
        return Answer(Tensor(data.dtype, shape, array), call.dialect, "cpu", etag)

    async def _raise_index_error(
        self, call: Call, plan: GatherPlan, data: Tensor, first_axis: int, stages: Stages
    ) -> NoReturn:
        dialect, indices = DIALECTS[call.operator][call.dialect], call.indices
        if indices.array.size < _LARGE_SCAN:
            raise index_error(dialect, data.shape, indices, first_axis, plan.depth)
        raise await self.pool.run(lambda: index_error(dialect, data.shape, indices, first_axis, plan.depth), stages)

    async def _run_on_gpu(
        self, call: Call, plan: GatherPlan, data: Tensor, resident: Resident | None, stages: Stages
    ) -> Outcome | None:
        """The gather on the device; None, and a route of the CPU taken, where it cannot and may be elsewhere."""
        assert self.gpu is not None
        out = self._outputs.empty(plan.output_items, data.dtype.carrier)
        outcome = await self.gpu.gather(call, plan, data, resident, out, lambda: self._start(stages), stages)
        if outcome is None:
            fallback = self.gpu.cpu(plan)
            stages.route = "split" if fallback.route == "split" else "thread"
            stages.choice = stages.choice._replace(parts=fallback.parts)
        return outcome

    def explain(self, call: Call, lease: Lease, *, on_device: bool = False) -> Explanation:
        """Everything that `gather` does before it runs, and no more: what it would do, and why.

        The values of the indices are not looked at, nothing is allocated, and `lease` is charged nothing. `on_device`
        says that the data counts as resident on a GPU. Raises what `gather` raises, but for index_out_of_bounds,
        overloaded and deadline_exceeded.
        """
        data, resident = self._resolve(call)
        plan, shape, _, _, choice, _, _ = self._plan(call, data, call.indices)
        if call.over_limit is not None:
            raise call.over_limit
        self._check_device(call, data)
        lease.admit(plan.output_bytes)
        strings = data.dtype.kind == "string"
        cold = resident is not None and resident.cold
        fits = True
        if self.gpu is not None:
            on_device = on_device or (resident is not None and self.gpu.holds(resident.etag))
            fits = device_bytes(plan, on_device) <= self.gpu.device.memory
        routes = notes(
            plan, self.chooser, resident=on_device, device=call.device, gpu_fits=fits, strings=strings, cold=cold
        )
        if self.chooser.no_gpu is None:
            choice = self.chooser.choose(plan, on_device, call.device, fits, strings)
        if cold and choice.route == "loop":
            choice = Choice("thread", routes[ROUTES.index("thread")].seconds or 0.0)
        return Explanation(call, data, shape, plan, routes, choice)

    def _check_device(self, call: Call, data: Tensor) -> None:
        if call.device != "gpu":
            return
        reason = self.chooser.no_gpu
        if reason is None and data.dtype.kind == "string":
            reason = "a GPU holds no strings"
        if reason is not None:
            detail = f"{reason}; use device auto or cpu"
            raise GatherError("device_unavailable", detail, pointer=call.device_pointer)

    def _plan(self, call: Call, data: Tensor, indices: Tensor) -> _Planned:
        """Validate, plan and choose; calls of the same types, shapes and parameters share one plan."""
        key = (
            call.operator,
            call.dialect,
            call.parameter,
            data.dtype.name,
            data.shape,
            indices.dtype.name,
            indices.shape,
        )
        planned = self._plans.get(key)
        coefficients = self.chooser.coefficients
        if planned is None or planned.coefficients is not coefficients:
            dialect = DIALECTS[call.operator][call.dialect]
            check_dtypes(dialect, data, indices)
            plan, shape, first_axis = PLANNERS[call.operator](
                dialect, data, indices, call.parameter, call.parameter_pointer, self.limits
            )
            choice = self.chooser.choose(plan, strings=data.dtype.kind == "string")
            close = None
            if not choice.here and data.dtype.kind != "string":
                close = self.chooser.choose(plan, close=True)
            planned = _Planned(plan, shape, first_axis, choice.route, choice, close, coefficients)
            if len(self._plans) >= _REMEMBERED_PLANS:
                self._plans.clear()
            self._plans[key] = planned
        return planned

    def _resolve(self, call: Call) -> tuple[Tensor, Resident | None]:
        if isinstance(call.data, Tensor):
            return call.data, None
        resident = self.store.get(call.data)
        if resident is None:
            raise GatherError("tensor_not_found", f"no tensor is named {call.data!r}", pointer=call.data_pointer)
        return resident.tensor, resident

    def _run(self, plan: GatherPlan, data: Tensor, indices: Tensor, stages: Stages) -> tuple[int, NDArray[Any]]:
        self._start(stages)
        if data.dtype.kind == "string":
            return self._run_strings(plan, data, indices)
        parts = stages.choice.parts
        room = np.empty if parts == 1 else self._outputs.empty  # a call less for the smallest
        out = room(plan.output_items, data.dtype.carrier)
        return self.kernel.run(plan, data.items, _as_int64(indices), out, parts), _typed(out, data.dtype)

    async def _run_elsewhere(
        self, plan: GatherPlan, data: Tensor, indices: Tensor, stages: Stages
    ) -> tuple[int, NDArray[Any]]:
        if data.dtype.kind == "string":
            return await self.pool.run(lambda: self._run(plan, data, indices, stages), stages)
        # Allocated here: the C library keeps freed memory apart for each thread that asked for it.
        out = self._outputs.empty(plan.output_items, data.dtype.carrier)

        def work() -> int:
            self._start(stages)
            return self.kernel.run(plan, data.items, _as_int64(indices), out, stages.choice.parts)

        return await self.pool.run(work, stages), _typed(out, data.dtype)

    async def _run_again(
        self, resident: Resident, plan: GatherPlan, indices: Tensor, stages: Stages
    ) -> tuple[Resident, int, NDArray[Any]]:
        """A scatter changed the content while it was read: read again until it did not, at last with writers kept out.

        Dtype and shape stay as they were, and so does the plan; another content under the name is not looked at.
        """
        for pause in _PAUSES:
            await asyncio.sleep(pause)
            resident = resident.current()
            bad, array = await self._run_elsewhere(plan, resident.tensor, indices, stages)
            if resident.steady:
                return resident, bad, array
        hold = resident.hold()
        await asyncio.to_thread(hold.__enter__)
        try:
            resident = resident.current()
            bad, array = await self._run_elsewhere(plan, resident.tensor, indices, stages)
        finally:
            hold.__exit__(None, None, None)
        return resident, bad, array

    def _start(self, stages: Stages) -> None:
        stages.kernel = now = perf_counter()
        if now > stages.deadline:
            raise GatherError("deadline_exceeded", "the request waited until its deadline had passed", retry_after=1)

    def _run_strings(self, plan: GatherPlan, data: Tensor, indices: Tensor) -> tuple[int, NDArray[Any]]:
        """Strings go through the offsets: the kernel gathers item numbers, which then pick the strings."""
        if isinstance(data, PackedStrings):
            return self._run_packed(plan, data, indices)
        numbers = np.empty(plan.output_items, np.uint64)
        bad = self.kernel.run(plan, np.arange(plan.data_items, dtype=np.uint64), _as_int64(indices), numbers)
        if bad >= 0:
            return bad, numbers
        self._check_string_bytes(data.array, numbers)
        return bad, data.array[numbers.astype(np.int64)]

    def _check_string_bytes(self, strings: NDArray[Any], numbers: NDArray[Any]) -> None:
        sizes = np.fromiter((4 + len(text.encode()) for text in strings), np.int64, len(strings))
        if int(sizes.max(initial=0)) * len(numbers) <= self.limits.output_bytes:
            return
        self._check_total(int(sizes[numbers.astype(np.int64)].sum()))

    def _run_packed(self, plan: GatherPlan, data: PackedStrings, indices: Tensor) -> tuple[int, NDArray[Any]]:
        """Resident strings: the kernel gathers where their frames start, and only those become Python objects."""
        starts = np.empty(plan.output_items, np.uint64)
        bad = self.kernel.run(plan, data.array, _as_int64(indices), starts)
        if bad >= 0:
            return bad, starts
        self._check_total(data.packed_size(starts))
        return bad, data.pick(starts)

    def _check_total(self, total: int) -> None:
        if total > self.limits.output_bytes:
            raise GatherError(
                "output_too_large",
                f"the gathered strings would have {total} bytes; the limit is {self.limits.output_bytes}",
                facts={"limit": "output_bytes", "maximum": self.limits.output_bytes},
            )


def _as_int64(indices: Tensor) -> NDArray[np.int64]:
    # A uint64 above 2**63 - 1 turns negative, which is out of bounds in every dialect that takes uint64.
    array: NDArray[np.int64] = indices.array.astype(np.int64, copy=False)
    return array


def _typed(out: NDArray[Any], dtype: DType) -> NDArray[Any]:
    typed: NDArray[Any] = out.view(dtype.numpy)
    return typed
