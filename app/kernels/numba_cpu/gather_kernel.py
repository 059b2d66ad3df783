"""The gather, compiled by Numba for CPUs.

One function serves every plan, because each compiled function adds to the startup time. It handles slices as bytes, so
it does not depend on dtypes or item sizes. It has a loop for each tuple length up to five and one for longer tuples. It
has a single signature, so no request can need a combination of types that is not compiled.

It runs without the GIL, alone or with the helpers of a `ThreadTeam`, chunk by chunk (`gather_chunk`). Chunks write
disjoint ranges of the output. The result is the smallest of the chunks' first invalid components.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numba import types
from numpy.typing import NDArray

from app.compilation.array_header import (
    ArrayHeader,
    address,
    checked_product,
    header,
    index_type_if_usable,
    length,
)
from app.compilation.intrinsics import Address
from app.kernels.check_arrays import check_arrays, check_fill
from app.kernels.numba_cpu.chunked_job import run as run_job
from app.kernels.numba_cpu.chunked_job import shared_team, stack_job
from app.kernels.numba_cpu.compile_kernel import REFUSED, CompiledKernel, compile_kernel
from app.kernels.numba_cpu.gather_chunk import gather_chunk, gather_job_at
from app.kernels.numba_cpu.memory_intrinsics import LINE, load_item, store_item
from app.kernels.numba_cpu.thread_team import settings_of
from app.kernels.numba_cpu.thresholds import CACHED_BYTES, LONG_CHUNK_BYTES
from app.kernels.numba_cpu.typed_memory import MAX_DEPTH, int64_array
from app.operators.gather_plan import GatherPlan


def run(
    plan: GatherPlan,
    data: NDArray[Any],
    indices: NDArray[Any],
    out: NDArray[Any],
    threads: int = 1,
    may_leave_unfinished: bool = False,
    *,
    fill: NDArray[Any] | None = None,
    replaced: NDArray[np.int64] | None = None,
) -> int:
    """See `app.kernels.Kernel.run`."""
    kernel, team = compiled(), shared_team()
    if threads > 1:
        team.prepare(threads)
    dims = int64_array(plan.dims)
    fill_address, replaced_address = 0, 0
    if fill is not None or replaced is not None:
        check_fill(plan, fill, replaced)
        assert fill is not None
        assert replaced is not None
        fill_address, replaced_address = fill.ctypes.data, replaced.ctypes.data
    fields = (
        kernel.chunk,
        plan.batches,
        plan.tuples,
        plan.slice_items,
        plan.item_size,
        plan.batches_per_set,
        plan.wrap,
        fill_address,
        replaced_address,
    )
    first: int = kernel.run(data, indices, out, dims, fields, team.address, threads - 1, may_leave_unfinished)
    if first < -1:
        team.check_finished(first, (data, indices, out, dims, fill, replaced))
        check_arrays(plan, data, indices, out)
        raise TypeError("the plan has a size that no array can have")
    return first


@cache
def compiled() -> CompiledKernel:
    """Return the compiled functions."""
    integer, flag = types.int64, types.boolean
    named_tuple: Any = types.NamedTuple
    fields = named_tuple((*(integer,) * 6, flag, integer, integer), _PlanFields)
    return compile_kernel(_gather, (*(header,) * 4, fields, integer, integer, flag), gather_chunk)


class _PlanFields(NamedTuple):
    """The fields of a plan that `_gather` needs, and the addresses for `GatherJob.fill` and `.replaced`, or 0."""

    run_chunk: Address
    batches: int
    tuples: int
    slice_items: int
    item_size: int
    batches_per_set: int
    wrap: bool
    fill: Address
    replaced: Address


def _gather(
    data: ArrayHeader,
    indices: ArrayHeader,
    out: ArrayHeader,
    dims: ArrayHeader,
    plan: _PlanFields,
    team: Address,
    helpers: int,
    may_leave_unfinished: bool,
) -> int:
    """Run the gather with at most `helpers` helpers.

    Returns the first invalid component, -1 if there is none, or REFUSED. With `may_leave_unfinished` it may also return
    UNFINISHED. The arrays at the addresses in `plan` must already have been checked.
    """
    settings = settings_of(team)
    index_type = index_type_if_usable(data, indices, out, plan.item_size, settings.array_type)
    if index_type == 0:
        return REFUSED
    depth = length(dims)
    negative = plan.batches | plan.tuples | plan.slice_items | plan.batches_per_set
    items = checked_product(plan.batches, plan.slice_items)  # number of items in data
    for axis in range(depth):
        size = load_item(address(dims), axis)
        negative |= size
        items = checked_product(items, size)
    if negative < 0 or not 1 <= depth <= MAX_DEPTH or length(data) != items:
        return REFUSED
    sets = 1
    if plan.batches_per_set > 0:
        sets = plan.batches // plan.batches_per_set
        if sets * plan.batches_per_set != plan.batches:
            return REFUSED
    slices = checked_product(plan.batches, plan.tuples)
    if length(indices) != checked_product(checked_product(sets, plan.tuples), depth):
        return REFUSED
    if length(out) != checked_product(slices, plan.slice_items):
        return REFUSED
    width = plan.slice_items * plan.item_size
    out_bytes, data_bytes = length(out) * plan.item_size, items * plan.item_size
    if plan.fill != 0:
        store_item(plan.replaced, 0, 0)
    job_address = stack_job()
    job = gather_job_at(job_address)
    job.run_chunk = plan.run_chunk
    # If the output has no items, nothing is copied, but all components are still checked.
    job.total = slices if plan.batches > 0 else sets * plan.tuples
    job.least_chunk = min(settings.least_tuples, max(1, LONG_CHUNK_BYTES // max(width, 1)))
    job.data = address(data)
    job.indices = address(indices)
    job.out = address(out)
    job.sizes = address(dims)
    job.depth = depth
    job.index_type = index_type
    job.tuples = plan.tuples
    job.batches_per_set = plan.batches_per_set
    job.stride = data_bytes // plan.batches if plan.batches > 0 else 0
    job.width = width if out_bytes > 0 else 0
    job.fill = plan.fill
    job.replaced = plan.replaced
    job.wrap = plan.wrap
    job.nontemporal = width >= LINE and out_bytes > settings.nontemporal_from
    job.prefetches = out_bytes > 0 and data_bytes > CACHED_BYTES
    work = length(indices) + slices + out_bytes // 16
    return run_job(team, job_address, helpers, work, may_leave_unfinished)
