"""Run lookups on tables in row ranges: fetch rows from the shards, and pool them here with the local kernels.

The result is therefore bit-identical to that of one machine. Rows that are not pooled go directly to their columns of
the output. For pooling, each distinct row is fetched once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.cluster.router.fetch_rows import LostRange, TableReads
from app.cluster.router.keyed_reads import KeyedRead, check_by_key, check_keyed, fetch_tables, row_key
from app.cluster.router.range_requests import Output, RangeRequest, as_rows, row_requests
from app.cluster.router.shard_resources import (
    ROUTE,
    SPLIT_BYTES,
    NeedingPlaces,
    ShardResources,
    add_ranges,
    needing_places,
    unavailable,
)
from app.cluster.router.sharded_tensors import ShardedResident
from app.cluster.shard_map import ShardedVersion
from app.dispatch.choose_backend import LARGE_COPY, LARGE_INDEX_SCAN
from app.errors import GatherError
from app.kernels.check_lookup import rows_of
from app.memory.budget import Memory
from app.operators.lookup_plan import FeaturePlan
from app.services.find_rows import are_few
from app.services.lookup_arrays import LookupRun
from app.services.lookups import Lookups, PreparedLookup, first_error
from app.services.runner import Explanation
from app.store import Resident
from app.telemetry.served_request import ServedRequest
from app.tensors.gather_call import Answer
from app.tensors.lookup_call import Feature, LookupCall
from app.tensors.tensor import Tensor


class _SplitFeature(NamedTuple):
    """A feature that was split: its plan and indices for the kernel, the requests, and where the rows go.

    `items` holds the table of the fetched rows, or None if they go directly to the output. Features with the same
    `output` share their requests, and only the first of these features lists them. Features whose rows are already here
    have no requests either.
    """

    plan: FeaturePlan
    indices: NDArray[Any]
    requests: Mapping[int, RangeRequest]
    output: Output | None
    items: NDArray[Any] | None
    rows: int


class ShardedLookups(Lookups):
    """Run lookups on the tables of a shard map."""

    resources: ShardResources

    def prepare(self, call: LookupCall, *, on_device: bool = False) -> PreparedLookup:
        """Prepare a lookup; see `Lookups.prepare`.

        Also raises not_implemented if rows of a table with keys are given by position.
        """
        prepared = super().prepare(call, on_device=on_device)
        for feature, resident in zip(call.features, prepared.residents, strict=True):
            check_keyed(resident, feature.by_key, feature.tensor, feature.indices)
            if feature.by_key is not None and isinstance(resident, ShardedResident):
                check_by_key(feature.default_index, feature.tensor)
        return prepared

    async def start(self, prepared: PreparedLookup, request: ServedRequest) -> Answer:
        """Fetch the rows of a prepared lookup's keys, then run the lookup. Also raises shard_unavailable."""
        if not prepared.is_by_key:
            return await super().start(prepared, request)
        answer = await super().start(await self._with_tables(prepared, request), request)
        request.route = ROUTE
        return answer

    async def _with_tables(self, prepared: PreparedLookup, request: ServedRequest) -> PreparedLookup:
        """Return the lookup with tables that contain the rows for its keys. Raises shard_unavailable."""
        features, residents = prepared.call.features, list(prepared.residents)
        numbers: dict[int, list[int]] = {}
        for number, (feature, resident) in enumerate(zip(features, residents, strict=True)):
            if feature.by_key is not None and isinstance(resident, ShardedResident):
                numbers.setdefault(id(resident), []).append(number)
        few = are_few(features[number].indices for own in numbers.values() for number in own)
        request.route = ROUTE
        self.resources.start_kernel(request)
        reads = await self.resources.pool.run_unless(
            few, lambda: {at: self._keyed_read(prepared, own, request.memory) for at, own in numbers.items()}, request
        )
        found = await fetch_tables(reads, self.resources, request)
        if isinstance(found, list):
            first = min(one.reads for one in found)
            own, read = list(numbers.values())[first], list(reads.values())[first]
            lost = [one for one in found if one.reads == first]
            raise unavailable(read.resident, lost, [_places_of_lost_keys(features, own, read, one) for one in lost])
        plans = list(prepared.plan.features)
        for at, own in numbers.items():
            for number in own:
                residents[number] = found[at]
                plans[number] = replace(plans[number], rows=found[at].tensor.shape[0])
        return prepared._replace(residents=residents, plan=replace(prepared.plan, features=tuple(plans)))

    def _keyed_read(self, prepared: PreparedLookup, numbers: Sequence[int], memory: Memory) -> KeyedRead:
        """Return the keys of all features of one table: the keys of entries, then those of missing or default rows."""
        features, resident = prepared.call.features, prepared.residents[numbers[0]]
        assert isinstance(resident, ShardedResident)
        assert resident.keys is not None
        given = [features[number].indices for number in numbers]
        for number in numbers:
            by_key = features[number].by_key
            for row in (None if by_key is None else by_key.missing_row, features[number].default_index):
                given += row_key(row, resident.keys.dtype)
        return KeyedRead(resident, given, self.resources, memory)

    async def _read_tables(
        self,
        call: LookupCall,
        run: LookupRun,
        residents: Sequence[Resident],
        request: ServedRequest,
    ) -> tuple[LookupRun, Sequence[Resident], Sequence[Resident], Sequence[int]]:
        """Fetch the rows that the features require.

        Raises offsets_invalid, index_out_of_bounds, shard_unavailable, overloaded, deadline_exceeded and ClientGone.
        """
        if not any(isinstance(resident, ShardedResident) for resident in residents):
            return await super()._read_tables(call, run, residents, request)
        count = sum(len(indices) for indices in run.indices)
        request.memory.charge(SPLIT_BYTES * count)
        request.route = ROUTE
        self.resources.start_kernel(request)
        here = count < LARGE_INDEX_SCAN
        error = await self.resources.pool.run_unless(here, partial(first_error, call, run.plan), request)
        if error is not None:
            raise error
        features: list[_SplitFeature] = await self.resources.pool.run_unless(
            here, lambda: self._split(run, residents, request.memory), request
        )
        wanted, numbers = [], []
        for number, (feature, resident) in enumerate(zip(features, residents, strict=True)):
            if feature.requests:
                assert isinstance(resident, ShardedResident)
                wanted.append(TableReads(resident, feature.requests))
                numbers.append(number)
        lost = await self.resources.fetcher.fetch(wanted, request) if wanted else []
        if lost:
            raise _unavailable(call, run, residents, lost, numbers)
        few = sum(one.output.json_bytes for one in features if one.output is not None) < LARGE_COPY
        tables = await self.resources.pool.run_unless(few, lambda: _tables(features, residents), request)
        plan = replace(run.plan, features=tuple(feature.plan for feature in features))
        run = run._replace(plan=plan, indices=[feature.indices for feature in features])
        left = [
            number for number, feature in enumerate(features) if feature.output is None or feature.items is not None
        ]
        return run, self._with_read_etags(residents, wanted), tables, left

    def _with_read_etags(self, residents: Sequence[Resident], wanted: Sequence[TableReads]) -> Sequence[Resident]:
        """Return the tables with the ETags of the data that was read."""
        read = {id(one.resident): one.read for one in wanted}
        found: dict[int, Resident] = {}
        for one in residents:
            etag = one.etag
            if isinstance(one, ShardedResident):
                etag = self.resources.fetcher.etag_of(one, read.get(id(one)))
            found[id(one)] = one if etag == one.etag else Resident(one.tensor, etag, data_version=one.data_version)
        return [found[id(one)] for one in residents]

    def _split(self, run: LookupRun, residents: Sequence[Resident], memory: Memory) -> list[_SplitFeature]:
        found: dict[int, _SplitFeature] = {}
        for numbers in _read_together(residents):
            resident = residents[numbers[0]]
            if not isinstance(resident, ShardedResident):  # the rows of its keys have been fetched already
                for number in numbers:
                    found[number] = _SplitFeature(run.plan.features[number], run.indices[number], {}, None, None, 0)
            elif (
                len(numbers) == 1
                and (straight := self._read_into_output(run, numbers[0], resident, memory)) is not None
            ):
                found[numbers[0]] = straight
            else:
                found |= self._split_together(run, numbers, resident, memory)
        return [found[number] for number in range(len(residents))]

    def _split_together(
        self, run: LookupRun, numbers: Sequence[int], resident: ShardedResident, memory: Memory
    ) -> dict[int, _SplitFeature]:
        """Return features of one table that share requests. Each distinct row is requested only once.

        An index equal to the number of rows marks an entry that gets the fill value.
        """
        marks = {number: run.indices[number] < run.plan.features[number].rows for number in numbers}
        every = np.concatenate([run.indices[number][valid].astype(np.int64) for number, valid in marks.items()])
        wanted, inverse = np.unique(every, return_inverse=True)
        first, end = self._read_into_table(run.plan.features[numbers[0]], resident, wanted, memory), 0
        found: dict[int, _SplitFeature] = {}
        for number, valid in marks.items():
            begin, end = end, end + int(np.count_nonzero(valid))
            local = np.full(len(valid), len(wanted), run.indices[number].dtype)
            local[valid] = inverse[begin:end]
            plan = replace(run.plan.features[number], rows=len(wanted))
            requests: Mapping[int, RangeRequest] = {} if found else first.requests
            found[number] = first._replace(plan=plan, indices=local, requests=requests)
        return found

    def _read_into_output(
        self, run: LookupRun, number: int, resident: ShardedResident, memory: Memory
    ) -> _SplitFeature | None:
        """Return a feature whose rows go directly to the output, or None if they cannot."""
        plan, indices, dtype = run.plan.features[number], run.indices[number], resident.tensor.dtype
        if plan.pooling != "none" or dtype.kind == "string" or run.fills[number] is not None:
            return None
        joined = plan.stride != plan.group * plan.row_bytes
        if not (plan.indices and plan.row_items) or (joined and plan.group != 1):
            return None
        out = rows_of(plan, run.outputs[plan.output])
        if not joined:
            begin = plan.column // plan.item_size
            flat = run.outputs[plan.output][begin : begin + plan.indices * plan.row_items]
            out = as_rows(flat, plan.row_bytes)
        output = Output(dtype, out, plan.row_items, memory, self.resources.limits.output_bytes)
        return _SplitFeature(plan, indices, _requests(resident.version_in_map, indices, output), output, None, 0)

    def _read_into_table(
        self, plan: FeaturePlan, resident: ShardedResident, wanted: NDArray[Any], memory: Memory
    ) -> _SplitFeature:
        """Return a feature whose `wanted` rows form a separate table. The caller must set the feature's indices."""
        dtype, rows = resident.tensor.dtype, len(wanted)
        is_string = dtype.kind == "string"
        if not is_string:
            memory.charge(rows * plan.row_bytes)
        items = self.resources.outputs.empty(rows * plan.row_items, dtype.carrier)
        view = None if is_string or not items.size else as_rows(items, plan.row_bytes)
        output = Output(dtype, view, plan.row_items, memory, self.resources.limits.output_bytes)
        requests: Mapping[int, RangeRequest] = {}
        if items.size:
            requests = _requests(resident.version_in_map, wanted, output)
        return _SplitFeature(replace(plan, rows=rows), wanted, requests, output, items, rows)

    async def with_shards(self, found: Explanation, request: ServedRequest) -> Explanation:
        """Explain a lookup, including the shards and rows of each table in row ranges."""
        assert isinstance(found.call, LookupCall)
        rows = [one.indices.array if one.by_key is None else one.indices for one in found.call.features]
        return await add_ranges(found, rows, self.resources, request)


