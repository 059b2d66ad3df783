"""Lookups in tables in row ranges: rows are fetched from the shards, and pooled here by the kernels of one machine.

So the bits of the answer are those of one machine. Rows that are not pooled go straight to their columns of the output;
of others each distinct row is fetched once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.cluster.router.fetch_rows import LostRange, TableReads
from app.cluster.router.range_requests import Output, RangeRequest, as_rows, row_requests
from app.cluster.router.shard_resources import (
    ROUTE,
    SPLIT_BYTES,
    ShardResources,
    needing,
    unavailable,
    with_ranges,
)
from app.cluster.router.sharded_tensors import ShardedResident
from app.cluster.shard_map import ShardedVersion
from app.dispatch.choose_backend import LARGE_COPY, LARGE_INDEX_SCAN
from app.errors import GatherError
from app.kernels.check_lookup import rows_of
from app.memory.budget import Memory
from app.operators.lookup_plan import FeaturePlan
from app.services.lookups import LookupRun, Lookups, first_error
from app.services.runner import Explanation
from app.store import Resident
from app.telemetry.served_request import ServedRequest
from app.tensors.lookup_call import LookupCall
from app.tensors.tensor import Tensor


class _Feature(NamedTuple):
    """A feature, split: its plan and indices as the kernel is to have them, what is fetched, and where to.

    `items` is the table of the rows fetched, None where they go straight to the output.
    """

    plan: FeaturePlan
    indices: NDArray[Any]
    requests: Mapping[int, RangeRequest]
    output: Output
    items: NDArray[Any] | None
    rows: int


class ShardedLookups(Lookups):
    """Carries out lookups in the tables of a shard map."""

    resources: ShardResources

    async def _read_tables(
        self,
        call: LookupCall,
        run: LookupRun,
        residents: Sequence[Resident],
        request: ServedRequest,
    ) -> tuple[LookupRun, Sequence[Resident], Sequence[int]]:
        """Fetch the rows that the features need. Raises offsets_invalid, index_out_of_bounds, shard_unavailable,
        overloaded, deadline_exceeded and ClientGone.
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
        features: list[_Feature] = await self.resources.pool.run_unless(
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
        few = sum(feature.output.json_bytes for feature in features) < LARGE_COPY
        tables = await self.resources.pool.run_unless(
            few, lambda: [_fetched(*pair) for pair in zip(features, residents, strict=True)], request
        )
        plan = replace(run.plan, features=tuple(feature.plan for feature in features))
        run = run._replace(plan=plan, indices=[feature.indices for feature in features])
        left = [number for number, feature in enumerate(features) if feature.items is not None]
        return run, tables, left

    def _split(self, run: LookupRun, residents: Sequence[Resident], memory: Memory) -> list[_Feature]:
        return [self._split_feature(run, number, one, memory) for number, one in enumerate(residents)]

    def _split_feature(self, run: LookupRun, number: int, resident: Resident, memory: Memory) -> _Feature:
        """What is fetched for a feature, whose indices are valid; one that equals the number of rows is filled."""
        assert isinstance(resident, ShardedResident)
        plan, indices = run.plan.features[number], run.indices[number]
        version, dtype = resident.version_in_map, resident.tensor.dtype
        most = self.resources.limits.output_bytes
        is_string = dtype.kind == "string"
        straight = plan.pooling == "none" and not is_string and run.fills[number] is None
        if straight and plan.indices and plan.row_items:
            out = rows_of(plan, run.outputs[plan.output])
            joined = plan.stride != plan.group * plan.row_bytes
            if not joined:
                begin = plan.column // plan.item_size
                flat = run.outputs[plan.output][begin : begin + plan.indices * plan.row_items]
                out = as_rows(flat, plan.row_bytes)
            if not joined or plan.group == 1:
                output = Output(dtype, out, plan.row_items, memory, most)
                return _Feature(plan, indices, _requests(version, indices, output), output, None, 0)
        valid = indices < plan.rows
        wanted, inverse = np.unique(indices[valid], return_inverse=True)
        rows = len(wanted)
        local = np.full(len(indices), rows, indices.dtype)
        local[valid] = inverse
        if not is_string:
            memory.charge(rows * plan.row_bytes)
        items = self.resources.outputs.empty(rows * plan.row_items, dtype.carrier)
        view = None if is_string or not items.size else as_rows(items, plan.row_bytes)
        output = Output(dtype, view, plan.row_items, memory, most)
        requests: Mapping[int, RangeRequest] = {}
        if items.size:
            requests = _requests(version, wanted, output)
        return _Feature(replace(plan, rows=rows), local, requests, output, items, rows)

    async def with_shards(self, found: Explanation, request: ServedRequest) -> Explanation:
        """The same, and which shards would be asked for how many rows of each table in row ranges."""
        assert isinstance(found.call, LookupCall)
        return await with_ranges(found, [one.indices.array for one in found.call.features], self.resources, request)


def _requests(version: ShardedVersion, rows: NDArray[Any], output: Output) -> Mapping[int, RangeRequest]:
    """What each range is asked for, of valid numbers of rows."""
    return row_requests(version, rows.astype(np.int64, copy=False), (version.rows,), output, version.shape[1:])


def _fetched(feature: _Feature, resident: Resident) -> Resident:
    """The rows that were fetched, as a table of their own."""
    dtype, tail = resident.tensor.dtype, resident.tensor.shape[1:]
    shape = (feature.rows, *tail)
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
    """The error for lost ranges of the first feature that has some."""
    first = min(one.reads for one in lost)
    own = [one for one in lost if one.reads == first]
    number = numbers[first]
    resident = residents[number]
    assert isinstance(resident, ShardedResident)
    read = run.indices[number]
    found = []
    for one in own:
        part = resident.version_in_map.ranges[one.number]
        found.append(needing(call.features[number].indices, np.flatnonzero((read >= part.start) & (read < part.stop))))
    return unavailable(resident, own, found)
