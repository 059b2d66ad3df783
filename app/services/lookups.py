"""Lookups: how the service carries out a gather from many tables at once.

All tables are resolved in one state of the store, each once, however many features name it and by whichever reference.
What was read of one that a scatter changed meanwhile is read again: so a request is of one content of each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from time import perf_counter
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.bounded_cache import BoundedCache
from app.dispatch.choose_backend import LARGE_COPY, LARGE_INDEX_SCAN, BackendChooser, Decision, Facts
from app.errors import GatherError
from app.kernels.check_lookup import FeatureArrays, rows_of, rows_read
from app.kernels.float_conversion import converted, in_type
from app.kernels.replace_out_of_bounds import REPLACED_BYTES
from app.memory.budget import Memory
from app.operators.lookup_plan import FeaturePlan, LookupPlan, check_indices, check_offsets, ends_early, plan_key
from app.operators.registry import LOOKUPS
from app.operators.shape_rules import check_output_bytes
from app.services.call_planner import fill_item
from app.services.call_resources import CallResources
from app.services.edit_bags import EDITED_BYTES
from app.services.find_rows import are_few, bytes_to_find
from app.services.lookup_arrays import (
    Found,
    LookupRun,
    Marks,
    fills_rows,
    fitted_bytes,
    fitted_offsets,
    replaced_indices,
    rows_to_fill_with,
    with_edited_bags,
)
from app.services.lookups_by_key import by_position, found_outputs, rows_found, with_rows
from app.services.runner import Explanation, Runner
from app.store import Resident
from app.telemetry.served_request import ServedRequest
from app.tensors.dtypes import DTYPES, DType
from app.tensors.gather_call import OUTPUT, Answer, TableRead
from app.tensors.lookup_call import LookupCall
from app.tensors.string_frames import read_frames
from app.tensors.string_tensor import PackedStrings
from app.tensors.tensor import Tensor

CPU_ONLY: Final = "lookups run on the CPU alone"
_FLOAT32: Final = DTYPES["float32"]
_MAX_REMEMBERED_PLANS: Final = 256
_MAX_REMEMBERED_FEATURES: Final = 64
"""The plan of a lookup with more features is not remembered: one takes some 500 bytes for each, which no request is
charged."""


class _Planned(NamedTuple):
    plan: LookupPlan
    chooser: BackendChooser
    decisions: Mapping[bool, Decision]
    """By whether reading a table waits for the disk."""


class PreparedLookup(NamedTuple):
    """A lookup that is prepared: the table of each feature, and by the name of a type what rows are filled with."""

    call: LookupCall
    residents: Sequence[Resident]
    plan: LookupPlan
    fills: Mapping[str, Tensor]
    decision: Decision
    is_by_key: bool
    """Whether a feature names rows by key."""

    @property
    def size(self) -> int:
        """As in `AnyPrepared`."""
        return self.plan.output_bytes

    @property
    def explanation(self) -> Explanation:
        """As in `AnyPrepared`."""
        outputs = dict(zip(output_names(self.call), self.plan.outputs, strict=True))
        tables = [resident.tensor for resident in self.residents]
        return Explanation(self.call, tables, outputs, self.plan, self.decision, self.residents)


class Lookups(Runner):
    """Carries out lookups."""

    def __init__(self, resources: CallResources) -> None:
        super().__init__(resources)
        self._plans: BoundedCache[tuple[object, ...], _Planned] = BoundedCache(_MAX_REMEMBERED_PLANS)

    def prepare(self, call: LookupCall, *, on_device: bool = False) -> PreparedLookup:
        """Resolve the tables, validate and choose; see `Service.run`. The values of indices are not looked at.

        Raises what `plan_lookup` raises, tensor_not_found, and value_not_representable (the fill value).
        """
        residents = self._resolve(call)
        fills: dict[str, Tensor] = {}
        over_limit = None
        is_by_key = any(feature.by_key is not None for feature in call.features)
        may_fill = is_by_key or call.out_of_bounds == "fill"
        for feature, resident in zip(call.features, residents, strict=True) if may_fill else ():
            dtype = resident.tensor.dtype
            if fills_rows(call, feature) and dtype.name not in fills:
                fills[dtype.name], too_long = fill_item(call.fill_value, dtype, self.resources.limits)
                over_limit = over_limit or too_long
        planned = self._planned(by_position(call, residents) if is_by_key else call, residents)
        if over_limit is not None:
            raise over_limit
        decision = planned.decisions[any(resident.cold for resident in residents)]
        return PreparedLookup(call, residents, planned.plan, fills, decision, is_by_key)

    async def start(self, prepared: PreparedLookup, request: ServedRequest) -> Answer:
        """Run what was prepared. What it allocates besides is charged first; rows are not charged.

        Raises offsets_invalid, index_out_of_bounds, overloaded and deadline_exceeded, and ClientGone.
        """
        resources, pool = self.resources, self.resources.pool
        call, residents, plan, fills, decision, is_by_key = prepared
        found: Found = [None] * len(residents)
        if is_by_key:
            found = await self._find(prepared, request)
            call = with_rows(call, found)
        items = sum(feature.indices for feature in plan.features)
        few = items < LARGE_INDEX_SCAN
        replaced, strings = None, any(dtype.kind == "string" for dtype, _ in plan.outputs)
        filled: Marks = [None] * len(plan.features)
        indices: Sequence[NDArray[Any]] = [feature.indices.array for feature in call.features]
        if call.out_of_bounds != "error" or is_by_key:
            request.memory.charge(REPLACED_BYTES * items)
            replacements = await pool.run_unless(few, lambda: replaced_indices(call, plan, found), request)
            indices = [one.indices for one in replacements]
            # Without bags no row is filled, and a table without rows may have rows of any size.
            rows_written = [feature.output_rows for feature in plan.features]
            filled = [one.filled if some else None for one, some in zip(replacements, rows_written, strict=True)]
            if call.out_of_bounds != "error":
                replaced = sum(one.replaced for one in replacements)
        size = fitted_bytes(call, plan, indices, filled)
        request.memory.charge(size + _converted_bytes(call, plan))
        offsets, rows = await pool.run_unless(
            size < LARGE_COPY,
            lambda: (fitted_offsets(call, indices), rows_to_fill_with(plan, filled, fills, residents)),
            request,
        )
        weights = [None if feature.weights is None else feature.weights.items for feature in call.features]
        outputs = [resources.outputs.empty(prod(shape), dtype.carrier) for dtype, shape in plan.written]
        run = LookupRun(plan, indices, offsets, weights, rows, outputs)
        request.route, request.parts, on_event_loop = decision.choice
        if any(
            one.include_last_offset and ends_early(one) for one in call.features
        ):  # the kernel sees where bags begin
            raise await self._first_error(call, plan, request)
        if any(feature.edits_bags for feature in call.features):
            run = await self._edit_bags(prepared, found, run, request)
        run, residents, tables, every = await self._read_tables(call, run, residents, request)
        plan = run.plan
        if on_event_loop and request.parts == 1 and not strings:
            bad = self._run_kernel(run, every, tables, 1, request)
        else:
            bad = await pool.run(lambda: self._run_kernel(run, every, tables, request.parts, request), request)
        for resident in {id(resident): resident for resident in residents}.values():
            if bad < 0 and not resident.is_consistent:
                numbers = [number for number, one in enumerate(residents) if one is resident]
                name = call.features[numbers[0]].tensor
                read = partial(self._read_again, run, numbers, request.parts, request)
                again = await resources.read_again(name, resident, read, request)
                residents = tables = [again if one is resident else one for one in residents]
        request.kernel_end = perf_counter()
        if bad >= 0:
            raise await self._first_error(call, plan, request)
        if strings:
            looked_up = await pool.run(
                lambda: self._string_outputs(call, run, tables, filled, fills, request.memory), request
            )
        else:
            as_written = call.output_dtype is None or plan.output_bytes + plan.written_bytes < LARGE_COPY
            looked_up = await pool.run_unless(as_written, lambda: _outputs(call, run), request)
        return Answer(
            dict(zip(output_names(call), looked_up, strict=True)) | found_outputs(call, found),
            "",
            replaced=replaced,
            missing=sum(one.missing for one in found if one is not None) if is_by_key else None,
            tables=[
                TableRead(feature.tensor, one.etag, one.data_version)
                for feature, one in zip(call.features, residents, strict=True)
            ],
        )

    async def _find(self, prepared: PreparedLookup, request: ServedRequest) -> Found:
        """The rows that the keys of each feature name, None of a feature by position.

        The keys of a content do not change, so they hold however often its rows are read again. Raises offsets_invalid
        and key_not_found, and index_out_of_bounds for a row in place of missing keys.
        """
        call, residents = prepared.call, prepared.residents
        keyed = [(one, table) for one, table in zip(call.features, residents, strict=True) if one.by_key is not None]
        keys = [feature.indices for feature, _ in keyed]
        request.memory.charge(sum(map(bytes_to_find, keys)))
        few = are_few(keys) and not any(resident.cold for _, resident in keyed)
        found = await self.resources.pool.run_unless(few, lambda: rows_found(call, residents), request)
        if isinstance(found, GatherError):
            raise found
        return found

    async def _edit_bags(
        self, prepared: PreparedLookup, found: Found, run: LookupRun, request: ServedRequest
    ) -> LookupRun:
        """The run without padding in its bags, and with default rows in empty ones. Raises what `edit_bags` raises."""
        features = prepared.call.features
        edited = [number for number, feature in enumerate(features) if feature.edits_bags]
        plans = [run.plan.features[number] for number in edited]
        count = sum(plan.indices + plan.bags for plan in plans)
        request.memory.charge(EDITED_BYTES * count)
        few = count < LARGE_INDEX_SCAN
        return await self.resources.pool.run_unless(
            few, lambda: with_edited_bags(run, features, prepared.residents, found, edited), request
        )

    async def _first_error(self, call: LookupCall, plan: LookupPlan, request: ServedRequest) -> GatherError:
        """The error of indices or offsets of which some are known to be wrong."""
        few = sum(feature.indices for feature in plan.features) < LARGE_INDEX_SCAN
        error = await self.resources.pool.run_unless(few, lambda: first_error(call, plan), request)
        assert error is not None, "an index or an offset is wrong"
        return error

    def _resolve(self, call: LookupCall) -> list[Resident]:
        """The table of each feature: one object for all features that read its content, by name, version or alias.

        Raises tensor_not_found and tensor_damaged.
        """
        places: dict[str, str] = {}
        for feature in call.features:
            if feature.tensor not in places:
                places[feature.tensor] = f"{feature.pointer}/tensor"
        contents: dict[int, Resident] = {}
        found = {
            name: contents.setdefault(id(resident.tensor), resident)
            for name, resident in zip(places, self.resources.resolve_all(list(places.items())), strict=True)
        }
        return [found[feature.tensor] for feature in call.features]

    def _planned(self, call: LookupCall, residents: Sequence[Resident]) -> _Planned:
        """Validate, plan and choose; lookups of the same types, shapes and poolings share one plan."""
        tables = [resident.tensor for resident in residents]
        key = plan_key(call, tables)
        planned, chooser = self._plans.get(key), self.resources.chooser
        if planned is None or planned.chooser is not chooser:
            plan = LOOKUPS.plan(call, tables, self.resources.limits)
            equivalent = plan.equivalent
            decisions = {
                cold: chooser.decide(equivalent, Facts(cpu_only=CPU_ONLY, cold=cold)) for cold in (False, True)
            }
            planned = _Planned(plan, chooser, decisions)
            if len(call.features) <= _MAX_REMEMBERED_FEATURES:
                self._plans[key] = planned
        return planned

    async def _read_tables(
        self,
        call: LookupCall,
        run: LookupRun,
        residents: Sequence[Resident],
        request: ServedRequest,
    ) -> tuple[LookupRun, Sequence[Resident], Sequence[Resident], Sequence[int]]:
        """What a kernel is to do: the run, the contents that the features are of, the table of each, and their numbers.

        The kernel looks up the features that are numbered, here all of them, from the tables of the store.
        """
        del call, request
        return run, residents, residents, range(len(residents))

    def _run_kernel(
        self,
        run: LookupRun,
        numbers: Sequence[int],
        residents: Sequence[Resident] | Mapping[int, Resident],
        threads: int,
        request: ServedRequest,
    ) -> int:
        self.resources.start_kernel(request)
        plans = [run.plan.features[number] for number in numbers]
        arrays = [run.arrays(number, residents[number].tensor) for number in numbers]
        for number in run.plan.widened:
            if number in numbers:
                at = numbers.index(number)
                wide = _widened(plans[at], arrays[at])
                if wide is None:
                    return at
                plans[at], arrays[at] = wide
        return self.resources.lookup_kernel.lookup(plans, arrays, threads)

    async def _read_again(
        self, run: LookupRun, numbers: Sequence[int], threads: int, request: ServedRequest, version: Resident
    ) -> None:
        """Look up all features of one table again, in its present version."""
        work = partial(self._run_kernel, run, numbers, dict.fromkeys(numbers, version), threads, request)
        await self.resources.pool.run(work, request)

    def _string_outputs(
        self,
        call: LookupCall,
        run: LookupRun,
        residents: Sequence[Resident],
        filled: Marks,
        fills: Mapping[str, Tensor],
        memory: Memory,
    ) -> list[Tensor]:
        """The outputs where one is of strings, whose frames stay where they are unless they are joined.

        Raises output_too_large where the strings have more bytes than an answer may have.
        """
        found: list[Tensor] = []
        size = 0
        parts: list[tuple[int, int, PackedStrings]] = []  # number, width, strings
        for number, (feature, resident) in enumerate(zip(run.plan.features, residents, strict=True)):
            table = resident.tensor
            rows = rows_of(feature, run.outputs[feature.output])
            shape = run.plan.shapes[number]
            if not isinstance(table, PackedStrings):
                dtype = table.dtype
                found.append(Tensor(dtype, shape, run.outputs[feature.output].view(dtype.numpy)))
                size += run.outputs[feature.output].nbytes
                continue
            memory.charge(rows.nbytes)
            strings = table.gathered(shape, np.ascontiguousarray(rows).reshape(-1).view(np.uint64))
            marks = filled[number]
            if marks is not None:
                where = np.repeat(marks, feature.row_items)
                item = fills[table.dtype.name]
                assert isinstance(item, PackedStrings), "its type is that of the table"
                strings = strings.filled(where, item, memory.charge)
            size += strings.nbytes
            check_output_bytes("the strings looked up", size, self.resources.limits, call.pointer("features"))
            found.append(strings)
            parts.append((number, rows.shape[1], strings))
        if not call.concat:
            return found
        return [_joined_strings(run, parts, memory)]


def output_names(call: LookupCall) -> list[str]:
    """The names of the outputs: `output`, or `0.output`, `1.output` and so on."""
    return [OUTPUT] if call.concat else [f"{number}.{OUTPUT}" for number in range(len(call.features))]


def _widened(plan: FeaturePlan, arrays: FeatureArrays) -> tuple[FeaturePlan, FeatureArrays] | None:
    """The rows of a feature as a table of float32, pooled in their order. None if an index is out of bounds."""
    indices, dtype = arrays.indices, DTYPES[plan.dtype]
    if plan.indices and not 0 <= indices.min() <= indices.max() < plan.rows + (arrays.fill is not None):
        return None
    rows = rows_read(plan, arrays, indices).reshape(-1)
    wide = arrays._replace(
        table=_as_float32(rows, dtype),
        indices=np.arange(plan.indices, dtype=indices.dtype),
        weights=None if arrays.weights is None else _as_float32(arrays.weights, dtype),
        fill=None,
    )
    return replace(plan, rows=plan.indices, item_size=_FLOAT32.item_size, dtype=_FLOAT32.name), wide


def _as_float32(carriers: NDArray[Any], dtype: DType) -> NDArray[Any]:
    return converted(carriers, dtype, _FLOAT32).view(_FLOAT32.carrier)


def _converted_bytes(call: LookupCall, plan: LookupPlan) -> int:
    """The bytes that a lookup takes beside its outputs if they are asked for in another type."""
    if call.output_dtype is None:
        return 0
    features = (plan.features[number] for number in plan.widened)
    # The rows, and as float32; their numbers, and the weights as float32.
    wide = sum(3 * feature.indices * feature.row_bytes + 12 * feature.indices for feature in features)
    return plan.written_bytes + wide + (plan.output_bytes if call.concat else 0)


def _outputs(call: LookupCall, run: LookupRun) -> list[Tensor]:
    """The outputs of a lookup of no strings; those asked for in another type are converted, and joined last."""
    written = zip(run.plan.written, run.outputs, strict=True)
    parts = [Tensor(dtype, shape, out.view(dtype.numpy)) for (dtype, shape), out in written]
    if call.output_dtype is None:
        return parts
    (target, shape), *_ = run.plan.outputs
    parts = [in_type(part, target) for part in parts]
    if not call.concat:
        return parts
    if not shape[0]:
        return [Tensor(target, shape, np.empty(0, target.numpy))]
    rows = [part.array.reshape(shape[0], -1) for part in parts]
    return [Tensor(target, shape, np.concatenate(rows, axis=1).reshape(-1))]


def first_error(call: LookupCall, plan: LookupPlan) -> GatherError | None:
    """The first error in the values of a lookup, None if there is none: offsets first, then indices."""
    try:
        for feature in call.features:
            check_offsets(feature)
        for feature, planned in zip(call.features, plan.features, strict=True):
            if feature.by_key is not None:
                continue
            if call.out_of_bounds == "error" or (not planned.rows and call.out_of_bounds != "fill"):
                check_indices(feature, planned.rows)
    except GatherError as error:
        return error
    return None


def _joined_strings(run: LookupRun, parts: Sequence[tuple[int, int, PackedStrings]], memory: Memory) -> PackedStrings:
    """The strings of several tables in one tensor: their frames are copied one behind the other."""
    (dtype, shape), out = run.plan.outputs[0], run.outputs[0]
    starts = out.view(np.int64).reshape(shape[0], -1) if out.size else np.empty((0, 0), np.int64)
    pieces: list[NDArray[np.uint8]] = []
    end = 0
    for number, width, strings in parts:
        octets = np.frombuffer(strings.packed(memory.charge), np.uint8)
        count = strings.array.size
        memory.charge(8 * count + octets.nbytes)
        places = np.empty(count, np.int64)
        octets.flags.writeable = False
        read_frames.run(octets, count, places)
        if count:
            column = run.plan.features[number].column // 8
            starts[:, column : column + width] = places.reshape(-1, width) + end
        pieces.append(octets)
        end += octets.size
    return PackedStrings(dtype, shape, starts.reshape(-1), octets=np.concatenate(pieces))