def _places_of_lost_keys(
    features: Sequence[Feature], numbers: Sequence[int], read: KeyedRead, lost: LostRange
) -> NeedingPlaces:
    """Return the places where the features of one table have keys of a lost range."""
    begin, places, total = 0, [], 0
    for number in numbers:
        keys = features[number].indices
        own = read.needing_places(keys, begin, lost)
        places += [(begin + item, place) for item, place in own.places]
        total += own.total
        begin += keys.array.size
    return NeedingPlaces(places, total)


def _read_together(residents: Sequence[Resident]) -> Iterable[Sequence[int]]:
    """Return the indices of the features in groups. Features of the same open table are read together."""
    found: dict[int, list[int]] = {}
    for number, one in enumerate(residents):
        is_open = isinstance(one, ShardedResident) and one.version_in_map.is_open
        found.setdefault(id(one) if is_open else -number - 1, []).append(number)
    return found.values()


def _tables(features: Sequence[_SplitFeature], residents: Sequence[Resident]) -> list[Resident]:
    found: dict[int, Resident] = {}
    tables = []
    for feature, resident in zip(features, residents, strict=True):
        table = resident
        if feature.output is not None:
            if id(feature.output) not in found:
                found[id(feature.output)] = _fetched_table(feature, resident)
            table = found[id(feature.output)]
        tables.append(table)
    return tables


