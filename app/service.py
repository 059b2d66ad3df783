"""The service itself: resolve the data, validate against the specification, choose a route, run.

It takes a `Call` and gives an `Answer` or raises a `GatherError`; it knows neither HTTP nor any format.
"""

from __future__ import annotations

from contextlib import aclosing
from time import perf_counter
from typing import Any, Final, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from app.bounded_cache import BoundedCache
from app.dispatch.backend_cost_model import Coefficients, RouteChoice
from app.dispatch.choose_backend import BackendChooser, has_locality
from app.dispatch.consistent_reads import RunInLockThread, attempts, default_thread
from app.dispatch.explain import NO_STRINGS, RouteNote, explain_routes
from app.dispatch.gpu_gathers import Gpu, Outcome, name_of
from app.dispatch.request_thread_pool import RequestThreadPool
from app.errors import GatherError
from app.kernels import Kernel, Unfinished
from app.memory.budget import Budget, MemoryReservation
from app.memory.error_tracebacks import drop_tracebacks
from app.memory.malloc_tuning import MAX_KEPT_BYTES
from app.memory.output_buffer_pool import OutputBufferPool
from app.operators.gather_plan import Plan
from app.operators.index_out_of_bounds import index_error
from app.operators.registry import OPERATORS
from app.operators.shape_rules import check_dtypes
from app.store import Resident, Store
from app.telemetry.server_timing import RequestTimings
from app.tensors.gather_call import Answer, Call
from app.tensors.shape_limits import Limits
from app.tensors.string_tensor import PackedStrings
from app.tensors.tensor import Tensor

_LARGE_INDEX_SCAN: Final = 1 << 16
_MAX_REMEMBERED_PLANS: Final = 4096
_FEW_STRINGS: Final = 1 << 10
"""Strings whose sizes are added up on the event loop: the head of each may be anywhere in memory."""


class _Planned(NamedTuple):
    """What follows from a call's types, shapes and parameters: its plan, the CPU's best route, and the coefficients by
    which that was chosen.
    """

    plan: Plan
    shape: tuple[int, ...]
    first_axis: int
    choice: RouteChoice
    choice_with_locality: RouteChoice | None
    """The CPU's best route if slices lie close together; None where the event loop runs it either way."""
    coefficients: Coefficients
    cpu_only: str | None
    """Why no GPU can run it; None where one could."""


class _Decision(NamedTuple):
    """The chosen route, the CPU's best one, and the reasons: whether slices lie close together (`locality`), whether
    reading the data waits for the disk (`cold`), whether the GPU has the data, and whether the gather fits there.
    """

    choice: RouteChoice
    cpu: RouteChoice
    locality: bool
    cold: bool
    data_on_gpu: bool
    fits_gpu: bool


class Explanation(NamedTuple):
    """An explained call: its data, the output's shape, the plan, every route, and the choice."""

    call: Call
    data: Tensor
    shape: tuple[int, ...]
    plan: Plan
    routes: list[RouteNote]
    choice: RouteChoice


