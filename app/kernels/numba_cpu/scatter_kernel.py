"""ScatterND and ScatterElements, compiled by Numba, with the jobs and the threads of the gather's kernel.

A chunk owns a stretch of the output: it copies data there, goes over the indices in their order, in blocks, and applies
those updates whose targets are its own. So no two threads write the same item, the updates of an item come in their
order, and the bits are the same for any number of chunks. Each chunk checks all the indices that it goes over; the
first bad component is the least of the chunks' own.

Where many long rows are replaced, or reduced in an output that no cache holds, each row of the output is written once
(`write_rows_once`).

Where the places of ScatterElements' entries along the first axis name disjoint stretches of the output, which is so
unless that is its own axis, a chunk goes over the entries of its own stretch alone. Where that is its own axis, the
entries of a column name items of that column: a chunk owns columns then, and goes over their entries alone.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from time import perf_counter
from typing import Any, Final

import numpy as np
from numba import cfunc, njit, types
from numpy.typing import NDArray

from app.kernels.check_arrays import check_scatter_arrays, check_scatter_elements_arrays, widened
from app.kernels.numba_cpu import gather_kernel
from app.kernels.numba_cpu.combine_single_items import are_single_items, can_be_set_aside
from app.kernels.numba_cpu.element_places import is_inside
from app.kernels.numba_cpu.gather_job import (
    INDEX_TYPE,
    NONTEMPORAL,
    NOT_AHEAD,
    OWN_INDEX_TYPE,
    START,
    STRIDE,
    TUPLES,
    WRAP_NEGATIVE,
    write_job,
)
from app.kernels.numba_cpu.gather_kernel import (
    CACHED_BYTES,
    CHUNK_OPTIONS,
    ENTRY_OPTIONS,
    REFUSED,
)
from app.kernels.numba_cpu.memory_intrinsics import LINE, call_address, load_item, stack_scratch, store_item
from app.kernels.numba_cpu.ndarray_abi import (
    ArrayHeader,
    address,
    checked_product,
    header,
    holds_carriers,
    index_type_if_usable,
    is_array,
    length,
)
from app.kernels.numba_cpu.reductions import COPIES, COPY_ROWS, ITEM_COPIES, NARROW_CODES, REDUCTION_CODES
from app.kernels.numba_cpu.run_job import ARRAY_TYPE, NONTEMPORAL_FROM, WAKE_FROM, carry_out
from app.kernels.numba_cpu.scatter_chunk import (
    CODE_BITS,
    COLUMNS,
    ELEMENTS,
    INDEX_KIND,
    NOTING,
    ONCE,
    OUTER,
    PIECE_BYTES,
    scatter_chunk,
)
from app.kernels.numba_cpu.shared_job import CHUNKS_PER_THREAD
from app.kernels.numba_cpu.split_over_threads import (
    UNFINISHED,
    UnfinishedGather,
    acquire,
    is_worth_sharing,
    job_of,
    setting,
)
from app.kernels.numba_cpu.widen_indices import MAX_DEPTH
from app.kernels.numba_cpu.write_rows_once import NOTES, UPDATES, piece_shift, sorted_tuples
from app.llvm_intrinsics import Address, inner
from app.operators.scatter_plan import GATHERED_BYTES, LEAST_ROW_BYTES, ScatterElementsPlan, ScatterNDPlan
from app.operators.scatter_plan import PIECE_BYTES as NOTED_PIECE_BYTES

_WIDE_BYTES: Final = 256
"""Slices from which on going over the indices once more takes little beside the slices themselves."""

_COPIED_BYTES: Final = 16
"""Of output for each single item that is applied, from which on a second thread gains more by the copy than it loses:
on two threads 1,000,000 into 1,000 took 1,307 µs and on one 752, into 4,194,304 4,263 and 4,895."""
_COPIED_ASIDE_BYTES: Final = 2
"""The same of updates that may be set aside (`can_be_set_aside`), which takes less than to pick out a thread's own:
1,000,000 float64 into 250,000 took 1,242 µs on one thread and 994 on two, float32 into 250,000 852 and 840, int8 into
1,000,000 785 and 848."""
_COPIED_ALONE_BYTES: Final = 1
"""The same without a reduction: 1,000,000 int8 into as many took 810 and 750 µs."""

_ITEMS_AHEAD_BYTES: Final = 1 << 24
"""Of output, from which on single items are asked for ahead; below, the processor looks far enough ahead by itself:
1,000,000 into 4 MB took 1,093 µs with the requests and 750 without, into 16 MB 1,942 and 2,109."""

_LEAST_SHARED_WORK: Final = 1000
"""Components and 16 bytes of output and of updates, some 0.4 µs. With less to do no helper is asked for, which takes as
long by itself."""

_NO_NOTES: Final = np.zeros(0, np.uint32)


def warm(progress: Callable[[str], None] | None = None) -> None:
    """Compile, or load from the cache that `gather_kernel.configure` has named, all that the functions here use."""
    started = perf_counter()
    _ready()
    if progress is not None:
        progress(f"kernel of scatters ready after {perf_counter() - started:.2f} s")


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
    elements = type(plan) is ScatterElementsPlan
    if plan.kept is None:
        object.__setattr__(plan, "kept", _axes_and_code(plan))
    axes, code = plan.kept
    notes = _NO_NOTES
    # To reduce piece by piece moves less through memory, which holds up several threads but not one.
    if plan.scratch_bytes and (elements or code <= COPY_ROWS or threads > 1):
        notes = np.empty(plan.scratch_bytes // 4, np.uint32)
    entry, chunk = _ready()
    team = gather_kernel.thread_team()
    if threads > 1:
        gather_kernel.prepare(team, threads)
    first: int = entry(
        data,
        indices,
        out,
        updates,
        axes,
        notes,
        plan.tuples,
        plan.data_items,
        plan.item_size,
        plan.wrap,
        code,
        elements,
        chunk,
        team.address,
        threads - 1,
        may_leave_unfinished,
    )
    if first == UNFINISHED:
        raise UnfinishedGather(team, (data, indices, out, updates, axes, notes))
    if first == REFUSED:
        if isinstance(plan, ScatterElementsPlan):
            check_scatter_elements_arrays(plan, data, indices, out, updates)
        else:
            check_scatter_arrays(plan, data, indices, out, updates)
            if indices.dtype != np.int64:
                return run(plan, data, widened(indices), out, threads, may_leave_unfinished, updates=updates)
        raise TypeError("the plan has a size that no array can have")
    return first


def _axes_and_code(plan: ScatterNDPlan | ScatterElementsPlan) -> tuple[NDArray[np.int64], int]:
    """What `_scatter` takes of a plan: `axes_array` and the code for `combine_slices`."""
    if isinstance(plan, ScatterElementsPlan):
        axes = *plan.sizes, *plan.strides, plan.axis_size, plan.axis_stride
        return np.array(axes, dtype=np.int64), _code(plan, plan.item_size)
    width = plan.slice_items * plan.item_size
    code = _code(plan, width)
    axes = *plan.dims, plan.slice_items, width if code == COPY_ROWS else plan.slice_items
    return np.array(axes, dtype=np.int64), code


def _code(plan: ScatterNDPlan | ScatterElementsPlan, width: int) -> int:
    """What `combine_slices` does for a plan whose slices have so many bytes; -1 where there is nothing."""
    if plan.reduction != "none":
        return REDUCTION_CODES.get((plan.reduction, plan.dtype, plan.item_size), -1)
    return COPIES.index(width) if width in COPIES else COPY_ROWS


@cache
def _compiled() -> tuple[Any, Any]:
    """`_scatter` and `scatter_chunk`."""
    integer, flag = types.int64, types.boolean
    compiler: Any = njit(**ENTRY_OPTIONS)
    chunk, scatter = cfunc(integer(integer, integer), **CHUNK_OPTIONS)(scatter_chunk), compiler(_scatter)
    scatter.compile((*(header,) * 6, *(integer,) * 3, flag, integer, flag, *(integer,) * 3, flag))
    scatter.disable_compile()
    return scatter, chunk


@cache
def _ready() -> tuple[Any, Address]:
    """`_scatter` without the search for a signature that fits, and the address of `scatter_chunk`."""
    scatter, chunk = _compiled()
    return scatter.overloads[scatter.signatures[0]].entry_point, chunk.address


@inner
def _has_columns(axes: Address, depth: int, axis_stride: int, data_items: int, item_size: int) -> bool:
    """Whether the entries of a place along the last axis name items of one column of the data, of many columns."""
    if depth != 2 or load_item(axes, depth) != 0 or load_item(axes, depth + 1) != 1:
        return False
    if load_item(axes, 1) > axis_stride or checked_product(load_item(axes, 2 * depth), axis_stride) != data_items:
        return False
    return axis_stride * item_size >= LEAST_ROW_BYTES


def _scatter(
    data: ArrayHeader,
    indices: ArrayHeader,
    out: ArrayHeader,
    updates: ArrayHeader,
    axes_array: ArrayHeader,
    notes: ArrayHeader,
    tuples: int,
    data_items: int,
    item_size: int,
    wrap: bool,
    code: int,
    elements: bool,
    chunk: Address,
    team: Address,
    helpers: int,
    may_leave_unfinished: bool,
) -> int:
    """The whole scatter, with up to so many helpers: its first bad component, -1 or REFUSED.

    If it `may_leave_unfinished`, perhaps UNFINISHED. `axes_array` is dims, slice_items and the items that
    `combine_slices` counts, or of ScatterElements sizes, strides, axis_size and axis_stride. `notes` is memory
    for those of `write_rows_once` where rows are written once, for columns where they are gathered, else nothing.
    """
    array_type = setting(team, ARRAY_TYPE)
    kind = index_type_if_usable(data, indices, out, item_size, array_type)
    if kind == 0 or code < 0 or not is_array(updates, array_type) or not holds_carriers(updates, item_size):
        return REFUSED
    axes, numbers = address(axes_array), length(axes_array)
    negative = tuples | data_items
    for number in range(numbers):
        negative |= load_item(axes, number)
    depth = (numbers - 2) // 2 if elements else numbers - 2
    if negative < 0 or not 1 <= depth <= MAX_DEPTH or length(data) != data_items or length(out) != data_items:
        return REFUSED
    total, unit_items, columns = 1, 1, 0
    for axis in range(depth):
        total = checked_product(total, load_item(axes, axis))
    flags = (kind + INDEX_KIND) << CODE_BITS
    if elements:
        axis_size, axis_stride = load_item(axes, numbers - 2), load_item(axes, numbers - 1)
        if total != tuples or length(indices) != tuples or length(updates) != tuples:
            return REFUSED
        if tuples > 0 and axis_size > 0 and not is_inside(axes, depth, axis_size, axis_stride, data_items):
            return REFUSED
        flags |= ELEMENTS
        if tuples > 0 and axis_size > 0:
            first_stride = load_item(axes, depth)
            reach = (axis_size - 1) * axis_stride  # of the entries of one place along the first axis
            for axis in range(1, depth):
                reach += (load_item(axes, axis) - 1) * load_item(axes, depth + axis)
            if reach < first_stride and data_items % first_stride == 0:
                flags |= OUTER
                unit_items = first_stride
                if first_stride * item_size <= PIECE_BYTES:
                    flags |= NOT_AHEAD  # a piece is in the cache since its copy: without prefetches 15 % faster
            elif _has_columns(axes, depth, axis_stride, data_items, item_size):
                columns = axis_stride
        units, width = data_items // unit_items, item_size
    else:
        unit_items = load_item(axes, depth)
        if kind != 8 or checked_product(total, unit_items) != data_items:
            return REFUSED
        if length(indices) != checked_product(tuples, depth) or length(updates) != checked_product(tuples, unit_items):
            return REFUSED
        units, width = total, unit_items * item_size
    out_bytes = data_items * item_size
    single = are_single_items(code, 1 if elements else load_item(axes, numbers - 1))
    if out_bytes <= CACHED_BYTES or (single and out_bytes < _ITEMS_AHEAD_BYTES):
        flags |= NOT_AHEAD
    if wrap:
        flags |= WRAP_NEGATIVE
    once = not elements and length(notes) > 0
    gathers = 4 * length(notes) // GATHERED_BYTES if columns > 0 else 0  # chunks that may gather their columns
    if gathers > 0 and (item_size > 8 or axis_size * LINE > GATHERED_BYTES):
        return REFUSED
    piece = 0
    if once and code > COPY_ROWS:
        piece = piece_shift(width)
        if 4 * length(notes) != sorted_tuples(units, piece) + 8 * tuples:
            return REFUSED
    elif once and length(notes) != units:
        return REFUSED
    if once and (units == 0 or width < LINE or (code > COPY_ROWS and width > NOTED_PIECE_BYTES)):
        return REFUSED
    addresses = address(data), address(out), address(indices), axes
    job = stack_scratch()
    if once:
        write_job(job, addresses, depth, width, units, units, flags | ONCE | NOTING, chunk)
        store_item(job, TUPLES, tuples)
        store_item(job, START, code)
        store_item(job, NOTES, address(notes))
        bad = call_address(chunk, job, 0)
        if bad >= 0:
            return bad
        flags |= ONCE
        if out_bytes > setting(team, NONTEMPORAL_FROM):
            flags |= NONTEMPORAL
    work = 2 * tuples + (out_bytes + length(updates) * item_size) // 16
    long = work > setting(team, WAKE_FROM)
    if work < _LEAST_SHARED_WORK and not long:
        helpers = 0
    # Each thread goes over all tuples: of single items that takes as long as to apply them, and the copy alone is cut.
    apart = flags & OUTER != 0 or columns > 0
    pays = apart or not single or code in NARROW_CODES
    copied = _COPIED_ASIDE_BYTES if can_be_set_aside(code) else _COPIED_BYTES
    pays = pays or out_bytes // (_COPIED_ALONE_BYTES if code < ITEM_COPIES else copied) >= tuples
    split = helpers > 0 and units > 1 and pays and out_bytes > 0 and is_worth_sharing(team, long) and acquire(team)
    if split and gathers <= helpers:
        gathers = 0  # each thread works, and not one of them on gathered columns
    if columns > 0 and (split or gathers > 0):
        flags |= COLUMNS | NOT_AHEAD
        units = columns
    size = units
    if split:
        job = job_of(team)
        chunks = helpers + 1
        if width >= _WIDE_BYTES or apart or once:
            chunks *= CHUNKS_PER_THREAD
        if gathers > 0:
            chunks = min(chunks, gathers)
        size = (units + chunks - 1) // chunks
        if columns > 0:
            size = (size * width + LINE - 1) // LINE * LINE // width
        size = (size + (1 << piece) - 1) >> piece << piece
    write_job(job, addresses, depth, width, units, size, flags, chunk)
    store_item(job, UPDATES, address(updates))
    store_item(job, TUPLES, tuples)
    store_item(job, STRIDE, unit_items * item_size)
    if once or flags & COLUMNS != 0:
        store_item(job, NOTES, address(notes) if once or gathers > 0 else 0)
    store_item(job, START, code)
    store_item(job, INDEX_TYPE, OWN_INDEX_TYPE)
    return carry_out(team, job, split, helpers, long, may_leave_unfinished)
