"""Run lookups: gathers from several tables at once.

All tables are resolved in one state of the store. Each table is resolved once, no matter how many features refer to it,
or by which references. If a scatter changes a table during the read, the features that read this table are read again.
So a response uses a single version of each table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from time import perf_counter
from typing import Any, Final, NamedTuple, TypeVar

from numpy.typing import NDArray

from app.bounded_cache import BoundedCache
from app.dispatch.choose_backend import LARGE_COPY, LARGE_INDEX_SCAN, BackendChooser, Decision, Facts
from app.dispatch.read_without_writers import VersionChanged
from app.errors import GatherError
from app.kernels.replace_out_of_bounds import REPLACED_BYTES
from app.operators.lookup_plan import LookupPlan, check_indices, check_offsets, ends_early, plan_key
from app.operators.registry import LOOKUPS
from app.services.call_planner import fill_item
from app.services.call_resources import CallResources, may_be_outdated
from app.services.edit_bags import EDITED_BYTES
from app.services.find_rows import are_few, bytes_to_find
from app.services.lookup_arrays import (
    Found,
    LookupRun,
    Marks,
    by_position,
    converted_bytes,
    fills_rows,
    fitted_bytes,
    fitted_offsets,
    found_outputs,
    output_names,
    outputs_of,
    replaced_indices,
    rows_found,
    rows_to_fill_with,
    string_outputs,
    widen_rows,
    with_edited_bags,
    with_rows,
)
from app.services.runner import Explanation, Runner
from app.store import Resident
from app.telemetry.served_request import ServedRequest
from app.tensors.gather_call import Answer, TableRead
from app.tensors.lookup_call import LookupCall
from app.tensors.tensor import Tensor

CPU_ONLY: Final = "lookups run only on the CPU"
Value = TypeVar("Value")
_MAX_REMEMBERED_PLANS: Final = 256
_MAX_REMEMBERED_FEATURES: Final = 64
"""Plans of lookups with more features are not cached.

