"""Run gathers and scatters: resolve the data, validate the call against the specification, choose a route, and run
it.
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from app.dispatch.choose_backend import FEW_STRINGS, LARGE_COPY, LARGE_INDEX_SCAN, Decision, Facts
from app.dispatch.gpu_gathers import Outcome, name_of
from app.dispatch.gpu_tensor_copies import ContentChanged
from app.dispatch.read_without_writers import VersionChanged
from app.errors import GatherError
from app.kernels import Unfinished
from app.kernels.check_arrays import can_fill
from app.kernels.float_conversion import as_float_type
from app.kernels.replace_out_of_bounds import REPLACED_BYTES, filled_output, replace_out_of_bounds
from app.memory.error_tracebacks import drop_tracebacks
from app.operators.index_out_of_bounds import index_error
from app.operators.registry import OPERATORS
from app.operators.shape_rules import NO_TENSORS, check_data_dtype
from app.services.call_planner import CallPlanner, Planned, check_offered, fill_item
from app.services.call_resources import CallResources
from app.services.find_rows import KeysToFind, are_few, bytes_to_find, check_keys, find_rows, positions_of
from app.services.runner import Explanation, Runner
from app.store import Resident
from app.telemetry.served_request import ServedRequest
from app.tensors.by_key import FOUND, KEYS
from app.tensors.dtypes import DTYPES
from app.tensors.gather_call import OUTPUT, Answer, Call
from app.tensors.string_tensor import PackedStrings
from app.tensors.tensor import Tensor

Further = Mapping[str, NDArray[Any]] | None
"""See `Kernel.run`."""
NO_RESIDENTS: Final[Mapping[str, Resident]] = {}


@dataclass(slots=True, eq=False)
class Prepared:
    """A gather or a scatter that is ready to run. `fill` is the item for `out_of_bounds` fill.

    `further` holds the inputs other than data and indices; `residents` holds the resident tensors among all inputs.
    `asked` is the call as requested. For a call by key, `call` is the equivalent call by position; its indices have
    only a shape until the keys have been looked up.
    """

    asked: Call
    call: Call
    data: Tensor
    planned: Planned
    decision: Decision
    fill: Tensor | None
    size: int
    further: Mapping[str, Tensor]
    residents: Mapping[str, Resident]

    @property
    def resident(self) -> Resident | None:
        """The resident tensor that is the data, if any."""
        return self.residents.get("data")

    @property
    def keys(self) -> Tensor | None:
        """The keys of a call by key, or None."""
        return None if self.asked.by_key is None else self.asked.indices

    @property
    def explanation(self) -> Explanation:
        outputs = {OUTPUT: (self.planned.output_dtype, self.planned.shape)}
        named = {"indices": self.call.indices} if self.keys is None else {KEYS: self.keys}
        if self.keys is not None and self.call.by_key is not None and self.call.by_key.found:
            outputs[FOUND] = DTYPES["bool"], self.keys.shape
        residents = () if self.resident is None else (self.resident,)
        call = self.call
        inputs: dict[str, tuple[Tensor, object]] = {"data": (self.data, call.data)}
        inputs |= {name: (tensor, None) for name, tensor in named.items()}
        inputs |= {name: (tensor, call.further[name]) for name, tensor in self.further.items()}
        return Explanation(call, (self.data,), outputs, self.planned.plan, self.decision, residents, inputs)


class Gathers(Runner):
    """Runs gathers and scatters."""

    def __init__(self, resources: CallResources) -> None:
        super().__init__(resources)
        self.pool = resources.pool
        self.planner = CallPlanner(resources.limits)

    def prepare(self, call: Call, *, on_device: bool = False) -> Prepared:
        """Resolve the data, validate the call, and choose a route. `on_device` treats the data as resident on a GPU."""
        residents = NO_RESIDENTS
        if call.further:
            residents = self._resolve(call)
        elif isinstance(call.data, str):
            residents = {"data": self.resources.resolve(call.data, call.data_pointer)}
        return self._prepare(call, residents, on_device)

    def _prepare(self, call: Call, residents: Mapping[str, Resident], on_device: bool = False) -> Prepared:
        """Validate the call and choose a route, using `residents` as its resident inputs."""
        resources, resident = self.resources, residents.get("data")
        data = call.data if resident is None else resident.tensor
        assert isinstance(data, Tensor), "a name has been resolved"
        further = _further_inputs(call, residents) if call.further else NO_TENSORS
        asked, fill, by_key = call, None, call.by_key
        if call.out_of_bounds == "fill" or (by_key is not None and by_key.missing == "fill"):
            dtype = further.get(OPERATORS[call.operator].typed_by, data).dtype
            fill, over_limit = fill_item(call.fill_value, dtype, resources.limits)
            call.over_limit = call.over_limit or over_limit  # raised after the operator's own rules have been checked
        if by_key is not None:
            assert resident is not None, "the request names a table"
            call = self._by_position(call, resident)
        planned = self.planner.plan(call, data, resources.chooser, further)
        if call.over_limit is not None:
            raise call.over_limit
        cold = any(one.cold for one in residents.values()) if residents else False
        decision = planned.usual
        if decision.depends_on_request or cold or call.device == "gpu":
            decision = self._decide(call, planned, resident, cold, on_device)
        return Prepared(asked, call, data, planned, decision, fill, planned.size, further, residents)

    def _by_position(self, call: Call, resident: Resident) -> Call:
        """Convert a gather by key to the gather by position that runs once the keys are found.

        Raises no_keys and unsupported_dtype.
        """
        at = call.data_pointer
        data = replace(resident.tensor, shape_pointer=at, dtype_pointer=at)
        check_data_dtype(OPERATORS[call.operator].dialects[call.dialect], data)
        check_keys(call.indices, resident, name_of(call), at)
        return replace(call, indices=positions_of(call.indices))

    def start(self, prepared: Prepared, request: ServedRequest) -> Coroutine[Any, Any, Answer]:
        """Run a prepared call. Its size must already be charged to the request's memory."""
        gather = self._gather_residents if prepared.residents else self._gather
        if prepared.call.output_dtype is None:
            return gather(prepared, request)
        return self._convert(gather(prepared, request), prepared, request)

    async def _gather_residents(self, prepared: Prepared, request: ServedRequest) -> Answer:
        """Gather or scatter from one version of each resident tensor, and plan again if a version has changed."""
        charged = request.memory.held
        gather = self._gather if prepared.keys is None else self._gather_by_key
        try:
            return await gather(prepared, request)
        except VersionChanged as changed:
            is_slow = isinstance(changed, ContentChanged)
        asked, size = prepared.asked, prepared.size
        versions = {_name_of(asked, name): one for name, one in prepared.residents.items()}

        async def read() -> Answer:
            residents = {name: versions[_name_of(asked, name)] for name in prepared.residents}
            again = self._prepare(asked, residents)
            request.memory.adjust(request.memory.held - charged + size, again.size)
            return await gather(again, request)

        return await self.resources.read_again(versions, read, request, is_slow=is_slow)

    def _gather(self, prepared: Prepared, request: ServedRequest) -> Coroutine[Any, Any, Answer]:
        """Gather or scatter by position. Raises VersionChanged."""
        if prepared.call.out_of_bounds != "error":
            if prepared.fill is not None and self._kernel_fills(prepared):
                return self._gather_filled(prepared, request)
            return self._gather_replaced(prepared, request)
        if isinstance(prepared.data, PackedStrings):
            return self._gather_strings(prepared, request)
        return self._run(prepared, request)

    async def _gather_by_key(self, prepared: Prepared, request: ServedRequest) -> Answer:
        """Find the rows of the keys and gather them. Raises key_not_found and VersionChanged."""
        call, keys, resident = prepared.call, prepared.asked.indices, prepared.resident
        assert resident is not None
        by_key, column = call.by_key, resident.keys
        assert by_key is not None
        assert column is not None
        request.memory.charge(bytes_to_find(keys))
        few = are_few([keys]) and not resident.cold
        wanted = [KeysToFind(by_key, keys, column, name_of(call))]
        (found,) = await self.pool.run_unless(few, lambda: find_rows(wanted), request)
        if not resident.is_consistent:
            raise VersionChanged
        if isinstance(found, GatherError):
            raise found
        # `_by_position` created this call only for this preparation, so it may be changed.
        call.indices.array = found.rows
        if found.missing and by_key.missing == "fill":
            call.out_of_bounds = "fill"
        answer = await self._gather(prepared, request)
        answer.missing, answer.replaced = found.missing, None
        if by_key.found:
            answer.outputs[FOUND] = found.found(keys.shape)
        return answer

    async def _convert(self, gather: Coroutine[Any, Any, Answer], prepared: Prepared, request: ServedRequest) -> Answer:
        """Gather floats and convert them to the requested type."""
        answer, planned = await gather, prepared.planned
        few = planned.plan.output_bytes < LARGE_COPY
        answer.outputs[OUTPUT] = await self.pool.run_unless(
            few, lambda: as_float_type(answer.output, planned.output_dtype), request
        )
        request.kernel_end = perf_counter()
        return answer

    async def _gather_strings(self, prepared: Prepared, request: ServedRequest) -> Answer:
        """Gather or scatter strings. Their total size is not known until afterward."""
        if "updates" in prepared.further:
            prepared = await self._join_strings(prepared, request)
        answer = await self._run(prepared, request)
        await self._check_size(answer.output, request)
        return answer

    async def _join_strings(self, prepared: Prepared, request: ServedRequest) -> Prepared:
        """Return a scatter of strings in which the octets of data and updates are joined in one array."""
        data, updates = prepared.data, prepared.further["updates"]
        assert isinstance(data, PackedStrings)
        assert isinstance(updates, PackedStrings)
        few = data.octets.size + updates.octets.size < LARGE_COPY and not data.on_disk
        joined = await self.pool.run_unless(few, lambda: data.joined(updates, request.memory.charge), request)
        return replace(prepared, data=joined[0], further={"updates": joined[1]})

    async def _run(
        self,
        prepared: Prepared,
        request: ServedRequest,
        further: Further = None,
    ) -> Answer:
        """Run a call on the chosen route. Its output must already be charged to the request's memory.

        Raises index_out_of_bounds, overloaded, deadline_exceeded, ClientGone and VersionChanged.
        """
        call, data, resident, planned = prepared.call, prepared.data, prepared.resident, prepared.planned
        decision, inputs, residents, indices = prepared.decision, prepared.further, prepared.residents, call.indices
        if inputs:
            further = {name: tensor.items for name, tensor in inputs.items()}
        gpu = self.resources.gpu
        if gpu is not None and resident is not None:
            gpu.count_missed(name_of(call), resident, decision.missed_bytes)
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
        if residents and not all(one.is_consistent for one in residents.values()):
            raise VersionChanged
        request.kernel_end = perf_counter()
        if bad >= 0:
            raise await self._index_error(prepared, request)
        outputs = {OUTPUT: planned.output(data, array)}
        if resident is None:
            return Answer(outputs, call.dialect, "cpu")
        return Answer(outputs, call.dialect, "cpu", resident.etag, resident.data_version)

    async def _gather_filled(self, prepared: Prepared, request: ServedRequest) -> Answer:
        """Gather with a kernel that itself fills the slices of tuples that are out of bounds."""
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
        """Gather when out-of-bounds indices are not an error: replace them first, and fill their slices last."""
        call, data, resident, planned = prepared.call, prepared.data, prepared.resident, prepared.planned
        decision, fill = prepared.decision, prepared.fill
        plan, indices, mode = planned.plan, call.indices, call.out_of_bounds
        request.memory.charge(REPLACED_BYTES * plan.index_items)
        replacement = await self.pool.run_unless(
            plan.index_items < LARGE_INDEX_SCAN, lambda: replace_out_of_bounds(plan, indices.array, mode), request
        )
        if replacement.filled is not None and 0 in plan.dims:  # data has no slices to gather
            request.route = decision.choice.route
            self.resources.start_kernel(request)
            array = np.zeros(plan.output_items, planned.dtype.carrier)
            answer = Answer({OUTPUT: planned.output(data, array)}, call.dialect, "cpu")
            if resident is not None:
                answer.data_etag, answer.data_version = resident.etag, resident.data_version
        else:
            valid = replace(call, indices=replace(indices, array=replacement.indices))
            answer = await self._run(replace(prepared, call=valid), request)
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
        """Gather on the device.

        Returns None, and sets the CPU's route in `request`, if the CPU has to run the gather.
        """
        assert self.resources.gpu is not None
        data, plan = prepared.data, prepared.planned.plan
        out = self.resources.outputs.empty(plan.output_items, data.dtype.carrier)
        outcome = await self.resources.gpu.gather(
            prepared.call, plan, data, prepared.resident, out, lambda: self.resources.start_kernel(request), request
        )
        if outcome is None:
            request.route, request.parts, _ = prepared.decision.fallback
        return outcome

    def _decide(
        self, call: Call, planned: Planned, resident: Resident | None, cold: bool, on_gpu: bool = False
    ) -> Decision:
        """Choose where a call runs.

        `cold` means that reading waits for the disk; `on_gpu` means that a GPU holds the data. Raises
        device_unavailable.
        """
        gpu = self.resources.gpu
        if not on_gpu and gpu is not None and resident is not None:
            on_gpu = gpu.has_copy(resident.etag)
        facts = Facts(call.device, planned.cpu_only, cold, on_gpu)
        decision = planned.decisions.get(facts)
        if decision is None:
            decision = planned.decisions[facts] = planned.chooser.decide(planned.plan, facts)
        return check_offered(decision, call)

    def _resolve(self, call: Call) -> Mapping[str, Resident]:
        """Return the resident tensors among the inputs, by input name. Raises tensor_not_found and tensor_damaged."""
        inputs = {"data": call.data, **call.further}
        places = {
            name: (given, call.resident_pointer(name)) for name, given in inputs.items() if isinstance(given, str)
        }
        return dict(zip(places, self.resources.resolve_all(list(places.values())), strict=True))

    def run_at_once(
        self, planned: Planned, data: Tensor, indices: Tensor, request: ServedRequest, further: Further = None
    ) -> tuple[int, NDArray[Any]]:
        """Run the kernel here.

        Returns the first invalid component of the indices, or -1, and the output's items as carriers.

        See `DType` for carriers.
        """
        resources, plan = self.resources, planned.plan
        resources.start_kernel(request)
        out = np.empty(plan.output_items, planned.dtype.carrier)
        if further is None:
            return resources.kernel.run(plan, data.items, indices.array, out), out
        return resources.kernel.run(plan, data.items, indices.array, out, further=further), out

    async def _split_from_event_loop(
        self, planned: Planned, data: Tensor, indices: Tensor, request: ServedRequest, further: Further
    ) -> tuple[int, NDArray[Any]]:
        """Split a gather among helpers, led by the event loop, which waits only briefly for the helpers."""
        self.resources.start_kernel(request)
        plan = planned.plan
        out = self.resources.outputs.empty(plan.output_items, planned.dtype.carrier)
        try:
            bad = self.resources.kernel.run(plan, data.items, indices.array, out, request.parts, True, further)
        except Unfinished as left:
            drop_tracebacks(left)
            request.admitted = True  # a gather that has begun is no longer refused
            bad = await self.pool.run(left.wait, request)
        return bad, out

    async def _run_in_pool(
        self, planned: Planned, data: Tensor, indices: Tensor, request: ServedRequest, further: Further
    ) -> tuple[int, NDArray[Any]]:
        # The output is allocated on the event loop, because the C library keeps freed memory separately for each thread
        # that allocates.
        plan = planned.plan
        out = self.resources.outputs.empty(plan.output_items, planned.dtype.carrier)

        def work() -> int:
            self.resources.start_kernel(request)
            return self.resources.kernel.run(plan, data.items, indices.array, out, request.parts, False, further)

        return await self.pool.run(work, request), out

    def _kernel_fills(self, prepared: Prepared) -> bool:
        """Return whether the chosen kernel fills slices itself. CPU kernels do so, except for strings.

        The kernel is given one slice of fill values. This is not done if there are no tuples, because the slice would
        be unneeded, and because data without items may have slices of any size.
        """
        plan = prepared.planned.plan
        fills = can_fill(plan) and plan.index_items > 0
        return fills and prepared.decision.choice.route != "gpu" and not isinstance(prepared.data, PackedStrings)

    async def _check_size(self, output: Tensor, request: ServedRequest) -> None:
        """Raise output_too_large if gathered strings have more bytes than an output may have."""
        if not isinstance(output, PackedStrings):
            return
        few = output.array.size <= FEW_STRINGS and not output.on_disk
        size = await self.pool.run_unless(few, lambda: output.nbytes, request)
        if size > self.resources.limits.output_bytes:
            raise GatherError(
                "output_too_large",
                f"the gathered strings would have {size} bytes; the limit is {self.resources.limits.output_bytes}",
                facts={"limit": "output_bytes", "maximum": self.resources.limits.output_bytes},
            )


def _name_of(call: Call, name: str) -> str:
    """Return the name of the resident tensor that a call specifies for an input."""
    return str(call.data if name == "data" else call.further[name])


def _further_inputs(call: Call, residents: Mapping[str, Resident]) -> Mapping[str, Tensor]:
    """Return the inputs other than data and indices, by name."""
    further: dict[str, Tensor] = {}
    for name, given in call.further.items():
        if isinstance(given, str):
            at = call.resident_pointer(name)
            further[name] = replace(residents[name].tensor, shape_pointer=at, dtype_pointer=at)
        else:
            further[name] = given
    return further
