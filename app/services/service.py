"""The service itself: resolve the data, validate against the specification, choose a route, run.

It takes a `Call` and gives an `Answer` or raises a `GatherError`; it knows neither HTTP nor any format.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from time import perf_counter
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from app.dispatch.choose_backend import FEW_STRINGS, LARGE_COPY, LARGE_INDEX_SCAN, BackendChooser, Decision
from app.dispatch.consistent_reads import RunInLockThread, attempts, default_thread
from app.dispatch.gpu_gathers import Gpu, Outcome, name_of
from app.dispatch.request_thread_pool import RequestThreadPool
from app.errors import GatherError
from app.kernels import Kernel, Unfinished
from app.kernels.check_arrays import can_fill
from app.kernels.float_conversion import in_type
from app.kernels.out_of_bounds import REPLACED_BYTES, filled_output, replace_out_of_bounds
from app.memory.budget import Budget, MemoryReservation
from app.memory.error_tracebacks import drop_tracebacks
from app.memory.malloc_tuning import MAX_KEPT_BYTES
from app.memory.output_buffer_pool import OutputBufferPool
from app.operators.gather_plan import Plan
from app.operators.index_out_of_bounds import index_error
from app.operators.lookup import LookupPlan
from app.operators.registry import OPERATORS
from app.operators.shape_rules import NO_TENSORS
from app.services.call_planner import CallPlanner, Planned, decide, fill_item
from app.store import Resident, Store
from app.store.store_errors import unknown_reference
from app.telemetry.served_request import ServedRequest
from app.tensors.backward_call import BackwardCall
from app.tensors.dtypes import DType
from app.tensors.gather_call import OUTPUT, Answer, Call
from app.tensors.lookup_call import LookupCall
from app.tensors.shape_limits import Limits
from app.tensors.string_tensor import PackedStrings
from app.tensors.tensor import Tensor

Further = Mapping[str, NDArray[Any]] | None
"""See `Kernel.run`."""
NO_RESIDENTS: Final[Mapping[str, Resident]] = {}
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
    further: Mapping[str, Tensor] = NO_TENSORS
    """The inputs of an operator beside data and indices."""
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


class Prepared(NamedTuple):
    """A gather or a scatter that is prepared; `fill` is the item for `out_of_bounds` fill.

    `further` has the inputs beside data and indices, `named` the residents that some of them are.
    """

    call: Call
    data: Tensor
    resident: Resident | None
    planned: Planned
    decision: Decision
    fill: Tensor | None
    size: int
    further: Mapping[str, Tensor] = NO_TENSORS
    named: Mapping[str, Resident] = NO_RESIDENTS

    @property
    def explanation(self) -> Explanation:
        """As in `AnyPrepared`."""
        outputs = {OUTPUT: (self.planned.output_dtype, self.planned.shape)}
        residents = () if self.resident is None else (self.resident,)
        return Explanation(self.call, (self.data,), outputs, self.planned.plan, self.decision, residents, self.further)


class Runner(Protocol):
    """Carries out the calls of one family, with the store, the threads and the kernel of a `Service`."""

    def prepare(self, call: Any) -> AnyPrepared:
        """Resolve, validate and choose. Raises what `Service.run` raises before anything runs."""
        ...

    def start(self, prepared: Any, request: ServedRequest) -> Coroutine[Any, Any, Answer]:
        """Carry out what was prepared, once its size has been charged to the request's memory."""
        ...


