"""ScatterND and ScatterElements in one function compiled by Numba, run by the thread team.

A chunk owns some units of the output. It copies them from data, scans the updates in order, and applies those whose
targets it owns (`apply_updates`). So no two threads write the same item, each item receives its updates in order, and
the result is bit-identical for any number of threads.

Units are normally rows of the output. Any update may target any row, so each chunk scans all updates. ScatterElements
has two cheaper cases: entries select only items in their own stretch of the output or, along the first axis, in their
own column. These stretches or columns are then the units, and a chunk scans only their entries.

Updates are processed in blocks: their indices are checked, and their rows are recorded. Items that are not cached are
prefetched for a whole block at once; rows are prefetched some rows ahead. A chunk of stretches copies as many of them
as fit into a cache, scatters into them, and continues with the next.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any, Final

import numpy as np
from numba import types
from numpy.typing import NDArray

from app.compilation.array_header import (
    ArrayHeader,
    address,
    checked_product,
    header,
    holds_carriers,
    index_type_if_usable,
    is_array,
    length,
)
from app.compilation.decorators import inner
from app.compilation.intrinsics import Address, int64, prefetch, stack_words, ult
from app.kernels.check_arrays import check_scatter_arrays, check_scatter_plan
from app.kernels.numba_cpu.apply_updates import OPERATIONS, apply_updates, flip_of, kind_of, kind_size
from app.kernels.numba_cpu.chunked_job import end_of_chunk, first_of_chunk, record_job_at, shared_team, stack_job
from app.kernels.numba_cpu.chunked_job import run as run_job
from app.kernels.numba_cpu.compile_kernel import REFUSED, CompiledKernel, compile_kernel
from app.kernels.numba_cpu.memory_intrinsics import LINE, memcpy
from app.kernels.numba_cpu.resolve_indices import (
    BLOCK,
    IndexedItemsJob,
    find_own,
    int64_items,
    write_items,
    write_rows,
)
from app.kernels.numba_cpu.thread_team import settings_of
from app.kernels.numba_cpu.thresholds import LEAST_SHARED_SCATTER, PIECE_BYTES
from app.kernels.numba_cpu.typed_memory import KEPT_PLANS, MAX_DEPTH, record_as_int64, record_of
from app.operators.scatter_plan import ScatterElementsPlan, ScatterNDPlan

ROWS, STRETCHES, COLUMNS = range(3)
"""The kinds of units."""


class ScatterJob(IndexedItemsJob):
    """A scatter.

    Tuples of one component are treated as a single row of entries without strides. Deeper tuples do not use the fields
    for entries.
    """

    data: Address
    output: Address
    updates: Address
    run_chunk: Address
    """The address of `scatter_chunk`."""
    items: int
    """Number of items in data, and also in the output."""
    item_size: int
    tuples: int
    """Number of updates."""
    elements: bool
    """Whether this is a ScatterElements."""
    rows: int
    """Number of rows of the output, which are slices or single items."""
    row_bytes: int
    operation: int
    """See `apply_updates` for this field and the next three."""
    item_kind: int
    row_items: int
    flip: int
    division: int
    """The kind of the units: ROWS, STRETCHES or COLUMNS."""
    units: int
    """Number of units."""
    unit_rows: int
    """Number of output rows per unit. The rows of a column are not contiguous."""
    units_at_once: int
    """Number of units that are copied, and then scattered into, at a time."""
    worth_sharing: bool
    """Whether sharing the units among threads saves time. With ROWS, each chunk scans all updates."""


_job_at: Final = record_of(ScatterJob)
_stack_rows: Final = stack_words(BLOCK)
_stack_own: Final = stack_words(BLOCK)


def run(
    plan: ScatterNDPlan | ScatterElementsPlan,
    data: NDArray[Any],
    indices: NDArray[Any],
    out: NDArray[Any],
    threads: int = 1,
    may_leave_unfinished: bool = False,
    *,
    updates: NDArray[Any],
) -> int:
    """See `app.kernels.Kernel.run`; `updates` is passed in `further`."""
    kernel, team = compiled(), shared_team()
    if threads > 1:
        team.prepare(threads)
    job = job_of_plan(plan, kernel.chunk).copy()
    first: int = kernel.run(data, indices, out, updates, job, team.address, threads - 1, may_leave_unfinished)
    if first < -1:
        team.check_finished(first, (data, indices, out, updates, job))
        check_scatter_arrays(plan, data, indices, out, updates)
        raise TypeError("the arrays are none that the kernel takes")
    return first


@lru_cache(maxsize=KEPT_PLANS)
def job_of_plan(plan: ScatterNDPlan | ScatterElementsPlan, chunk: Address) -> NDArray[np.int64]:
    """Build the job of a plan, without its arrays: a `ScatterJob` as int64. Raises TypeError if the plan is invalid."""
    check_scatter_plan(plan)
    elements = isinstance(plan, ScatterElementsPlan)
    sizes = plan.sizes if isinstance(plan, ScatterElementsPlan) else plan.dims
    if not 1 <= len(sizes) <= MAX_DEPTH:
        raise TypeError(f"the plan has {len(sizes)} axes")
    row_bytes = plan.slice_items * plan.item_size
    # The number of rows without items may exceed int64.
    rows = plan.data_items // plan.slice_items if plan.slice_items else 0
    kind = kind_of(plan.dtype, plan.reduction, row_bytes)
    division, units, unit_rows = _division(plan)
    output_bytes = rows * row_bytes
    units_at_once = PIECE_BYTES // (unit_rows * row_bytes) if division == STRETCHES else units
    values = {
        "run_chunk": chunk,
        "items": plan.data_items,
        "item_size": plan.item_size,
        "tuples": plan.tuples,
        "depth": len(sizes),
        "wrap": plan.wrap,
        "elements": elements,
        "rows": rows,
        "row_bytes": row_bytes,
        "operation": OPERATIONS[plan.reduction],
        "item_kind": kind,
        "row_items": row_bytes // kind_size(kind),
        "flip": flip_of(plan.dtype, plan.reduction),
        "axis_size": plan.dims[0],
        "axis_stride": plan.axis_stride if isinstance(plan, ScatterElementsPlan) else 1,
        "row_entries": sizes[-1] if elements else plan.tuples,
        "division": division,
        "units": units,
        "unit_rows": unit_rows,
        "units_at_once": max(1, units_at_once),
        "worth_sharing": division != ROWS or row_bytes >= LINE or output_bytes >= LINE * plan.tuples,
        "sizes": sizes,
        "strides": plan.strides if isinstance(plan, ScatterElementsPlan) else (),
    }
    return record_as_int64(ScatterJob, values)


def _division(plan: ScatterNDPlan | ScatterElementsPlan) -> tuple[int, int, int]:
    """Return the kind of the units (ROWS, STRETCHES or COLUMNS), the number of units, and the number of rows per
    unit.
    """
    if isinstance(plan, ScatterNDPlan):
        return ROWS, plan.data_items // max(plan.slice_items, 1), 1
    if not plan.index_items or not plan.axis_size:
        return ROWS, plan.data_items, 1
    sizes, strides = plan.sizes, plan.strides
    # The span, in items, within which all entries at one position along the first axis of indices select.
    reach = 1 + (plan.axis_size - 1) * plan.axis_stride
    reach += sum((size - 1) * stride for size, stride in zip(sizes[1:], strides[1:], strict=True))
    if reach <= strides[0] and plan.data_items % strides[0] == 0:
        return STRETCHES, plan.data_items // strides[0], strides[0]
    if strides == (0, 1) and plan.axis_size * plan.axis_stride == plan.data_items and sizes[1] <= plan.axis_stride:
        return COLUMNS, plan.axis_stride, 1
    return ROWS, plan.data_items, 1


@cache
def compiled() -> CompiledKernel:
    """Return the compiled functions."""
    return compile_kernel(_scatter, (*(header,) * 5, types.int64, types.int64, types.boolean), scatter_chunk)


def _scatter(
    data: ArrayHeader,
    indices: ArrayHeader,
    out: ArrayHeader,
    updates: ArrayHeader,
    job_array: ArrayHeader,
    team: Address,
    helpers: int,
    may_leave_unfinished: bool,
) -> int:
    """Run the scatter with at most `helpers` helpers.

    Returns the first invalid component, -1 if there is none, or REFUSED. With `may_leave_unfinished` it may also return
    UNFINISHED.
    """
    job = _job_at(address(job_array))
    array_type = settings_of(team).array_type
    job.index_type = index_type_if_usable(data, indices, out, job.item_size, array_type)
    if job.index_type == 0 or not is_array(updates, array_type) or not holds_carriers(updates, job.item_size):
        return REFUSED
    components = job.tuples if job.elements else checked_product(job.tuples, job.depth)
    update_bytes = checked_product(job.tuples, job.row_bytes)
    if length(data) != job.items or length(out) != job.items or length(indices) != components:
        return REFUSED
    if length(updates) * job.item_size != update_bytes:
        return REFUSED
    job.data, job.output, job.indices, job.updates = address(data), address(out), address(indices), address(updates)
    work = 2 * job.tuples + (job.items * job.item_size + update_bytes) // 16
    if not job.worth_sharing or job.units < 2 or work < LEAST_SHARED_SCATTER:
        helpers = 0
    job_address = stack_job()
    head = record_job_at(job_address)
    head.run_chunk, head.total, head.record = job.run_chunk, job.units, address(job_array)
    head.least_chunk = job.units // (helpers + 1) + 1 if job.division != STRETCHES else 1
    return run_job(team, job_address, helpers, work, may_leave_unfinished)


def scatter_chunk(job_address: Address, number: int) -> int:
    """Scatter the chunk with index `number` of a job. Returns its first invalid component, or -1."""
    job = _job_at(record_job_at(job_address).record)
    low = first_of_chunk(job_address, number)
    end = end_of_chunk(job_address, number)
    if job.division == COLUMNS:
        return _scatter_columns(job, low, end)
    while True:  # runs once even if the output has no rows, to check the updates
        high = min(low + job.units_at_once, end)
        begin, stop = low * job.unit_rows, high * job.unit_rows
        memcpy(job.output + begin * job.row_bytes, job.data + begin * job.row_bytes, (stop - begin) * job.row_bytes)
        first, behind = 0, job.tuples
        if job.division == STRETCHES:
            places = job.sizes[0]
            first, behind = min(low, places) * (behind // places), min(high, places) * (behind // places)
        bad = _apply(job, first, behind, begin, stop)
        if bad >= 0:
            return bad
        low = high
        if low >= end:
            return -1


@inner
def _scatter_columns(job: Any, low: int, high: int) -> int:
    """Copy the columns [low, high) and apply their updates. Returns the first invalid entry in these columns, or -1."""
    columns, size = job.axis_stride, job.item_size
    for place in range(job.axis_size):
        first = place * columns + low
        memcpy(job.output + first * size, job.data + first * size, (high - low) * size)
    named = job.sizes[1]
    for place in range(job.sizes[0]):
        bad = _apply(job, place * named + min(low, named), place * named + min(high, named), int64(0), job.rows)
        if bad >= 0:
            return bad
    return -1


@inner
def _apply(job: Any, first: int, behind: int, begin: int, end: int) -> int:
    """Apply the updates [first, behind) whose rows are in [begin, end). Returns the first invalid component, or -1."""
    rows_block, own_block = _stack_rows(), _stack_own()
    while first < behind:
        count = min(behind - first, BLOCK)
        rows, own = int64_items(rows_block, count), int64_items(own_block, count)
        if job.depth > 1 and not job.elements:
            bad = write_rows(job, first, count, rows)
        else:
            bad = write_items(job, first, rows)
        if bad >= 0:
            return bad
        if job.row_items > 1:
            own = own[: find_own(rows, begin, end, own)]
        elif (end - begin) * job.row_bytes > PIECE_BYTES:
            for t in range(count):
                if ult(rows[t] - begin, end - begin):
                    prefetch(job.output + rows[t] * job.row_bytes)
        if job.row_bytes > 0:
            apply_updates(job, job.updates + first * job.row_bytes, rows, own, begin, end)
        first += count
    return -1
