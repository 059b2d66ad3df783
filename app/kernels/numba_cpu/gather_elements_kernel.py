"""GatherElements in one function compiled by Numba, with the threads of the gather's kernel.

A chunk goes over the entries of indices in blocks: it checks each entry and writes the address of its item, row by row
along the last axis, and then copies the items.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
from numba import types
from numpy.typing import NDArray

from app.compilation.decorators import inlined, inner
from app.compilation.intrinsics import Address, stack_words
from app.kernels.check_arrays import check_elements_arrays
from app.kernels.numba_cpu.array_header import (
    ArrayHeader,
    address,
    checked_product,
    header,
    index_type_if_usable,
    length,
)
from app.kernels.numba_cpu.chunked_job import Job, end_of_chunk, first_of_chunk, shared_team, stack_job
from app.kernels.numba_cpu.chunked_job import run as run_job
from app.kernels.numba_cpu.compile_kernel import REFUSED, CompiledKernel, compile_kernel
from app.kernels.numba_cpu.copy_slices import NEIGHBOURS_BYTES, copy_items
from app.kernels.numba_cpu.gather_kernel import CACHED_BYTES
from app.kernels.numba_cpu.memory_intrinsics import load_item, prefetch, store_item
from app.kernels.numba_cpu.thread_team import UNFINISHED, UnfinishedGather, settings_of
from app.kernels.numba_cpu.typed_memory import MAX_DEPTH, record_of
from app.kernels.numba_cpu.widen_indices import widen_components
from app.operators.gather_elements import GatherElementsPlan

_BLOCK: Final = 256
"""Entries of a block."""

_stack_addresses: Final = stack_words(_BLOCK)
_stack_entries: Final = stack_words(_BLOCK)


class ElementsJob(Job):
    """A GatherElements: its units are the entries of indices."""

    data: Address
    indices: Address
    out: Address
    sizes: Address
    """Of the sizes of indices, int64, and behind them the strides, items of data."""
    depth: int
    """How many sizes there are."""
    index_type: int
    """See `array_header.index_type`."""
    axis_size: int
    axis_step: int
    """Bytes of data from one entry to the next."""
    item_size: int
    wrap: bool
    prefetches: bool
    """Items are asked for ahead of their copy: no cache holds the data."""


_job_at: Final = record_of(ElementsJob)


def run(
    plan: GatherElementsPlan,
    data: NDArray[Any],
    indices: NDArray[Any],
    out: NDArray[Any],
    threads: int = 1,
    may_leave_unfinished: bool = False,
) -> int:
    """See `app.kernels.Kernel.run`."""
    kernel, team = compiled(), shared_team()
    if threads > 1:
        team.prepare(threads)
    sizes = _sizes(plan.sizes, plan.strides)
    numbers = kernel.chunk, plan.axis_size, plan.axis_stride, plan.data_items, plan.item_size, plan.wrap
    first: int = kernel.run(data, indices, out, sizes, numbers, team.address, threads - 1, may_leave_unfinished)
    if first < -1:
        if first == UNFINISHED:
            raise UnfinishedGather(team, (data, indices, out, sizes))
        check_elements_arrays(plan, data, indices, out)
        raise TypeError("the plan has a size that no array can have")
    return first


@lru_cache(maxsize=4096)
def _sizes(sizes: tuple[int, ...], strides: tuple[int, ...]) -> NDArray[np.int64]:
    return np.array((*sizes, *strides), dtype=np.int64)


@cache
def compiled() -> CompiledKernel:
    """The compiled functions."""
    integer, flag = types.int64, types.boolean
    named_tuple: Any = types.NamedTuple
    numbers = named_tuple((*(integer,) * 5, flag), _Numbers)
    return compile_kernel(_gather_elements, (*(header,) * 4, numbers, integer, integer, flag), gather_elements_chunk)


class _Numbers(NamedTuple):
    """What `_gather_elements` takes of a plan."""

    run_chunk: Address
    axis_size: int
    axis_stride: int
    data_items: int
    item_size: int
    wrap: bool


def _gather_elements(
    data: ArrayHeader,
    indices: ArrayHeader,
    out: ArrayHeader,
    sizes: ArrayHeader,
    plan: _Numbers,
    team: Address,
    helpers: int,
    may_leave_unfinished: bool,
) -> int:
    """The whole gather, with up to so many helpers: its first bad component, -1 or REFUSED.

    If it `may_leave_unfinished`, perhaps UNFINISHED. `sizes` has the plan's strides, too.
    """
    index_type = index_type_if_usable(data, indices, out, plan.item_size, settings_of(team).array_type)
    if index_type == 0:
        return REFUSED
    depth = length(sizes) // 2
    negative = plan.axis_size | plan.axis_stride
    total = 1
    for axis in range(depth):
        negative |= load_item(address(sizes), axis) | load_item(address(sizes), depth + axis)
        total = checked_product(total, load_item(address(sizes), axis))
    if negative < 0 or not 1 <= depth <= MAX_DEPTH or total < 0:
        return REFUSED
    if length(data) != plan.data_items or length(indices) != total or length(out) != total:
        return REFUSED
    if total > 0 and plan.axis_size > 0 and not _is_inside(address(sizes), depth, plan):
        return REFUSED
    job_address = stack_job()
    job = _job_at(job_address)
    job.run_chunk = plan.run_chunk
    job.total = total
    job.chunk_size = _BLOCK
    job.data = address(data)
    job.indices = address(indices)
    job.out = address(out)
    job.sizes = address(sizes)
    job.depth = depth
    job.index_type = index_type
    job.axis_size = plan.axis_size
    job.axis_step = plan.axis_stride * plan.item_size if total > 0 and plan.axis_size > 0 else 0
    job.item_size = plan.item_size
    job.wrap = plan.wrap
    job.prefetches = plan.data_items * plan.item_size > CACHED_BYTES
    work = 2 * total + total * plan.item_size // 16
    return run_job(team, job_address, helpers, work, may_leave_unfinished)


@inner
def _is_inside(sizes: Address, depth: int, plan: _Numbers) -> bool:
    """Whether all places that the plan can make are among the items of data."""
    last = checked_product(plan.axis_size - 1, plan.axis_stride)
    for axis in range(depth):
        if last < 0 or last >= plan.data_items:
            return False
        step = checked_product(load_item(sizes, axis) - 1, load_item(sizes, depth + axis))
        if step < 0 or step >= plan.data_items:
            return False
        last += step  # both below `data_items`: their sum overflows at most into the sign
    return 0 <= last < plan.data_items


def gather_elements_chunk(job_address: Address, number: int) -> int:
    """Gather chunk `number` of a job: its first bad component, or -1."""
    job = _job_at(job_address)
    done, end = first_of_chunk(job_address, number), end_of_chunk(job_address, number)
    addresses = _stack_addresses()
    while done < end:
        count = min(_BLOCK, end - done)
        entries = job.indices + 8 * done
        if job.index_type != 8:
            entries = _stack_entries()
            widen_components(job.index_type, job.indices, done, count, entries)
        if _write_addresses(job_address, done, count, entries, addresses) < 0:
            return done + _first_bad_entry(job_address, count, entries)
        _copy_items(job.out + job.item_size * done, addresses, count, job.item_size, job.prefetches)
        done += count
    return -1


@inner
def _write_addresses(job_address: Address, first: int, count: int, entries: Address, addresses: Address) -> int:
    """Write the addresses of the items that `count` entries from number `first` on name.

    Returns their sign, negative if one is out of bounds.
    """
    job = _job_at(job_address)
    axis_size, axis_step, wrapped = job.axis_size, job.axis_step, job.axis_size if job.wrap else 0
    row = load_item(job.sizes, job.depth - 1)
    step = load_item(job.sizes, 2 * job.depth - 1) * job.item_size
    signs = 0
    done = 0
    while done < count:
        number = (first + done) // row
        column = first + done - number * row
        stretch = min(row - column, count - done)
        origin = job.data + _row_offset(job_address, number) * job.item_size + column * step
        for t in range(stretch):
            entry = load_item(entries, done + t)
            entry += (entry >> 63) & wrapped
            signs |= entry | (axis_size - 1 - entry)
            store_item(addresses, done + t, origin + t * step + entry * axis_step)
        done += stretch
    return signs


@inlined
def _row_offset(job_address: Address, number: int) -> int:
    """Items of data before what an entry of 0 at the beginning of row `number` of indices names."""
    job = _job_at(job_address)
    offset = 0
    for back in range(job.depth - 1):
        axis = job.depth - 2 - back
        size = load_item(job.sizes, axis)
        offset += number % size * load_item(job.sizes, job.depth + axis)
        number //= size
    return offset


@inner
def _first_bad_entry(job_address: Address, count: int, entries: Address) -> int:
    """The first of so many entries that is out of bounds, or -1."""
    job = _job_at(job_address)
    for t in range(count):
        entry = load_item(entries, t)
        if entry >= job.axis_size or entry < (-job.axis_size if job.wrap else 0):
            return t
    return -1


@inner
def _copy_items(target: Address, addresses: Address, count: int, item_size: int, prefetches: bool) -> None:
    """Copy the items of a block, all asked for at first unless caches hold them or they lie close together."""
    far = abs(load_item(addresses, count - 1) - load_item(addresses, 0)) >= NEIGHBOURS_BYTES * count
    if prefetches and far:
        for t in range(count):
            prefetch(load_item(addresses, t))
    copy_items(target, addresses, count, 0, item_size)