class Service:
    """Carries out calls. One per process; everything it needs is handed to it.

    Gathers and scatters it carries out itself; `runners` has who carries out calls of other types.
    `use_gpu` is called once a device was found and measured; without one `gpu` stays None.
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
        self.outputs = OutputBufferPool(min(budget.total // 8, MAX_KEPT_BYTES))
        self.planner = CallPlanner(limits)
        self.runners: dict[type, Runner] = {}

    def use_gpu(self, gpu: Gpu, *, always: bool = False) -> None:
        """Gathers may run on `gpu` from now on, until it fails; with `always` all do that it can hold."""

        def stop(why: str) -> None:
            self.chooser = replace(self.chooser, no_gpu=why)

        gpu.on_failure = stop
        self.gpu = gpu
        self.chooser = replace(
            self.chooser, no_gpu=None, gpu_memory=gpu.device.memory, gpu_from=gpu.threshold, always_gpu=always
        )

    def run(self, call: AnyCall, request: ServedRequest) -> Coroutine[Any, Any, Answer]:
        """Resolve, validate and choose at once; what is awaited runs it. The output's bytes, and those that a
        kernel needs beside it, are charged to the request's memory before they are allocated.

        Raises every error of the operator, tensor_not_found, device_unavailable, overloaded and deadline_exceeded, and
        ClientGone, at once or when it is awaited.
        """
        runner: Runner = self if isinstance(call, Call) else self.runners[type(call)]
        prepared = runner.prepare(call)
        request.memory.charge(prepared.size)
        return runner.start(prepared, request)

    def prepare(self, call: Call, *, on_device: bool = False) -> Prepared:
        """Resolve, validate and choose. `on_device` says that the data counts as resident on a GPU."""
        resident = None
        if isinstance(call.data, Tensor):
            data = call.data
        else:
            resident = self.resolve(call.data, call.data_pointer)
            data = resident.tensor
        further, named = self._resolve_further(call) if call.further else (NO_TENSORS, NO_RESIDENTS)
        fill = None
        if call.out_of_bounds == "fill":
            fill = self._fill_item(call, further.get(OPERATORS[call.operator].typed_by, data).dtype)
        planned = self.planner.plan(call, data, self.chooser, further)
        if call.over_limit is not None:
            raise call.over_limit
        cold = resident is not None and resident.cold
        if named:
            cold = cold or any(one.cold for one in named.values())
        decision = self._decide(call, planned, resident, cold, on_device)
        size = planned.plan.output_bytes + planned.plan.scratch_bytes
        if planned.output_dtype is not planned.dtype:
            size += planned.plan.output_items * planned.output_dtype.item_size
        return Prepared(call, data, resident, planned, decision, fill, size, further, named)

    def start(self, prepared: Prepared, request: ServedRequest) -> Coroutine[Any, Any, Answer]:
        """Carry out what was prepared, once its size has been charged to the request's memory."""
        if prepared.call.out_of_bounds != "error":
            if prepared.fill is not None and self._kernel_fills(prepared):
                gather = self._gather_filled(prepared, request)
            else:
                gather = self._gather_replaced(prepared, request)
        elif isinstance(prepared.data, PackedStrings):
            gather = self._gather_strings(prepared, request)
        else:
            gather = self._run(prepared, request)
        return gather if prepared.call.output_dtype is None else self._convert(gather, prepared, request)

    async def _convert(self, gather: Coroutine[Any, Any, Answer], prepared: Prepared, request: ServedRequest) -> Answer:
        """Gather floats, and convert them to the type that is asked for."""
        answer, planned = await gather, prepared.planned
        few = planned.plan.output_bytes < LARGE_COPY
        answer.outputs[OUTPUT] = await self.pool.run_unless(
            few, lambda: in_type(answer.output, planned.output_dtype), request
        )
        request.kernel_end = perf_counter()
        return answer

    async def _gather_strings(self, prepared: Prepared, request: ServedRequest) -> Answer:
        """Gather or scatter strings, whose sizes follow from what is gathered."""
        if "updates" in prepared.further:
            prepared = await self._join_strings(prepared, request)
        answer = await self._run(prepared, request)
        await self._check_size(answer.output, request)
        return answer

    async def _join_strings(self, prepared: Prepared, request: ServedRequest) -> Prepared:
        """The scatter of strings, with the octets of data and updates in one place."""
        data, updates = prepared.data, prepared.further["updates"]
        assert isinstance(data, PackedStrings)
        assert isinstance(updates, PackedStrings)
        few = data.octets.size + updates.octets.size < LARGE_COPY and not data.on_disk
        joined = await self.pool.run_unless(few, lambda: data.joined(updates, request.memory.charge), request)
        return prepared._replace(data=joined[0], further={"updates": joined[1]})

    async def _run(
        self,
        prepared: Prepared,
        request: ServedRequest,
        further: Further = None,
    ) -> Answer:
        """Carry out a call as it was decided; its output has been charged to the request's memory.

        Raises index_out_of_bounds, overloaded, deadline_exceeded and ClientGone.
        """
        call, data, resident, planned, decision, _, _, inputs, named = prepared
        indices = call.indices
        if inputs:
            further = {name: tensor.items for name, tensor in inputs.items()}
        if self.gpu is not None and resident is not None:
            self.gpu.count_missed(name_of(call), resident, decision.missed_bytes)
        request.route, request.parts, on_event_loop = decision.choice
        if resident is not None:
            request.tensor = name_of(call)
        if request.route == "gpu":
            on_gpu = await self._run_on_gpu(prepared, request)
            if on_gpu is not None:
                bad, array, etag = on_gpu
                request.kernel_end = perf_counter()
                if bad >= 0:
                    raise await self._index_error(prepared, request)
                version = None if resident is None else resident.data_version
                return Answer({OUTPUT: planned.output(data, array)}, call.dialect, "gpu", etag, version)
        if on_event_loop and request.parts > 1:
            bad, array = await self._split_from_event_loop(planned, data, indices, request, further)
        elif on_event_loop:
            bad, array = self.run_at_once(planned, data, indices, request, further)
        else:
            bad, array = await self._run_in_pool(planned, data, indices, request, further)
        if resident is not None and not resident.is_consistent:
            del array  # what is read again takes its place
            bad, array, resident = await self._run_again(prepared, name_of(call), resident, request, further)
        if named and not all(one.is_consistent for one in named.values()):
            del array
            bad, array, resident = await self._run_until_consistent(prepared, resident, request)
        request.kernel_end = perf_counter()
        if bad >= 0:
            raise await self._index_error(prepared, request)
        outputs = {OUTPUT: planned.output(data, array)}
        if resident is None:
            return Answer(outputs, call.dialect, "cpu")
        return Answer(outputs, call.dialect, "cpu", resident.etag, resident.data_version)

    async def _run_again(
        self,
        prepared: Prepared,
        name: str,
        resident: Resident,
        request: ServedRequest,
        further: Further,
        role: str = "data",
    ) -> tuple[int, NDArray[Any], Resident]:
        """Run with the present content of the input `role`, which a scatter has changed; the version that was read."""
        found: tuple[int, NDArray[Any]] | None = None

        async def read(version: Resident) -> None:
            nonlocal found, further
            found = None  # frees the output of the last attempt
            data = prepared.data
            if role == "data":
                data = version.tensor
            else:
                further = {**(further or {}), role: version.tensor.items}
            found = await self._run_in_pool(prepared.planned, data, prepared.call.indices, request, further)

        version = await self.read_again(name, resident, read, request)
        assert found is not None
        return *found, version

    async def _run_until_consistent(
        self, prepared: Prepared, resident: Resident | None, request: ServedRequest
    ) -> tuple[int, NDArray[Any], Resident | None]:
        """Run again until no scatter has changed one of several resident inputs meanwhile, one input at a time."""
        call = prepared.call
        inputs = dict(prepared.named) if resident is None else {**prepared.named, "data": resident}
        names = {**call.further, "data": call.data}
        changed = next(name for name, one in inputs.items() if not one.is_consistent)
        while True:
            name, further = names[changed], {role: tensor.items for role, tensor in prepared.further.items()}
            assert isinstance(name, str)
            bad, array, inputs[changed] = await self._run_again(
                prepared, name, inputs[changed], request, further, changed
            )
            changed = next((role for role, one in inputs.items() if not one.is_consistent), "")
            if not changed:
                return bad, array, inputs.get("data")
            del array

    async def _gather_filled(self, prepared: Prepared, request: ServedRequest) -> Answer:
        """A gather by a kernel that itself fills the slices of tuples that are out of bounds."""
        plan, fill = prepared.planned.plan, prepared.fill
        assert fill is not None
        size = plan.slice_items * plan.item_size
        request.memory.charge(size)
        one_slice = await self.pool.run_unless(
            size < LARGE_COPY, lambda: np.full(plan.slice_items, fill.items[0], fill.items.dtype), request
        )
        replaced = np.zeros(1, np.int64)
        further = {"fill": one_slice, "replaced": replaced}
        answer = await self._run(prepared, request, further)
        answer.replaced = int(replaced[0])
        return answer

    async def _gather_replaced(self, prepared: Prepared, request: ServedRequest) -> Answer:
        """Gather where indices out of bounds are no error: they are replaced first, slices filled last."""
        call, data, resident, planned, decision, fill, *_ = prepared
        plan, indices, mode = planned.plan, call.indices, call.out_of_bounds
        request.memory.charge(REPLACED_BYTES * plan.index_items)
        replacement = await self.pool.run_unless(
            plan.index_items < LARGE_INDEX_SCAN, lambda: replace_out_of_bounds(plan, indices.array, mode), request
        )
        if replacement.filled is not None and 0 in plan.dims:  # there is nothing to gather from
            request.route = decision.choice.route
            self.start_kernel(request)
            array = np.zeros(plan.output_items, planned.dtype.carrier)
            answer = Answer({OUTPUT: planned.output(data, array)}, call.dialect, "cpu")
            if resident is not None:
                answer.data_etag, answer.data_version = resident.etag, resident.data_version
        else:
            valid = replace(call, indices=replace(indices, array=replacement.indices))
            answer = await self._run(prepared._replace(call=valid), request)
        filled = replacement.filled
        if filled is not None and fill is not None:
            item, output = fill, answer.output
            if isinstance(output, PackedStrings):
                few = plan.output_items <= FEW_STRINGS and not output.on_disk
            else:
                few = plan.output_bytes < LARGE_COPY
            answer.outputs[OUTPUT] = await self.pool.run_unless(
                few, lambda: filled_output(plan, output, filled, item, request.memory.charge), request
            )
            request.kernel_end = perf_counter()
        await self._check_size(answer.output, request)
        answer.replaced = replacement.replaced
        return answer

    async def _index_error(self, prepared: Prepared, request: ServedRequest) -> GatherError:
        call, data, planned = prepared.call, prepared.data, prepared.planned
        plan, first_axis = planned.plan, planned.first_axis
        dialect, indices = OPERATORS[call.operator].dialects[call.dialect], call.indices
        few = indices.array.size < LARGE_INDEX_SCAN
        return await self.pool.run_unless(
            few, lambda: index_error(dialect, data.shape, indices, first_axis, plan.depth), request
        )

    async def _run_on_gpu(self, prepared: Prepared, request: ServedRequest) -> Outcome | None:
        """The gather on the device; None, with a route of threads in `request`, where the CPU has to run it."""
        assert self.gpu is not None
        call, data, resident, planned, decision, *_ = prepared
        plan = planned.plan
        out = self.outputs.empty(plan.output_items, data.dtype.carrier)
        outcome = await self.gpu.gather(call, plan, data, resident, out, lambda: self.start_kernel(request), request)
        if outcome is None:
            request.route, request.parts, _ = decision.fallback
        return outcome

    def _decide(
        self, call: Call, planned: Planned, resident: Resident | None, cold: bool, on_gpu: bool = False
    ) -> Decision:
        """Where a call runs; `cold` says that reading waits for the disk, `on_gpu` that a GPU has the data.

        Raises device_unavailable.
        """
        if not (planned.usual.depends_on_request or cold or call.device == "gpu"):
            return planned.usual
        if not on_gpu and self.gpu is not None and resident is not None:
            on_gpu = self.gpu.has_copy(resident.etag)
        return decide(planned, call, cold, on_gpu)

    def explain(self, call: AnyCall, memory: MemoryReservation, *, on_device: bool = False) -> Explanation:
        """Everything that `run` does before it runs, and no more: the decision with its reasons.

        The values of the indices are not looked at, nothing is allocated, and nothing is charged.
        `on_device` says that the data counts as resident on a GPU. Raises what `run` raises, but for
        index_out_of_bounds, overloaded and deadline_exceeded.
        """
        if isinstance(call, Call):
            prepared: AnyPrepared = self.prepare(call, on_device=on_device)
        else:
            prepared = self.runners[type(call)].prepare(call)
        memory.admit(prepared.size)
        return prepared.explanation

    async def with_shards(self, found: Explanation, request: ServedRequest) -> Explanation:
        """An explanation with the shards that would be asked: here none."""
        del request
        return found

    def _fill_item(self, call: Call, dtype: DType) -> Tensor:
        """What slices are filled with. Raises value_not_representable, which comes before the operator's rules; that a
        string is too long, which comes after them, is left in the call's `over_limit`.
        """
        item, over_limit = fill_item(call.fill_value, dtype, self.limits)
        call.over_limit = call.over_limit or over_limit
        return item

    def _resolve_further(self, call: Call) -> tuple[Mapping[str, Tensor], Mapping[str, Resident]]:
        """The inputs of a call beside data and indices, and the residents that some are. Raises tensor_not_found."""
        further: dict[str, Tensor] = {}
        named: dict[str, Resident] = {}
        for name, given in call.further.items():
            if isinstance(given, str):
                at = call.resident_pointer(name)
                named[name] = resident = self.resolve(given, at)
                further[name] = replace(resident.tensor, shape_pointer=at, dtype_pointer=at)
            else:
                further[name] = given
        return further, named

    def resolve(self, reference: str, pointer: str) -> Resident:
        """The resident tensor that a request names at `pointer`. Raises tensor_not_found and tensor_damaged."""
        resident = self.store.get(reference)
        if resident is None:
            raise unknown_reference(reference, pointer, self.store)
        return resident

    def run_at_once(
        self, planned: Planned, data: Tensor, indices: Tensor, request: ServedRequest, further: Further = None
    ) -> tuple[int, NDArray[Any]]:
        """The first bad component of the indices or -1, and the items of the output, as carriers (see `DType`)."""
        self.start_kernel(request)
        plan = planned.plan
        out = np.empty(plan.output_items, planned.dtype.carrier)
        if further is None:
            return self.kernel.run(plan, data.items, indices.array, out), out
        return self.kernel.run(plan, data.items, indices.array, out, further=further), out

    async def _split_from_event_loop(
        self, planned: Planned, data: Tensor, indices: Tensor, request: ServedRequest, further: Further
    ) -> tuple[int, NDArray[Any]]:
        """Split a gather over helpers, with the event loop as the leader, which waits for none of them for long."""
        self.start_kernel(request)
        plan = planned.plan
        out = self.outputs.empty(plan.output_items, planned.dtype.carrier)
        try:
            bad = self.kernel.run(plan, data.items, indices.array, out, request.parts, True, further)
        except Unfinished as left:
            drop_tracebacks(left)
            request.admitted = True  # a gather that has begun is not refused
            bad = await self.pool.run(left.wait, request)
        return bad, out

    async def _run_in_pool(
        self, planned: Planned, data: Tensor, indices: Tensor, request: ServedRequest, further: Further
    ) -> tuple[int, NDArray[Any]]:
        # Allocated on the event loop: the C library keeps freed memory apart for each thread that allocates.
        plan = planned.plan
        out = self.outputs.empty(plan.output_items, planned.dtype.carrier)

        def work() -> int:
            self.start_kernel(request)
            return self.kernel.run(plan, data.items, indices.array, out, request.parts, False, further)

        return await self.pool.run(work, request), out

    async def read_again(
        self,
        name: str,
        resident: Resident,
        read: Callable[[Resident], Coroutine[Any, Any, object]],
        request: ServedRequest,
    ) -> Resident:
        """Have `read` read a tensor again until no scatter changed it meanwhile, at last with writers kept out.

        Dtype and shape of a content never change, and so the plan holds; a new content under the name is not read.
        Returns the version that was read.
        """
        versions = attempts(resident, name, self.run_in_lock_thread, request.deadline)
        async with aclosing(versions):
            async for version in versions:
                await read(version)
                resident = version
                if version.is_consistent:
                    break
        return resident

    def start_kernel(self, request: ServedRequest) -> None:
        """A kernel begins now. Raises deadline_exceeded where that is too late."""
        now = perf_counter()
        if now > request.deadline:
            raise GatherError("deadline_exceeded", "the request waited until its deadline had passed", retry_after=1)
        request.kernel = now

    def _kernel_fills(self, prepared: Prepared) -> bool:
        """Whether the kernel that was chosen fills slices by itself: one of the CPU does, and not those of strings.

        It takes a slice of fill values. Without tuples it would need none, and data without items may have slices of
        any size.
        """
        plan = prepared.planned.plan
        fills = can_fill(plan) and plan.index_items > 0
        return fills and prepared.decision.choice.route != "gpu" and not isinstance(prepared.data, PackedStrings)

    async def _check_size(self, output: Tensor, request: ServedRequest) -> None:
        """Raises output_too_large where gathered strings have more bytes than an output may have."""
        if not isinstance(output, PackedStrings):
            return
        few = output.array.size <= FEW_STRINGS and not output.on_disk
        size = await self.pool.run_unless(few, lambda: output.nbytes, request)
        if size > self.limits.output_bytes:
            raise GatherError(
                "output_too_large",
                f"the gathered strings would have {size} bytes; the limit is {self.limits.output_bytes}",
                facts={"limit": "output_bytes", "maximum": self.limits.output_bytes},
            )