def _requests(version: ShardedVersion, rows: NDArray[Any], output: Output) -> Mapping[int, RangeRequest]:
    """Return the requests to the ranges for valid row numbers."""
    return row_requests(version, rows.astype(np.int64, copy=False), (version.rows,), output, version.shape[1:])


def _fetched_table(feature: _SplitFeature, resident: Resident) -> Resident:
    """Return the fetched rows as a separate table."""
    dtype, tail = resident.tensor.dtype, resident.tensor.shape[1:]
    shape = (feature.rows, *tail)
    assert feature.output is not None
    if feature.requests:
        if dtype.kind == "string":
            strings = feature.output.strings(feature.rows, shape)
            return Resident(strings, resident.etag, data_version=resident.data_version)
        feature.output.finish()
    if feature.items is None:
        return resident
    if dtype.kind == "string":
        tensor = resident.tensor.gathered(shape, feature.items)
    else:
        tensor = Tensor(dtype, shape, feature.items.view(dtype.numpy))
    return Resident(tensor, resident.etag, data_version=resident.data_version)


def _unavailable(
    call: LookupCall, run: LookupRun, residents: Sequence[Resident], lost: Sequence[LostRange], numbers: Sequence[int]
) -> GatherError:
    """Return the error for the first feature with lost ranges."""
    first = min(one.reads for one in lost)
    own = [one for one in lost if one.reads == first]
    number = numbers[first]
    resident = residents[number]
    assert isinstance(resident, ShardedResident)
    read = run.indices[number]
    found = []
    for one in own:
        part = resident.version_in_map.ranges[one.number]
        needed = np.flatnonzero((read >= part.start) & (read < part.stop))
        items = run.items.get(number)
        if items is not None:
            needed = items[needed]
            needed = np.sort(needed[needed >= 0])
        found.append(needing_places(call.features[number].indices, needed))
    return unavailable(resident, own, found)