A plan takes about 500 bytes per feature, which are not charged to any request.
"""


class _LookupDecisions(NamedTuple):
    plan: LookupPlan
    chooser: BackendChooser
    decisions: Mapping[bool, Decision]
    """The decisions, by whether reading any of the tables waits for the disk."""


class PreparedLookup(NamedTuple):
    """A lookup that is ready to run: the table of each feature, and the fill item for each type name."""

    call: LookupCall
    residents: Sequence[Resident]
    plan: LookupPlan
    fills: Mapping[str, Tensor]
    decision: Decision
    is_by_key: bool
    """Whether any feature selects rows by key."""

    def only(self, numbers: Sequence[int], residents: Sequence[Resident]) -> PreparedLookup:
        """Return the lookup restricted to some of the features, with other versions of their tables and the same
        outputs.
        """
        features = [self.call.features[number] for number in numbers]
        plans = [
            replace(self.plan.features[number], rows=one.tensor.shape[0])
            for number, one in zip(numbers, residents, strict=True)
        ]
        widened = tuple(place for place, number in enumerate(numbers) if number in self.plan.widened)
        plan = replace(self.plan, features=tuple(plans), widened=widened)
        is_by_key = any(feature.by_key is not None for feature in features)
        return self._replace(
            call=replace(self.call, features=features), residents=residents, plan=plan, is_by_key=is_by_key
        )

    @property
    def size(self) -> int:
        return self.plan.output_bytes

    @property
    def explanation(self) -> Explanation:
        outputs = dict(zip(output_names(self.call), self.plan.outputs, strict=True))
        tables = [resident.tensor for resident in self.residents]
        return Explanation(self.call, tables, outputs, self.plan, self.decision, self.residents)


class LookedUp(NamedTuple):
    """Features that were looked up. `call` is by position; `found` holds the rows of each feature with keys.

    The kernel read `tables`, which are versions of the `residents`.
    """

    call: LookupCall
    run: LookupRun
    found: Found
    filled: Marks
    replaced: Sequence[int]
    residents: Sequence[Resident]
    tables: Sequence[Resident]

    def with_part(self, numbers: Sequence[int], part: LookedUp) -> LookedUp:
        """Return this result with the features in `numbers` replaced by `part`, a second lookup of those features."""

        def joined(own: Sequence[Value], others: Sequence[Value]) -> list[Value]:
            by_number = dict(zip(numbers, others, strict=True))
            return [by_number.get(number, one) for number, one in enumerate(own)]

        return self._replace(
            found=joined(self.found, part.found),
            filled=joined(self.filled, part.filled),
            replaced=joined(self.replaced, part.replaced),
            residents=joined(self.residents, part.residents),
            tables=joined(self.tables, part.tables),
        )


class Lookups(Runner):
    """Runs lookups."""

    def __init__(self, resources: CallResources) -> None:
        super().__init__(resources)
        self._plans: BoundedCache[tuple[object, ...], _LookupDecisions] = BoundedCache(_MAX_REMEMBERED_PLANS)

    def prepare(self, call: LookupCall, *, on_device: bool = False) -> PreparedLookup:
        """Resolve the tables, validate the call, and choose a route; see `Service.run`.

        Does not read the values of the indices. Raises the errors of `plan_lookup`, tensor_not_found, and
        value_not_representable (for the fill value).
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
        planned = self._plan(by_position(call, residents) if is_by_key else call, residents)
        if over_limit is not None:
            raise over_limit
        decision = planned.decisions[any(resident.cold for resident in residents)]
        return PreparedLookup(call, residents, planned.plan, fills, decision, is_by_key)

    async def start(self, prepared: PreparedLookup, request: ServedRequest) -> Answer:
        """Run a prepared lookup. Further allocations are charged to the request's memory first.

        Raises offsets_invalid, index_out_of_bounds, key_not_found, overloaded, deadline_exceeded and ClientGone.
        """
        call, plan = prepared.call, prepared.plan
        outputs = [self.resources.outputs.empty(prod(shape), dtype.carrier) for dtype, shape in plan.written]
        read = await self._read(prepared, outputs, request)
        request.kernel_end = perf_counter()
        if any(dtype.kind == "string" for dtype, _ in plan.outputs):
            limits, memory = self.resources.limits, request.memory
            looked_up = await self.resources.pool.run(
                lambda: string_outputs(call, read.run, read.tables, read.filled, prepared.fills, limits, memory),
                request,
            )
        else:
            as_written = call.output_dtype is None or plan.output_bytes + plan.written_bytes < LARGE_COPY
            looked_up = await self.resources.pool.run_unless(as_written, lambda: outputs_of(call, read.run), request)
        return Answer(
            dict(zip(output_names(call), looked_up, strict=True)) | found_outputs(call, read.found),
            "",
            replaced=sum(read.replaced) if call.out_of_bounds != "error" else None,
            missing=sum(one.missing for one in read.found if one is not None) if prepared.is_by_key else None,
            tables=[
                TableRead(feature.tensor, one.etag, one.data_version)
                for feature, one in zip(call.features, read.residents, strict=True)
            ],
        )

    async def _read(
        self, prepared: PreparedLookup, outputs: Sequence[NDArray[Any]], request: ServedRequest
    ) -> LookedUp:
        """Look up all features, reading each table in a single version. May raise the errors of `start`."""
        try:
            read = await self._read_once(prepared, outputs, request)
        except VersionChanged:
            read = await self._read_again(prepared, range(len(prepared.residents)), outputs, request)
        for resident in {id(one): one for one in read.residents}.values():
            if not resident.is_consistent:
                numbers = [number for number, one in enumerate(read.residents) if one is resident]
                part = await self._read_again(prepared, numbers, outputs, request)
                read = read.with_part(numbers, part)
        return read

    async def _read_again(
        self, prepared: PreparedLookup, numbers: Sequence[int], outputs: Sequence[NDArray[Any]], request: ServedRequest
    ) -> LookedUp:
        """Look up some features again: all features of one table, or all features if an error may be outdated.

        May raise the errors of `start`.
        """
        names = {id(prepared.residents[number]): prepared.call.features[number].tensor for number in numbers}
        versions = {names[id(one)]: one for one in (prepared.residents[number] for number in numbers)}
        charged = request.memory.held

        async def read() -> LookedUp:
            request.memory.adjust(request.memory.held - charged, 0)
            residents = [versions[names[id(prepared.residents[number])]] for number in numbers]
            found = await self._read_once(prepared.only(numbers, residents), outputs, request)
            if len(versions) == 1 and not residents[0].is_consistent:
                raise VersionChanged
            return found

        return await self.resources.read_again(versions, read, request)

    async def _read_once(
        self, prepared: PreparedLookup, outputs: Sequence[NDArray[Any]], request: ServedRequest
    ) -> LookedUp:
        """Look up features. The result is valid for tables that have not changed since.

        May raise the errors of `start`. Raises VersionChanged instead if the error concerns a version that has changed.
        """
        try:
            found = await self._fit_arrays(prepared, outputs, request)
            run, residents, tables, every = await self._read_tables(found.call, found.run, prepared.residents, request)
            _, _, on_event_loop = prepared.decision.choice
            strings = any(dtype.kind == "string" for dtype, _ in run.plan.outputs)
            short = on_event_loop and request.parts == 1 and not strings
            bad = await self.resources.pool.run_unless(
                short, lambda: self._run_kernel(run, every, tables, request.parts, request), request
            )
            if bad >= 0:
                raise await self._first_error(found.call, run.plan, request)
        except GatherError as error:
            if may_be_outdated(error, prepared.residents):
                raise VersionChanged from None
            raise
        return found._replace(run=run, residents=residents, tables=tables)

    async def _fit_arrays(
        self, prepared: PreparedLookup, outputs: Sequence[NDArray[Any]], request: ServedRequest
    ) -> LookedUp:
        """Prepare the arrays for a kernel: replace keys with rows, bring indices within bounds, and remove padding from
        bags.

        Raises offsets_invalid, key_not_found and index_out_of_bounds.
        """
        pool = self.resources.pool
        call, residents, plan, fills, decision, is_by_key = prepared
        found: Found = [None] * len(residents)
        if is_by_key:
            found = await self._find_rows(prepared, request)
            call = with_rows(call, found)
        items = sum(feature.indices for feature in plan.features)
        few = items < LARGE_INDEX_SCAN
        replaced = [0] * len(plan.features)
        filled: Marks = [None] * len(plan.features)
        indices: Sequence[NDArray[Any]] = [feature.indices.array for feature in call.features]
        if call.out_of_bounds != "error" or is_by_key:
            request.memory.charge(REPLACED_BYTES * items)
            replacements = await pool.run_unless(few, lambda: replaced_indices(call, plan, found), request)
            indices = [one.indices for one in replacements]
            # If there are no bags, no row is filled. In that case, no fill row is allocated, because a table without
            # rows may have rows of any size.
            rows_written = [feature.output_rows for feature in plan.features]
            filled = [one.filled if some else None for one, some in zip(replacements, rows_written, strict=True)]
            replaced = [one.replaced for one in replacements]
        size = fitted_bytes(call, plan, indices, filled)
        request.memory.charge(size + converted_bytes(call, plan))
        offsets, rows = await pool.run_unless(
            size < LARGE_COPY,
            lambda: (fitted_offsets(call, indices), rows_to_fill_with(plan, filled, fills, residents)),
            request,
        )
        weights = [None if feature.weights is None else feature.weights.items for feature in call.features]
        run = LookupRun(plan, indices, offsets, weights, rows, outputs)
        request.route, request.parts, _ = decision.choice
        if any(
            one.include_last_offset and ends_early(one) for one in call.features
        ):  # the kernel sees only where bags begin
            raise await self._first_error(call, plan, request)
        if any(feature.edits_bags for feature in call.features):
            run = await self._edit_bags(prepared, found, run, request)
        return LookedUp(call, run, found, filled, replaced, residents, residents)

    async def _find_rows(self, prepared: PreparedLookup, request: ServedRequest) -> Found:
        """Find the rows that the keys of each feature select; None for a feature by position.

        The rows are valid only if the tables do not change until the rows have been read. Raises offsets_invalid,
        key_not_found, and index_out_of_bounds for a row that replaces missing keys.
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
        """Return the run with padding removed from bags and default rows added to empty bags.

        Raises the errors of `edit_bags`.
        """
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
        """Return the first error in the indices or offsets, after a kernel has reported that there is one."""
        few = sum(feature.indices for feature in plan.features) < LARGE_INDEX_SCAN
        error = await self.resources.pool.run_unless(few, lambda: first_error(call, plan), request)
        assert error is not None, "an index or an offset is wrong"
        return error

    def _resolve(self, call: LookupCall) -> list[Resident]:
        """Return the table of each feature: one object per version, whether referred to by name, version or alias.

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

    def _plan(self, call: LookupCall, residents: Sequence[Resident]) -> _LookupDecisions:
        """Validate and plan a lookup, and choose its route; lookups of the same types, shapes and poolings share a
        plan.
        """
        tables = [resident.tensor for resident in residents]
        key = plan_key(call, tables)
        planned, chooser = self._plans.get(key), self.resources.chooser
        if planned is None or planned.chooser is not chooser:
            plan = LOOKUPS.plan(call, tables, self.resources.limits)
            equivalent = plan.equivalent
            decisions = {
                cold: chooser.decide(equivalent, Facts(cpu_only=CPU_ONLY, cold=cold)) for cold in (False, True)
            }
            planned = _LookupDecisions(plan, chooser, decisions)
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
        """Return what the kernel reads: the run, each feature's resident version and table, and the indices of the
        features.

        The kernel looks up only the features with these indices. In this class, these are all features, and the tables
        are those of the store.
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
                wide = widen_rows(plans[at], arrays[at])
                if wide is None:
                    return at
                plans[at], arrays[at] = wide
        return self.resources.lookup_kernel.lookup(plans, arrays, threads)


def first_error(call: LookupCall, plan: LookupPlan) -> GatherError | None:
    """Return the first error in the values of a lookup, or None. Offsets are checked first, then indices."""
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
