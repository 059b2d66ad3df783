"""ScatterND and ScatterElements in one function compiled by Numba, with the threads of the gather's kernel.

A chunk owns a part of the output. It copies that part of data, goes over the updates in their order, and applies those
whose targets are its own (`apply_updates`). So no two threads write the same item, the updates of an item come in their
order, and the bits are the same for any number of threads.

A part is a stretch of rows, of which any update may name one: each chunk goes over all of them. Entries of
ScatterElements name items of their own stretch of the output, or, along the first axis, of their own column: a chunk
then owns such stretches or columns, and goes over their entries alone.

Updates are taken in blocks: their indices are checked, the rows that they name are written down, and those rows are
asked for from memory, all of a block at once. Stretches are cut into pieces that a cache holds from the copy on.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import numpy as np
from numba import types
from numpy.typing import NDArray

from app.compilation.decorators import inner
from app.compilation.intrinsics import Address, int64, stack_words, ult
from app.kernels.check_arrays import check_scatter_arrays, check_scatter_plan
from app.kernels.numba_cpu.apply_updates import OPERATIONS, apply_updates, flip_of, kind_of, kind_size
from app.kernels.numba_cpu.array_header import (
    ArrayHeader,
    address,
    header,
    holds_carriers,
    index_type_if_usable,
    is_array,
    length,
)
from app.kernels.numba_cpu.chunked_job import end_of_chunk, first_of_chunk, record_job_at, shared_team, stack_job
from app.kernels.numba_cpu.chunked_job import run as run_job
from app.kernels.numba_cpu.compile_kernel import REFUSED, CompiledKernel, compile_kernel
from app.kernels.numba_cpu.memory_intrinsics import LINE, memcpy, prefetch
from app.kernels.numba_cpu.thread_team import (
    UNFINISHED,
    UnfinishedGather,
    settings_of,
)
from app.kernels.numba_cpu.typed_memory import MAX_DEPTH, Items, Sizes, dtype_of, record_of
from app.kernels.numba_cpu.write_rows import IndexedJob, as_int64, int64_items, write_rows
from app.operators.scatter_plan import ScatterElementsPlan, ScatterNDPlan

ROWS, STRETCHES, COLUMNS = range(3)
"""What the output is divided into."""


class ScatterJob(IndexedJob):
    """A scatter. Of ScatterElements, `sizes` are those of indices."""

    data: Address
    output: Address
    updates: Address
    run_chunk: Address
    """The address of `scatter_chunk`."""
    items: int
    """Of data and of the output."""
    item_size: int
    tuples: int
    """Updates."""
    elements: bool
    """Whether it is a ScatterElements."""
    strides: Sizes
    """Of ScatterElements: items of the output from one entry of indices to the next along each axis."""
    rows: int
    """Of the output: slices, or single items."""
    row_bytes: int
    operation: int
    """See `apply_updates`, as for the next three."""
    kind: int
    width: int
    flip: int
    axis_size: int
    """Of the one axis that an entry is a place of."""
    axis_stride: int
    """Rows from one of its places to the next."""
    parts: int
    """What the output is divided into: ROWS, STRETCHES or COLUMNS."""
    units: int
    """How many parts there are."""
    unit_rows: int
    """Rows of a part."""
    worth_sharing: bool
    """Whether it is worth it that threads share the parts: each chunk of ROWS looks at all updates."""
    piece: int
    """Parts that are copied and scattered into at a time."""


PIECE_BYTES: Final = 1 << 20
"""Bytes of the output that are copied, and then scattered into, at a time: what a second cache holds. From larger
outputs rows are asked for ahead."""
_BLOCK: Final = 1024
"""Updates whose rows are written down at a time."""
_BLOCK_BYTES: Final = 1 << 15
"""Most bytes of their rows, which are asked for together."""
_PREFETCHED_OF_ROW: Final = 512
"""Bytes of a row that are asked for: those behind them the processor asks for by itself."""
_LEAST_SHARED_WORK: Final = 1000
"""Components and 16 bytes of output and of updates, some 0.4 µs: to ask for a helper takes as long by itself."""

_job_at: Final = record_of(ScatterJob)
_stack_block: Final = stack_words(_BLOCK)


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
    """See `app.kernels.Kernel.run`; `updates` is the one of its `further` arrays."""
    kernel, team = compiled(), shared_team()
    if plan.kept is None:
        object.__setattr__(plan, "kept", job_of_plan(plan, kernel.chunk))
    if threads > 1:
        team.prepare(threads)
    job = plan.kept.copy()
    first: int = kernel.run(data, indices, out, updates, job, team.address, threads - 1, may_leave_unfinished)
    if first == UNFINISHED:
        raise UnfinishedGather(team, (data, indices, out, updates, job))
    if first == REFUSED:
        check_scatter_arrays(plan, data, indices, out, updates)
        raise TypeError("the arrays are none that the kernel takes")
    return first


def job_of_plan(plan: ScatterNDPlan | ScatterElementsPlan, chunk: Address) -> NDArray[np.int64]:
    """The job of a plan without its arrays, a `ScatterJob` as int64.

    Raises TypeError for a plan that is wrong.
    """
    check_scatter_plan(plan)
    elements = isinstance(plan, ScatterElementsPlan)
    sizes = plan.sizes if isinstance(plan, ScatterElementsPlan) else plan.dims
    if not 1 <= len(sizes) <= MAX_DEPTH:
        raise TypeError(f"the plan has {len(sizes)} axes")
    row_bytes = plan.slice_items * plan.item_size
    # Of rows without items there may be more than int64 counts.
    rows = plan.data_items // plan.slice_items if plan.slice_items else 0
    kind = kind_of(plan.dtype, plan.reduction, row_bytes)
    parts, units, unit_rows = _division(plan)
    output_bytes = rows * row_bytes
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
        "kind": kind,
        "width": row_bytes // kind_size(kind),
        "flip": flip_of(plan.dtype, plan.reduction),
        "axis_size": plan.dims[0],
        "axis_stride": plan.axis_stride if isinstance(plan, ScatterElementsPlan) else 1,
        "parts": parts,
        "units": units,
        "unit_rows": unit_rows,
        "worth_sharing": parts != ROWS or row_bytes >= LINE or output_bytes >= LINE * plan.tuples,
        "piece": _piece(parts, units, unit_rows * row_bytes),
    }
    job = np.zeros(1, dtype_of(ScatterJob))
    try:
        for name, value in values.items():
            job[name] = value
        job["sizes"][0, : len(sizes)] = sizes
        if isinstance(plan, ScatterElementsPlan):
            job["strides"][0, : len(sizes)] = plan.strides
    except OverflowError as error:
        raise TypeError("the plan has a size that no array can have") from error
    return job.view(np.int64)  # NumPy copies these twenty times faster than a record


def _division(plan: ScatterNDPlan | ScatterElementsPlan) -> tuple[int, int, int]:
    """What chunks own: ROWS, STRETCHES or COLUMNS, how many there are, and rows of each."""
    if isinstance(plan, ScatterNDPlan):
        return ROWS, plan.data_items // max(plan.slice_items, 1), 1
    if not plan.index_items or not plan.axis_size:
        return ROWS, plan.data_items, 1
    sizes, strides = plan.sizes, plan.strides
    # Items that entries of one place along the first axis of indices reach.
    reach = 1 + (plan.axis_size - 1) * plan.axis_stride
    reach += sum((size - 1) * stride for size, stride in zip(sizes[1:], strides[1:], strict=True))
    if reach <= strides[0] and plan.data_items % strides[0] == 0:
        return STRETCHES, plan.data_items // strides[0], strides[0]
    if strides == (0, 1) and plan.axis_size * plan.axis_stride == plan.data_items and sizes[1] <= plan.axis_stride:
        return COLUMNS, plan.axis_stride, 1
    return ROWS, plan.data_items, 1


def _piece(parts: int, units: int, unit_bytes: int) -> int:
    """How many units are copied, and then scattered into, at a time."""
    return max(1, PIECE_BYTES // unit_bytes if parts == STRETCHES else units)


@cache
def compiled() -> CompiledKernel:
    """The compiled functions."""
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
    """The whole scatter, with up to so many helpers: its first bad component, -1 or REFUSED.

    If it `may_leave_unfinished`, perhaps UNFINISHED.
    """
    job = _job_at(address(job_array))
    array_type = settings_of(team).array_type
    job.index_type = index_type_if_usable(data, indices, out, job.item_size, array_type)
    if job.index_type == 0 or not is_array(updates, array_type) or not holds_carriers(updates, job.item_size):
        return REFUSED
    components = job.tuples if job.elements else job.tuples * job.depth
    update_bytes = job.tuples * job.row_bytes
    if length(data) != job.items or length(out) != job.items or length(indices) != components:
        return REFUSED
    if length(updates) * job.item_size != update_bytes:
        return REFUSED
    job.data, job.output, job.indices, job.updates = address(data), address(out), address(indices), address(updates)
    work = 2 * job.tuples + (job.items * job.item_size + update_bytes) // 16
    if not job.worth_sharing or job.units < 2 or work < _LEAST_SHARED_WORK:
        helpers = 0
    job_address = stack_job()
    head = record_job_at(job_address)
    head.run_chunk, head.total, head.chunk_size, head.record = job.run_chunk, job.units, 1, address(job_array)
    return run_job(team, job_address, helpers, work, may_leave_unfinished)


def scatter_chunk(job_address: Address, number: int) -> int:
    """Chunk `number` of a scatter: its first bad component, or -1."""
    job = _job_at(record_job_at(job_address).record)
    low = first_of_chunk(job_address, number)
    end = end_of_chunk(job_address, number)
    if job.parts == COLUMNS:
        return _scatter_columns(job, low, end)
    while True:  # once for an output without rows, too: its updates are checked
        high = min(low + job.piece, end)
        begin, stop = low * job.unit_rows, high * job.unit_rows
        memcpy(job.output + begin * job.row_bytes, job.data + begin * job.row_bytes, (stop - begin) * job.row_bytes)
        first, behind = 0, job.tuples
        if job.parts == STRETCHES:
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
    """Copy the columns [low, high), and apply the updates to them: the first bad entry among theirs, or -1."""
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
    """Apply the updates [first, behind) whose rows are in [begin, end): the first bad component, or -1."""
    target, block = job.output + begin * job.row_bytes, _stack_block()
    block_rows = max(min(_BLOCK, _BLOCK_BYTES // max(job.row_bytes, 1)), 1)
    while first < behind:
        count = min(behind - first, block_rows)
        rows = int64_items(block, count)
        if job.depth > 1 and not job.elements:
            bad = write_rows(job, first, count, rows)
            for t in range(count):
                rows[t] -= begin
        else:
            bad = _write_items(job, first, begin, rows)
        if bad >= 0:
            return bad
        if job.row_bytes > 0:
            if (end - begin) * job.row_bytes > PIECE_BYTES:
                _prefetch_rows(target, rows, end - begin, job.row_bytes)
            apply_updates(job, target, job.updates + first * job.row_bytes, rows, end - begin)
        first += count
    return -1


@inner
def _prefetch_rows(target: Address, row_numbers: Items, row_count: int, row_bytes: int) -> None:
    """Ask for rows `row_numbers` of the `row_count` at `target`; other rows are left out."""
    for t in range(len(row_numbers)):
        if ult(row_numbers[t], row_count):
            row = target + row_numbers[t] * row_bytes
            prefetch(row)
            for at in range(LINE, min(row_bytes, _PREFETCHED_OF_ROW), LINE):
                prefetch(row + at)


@inner
def _write_items(job: Any, first: int, begin: int, items: Items) -> int:
    """Write to `items` what the entries from number `first` on name, less `begin`: the first bad entry, or -1.

    Tuples of one component are as a single row of entries.
    """
    entries, done = as_int64(job, first, len(items), _stack_block()), 0
    row = job.sizes[job.depth - 1] if job.elements else job.tuples
    bounds = job.axis_size, job.axis_size if job.wrap else 0
    while done < len(items):
        count = min(row - (first + done) % row, len(items) - done)
        places = job.axis_stride, _first_item(job, first + done) - begin, job.strides[job.depth - 1]
        bad = _write_places(int64_items(entries + 8 * done, count), bounds, places, items[done:])
        if bad >= 0:
            return first + done + bad
        done += count
    return -1


@inner
def _write_places(entries: Items, bounds: tuple[int, int], places: tuple[int, int, int], items: Items) -> int:
    """Write the item that each entry of a row names: the first bad entry, or -1.

    Entry `t`, a number e below `size`, names item `stride * e + first + t * step`.
    """
    (size, wrapped), (stride, first, step) = bounds, places
    signs = 0
    for t in range(len(entries)):
        entry = entries[t]
        entry += (entry >> 63) & wrapped
        signs |= entry | (size - 1 - entry)  # negative if it is out of bounds
        items[t] = entry * stride + first + t * step
    if signs < 0:
        for t in range(len(entries)):
            if entries[t] >= size or entries[t] < -wrapped:
                return t
    return -1


@inner
def _first_item(job: Any, number: int) -> int:
    """The item of the output that entry `number` of ScatterElements names if it is 0.

    It is 0 for ScatterND, whose job has no strides. Numba's error model is NumPy's: a size of 0 raises nothing.
    """
    item = 0
    for back in range(job.depth):
        axis = job.depth - 1 - back
        size = job.sizes[axis]
        item += number % size * job.strides[axis]
        number //= size
    return item
