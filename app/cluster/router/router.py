"""The router: the service of gathers, for tables in row ranges on other services.

It is `app.services.service.Service` up to where a kernel would run. Types, shapes and indices are judged here, from the
map, so that errors are those of one machine and no shard is asked; then each range is asked for its rows, and they are
put in order in one output. Data that is in the request is gathered here.
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from time import perf_counter
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.cluster.router.fetch_rows import BEGUN_ANEW, LostRange, RowFetcher, TableReads, VersionGone
from app.cluster.router.range_requests import (
    Output,
    RangeRequest,
    as_rows,
    block_requests,
    first_wrong,
    row_requests,
)
from app.cluster.router.sharded_tensors import ShardedResident, immutable
from app.cluster.shard_map import ShardedVersion
from app.dispatch.choose_backend import LARGE_COPY, LARGE_INDEX_SCAN
from app.errors import REPORTED_PLACES, GatherError, Place
from app.memory.budget import Memory, MemoryReservation
from app.operators.gather_elements import GatherElementsPlan
from app.operators.lookup import LookupPlan
from app.services.call_planner import Planned
from app.services.service import AnyCall, Explanation, Further, Prepared, Service
from app.store import Resident
from app.store.store_errors import not_found
from app.telemetry.served_request import ServedRequest
from app.tensors.gather_call import OUTPUT, Answer, Call
from app.tensors.lookup_call import LookupCall
from app.tensors.tensor import Tensor, coordinates

ROUTE: Final = "shards"
"""What metrics call the route of such gathers."""
SPLIT_BYTES: Final = 48
"""What each index takes at most while indices are split: as int64, in order, its place, and in a request."""


class _Work(NamedTuple):
    """A gather, split: the requests, and their output."""

    requests: Mapping[int, RangeRequest]
    output: Output
    items: NDArray[Any]


class Router(Service):
    """Carries out calls on tables of a shard map, whose rows `fetcher` fetches."""

    fetcher: RowFetcher

    def run(self, call: AnyCall, request: ServedRequest) -> Coroutine[Any, Any, Answer]:
        """The same, anew where the version that a name stood for goes away meanwhile."""
        running = super().run(call, request)
        if isinstance(call, Call) and not isinstance(call.data, str):
            return running
        return self._or_anew(running, call, request)

    async def _or_anew(
        self,
        running: Coroutine[Any, Any, Answer],
        call: AnyCall,
        request: ServedRequest,
    ) -> Answer:
        for _ in range(BEGUN_ANEW):
            try:
                return await running
            except VersionGone:
                running = super().run(call, request)
        return await running

    def _kernel_fills(self, prepared: Prepared) -> bool:
        """Never of a table in row ranges, whose kernels are elsewhere."""
        return not isinstance(prepared.resident, ShardedResident) and super()._kernel_fills(prepared)

    async def _run(
        self,
        prepared: Prepared,
        request: ServedRequest,
        further: Further = None,
    ) -> Answer:
        """The same, of a table in row ranges by its shards. Raises shard_unavailable besides."""
        call, data, resident, planned, *_ = prepared
        check_reads_data_alone(call)
        if not isinstance(resident, ShardedResident):
            return await super()._run(prepared, request, further)
        if call.device == "gpu":
            detail = "tables in row ranges are gathered on the CPUs of their shards; use device auto or cpu"
            raise GatherError("device_unavailable", detail, pointer=call.pointer("device"))
        request.route = ROUTE
        request.tensor = call.data if isinstance(call.data, str) else ""
        plan = planned.plan
        depth = len(data.shape) if isinstance(plan, GatherElementsPlan) else 1
        request.memory.charge(SPLIT_BYTES * plan.index_items * depth)
        table = resident
        self.start_kernel(request)
        few = plan.index_items < LARGE_INDEX_SCAN
        work = await self.pool.run_unless(few, lambda: self._split(call, planned, table, request.memory), request)
        if work is None:
            request.kernel_end = perf_counter()
            raise await self._index_error(prepared, request)
        lost = await self.fetcher.fetch(
            [TableReads(table.table, table.shard_map, table.version_in_map, work.requests)], request
        )
        if lost:
            raise unavailable(table, lost, [place_of(call, work.requests[one.number]) for one in lost])
        few = work.output.json_bytes < LARGE_COPY
        output = await self.pool.run_unless(few, lambda: self._finished(work, planned, data), request)
        request.kernel_end = perf_counter()
        return Answer({OUTPUT: output}, call.dialect, "cpu", resident.etag, resident.data_version)

    async def read_scalar(self, reference: str, request: ServedRequest) -> Tensor:
        """The one item of a table of rank 0, which no operator reads. Raises tensor_not_found and shard_unavailable."""
        resident = self.store.get(reference)
        if not isinstance(resident, ShardedResident):
            raise not_found(reference, self.store)
        data = resident.tensor
        items = self.outputs.empty(1, data.dtype.carrier)
        view = as_rows(items, data.dtype.item_size) if data.dtype.item_size else None
        output = Output(data.dtype, view, 1, request.memory, self.limits.output_bytes)
        (asked,) = row_requests(resident.version_in_map, np.zeros(1, np.int64), (1,), output, ())
        wanted = TableReads(resident.table, resident.shard_map, resident.version_in_map, {asked.number: asked})
        lost = await self.fetcher.fetch([wanted], request)
        if lost:
            raise unavailable(resident, lost, [NeedingPlaces([(0, Place("/name"))], 1)])
        if data.dtype.kind == "string":
            return output.strings(1, ())
        output.finish()
        return data.gathered((), items)

    def _split(self, call: Call, planned: Planned, resident: ShardedResident, memory: Memory) -> _Work | None:
        """What each shard is asked for; None where an index is out of bounds."""
        plan = planned.plan
        data, version = resident.tensor, resident.version_in_map
        by_rows = planned.first_axis == 0
        row_items = plan.slice_items
        if not by_rows:
            row_items = plan.output_items // planned.shape[0] if plan.output_items else 0
        items = self.outputs.empty(plan.output_items, data.dtype.carrier)
        rows = None
        if plan.output_items and data.dtype.item_size:
            rows = as_rows(items, row_items * data.dtype.item_size)
        output = Output(data.dtype, rows, row_items, memory, self.limits.output_bytes)
        requests: Sequence[RangeRequest] = ()
        is_split_checked = by_rows and plan.output_items > 0 and call.indices.array.dtype == np.int64
        if not is_split_checked and first_wrong(call.indices.array, plan.dims, plan.wrap):
            return None
        if plan.output_items:
            try:
                requests = (self._row_requests if by_rows else self._block_requests)(call, planned, version, output)
            except IndexError:
                return None
        return _Work({request.number: request for request in requests}, output, items)

    def _row_requests(
        self, call: Call, planned: Planned, version: ShardedVersion, output: Output
    ) -> list[RangeRequest]:
        """By the rows that indices name. Raises IndexError where one is out of bounds."""
        plan, shape = planned.plan, call.indices.shape
        indices: NDArray[np.int64] = call.indices.array.astype(np.int64, copy=False)
        if not isinstance(plan, GatherElementsPlan):
            return row_requests(version, indices, plan.dims, output, version.shape[plan.depth :], wrap=plan.wrap)
        # Entry (i, j, ...) picks the item (entry, j, ...): a GatherND of whole tuples.
        whole = np.empty((indices.size, len(shape)), np.int64)
        whole[:, 0] = indices
        own = whole.reshape(*shape, -1)
        for axis in range(1, len(shape)):
            own[..., axis] = np.arange(shape[axis]).reshape(-1, *[1] * (len(shape) - axis - 1))
        return row_requests(version, whole.reshape(-1), (*plan.dims, *shape[1:]), output, (), wrap=plan.wrap)

    def _block_requests(
        self, call: Call, planned: Planned, version: ShardedVersion, output: Output
    ) -> list[RangeRequest]:
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
    def _finished(work: _Work, planned: Planned, data: Tensor) -> Tensor:
        if data.dtype.kind == "string":
            rows = planned.plan.output_items // work.output.row_items if work.output.row_items else 0
            return work.output.strings(rows, planned.shape)
        work.output.finish()
        return data.gathered(planned.shape, work.items)

    def explain(self, call: AnyCall, memory: MemoryReservation, *, on_device: bool = False) -> Explanation:
        """The same. Raises not_implemented for an operator that has other inputs beside a table in row ranges."""
        found = super().explain(call, memory, on_device=on_device)
        if isinstance(call, Call):
            check_reads_data_alone(call)
        return found

    async def with_shards(self, found: Explanation, request: ServedRequest) -> Explanation:
        """The same, and of each table in row ranges which shards would be asked for how much."""
        call, plan = found.call, found.plan
        rows: list[NDArray[Any] | None]
        wrap = False
        if isinstance(call, LookupCall):
            rows = [feature.indices.array for feature in call.features]
        elif isinstance(call, Call) and found.residents and not isinstance(plan, LookupPlan):
            first_axis = self.planner.plan(call, found.data[0], self.chooser).first_axis
            rows = [None if first_axis else call.indices.array.reshape(-1, plan.depth)[:, 0]]
            wrap = plan.wrap
        else:
            return found
        count = sum(len(each) for each in rows if each is not None)
        request.memory.charge(SPLIT_BYTES * count)
        shards = await self.pool.run_unless(
            count < LARGE_INDEX_SCAN,
            lambda: [explained_ranges(*each, wrap=wrap) for each in zip(found.residents, rows, strict=True)],
            request,
        )
        return found._replace(shards=shards)


def check_reads_data_alone(call: Call) -> None:
    """Raise not_implemented for an operator of further inputs, such as updates, if one of its inputs is resident."""
    if call.further and any(isinstance(given, str) for given in (call.data, *call.further.values())):
        immutable(f"{call.operator} of a resident tensor")


def explained_ranges(resident: Resident, rows: NDArray[Any] | None, *, wrap: bool) -> Sequence[Mapping[str, object]]:
    """The ranges that a gather of `rows` needs, with how many of them, as an explanation lists them; all without rows.

    Rows that are out of bounds are not counted.
    """
    assert isinstance(resident, ShardedResident)
    version = resident.version_in_map
    counts: Sequence[int | None] = [None] * len(version.ranges)
    if rows is not None:
        valid = rows[(rows >= (-version.rows if wrap else 0)) & (rows < version.rows)].astype(np.int64)
        numbers = version.range_numbers(np.where(valid < 0, valid + version.rows, valid))
        counts = np.bincount(numbers, minlength=len(version.ranges)).tolist()
    return [
        {
            "rows": [one.start, one.stop],
            "tensor": one.tensor,
            "replicas": [replica.address for replica in one.replicas],
            "tuples": count,
        }
        for one, count in zip(version.ranges, counts, strict=True)
        if count != 0
    ]


class NeedingPlaces(NamedTuple):
    """Where a request has indices that need a range: the first ones in order, and how many there are."""

    places: Sequence[tuple[int, Place]]
    total: int


def place_of(call: Call, request: RangeRequest) -> NeedingPlaces:
    """The indices of a gather that need the rows of `request`."""
    if request.places is None:
        return NeedingPlaces([(0, Place(call.data_pointer))], 1)
    indices = call.indices
    depth = indices.shape[-1] if call.operator == "gathernd" else 1
    return needing(indices, request.places, depth)


def needing(indices: Tensor, tuples: NDArray[np.intp], depth: int = 1) -> NeedingPlaces:
    """The first of `tuples`, which ascend, as places in `indices`, and how many there are."""
    places = []
    for number in tuples[:REPORTED_PLACES].tolist():
        item = number * depth
        value = int(indices.array[item])
        places.append((item, Place(indices.locate(item), coordinates(item, indices.shape), value)))
    return NeedingPlaces(places, len(tuples))


def unavailable(resident: ShardedResident, lost: Sequence[LostRange], needing: Sequence[NeedingPlaces]) -> GatherError:
    """The error for ranges that no replica answers: `overloaded` where one has too much to do, else shard_unavailable.

    `needing` says of each range which indices need it.
    """
    busy = [failure for one in lost for failure in one.failures if failure.kind == "busy"]
    name = f"{resident.table}@{resident.data_version}"
    ranges = [resident.version_in_map.ranges[one.number] for one in lost]
    rows = ", ".join(f"{one.start} to {one.stop - 1}" for one in ranges[:3])
    if len(ranges) > 3:
        rows += f" and {len(ranges) - 3} more ranges"
    if busy:
        after = max(failure.retry_after for failure in busy)
        detail = f"the shards that have rows {rows} of {name!r} have too much to do"
        return GatherError("overloaded", detail, retry_after=after)
    places = sorted((place for one in needing for place in one.places), key=lambda place: place[0])
    return GatherError(
        "shard_unavailable",
        f"no replica of rows {rows} of {name!r} answers",
        places=[place for _, place in places[:REPORTED_PLACES]],
        total=sum(one.total for one in needing),
        facts={"ranges": [{"tensor": name, "start": one.start, "stop": one.stop} for one in ranges]},
        retry_after=1,
    )
