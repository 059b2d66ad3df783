"""GatherElements in one function compiled by Numba, run by the thread team.

A chunk processes the entries of indices in blocks. It checks the entries, records the addresses of the items that they
select (`write_items`), and copies the items.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any, Final

import numpy as np
from numba import types
from numpy.typing import NDArray

from app.compilation.array_header import ArrayHeader, address, header, index_type_if_usable, length
from app.compilation.decorators import inner
from app.compilation.intrinsics import Address, prefetch, stack_words
from app.kernels.check_arrays import check_elements_arrays, check_places
from app.kernels.numba_cpu.chunked_job import end_of_chunk, first_of_chunk, record_job_at, shared_team, stack_job
from app.kernels.numba_cpu.chunked_job import run as run_job
from app.kernels.numba_cpu.compile_kernel import REFUSED, CompiledKernel, compile_kernel
from app.kernels.numba_cpu.copy_slices import copy_items
from app.kernels.numba_cpu.memory_intrinsics import load_item
from app.kernels.numba_cpu.resolve_indices import BLOCK, IndexedItemsJob, int64_items, write_items
from app.kernels.numba_cpu.thread_team import settings_of
from app.kernels.numba_cpu.thresholds import CACHED_BYTES, NEIGHBORS_BYTES
from app.kernels.numba_cpu.typed_memory import KEPT_PLANS, MAX_DEPTH, record_as_int64, record_of
from app.operators.gather_elements import GatherElementsPlan


class ElementsJob(IndexedItemsJob):
    """A GatherElements. Its units are the entries of indices."""

    output: Address
    run_chunk: Address
    """The address of `gather_elements_chunk`."""
    entries: int
    data_items: int
    item_size: int
    prefetches: bool
    """Whether items are prefetched before they are copied, because no cache holds the data."""


_job_at: Final = record_of(ElementsJob)
_stack_addresses: Final = stack_words(BLOCK)


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
    job = job_of_plan(plan, kernel.chunk).copy()
    first: int = kernel.run(data, indices, out, job, team.address, threads - 1, may_leave_unfinished)
    if first < -1:
        team.check_finished(first, (data, indices, out, job))
        check_elements_arrays(plan, data, indices, out)
        raise TypeError("the arrays are none that the kernel takes")
    return first


@lru_cache(maxsize=KEPT_PLANS)
def job_of_plan(plan: GatherElementsPlan, chunk: Address) -> NDArray[np.int64]:
    """Build the job of a plan, without its arrays: an `ElementsJob` as int64.

    Raises TypeError if the plan is invalid.
    """
    check_places(plan)
    if not 1 <= len(plan.sizes) <= MAX_DEPTH:
        raise TypeError(f"the plan has {len(plan.sizes)} axes")
    reads = plan.index_items > 0 and plan.axis_size > 0

    def step(size: int, stride: int) -> int:
        """Return the byte stride along an axis; 0 if the axis has at most one position."""
        return stride * plan.item_size if reads and size > 1 else 0

    values = {
        "run_chunk": chunk,
        "entries": plan.index_items,
        "data_items": plan.data_items,
        "item_size": plan.item_size,
        "prefetches": plan.data_items * plan.item_size > CACHED_BYTES,
        "depth": len(plan.sizes),
        "wrap": plan.wrap,
        "sizes": plan.sizes,
        "strides": tuple(map(step, plan.sizes, plan.strides)),
        "axis_size": plan.axis_size,
        "axis_stride": step(plan.axis_size, plan.axis_stride),
        "row_entries": plan.sizes[-1],
    }
    return record_as_int64(ElementsJob, values)


@cache
def compiled() -> CompiledKernel:
    """Return the compiled functions."""
    integer = types.int64
    return compile_kernel(_gather_elements, (*(header,) * 4, integer, integer, types.boolean), gather_elements_chunk)


def _gather_elements(
    data: ArrayHeader,
    indices: ArrayHeader,
    out: ArrayHeader,
    job_array: ArrayHeader,
    team: Address,
    helpers: int,
    may_leave_unfinished: bool,
) -> int:
    """Run the gather with at most `helpers` helpers. Returns the first invalid entry, -1 if there is none, or REFUSED.

    With `may_leave_unfinished` it may also return UNFINISHED.
    """
    job = _job_at(address(job_array))
    job.index_type = index_type_if_usable(data, indices, out, job.item_size, settings_of(team).array_type)
    if job.index_type == 0 or length(data) != job.data_items:
        return REFUSED
    if length(indices) != job.entries or length(out) != job.entries:
        return REFUSED
    job.base, job.indices, job.output = address(data), address(indices), address(out)
    job_address = stack_job()
    head = record_job_at(job_address)
    head.run_chunk, head.total, head.least_chunk, head.record = job.run_chunk, job.entries, BLOCK, address(job_array)
    work = 2 * job.entries + job.entries * job.item_size // 16
    return run_job(team, job_address, helpers, work, may_leave_unfinished)


def gather_elements_chunk(job_address: Address, number: int) -> int:
    """Gather the chunk with index `number` of a job. Returns its first invalid entry, or -1."""
    job = _job_at(record_job_at(job_address).record)
    done, end = first_of_chunk(job_address, number), end_of_chunk(job_address, number)
    addresses = _stack_addresses()
    while done < end:
        count = min(BLOCK, end - done)
        bad = write_items(job, done, int64_items(addresses, count))
        if bad >= 0:
            return bad
        _copy_items(job.output + job.item_size * done, addresses, count, job.item_size, job.prefetches)
        done += count
    return -1


@inner
def _copy_items(target: Address, addresses: Address, count: int, item_size: int, prefetches: bool) -> None:
    """Copy a block's items. Prefetch them all first, unless they are already cached or lie close together."""
    far = abs(load_item(addresses, count - 1) - load_item(addresses, 0)) >= NEIGHBORS_BYTES * count
    if prefetches and far:
        for t in range(count):
            prefetch(load_item(addresses, t))
    copy_items(target, addresses, count, 0, item_size)