class Service:
    """Carries out calls. One per process; everything it needs is handed to it.

    `gpu` is set once a device was found and measured, and stays None where there is none.
    """

    def __init__(
        self,
        limits: Limits,
        store: Store,
        kernel: Kernel,
        pool: RequestThreadPool,
        chooser: BackendChooser,
        budget: Budget,
    ) -> None:
        self.limits = limits
        self.store = store
        self.kernel = kernel
        self.pool = pool
        self.chooser = chooser
        self.budget = budget
        self.gpu: Gpu | None = None
        self.run_in_lock_thread: RunInLockThread = default_thread
        """Runs the wait for a tensor's lock in a thread that other tensors do not need."""
        self._outputs = OutputBufferPool(min(budget.total // 8, MAX_KEPT_BYTES))
        self._plans: BoundedCache[tuple[object, ...], _Planned] = BoundedCache(_MAX_REMEMBERED_PLANS)

    async def gather(self, call: Call, timings: RequestTimings, reservation: MemoryReservation) -> Answer:
        """Resolve, validate, choose, run. The output's bytes are charged to `reservation` before they are allocated.

        Raises every error of the operator, tensor_not_found, device_unavailable, overloaded and deadline_exceeded, and
        ClientGone.
        """
        data, resident = self._resolve(call)
        indices = call.indices
        planned = self.plan(call, data, indices)
        plan, shape, first_axis, choice, choice_with_locality, _, cpu_only = planned
        if call.over_limit is not None:
            raise call.over_limit
        if call.device == "gpu":
            self._check_device(call, planned)
        reservation.charge(plan.output_bytes)
        if choice_with_locality is not None or self.gpu is not None or (resident is not None and resident.cold):
            decided = self._decide(call, planned, data, resident)
            choice = decided.choice
            if self.gpu is not None and resident is not None and cpu_only is None:
                self.gpu.count_saving(call, plan, decided.cpu, resident)
        timings.choice = choice
        route, on_event_loop = choice.route, choice.on_event_loop
        timings.route = route
        if route == "gpu":
            on_gpu = await self._run_on_gpu(call, plan, data, resident, decided, timings)
            if on_gpu is not None:
                bad, array, etag = on_gpu
                timings.kernel_end = perf_counter()
                if bad >= 0:
                    await self._raise_index_error(call, plan, data, first_axis, timings)
                return Answer(Tensor(data.dtype, shape, array.view(data.dtype.numpy)), call.dialect, "gpu", etag)
        if on_event_loop and choice.parts > 1:
            bad, array = await self._split_from_event_loop(plan, data, indices, timings)
        elif on_event_loop:
            bad, array = self.run_at_once(plan, data, indices, timings)
        else:
            bad, array = await self._run_in_pool(plan, data, indices, timings)
        if resident is not None and not resident.is_consistent:
            del array  # what is read again takes its place
            resident, bad, array = await self._read_again(name_of(call), resident, plan, indices, timings)
        timings.kernel_end = perf_counter()
        if bad >= 0:
            await self._raise_index_error(call, plan, data, first_axis, timings)
        etag = None if resident is None else resident.etag
        if isinstance(data, PackedStrings):
            strings = data.gathered(shape, array)
            await self._check_size(strings, timings)
            timings.kernel_end = perf_counter()
            return Answer(strings, call.dialect, "cpu", etag)
        return Answer(Tensor(data.dtype, shape, array.view(data.dtype.numpy)), call.dialect, "cpu", etag)

    async def _raise_index_error(
        self, call: Call, plan: Plan, data: Tensor, first_axis: int, timings: RequestTimings
    ) -> NoReturn:
        dialect, indices = OPERATORS[call.operator].dialects[call.dialect], call.indices
        if indices.array.size < _LARGE_INDEX_SCAN:
            raise index_error(dialect, data.shape, indices, first_axis, plan.depth)
        raise await self.pool.run(lambda: index_error(dialect, data.shape, indices, first_axis, plan.depth), timings)

    async def _run_on_gpu(
        self,
        call: Call,
        plan: Plan,
        data: Tensor,
        resident: Resident | None,
        decided: _Decision,
        timings: RequestTimings,
    ) -> Outcome | None:
        """The gather on the device; None, with a route of threads in `timings`, where the CPU has to run it."""
        assert self.gpu is not None
        out = self._outputs.empty(plan.output_items, data.dtype.carrier)
        outcome = await self.gpu.gather(call, plan, data, resident, out, lambda: self._start_kernel(timings), timings)
        if outcome is None:
            timings.route = "split" if decided.cpu.route == "split" else "thread"
            timings.choice = decided.choice._replace(parts=decided.cpu.parts)
        return outcome

    def _decide(
        self, call: Call, planned: _Planned, data: Tensor, resident: Resident | None, on_device: bool = False
    ) -> _Decision:
        """Where the gather is to run: the one place that says so, for `gather` and `explain`. It changes nothing.

        Raises device_unavailable.
        """
        plan = planned.plan
        cpu, locality = planned.choice, False
        if planned.choice_with_locality is not None and has_locality(plan, call.indices.array):
            cpu, locality = planned.choice_with_locality, True
        cold = resident is not None and resident.cold
        if cold and cpu.on_event_loop:
            cpu = self.chooser.choose(plan, device="cpu", locality=locality, cold=True)
        if self.gpu is None or planned.cpu_only is not None:
            return _Decision(cpu, cpu, locality, cold, on_device, fits_gpu=True)
        data_on_gpu = on_device or (resident is not None and self.gpu.has_copy(resident.etag))
        choice = self.gpu.choose(call, plan, cpu, data_on_gpu)
        return _Decision(choice, cpu, locality, cold, data_on_gpu, self.gpu.fits(plan, data_on_gpu))

    def explain(self, call: Call, reservation: MemoryReservation, *, on_device: bool = False) -> Explanation:
        """Everything that `gather` does before it runs, and no more: the routes, the choice and the reasons.

        Of the indices only some are looked at, to see whether slices lie close together; nothing is allocated, and
        `reservation` is charged nothing. `on_device` says that the data counts as resident on a GPU. Raises what
        `gather` raises, but for index_out_of_bounds, overloaded and deadline_exceeded.
        """
        data, resident = self._resolve(call)
        planned = self.plan(call, data, call.indices)
        plan = planned.plan
        if call.over_limit is not None:
            raise call.over_limit
        self._check_device(call, planned)
        reservation.admit(plan.output_bytes)
        decided = self._decide(call, planned, data, resident, on_device)
        routes = explain_routes(
            plan,
            self.chooser,
            resident=decided.data_on_gpu,
            device=call.device,
            gpu_fits=decided.fits_gpu,
            cold=decided.cold,
            locality=decided.locality,
            always_gpu=self.gpu is not None and self.gpu.always,
            cpu_only=planned.cpu_only,
        )
        return Explanation(call, data, planned.shape, plan, routes, decided.choice)

    def _check_device(self, call: Call, planned: _Planned) -> None:
        if call.device != "gpu":
            return
        reason = self.chooser.no_gpu or planned.cpu_only
        if reason is not None:
            detail = f"{reason}; use device auto or cpu"
            raise GatherError("device_unavailable", detail, pointer=call.device_pointer)

    def plan(self, call: Call, data: Tensor, indices: Tensor) -> _Planned:
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
            operator = OPERATORS[call.operator]
            dialect = operator.dialects[call.dialect]
            check_dtypes(dialect, data, indices)
            plan, shape, first_axis = operator.plan(
                dialect, data, indices, call.parameter, call.parameter_pointer, self.limits
            )
            cpu_only = NO_STRINGS if data.dtype.kind == "string" else None
            if not operator.on_gpu:
                cpu_only = f"{operator.name} runs on the CPU alone"
            choice = self.chooser.choose(plan, device="cpu")
            choice_with_locality = None
            if not choice.on_event_loop:
                choice_with_locality = self.chooser.choose(plan, device="cpu", locality=True)
            planned = _Planned(plan, shape, first_axis, choice, choice_with_locality, coefficients, cpu_only)
            self._plans[key] = planned
        return planned

    def _resolve(self, call: Call) -> tuple[Tensor, Resident | None]:
        if isinstance(call.data, Tensor):
            return call.data, None
        resident = self.store.get(call.data)
        if resident is None:
            raise GatherError("tensor_not_found", f"no tensor is named {call.data!r}", pointer=call.data_pointer)
        return resident.tensor, resident

    def run_at_once(
        self, plan: Plan, data: Tensor, indices: Tensor, timings: RequestTimings
    ) -> tuple[int, NDArray[Any]]:
        """The first bad component of the indices or -1, and the gathered items, as carriers (see `DType`)."""
        self._start_kernel(timings)
        out = np.empty(plan.output_items, data.dtype.carrier)
        return self.kernel.run(plan, data.items, indices.array, out), out

    async def _split_from_event_loop(
        self, plan: Plan, data: Tensor, indices: Tensor, timings: RequestTimings
    ) -> tuple[int, NDArray[Any]]:
        """Split a gather over helpers, with the event loop as the leader, which waits for none of them for long."""
        self._start_kernel(timings)
        out = self._outputs.empty(plan.output_items, data.dtype.carrier)
        try:
            parts = timings.choice.parts
            bad = self.kernel.run(plan, data.items, indices.array, out, parts, may_leave_unfinished=True)
        except Unfinished as left:
            drop_tracebacks(left)
            timings.admitted = True  # a gather that has begun is not refused
            bad = await self.pool.run(left.wait, timings)
        return bad, out

    async def _run_in_pool(
        self, plan: Plan, data: Tensor, indices: Tensor, timings: RequestTimings
    ) -> tuple[int, NDArray[Any]]:
        # Allocated on the event loop: the C library keeps freed memory apart for each thread that allocates.
        out = self._outputs.empty(plan.output_items, data.dtype.carrier)

        def work() -> int:
            self._start_kernel(timings)
            return self.kernel.run(plan, data.items, indices.array, out, timings.choice.parts)

        return await self.pool.run(work, timings), out

    async def _read_again(
        self,
        name: str,
        resident: Resident,
        plan: Plan,
        indices: Tensor,
        timings: RequestTimings,
    ) -> tuple[Resident, int, NDArray[Any]]:
        """Read again until no scatter changed the content meanwhile, at last with writers kept out.

        Dtype and shape of a content never change, and so the plan holds; a new content under the name is not read.
        """
        found: tuple[int, NDArray[Any]] | None = None
        versions = attempts(resident, name, self.run_in_lock_thread, timings.deadline)
        async with aclosing(versions):
            async for version in versions:
                found = None  # frees the output of the last attempt
                found = await self._run_in_pool(plan, version.tensor, indices, timings)
                resident = version
                if version.is_consistent:
                    break
        assert found is not None
        return resident, *found

    def _start_kernel(self, timings: RequestTimings) -> None:
        now = perf_counter()
        if now > timings.deadline:
            raise GatherError("deadline_exceeded", "the request waited until its deadline had passed", retry_after=1)
        timings.kernel = now

    async def _check_size(self, output: PackedStrings, timings: RequestTimings) -> None:
        """Raises output_too_large where the gathered strings have more bytes than an output may have."""
        if output.array.size <= _FEW_STRINGS and not output.on_disk:
            size = output.nbytes
        else:
            size = await self.pool.run(lambda: output.nbytes, timings)
        if size > self.limits.output_bytes:
            raise GatherError(
                "output_too_large",
                f"the gathered strings would have {size} bytes; the limit is {self.limits.output_bytes}",
                facts={"limit": "output_bytes", "maximum": self.limits.output_bytes},
            )
