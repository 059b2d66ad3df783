"""The gradient of a gather in one function compiled by Numba, with the threads of the gather's kernel.

Indices are checked. Dense gradients of short rows are added to zeros as they come (`add_narrow_rows`,
`add_unsorted_rows`); for others tuples are sorted by the place that they name (`sort_tuples`), and chunks write each
row of the result once (`backward_chunk`). A sparse gradient has the rows of the places that are named, in ascending
order.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from struct import Struct
from time import perf_counter
from typing import Any, Final

import numpy as np
from numba import cfunc, njit, types
from numpy.typing import NDArray

from app.kernels.backward_arrays import check_backward_arrays, sets_of
from app.kernels.numba_cpu import gather_kernel
from app.kernels.numba_cpu.add_narrow_rows import (
    NARROW_BYTES,
    add_narrow_rows,
    finish_sums,
)
from app.kernels.numba_cpu.add_unsorted_rows import IN_OWN_CACHE
from app.kernels.numba_cpu.backward_chunk import backward_chunk, fill_zeros
from app.kernels.numba_cpu.backward_job import (
    BATCHES,
    COEFFICIENT,
    COLUMN_BLOCKS,
    COUNT,
    FLOAT32,
    FLOAT64,
    GRADIENT,
    GROUPS,
    HAS_NAN,
    HISTOGRAM,
    INTO_OWN_ZEROS,
    INTO_ZEROS,
    ITEM_SIZE,
    KIND,
    KINDS,
    LOW_BITS,
    NONTEMPORAL,
    PAIRS,
    RESULT,
    ROW_BLOCKS,
    ROWS,
    SPARSE,
    STARTS,
    TUPLES,
    UNSORTED,
    WIDTH,
)
from app.kernels.numba_cpu.gather_job import INDEX_TYPE, OWN_INDEX_TYPE, write_job
from app.kernels.numba_cpu.gather_kernel import CHUNK_OPTIONS, ENTRY_OPTIONS, REFUSED
from app.kernels.numba_cpu.memory_intrinsics import LINE, load_item, stack_scratch, store_item
from app.kernels.numba_cpu.ndarray_abi import (
    ArrayHeader,
    address,
    checked_product,
    header,
    index_type,
    index_type_if_usable,
    is_array,
    is_writable,
    length,
)
from app.kernels.numba_cpu.run_job import ARRAY_TYPE, WAKE_FROM, ZEROS_PAST_CACHES_FROM, carry_out
from app.kernels.numba_cpu.shared_job import CHUNKS_PER_THREAD
from app.kernels.numba_cpu.sort_tuples import (
    NOT_IN_ORDER,
    bit_length,
    find_groups,
    largest_group,
    sort_pairs,
    write_pairs,
)
from app.kernels.numba_cpu.split_over_threads import acquire, is_worth_sharing, job_of, setting
from app.kernels.numba_cpu.widen_indices import MAX_DEPTH
from app.kernels.reference import backward
from app.llvm_intrinsics import Address, f64_from_bits, inner
from app.operators.backward_plan import SCRATCH_HEAD, BackwardPlan

_TOO_MANY_BITS: Final = -4
"""In place of a component: place and number of a tuple do not fit into 63 bits."""
_COLUMN_BYTES: Final = 128
_COLUMN_BYTES_IN_ORDER: Final = 4096
"""Least bytes of each part of a row that are worth a thread of their own, and the same where indices are in order: one
thread reads slices fastest that lie one behind the other. Of 77 MB added into one row it took 2.9 ms with rows of 256
bytes and two threads 4 to 10, 3.0 and 3.6 with rows of 4 KiB, and 4.6 and 2.7 with rows of 8 (AMD EPYC)."""
_HEAVY: Final = 4
"""A group of more than this part of what each thread does is cut by columns: two threads share no row otherwise."""
_ZEROS: Final = 1 << 12
"""Bytes of the result for each tuple, from which on it pays that each of several threads reads all tuples, for what
belongs to the zeros that it writes: 1,000 rows of 4 into 1,000,000 took 104 µs on two and 214 on one."""
_ADDED_UNSORTED: Final = 512
"""Bytes of the longest slices that are added as they come, and not sorted: of longer ones, the rows of the result that
are read and written a second time cost as much as to sort."""
_ADDED_BY_ONE: Final = 1 << 22
_ADDED_BY_ONE_FAR: Final = 1 << 20
"""Fewer bytes of slices are added by one thread, the second where the result has more than the first: each of several
reads all tuples, and a helper comes late. 10,000 rows of 64 took 270 µs into 5,000 on one and 290 on two, and 470 and
360 into 20,000. So are those that are added to a result in a core's own cache: then all waits for slices that lie one
behind the other."""
_FLOAT64: Final = Struct("<d")
_INT64: Final = Struct("<q")
_NO_INT64: Final = np.zeros(0, np.int64)
_ONE: Final[int] = _INT64.unpack(_FLOAT64.pack(1.0))[0]
"""The bits of a coefficient that changes no sum."""


def warm(progress: Callable[[str], None] | None = None) -> None:
    """Compile, or load from the cache that `gather_kernel.configure` has named, all that `run` ever uses."""
    started = perf_counter()
    _ready()
    if progress is not None:
        progress(f"kernel of gradients ready after {perf_counter() - started:.2f} s")


def run(
    plan: BackwardPlan,
    data: NDArray[Any],
    indices: NDArray[Any],
    out: NDArray[Any],
    threads: int = 1,
    may_leave_unfinished: bool = False,
    scratch: NDArray[np.int64] | None = None,
    places: NDArray[np.int64] | None = None,
    count: NDArray[np.int64] | None = None,
) -> int:
    """See `backward.run`; it never leaves a gradient unfinished."""
    entry, chunk = _ready()
    team = gather_kernel.thread_team()
    if threads > 1:
        gather_kernel.prepare(team, threads)
    check_backward_arrays(plan, data, indices, out, scratch, places, count)
    assert scratch is not None
    if plan.gather.batches_per_set > 1:
        for begin, part, read, chosen, written in sets_of(plan, data, indices, out):
            bad = run(part, read, chosen, written, threads, scratch=scratch)
            if bad >= 0:
                return begin + bad
        return -1
    first: int = entry(
        data,
        indices,
        out,
        np.array(plan.dims, np.int64),
        scratch,
        places if places is not None else _NO_INT64,
        count if count is not None else _NO_INT64,
        plan.batches,
        plan.tuples,
        plan.slice_items,
        plan.item_size,
        KINDS[plan.float_type],
        _INT64.unpack(_FLOAT64.pack(plan.coefficient))[0],
        plan.broadcast_indices,
        plan.wrap,
        plan.sparse,
        chunk,
        team.address,
        threads - 1,
    )
    if first == _TOO_MANY_BITS:
        return backward.run(plan, data, indices, out, scratch, places, count)
    if first < -1:
        raise TypeError("the plan has a size that no array can have")
    return first


@cache
def _compiled() -> tuple[Any, Any]:
    """`_backward` and `backward_chunk`."""
    integer, flag = types.int64, types.boolean
    compiler: Any = njit(**ENTRY_OPTIONS)
    chunk, backward = cfunc(integer(integer, integer), **CHUNK_OPTIONS)(backward_chunk), compiler(_backward)
    backward.compile((*(header,) * 7, *(integer,) * 6, flag, flag, flag, *(integer,) * 3))
    backward.disable_compile()
    return backward, chunk


@cache
def _ready() -> tuple[Any, Address]:
    """`_backward` without the search for a signature that fits, and the address of `backward_chunk`."""
    backward, chunk = _compiled()
    return backward.overloads[backward.signatures[0]].entry_point, chunk.address


def _backward(
    data: ArrayHeader,
    indices: ArrayHeader,
    out: ArrayHeader,
    sizes: ArrayHeader,
    scratch: ArrayHeader,
    places: ArrayHeader,
    count: ArrayHeader,
    batches: int,
    tuples: int,
    slice_items: int,
    item_size: int,
    kind: int,
    coefficient: int,
    broadcast: bool,
    wrap: bool,
    sparse: bool,
    chunk: Address,
    team: Address,
    helpers: int,
) -> int:
    """The whole gradient, with up to so many helpers: the first bad component, -1, REFUSED or _TOO_MANY_BITS."""
    array_type = setting(team, ARRAY_TYPE)
    index_kind = index_type_if_usable(data, indices, out, item_size, array_type)
    if index_kind == 0 or not _is_int64(scratch, array_type):
        return REFUSED
    depth = length(sizes)
    axes = address(sizes)
    negative = batches | tuples | slice_items
    rows = 1  # slices of a batch of data
    for axis in range(depth):
        negative |= load_item(axes, axis)
        rows = checked_product(rows, load_item(axes, axis))
    slices = checked_product(batches, tuples)
    total = tuples if broadcast else slices  # tuples in indices
    if negative < 0 or not 1 <= depth <= MAX_DEPTH or rows < 0 or total < 0:
        return REFUSED
    if length(indices) != checked_product(total, depth) or length(data) != checked_product(slices, slice_items):
        return REFUSED
    if sparse:
        if batches > 1 or not (_is_int64(places, array_type) and _is_int64(count, array_type)):
            return REFUSED
        most = min(total, rows)
        if length(places) != most or length(count) != 1 or length(out) != checked_product(most, slice_items):
            return REFUSED
    elif length(out) != checked_product(checked_product(batches, rows), slice_items):
        return REFUSED
    if length(scratch) < 2 * (total + 1) + SCRATCH_HEAD:
        return REFUSED
    parameters = address(scratch)
    pairs = parameters + 8 * SCRATCH_HEAD
    other = pairs + 8 * (total + 1)
    past_caches = length(out) * item_size > setting(team, ZEROS_PAST_CACHES_FROM)
    own = rows if broadcast else checked_product(batches, rows)
    zeros = helpers > 0 and length(out) * item_size > _ZEROS * slices
    narrow = length(out) > 0 and slice_items * item_size <= NARROW_BYTES and not sparse and kind in (FLOAT32, FLOAT64)
    if narrow and not zeros:
        fill_zeros(address(out), length(out), item_size, False, past_caches)
        return add_narrow_rows(
            index_kind,
            address(indices),
            batches,
            tuples,
            depth,
            axes,
            wrap,
            broadcast,
            address(data),
            address(out),
            length(out),
            slice_items,
            item_size,
            f64_from_bits(coefficient),
        )
    together = 1 if broadcast else batches  # batches that are sorted as one
    low = bit_length(total - 1) if total > 0 else 0
    high = bit_length(own - 1) if own > 0 else 0
    if own < 0 or low + high > 62:
        return _TOO_MANY_BITS
    bad = write_pairs(index_kind, address(indices), together, tuples, depth, axes, wrap, low, pairs)
    if bad >= 0:
        return bad
    if length(out) == 0 and not sparse:
        return -1
    unsorted = 0
    if (
        bad == NOT_IN_ORDER
        and kind in (FLOAT32, FLOAT64)
        and coefficient == _ONE
        and not sparse
        and (batches == 1 or not broadcast)
        and slice_items * item_size <= _ADDED_UNSORTED
    ):
        unsorted = INTO_OWN_ZEROS if zeros else INTO_ZEROS
    sorted_pairs = pairs
    starts = other
    groups = 0
    if unsorted == INTO_ZEROS:
        _clear_over_threads(address(out), length(out), item_size, past_caches, parameters, other, chunk, team, helpers)
    if unsorted == 0:
        if bad == NOT_IN_ORDER:
            sorted_pairs = sort_pairs(pairs, other, total, low, high, parameters + 8 * HISTOGRAM)
        starts = other if sorted_pairs == pairs else pairs
        groups = find_groups(sorted_pairs, total, low, starts)
    if sparse:
        for group in range(groups):
            store_item(address(places), group, load_item(sorted_pairs, load_item(starts, group)) >> low)
        store_item(address(count), 0, load_item(address(count), 0) + groups)
    if slice_items == 0 or length(out) == 0:
        return -1
    store_item(parameters, GRADIENT, address(data))
    store_item(parameters, RESULT, address(out))
    store_item(parameters, PAIRS, sorted_pairs)
    store_item(parameters, STARTS, starts)
    store_item(parameters, GROUPS, groups)
    store_item(parameters, COUNT, total)
    store_item(parameters, LOW_BITS, low)
    store_item(parameters, WIDTH, slice_items)
    store_item(parameters, ITEM_SIZE, item_size)
    store_item(parameters, KIND, kind)
    store_item(parameters, SPARSE, 1 if sparse else 0)
    store_item(parameters, COEFFICIENT, coefficient)
    blocks = batches if broadcast else 1
    store_item(parameters, BATCHES, blocks)
    store_item(parameters, TUPLES, tuples)
    store_item(parameters, ROWS, own)
    store_item(parameters, NONTEMPORAL, 1 if past_caches else 0)
    store_item(parameters, UNSORTED, unsorted)
    store_item(parameters, HAS_NAN, 0)
    row_blocks = 1
    column_blocks = 1
    work = (length(data) + length(out)) * item_size // 8 + length(indices)
    long = work > setting(team, WAKE_FROM)
    row_size = slice_items * item_size
    result = length(out) * item_size
    shared_from = _ADDED_BY_ONE if result <= _ADDED_BY_ONE else _ADDED_BY_ONE_FAR
    few = length(data) * item_size < shared_from or result <= IN_OWN_CACHE
    alone = unsorted == INTO_ZEROS and (few or row_size < 2 * LINE or (address(out) | row_size) % LINE != 0)
    split = helpers > 0 and not alone and is_worth_sharing(team, long) and acquire(team)
    job = stack_scratch()
    size = blocks
    if split:
        job = job_of(team)
        wanted = CHUNKS_PER_THREAD * (helpers + 1)
        size = 1
        if unsorted == INTO_ZEROS:
            column_blocks = min(helpers + 1, row_size // LINE)
        elif unsorted == INTO_OWN_ZEROS:
            row_blocks = wanted
        elif blocks >= wanted:
            size = blocks // wanted
        else:
            row_blocks = (wanted + blocks - 1) // blocks
            if largest_group(starts, groups) * _HEAVY * (helpers + 1) > total:
                least = _COLUMN_BYTES if bad == NOT_IN_ORDER else _COLUMN_BYTES_IN_ORDER
                column_blocks = max(min(helpers + 1, row_size // least), 1)
    store_item(parameters, ROW_BLOCKS, row_blocks)
    store_item(parameters, COLUMN_BLOCKS, column_blocks)
    units = blocks * row_blocks * column_blocks
    addresses = parameters, address(out), address(indices), axes
    write_job(job, addresses, depth, item_size, units, size, 0, chunk)
    store_item(job, INDEX_TYPE, OWN_INDEX_TYPE)
    bad = carry_out(team, job, split, helpers, long, False)
    if unsorted != 0 and load_item(parameters, HAS_NAN) != 0:
        finish_sums(address(out), length(out), item_size, 1.0)
    return bad


@inner
def _clear_over_threads(
    result: Address,
    items: int,
    item_size: int,
    past_caches: bool,
    parameters: Address,
    starts: Address,
    chunk: Address,
    team: Address,
    helpers: int,
) -> None:
    """Write zeros with up to so many helpers: the gradient of no tuples, whose rows have one item each.

    `starts` is one int64 of working memory, which is written.
    """
    store_item(starts, 0, 0)
    store_item(parameters, RESULT, result)
    store_item(parameters, STARTS, starts)
    for parameter in (GRADIENT, PAIRS, GROUPS, COUNT, LOW_BITS, TUPLES, SPARSE, UNSORTED):
        store_item(parameters, parameter, 0)
    for parameter in (WIDTH, BATCHES, COLUMN_BLOCKS):
        store_item(parameters, parameter, 1)
    store_item(parameters, ITEM_SIZE, item_size)
    store_item(parameters, KIND, FLOAT32)
    store_item(parameters, COEFFICIENT, _ONE)
    store_item(parameters, ROWS, items)
    store_item(parameters, NONTEMPORAL, 1 if past_caches else 0)
    long = items * item_size // 8 > setting(team, WAKE_FROM)
    split = helpers > 0 and is_worth_sharing(team, long) and acquire(team)
    job = stack_scratch()
    units = 1
    if split:
        job = job_of(team)
        units = CHUNKS_PER_THREAD * (helpers + 1)
    store_item(parameters, ROW_BLOCKS, units)
    write_job(job, (parameters, result, 0, 0), 0, item_size, units, 1, 0, chunk)
    store_item(job, INDEX_TYPE, OWN_INDEX_TYPE)
    carry_out(team, job, split, helpers, long, False)


@inner
def _is_int64(array: ArrayHeader, array_type: Address) -> bool:
    """Whether it is an array of int64 that may be written."""
    return is_array(array, array_type) and is_writable(array) and index_type(array) == 8
