"""GatherElements in one function compiled by Numba, with the jobs, the widening and the threads of the gather's kernel.

A chunk goes over the entries of indices in blocks: it checks each entry and writes the address of its item, row by row
along the last axis, and then copies the items. Where a row ends it counts on along the axes before, so that nothing is
divided in the loop. The first bad component is the least of the chunks' own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from time import perf_counter
from typing import Any, Final

import numpy as np
from numba import cfunc, njit, types
from numpy.typing import NDArray

from app.kernels.check_arrays import check_elements_arrays
from app.kernels.numba_cpu import gather_kernel
from app.kernels.numba_cpu.copy_slices import NEIGHBOURS_BYTES, copy_items
from app.kernels.numba_cpu.element_places import enter_row, first_bad_entry, is_inside, write_rows_places
from app.kernels.numba_cpu.gather_job import (
    AXES,
    BATCHES,
    BLOCK,
    CHUNK_SIZE,
    COMPONENTS,
    DATA,
    DEPTH,
    FLAGS,
    INDEX_TYPE,
    NOT_AHEAD,
    OUTPUT,
    OWN_INDEX_TYPE,
    STRIDE,
    TOTAL,
    TUPLES,
    WIDTH,
    WRAP_NEGATIVE,
    write_job,
)
from app.kernels.numba_cpu.gather_kernel import (
    CACHED_BYTES,
    CHUNK_OPTIONS,
    ENTRY_OPTIONS,
    REFUSED,
)
from app.kernels.numba_cpu.memory_intrinsics import (
    load_item,
    prefetch,
    stack_scratch,
    store_item,
)
from app.kernels.numba_cpu.ndarray_abi import (
    ArrayHeader,
    address,
    checked_product,
    header,
    index_type_if_usable,
    length,
)
from app.kernels.numba_cpu.run_job import ARRAY_TYPE, WAKE_FROM, carry_out
from app.kernels.numba_cpu.shared_job import CHUNKS_PER_THREAD
from app.kernels.numba_cpu.split_over_threads import (
    UNFINISHED,
    UnfinishedGather,
    acquire,
    is_worth_sharing,
    job_of,
    setting,
)
from app.kernels.numba_cpu.widen_indices import MAX_DEPTH, widen_components
from app.llvm_intrinsics import Address, inner
from app.operators.gather_elements import GatherElementsPlan

# Fields of the job that say something else here than in a gather.
_INDEX_TYPE: Final = TUPLES
"""The type of the entries (`ndarray_abi.index_type`): INDEX_TYPE says that the function looks for it itself."""
_AXIS_SIZE: Final = BATCHES
_AXIS_STEP: Final = STRIDE
"""Bytes of data from one entry to the next."""
# AXES has the address of DEPTH sizes of indices and then as many steps, in bytes of data; WIDTH the bytes of an item.


def warm(progress: Callable[[str], None] | None = None) -> None:
    """Compile, or load from the cache that `gather_kernel.configure` has named, all that `run` ever uses."""
    started = perf_counter()
    _ready()
    if progress is not None:
        progress(f"kernel of single elements ready after {perf_counter() - started:.2f} s")


def run(
    plan: GatherElementsPlan,
    data: NDArray[Any],
    indices: NDArray[Any],
    out: NDArray[Any],
    threads: int = 1,
    may_leave_unfinished: bool = False,
) -> int:
    """See `app.kernels.Kernel.run`."""
    entry, chunk = _ready()
    team = gather_kernel.thread_team()
    if threads > 1:
        gather_kernel.prepare(team, threads)
    axes = _axes(plan.sizes, plan.strides)
    first: int = entry(
        data,
        indices,
        out,
        axes,
        plan.axis_size,
        plan.axis_stride,
        plan.data_items,
        plan.item_size,
        plan.wrap,
        chunk,
        team.address,
        threads - 1,
        may_leave_unfinished,
    )
    if first < -1:
        if first == UNFINISHED:
            raise UnfinishedGather(team, (data, indices, out, axes))
        check_elements_arrays(plan, data, indices, out)
        raise TypeError("the plan has a size that no array can have")
    return first


@lru_cache(maxsize=4096)
def _axes(sizes: tuple[int, ...], strides: tuple[int, ...]) -> NDArray[np.int64]:
    return np.array((*sizes, *strides), dtype=np.int64)


@cache
def _compiled() -> tuple[Any, Any]:
    """`_gather_elements` and `gather_elements_chunk`."""
    integer, flag = types.int64, types.boolean
    compiler: Any = njit(**ENTRY_OPTIONS)
    chunk, gather = cfunc(integer(integer, integer), **CHUNK_OPTIONS)(gather_elements_chunk), compiler(_gather_elements)
    gather.compile((*(header,) * 4, *(integer,) * 4, flag, *(integer,) * 3, flag))
    gather.disable_compile()
    return gather, chunk


@cache
def _ready() -> tuple[Any, Address]:
    """`_gather_elements` without the search for a signature that fits, and the address of `gather_elements_chunk`."""
    gather, chunk = _compiled()
    return gather.overloads[gather.signatures[0]].entry_point, chunk.address


def _gather_elements(
    data: ArrayHeader,
    indices: ArrayHeader,
    out: ArrayHeader,
    axes_array: ArrayHeader,
    axis_size: int,
    axis_stride: int,
    data_items: int,
    item_size: int,
    wrap: bool,
    chunk: Address,
    team: Address,
    helpers: int,
    may_leave_unfinished: bool,
) -> int:
    """The whole gather, with up to so many helpers: its first bad component, -1 or REFUSED.

    If it `may_leave_unfinished`, perhaps UNFINISHED.
    """
    kind = index_type_if_usable(data, indices, out, item_size, setting(team, ARRAY_TYPE))
    if kind == 0:
        return REFUSED
    depth = length(axes_array) // 2
    axes = address(axes_array)
    negative = axis_size | axis_stride
    total = 1
    for axis in range(depth):
        negative |= load_item(axes, axis) | load_item(axes, depth + axis)
        total = checked_product(total, load_item(axes, axis))
    if negative < 0 or not 1 <= depth <= MAX_DEPTH or total < 0:
        return REFUSED
    if length(data) != data_items or length(indices) != total or length(out) != total:
        return REFUSED
    if total > 0 and axis_size > 0 and not is_inside(axes, depth, axis_size, axis_stride, data_items):
        return REFUSED
    flags = 0
    if data_items * item_size <= CACHED_BYTES:
        flags |= NOT_AHEAD
    if wrap:
        flags |= WRAP_NEGATIVE
    size = total
    long = 2 * total + total * item_size // 16 > setting(team, WAKE_FROM)
    split = helpers > 0 and total > 0 and is_worth_sharing(team, long) and acquire(team)
    job = stack_scratch()
    if split:
        job = job_of(team)
        size = max(total // (CHUNKS_PER_THREAD * (helpers + 1)), BLOCK)
    addresses = address(data), address(out), address(indices), axes
    write_job(job, addresses, depth, item_size, total, size, flags, chunk)
    store_item(job, _AXIS_SIZE, axis_size)
    store_item(job, _INDEX_TYPE, kind)
    store_item(job, _AXIS_STEP, axis_stride * item_size if total > 0 and axis_size > 0 else 0)
    store_item(job, INDEX_TYPE, OWN_INDEX_TYPE)
    return carry_out(team, job, split, helpers, long, may_leave_unfinished)


def gather_elements_chunk(job: Address, number: int) -> int:
    """Gather chunk `number` of a job: its first bad component, or -1.

    The scratch memory has the addresses of the items of a block, the entries of a block where they have to be widened,
    and the place along each axis of the entry that comes next.
    """
    target, components, axes = load_item(job, OUTPUT), load_item(job, COMPONENTS), load_item(job, AXES)
    depth, width, kind = load_item(job, DEPTH), load_item(job, WIDTH), load_item(job, _INDEX_TYPE)
    axis_size, axis_step, flags = load_item(job, _AXIS_SIZE), load_item(job, _AXIS_STEP), load_item(job, FLAGS)
    wrapped = axis_size if flags & WRAP_NEGATIVE != 0 else 0
    low = number * load_item(job, CHUNK_SIZE)
    high = min(low + load_item(job, CHUNK_SIZE), load_item(job, TOTAL))
    if low >= high:
        return -1
    sources = stack_scratch()
    entries = sources + 8 * BLOCK
    places = sources + 16 * BLOCK
    row_number = low // load_item(axes, depth - 1)
    column = low - row_number * load_item(axes, depth - 1)
    # The address of the item that an entry of 0 at the beginning of the row would pick.
    origin = load_item(job, DATA) + enter_row(axes, places, depth, row_number, width)
    done = low
    while done < high:
        count = min(BLOCK, high - done)
        given = components + 8 * done
        if kind != 8:
            widen_components(kind, components, done, count, entries)
            given = entries
        signs, origin, column = write_rows_places(
            sources, origin, column, axes, places, depth, width, given, count, axis_size, wrapped, axis_step
        )
        if signs < 0:
            return done + first_bad_entry(given, count, axis_size, wrapped)
        _copy_items(target + width * done, sources, count, width, flags & NOT_AHEAD != 0)
        done += count
    return -1


@inner
def _copy_items(target: Address, sources: Address, count: int, width: int, cached: bool) -> None:
    """Copy the items of a block, all asked for at first unless caches hold them or they lie close together."""
    if not cached and abs(load_item(sources, count - 1) - load_item(sources, 0)) >= NEIGHBOURS_BYTES * count:
        for t in range(count):
            prefetch(load_item(sources, t))
    copy_items(target, sources, count, 0, width)
