"""Run gathers on tables in row ranges: validate them here, and fetch rows from each range.

Types, shapes and indices are checked against the map, so that the errors are the same as on one machine and no shard is
involved. The rows are collected in one output. Gathers whose data is in the request run here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.cluster.router.fetch_rows import TableReads
from app.cluster.router.keyed_reads import KeyedRead, check_keyed, fetch_tables, row_key
from app.cluster.router.range_requests import (
    Output,
    RangeRequest,
    as_rows,
    block_requests,
    is_out_of_bounds,
    row_requests,
)
from app.cluster.router.shard_resources import (
    ROUTE,
    SPLIT_BYTES,
    NeedingPlaces,
    ShardResources,
    add_ranges,
    needing_places,
    unavailable,
)
from app.cluster.router.sharded_tensors import ShardedResident, immutable
from app.cluster.shard_map import ShardedVersion
from app.dispatch.choose_backend import LARGE_COPY, LARGE_INDEX_SCAN
from app.dispatch.gpu_gathers import name_of
from app.errors import GatherError, Place
from app.memory.budget import Memory
from app.operators.gather_elements import GatherElementsPlan
from app.operators.gather_plan import GatherPlan
from app.operators.lookup_plan import LookupPlan
from app.services.call_planner import Planned
from app.services.find_rows import are_few
from app.services.gathers import Further, Gathers, Prepared
from app.services.runner import Explanation
from app.telemetry.served_request import ServedRequest
from app.tensors.by_key import KEYS
from app.tensors.gather_call import OUTPUT, Answer, Call
from app.tensors.tensor import Tensor


class _SplitGather(NamedTuple):
    """A gather that was split: the requests to the ranges, and their combined output."""

    requests: Mapping[int, RangeRequest]
    output: Output
    items: NDArray[Any]


class ShardedGathers(Gathers):
    """Run gathers on the tables of a shard map."""

    resources: ShardResources

    def prepare(self, call: Call, *, on_device: bool = False) -> Prepared:
        """Prepare a gather; see `Gathers.prepare`.

        Also raises not_implemented if rows of a table with keys are given by position, or if an operator with further
        inputs has a table in row ranges as any of its inputs.
        """
        prepared = super().prepare(call, on_device=on_device)
        if prepared.resident is not None:
            check_keyed(prepared.resident, call.by_key, name_of(call), call.indices)
        if call.further and any(isinstance(given, str) for given in (call.data, *call.further.values())):
            immutable(f"{call.operator} of a resident tensor")
        return prepared

    def _kernel_fills(self, prepared: Prepared) -> bool:
        """Return False for a table in row ranges, because kernels run on its shards."""
        return not isinstance(prepared.resident, ShardedResident) and super()._kernel_fills(prepared)

    async def _gather_by_key(self, prepared: Prepared, request: ServedRequest) -> Answer:
        """Run a gather by key. Rows of a table in row ranges come from its shards. Also raises shard_unavailable."""
        call, keys, resident = prepared.call, prepared.keys, prepared.resident
        if not isinstance(resident, ShardedResident):
            return await super()._gather_by_key(prepared, request)
        assert keys is not None
        assert call.by_key is not None
        assert resident.keys is not None
        _check_device(call)
        request.route = ROUTE
        request.tensor = name_of(call)
        self.resources.start_kernel(request)
        given = [keys, *row_key(call.by_key.missing_row, resident.keys.dtype)]
        read = await self.pool.run_unless(
            are_few(given), lambda: KeyedRead(resident, given, self.resources, request.memory), request
        )
        found = await fetch_tables({0: read}, self.resources, request)
        if isinstance(found, list):
            raise unavailable(resident, found, [read.needing_places(keys, 0, one) for one in found])
        table = found[0]
        plan = prepared.planned.plan
        assert isinstance(plan, GatherPlan)
        planned = replace(prepared.planned, plan=replace(plan, dims=table.tensor.shape[:1]))
        local = replace(prepared, data=table.tensor, residents={"data": table}, planned=planned)
        answer = await super()._gather_by_key(local, request)
        request.route = ROUTE
        return answer

    async def _run(
        self,
        prepared: Prepared,
        request: ServedRequest,
        further: Further = None,
    ) -> Answer:
        """Run a gather by position. A table in row ranges is gathered on its shards. Also raises shard_unavailable."""
        call, data, resident, planned = prepared.call, prepared.data, prepared.resident, prepared.planned
        if not isinstance(resident, ShardedResident):
            return await super()._run(prepared, request, further)
        _check_device(call)
        request.route = ROUTE
        request.tensor = call.data if isinstance(call.data, str) else ""
        plan = planned.plan
        depth = len(data.shape) if isinstance(plan, GatherElementsPlan) else 1
        request.memory.charge(SPLIT_BYTES * plan.index_items * depth)
        table = resident
        self.resources.start_kernel(request)
        few = plan.index_items < LARGE_INDEX_SCAN
        work = await self.pool.run_unless(few, lambda: self._split(call, planned, table, request.memory), request)
        if work is None:
            request.kernel_end = perf_counter()
            raise await self._index_error(prepared, request)
        reads = TableReads(table, work.requests)
        lost = await self.resources.fetcher.fetch([reads], request)
        if lost:
            raise unavailable(table, lost, [place_of(call, work.requests[one.number]) for one in lost])
        few = work.output.json_bytes < LARGE_COPY
        output = await self.pool.run_unless(few, lambda: self._finish_output(work, planned, data), request)
        request.kernel_end = perf_counter()
        etag = self.resources.fetcher.etag_of(table, reads.read)
        return Answer({OUTPUT: output}, call.dialect, "cpu", etag, resident.data_version)

    def _split(self, call: Call, planned: Planned, resident: ShardedResident, memory: Memory) -> _SplitGather | None:
        """Return the requests to the shards, or None if an index is out of bounds."""
        plan = planned.plan
        data, version = resident.tensor, resident.version_in_map
        by_rows = planned.first_axis == 0
        row_items = plan.slice_items
        if not by_rows:
            row_items = plan.output_items // planned.shape[0] if plan.output_items else 0
        items = self.resources.outputs.empty(plan.output_items, data.dtype.carrier)
        rows = None
        if plan.output_items and data.dtype.item_size:
            rows = as_rows(items, row_items * data.dtype.item_size)
        output = Output(data.dtype, rows, row_items, memory, self.resources.limits.output_bytes)
        requests: Mapping[int, RangeRequest] = {}
        is_split_checked = by_rows and plan.output_items > 0 and call.indices.array.dtype == np.int64
        if not is_split_checked and is_out_of_bounds(call.indices.array, plan.dims, plan.wrap):
            return None
        if plan.output_items:
            try:
                requests = (self._row_requests if by_rows else self._block_requests)(call, planned, version, output)
            except IndexError:
                return None
        return _SplitGather(requests, output, items)

    def _row_requests(
        self, call: Call, planned: Planned, version: ShardedVersion, output: Output
    ) -> Mapping[int, RangeRequest]:
        """Split a gather by the rows that its indices select. Raises IndexError if an index is out of bounds."""
        plan, shape = planned.plan, call.indices.shape
        indices: NDArray[np.int64] = call.indices.array.astype(np.int64, copy=False)
        if not isinstance(plan, GatherElementsPlan):
            return row_requests(version, indices, plan.dims, output, version.shape[plan.depth :], wrap=plan.wrap)
        # Entry (i, j, ...) selects the item (entry, j, ...), so this is a GatherND with full tuples.
        whole = np.empty((indices.size, len(shape)), np.int64)
        whole[:, 0] = indices
        own = whole.reshape(*shape, -1)
        for axis in range(1, len(shape)):
            own[..., axis] = np.arange(shape[axis]).reshape(-1, *[1] * (len(shape) - axis - 1))
        return row_requests(version, whole.reshape(-1), (*plan.dims, *shape[1:]), output, (), wrap=plan.wrap)

    def _block_requests(
        self, call: Call, planned: Planned, version: ShardedVersion, output: Output
    ) -> Mapping[int, RangeRequest]:
        indices, operator = call.indices, call.operator
        values: NDArray[np.int64] = indices.array.astype(np.int64, copy=False)
        parameters: dict[str, object] = {}
        shared = False
        if operator == "gathernd":
            parameters["batch_dims"] = planned.first_axis
        else:
            parameters["axis"] = planned.first_axis
        if operator == "gather":
            batch_dims = call.batch_dims + len(indices.shape) if call.batch_dims < 0 else call.batch_dims
            shared = batch_dims == 0
            if not shared:
                parameters |= {"dialect": "openvino-8", "batch_dims": batch_dims, "out_of_bounds": "error"}
        return block_requests(
            version, values, indices.shape, output, planned.shape, operator, parameters, shared=shared
        )

    @staticmethod
    def _finish_output(work: _SplitGather, planned: Planned, data: Tensor) -> Tensor:
        if data.dtype.kind == "string":
            rows = planned.plan.output_items // work.output.row_items if work.output.row_items else 0
            return work.output.strings(rows, planned.shape)
        work.output.finish()
        return data.gathered(planned.shape, work.items)

    async def with_shards(self, found: Explanation, request: ServedRequest) -> Explanation:
        """Explain a gather, including the shards and rows of a table in row ranges."""
        call, plan = found.call, found.plan
        if not found.residents:
            return found
        assert isinstance(call, Call)
        assert not isinstance(plan, LookupPlan)
        if call.by_key is not None:
            return await add_ranges(found, [found.inputs[KEYS][0]], self.resources, request)
        first_axis = self.planner.plan(call, found.data[0], self.resources.chooser).first_axis
        rows = None if first_axis else call.indices.array.reshape(-1, plan.depth)[:, 0]
        return await add_ranges(found, [rows], self.resources, request, wrap=plan.wrap)


def _check_device(call: Call) -> None:
    if call.device == "gpu":
        detail = "tables in row ranges are gathered on the CPUs of their shards; use device auto or cpu"
        raise GatherError("device_unavailable", detail, pointer=call.pointer("device"))


def place_of(call: Call, request: RangeRequest) -> NeedingPlaces:
    """Return the indices of a gather that need the rows of `request`."""
    if request.places is None:
        return NeedingPlaces([(0, Place(call.data_pointer))], 1)
    indices = call.indices
    depth = indices.shape[-1] if call.operator == "gathernd" else 1
    return needing_places(indices, request.places, depth)
