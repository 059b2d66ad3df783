"""The gradient of a gather, compiled by Numba and run by the thread team.

First, the row indices in the tuples are checked and recorded. For a sparse gradient, the distinct rows are numbered;
they become the rows of the result. Then each chunk owns some rows: it clears their sums, scans all tuples in order,
adds the slices for its rows (`add_gradients`), and writes the result. Sums in float32 and float64 are computed in the
result itself; sums of 16-bit floats are computed in working memory. So no two threads add to the same sum, each sum is
added up in the order of the tuples, and the result is bit-identical for any number of threads.

The working memory `scratch` is an int64 array that holds, in this order:

    SCRATCH_HEAD    counters for sorting the rows of a sparse gradient
    tuples          the number of the row that each tuple selects
    2 * tuples      sparse gradients only: the order of the tuples during the sort
    the rest        16-bit floats only: the sums, float32 [rows, row_items]
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any, Final

import numpy as np
from numba import types
from numpy.typing import NDArray

from app.compilation.array_header import ArrayHeader, address, header, index_type
from app.compilation.intrinsics import Address
from app.kernels.backward_arrays import check_backward_arrays, sets_of
from app.kernels.numba_cpu.add_gradients import add_slices, finish_rows
from app.kernels.numba_cpu.chunked_job import end_of_chunk, first_of_chunk, record_job_at, shared_team, stack_job
from app.kernels.numba_cpu.chunked_job import run as run_job
from app.kernels.numba_cpu.compile_kernel import CompiledKernel, compile_kernel
from app.kernels.numba_cpu.float_kinds import FLOAT32, FLOAT64, KINDS
from app.kernels.numba_cpu.memory_intrinsics import LINE, clear
from app.kernels.numba_cpu.resolve_indices import IndexedJob, int64_items, write_rows
from app.kernels.numba_cpu.sort_rows import DIGITS, number_distinct_rows
from app.kernels.numba_cpu.typed_memory import KEPT_PLANS, MAX_DEPTH, dtype_of, record_as_int64, record_of
from app.operators.backward_plan import SCRATCH_HEAD, BackwardPlan


class BackwardJob(IndexedJob):
    """A gradient."""

    gradient: Address
    result: Address
    sums: Address
    named: Address
    """Row numbers that the tuples select."""
    run_chunk: Address
    """The address of `backward_chunk`."""
    batches: int
    tuples: int
    """Number of tuples per batch, or in all batches together if they are `broadcast`."""
    broadcast: bool
    sparse: bool
    batch_rows: int
    """Number of slices of grad_data per batch, from which tuples select."""
    result_rows: int
    """Number of rows of the result per batch; for a sparse gradient, the number of distinct rows."""
    row_items: int
    item_kind: int
    """One of `float_kinds.KINDS`."""
    item_size: int
    sum_size: int
    finishes: bool
    """Whether the sums must still be multiplied or rounded."""
    coefficient: float


assert DIGITS <= SCRATCH_HEAD

_JOB: Final = dtype_of(BackwardJob)
_job_at: Final = record_of(BackwardJob)


def run(
    plan: BackwardPlan,
    data: NDArray[Any],
    indices: NDArray[Any],
    out: NDArray[Any],
    threads: int = 1,
    may_leave_unfinished: bool = False,
    **further: NDArray[np.int64],
) -> int:
    """See `app.kernels.reference.backward.run` for the arrays in `further`. A gradient is never left unfinished."""
    kernel, team = compiled(), shared_team()
    if threads > 1:
        team.prepare(threads)
    check_backward_arrays(plan, data, indices, out, **further)
    scratch = further["scratch"]
    if plan.gather.batches_per_set > 1:
        for begin, part, read, chosen, written in sets_of(plan, data, indices, out):
            bad = run(part, read, chosen, written, threads, scratch=scratch)
            if bad >= 0:
                return begin + bad
        return -1
    job = job_of_plan(plan, kernel.chunk).copy()
    # set here, because plans with 0.0 and -0.0 compare equal and share a cached job
    job.view(_JOB)["coefficient"] = plan.coefficient
    distinct = further.get("places", scratch)
    first: int = kernel.run(data, indices, out, scratch, distinct, job, team.address, threads - 1)
    if first < 0 and plan.sparse:
        further["count"] += job.view(_JOB)["result_rows"]
    return first


@lru_cache(maxsize=KEPT_PLANS)
def job_of_plan(plan: BackwardPlan, chunk: Address) -> NDArray[np.int64]:
    """Build the `BackwardJob` of a plan as an int64 array, without the data arrays and the coefficient.

    Raises TypeError if the plan is invalid.
    """
    if not 1 <= plan.depth <= MAX_DEPTH:
        raise TypeError(f"the plan has {plan.depth} axes")
    kind = KINDS[plan.float_type]
    values = {
        "run_chunk": chunk,
        "batches": plan.batches,
        "tuples": plan.tuples,
        "broadcast": plan.broadcast_indices,
        "depth": plan.depth,
        "wrap": plan.wrap,
        "sparse": plan.sparse,
        "batch_rows": plan.batch_rows,
        "result_rows": plan.batch_rows,
        "row_items": plan.slice_items,
        "item_kind": kind,
        "item_size": plan.item_size,
        "sum_size": plan.sum_size,
        "finishes": kind not in (FLOAT32, FLOAT64) or plan.coefficient != 1.0,
        "sizes": plan.dims,
    }
    return record_as_int64(BackwardJob, values)


@cache
def compiled() -> CompiledKernel:
    """Return the compiled functions."""
    return compile_kernel(_backward, (*(header,) * 6, types.int64, types.int64), backward_chunk)


def _backward(
    data: ArrayHeader,
    indices: ArrayHeader,
    out: ArrayHeader,
    scratch: ArrayHeader,
    distinct: ArrayHeader,
    job_array: ArrayHeader,
    team: Address,
    helpers: int,
) -> int:
    """Compute the gradient from checked arrays, with at most `helpers` helpers. Returns the first invalid component or
    -1.

    A sparse gradient writes the distinct rows to `distinct`, and the number of distinct rows to the job's
    `result_rows`.
    """
    job = _job_at(address(job_array))
    job.gradient, job.result, job.indices = address(data), address(out), address(indices)
    job.index_type = index_type(indices)
    tuples = job.tuples if job.broadcast else job.batches * job.tuples
    job.named = address(scratch) + 8 * SCRATCH_HEAD
    free = job.named + 8 * tuples
    named = int64_items(job.named, tuples)
    bad = write_rows(job, 0, tuples, named)
    if bad >= 0:
        return bad
    if job.sparse:
        counts, order = int64_items(address(scratch), DIGITS), int64_items(free, 2 * tuples)
        places = int64_items(address(distinct), job.batch_rows)
        job.result_rows = number_distinct_rows(named, places, order, counts, job.batch_rows)
        free += 16 * tuples
    job.sums = job.result if job.sum_size == job.item_size else free
    rows = job.batches * job.result_rows
    if rows == 0 or job.row_items == 0:
        return -1
    row_bytes, slices = job.row_items * job.item_size, job.batches * job.tuples
    work = (slices + rows) * row_bytes // 8 + tuples * job.depth
    # Every chunk scans all tuples. For short slices, the scan costs as much as the additions.
    if row_bytes < LINE and rows * row_bytes < slices * LINE:
        helpers = 0
    job_address = stack_job()
    head = record_job_at(job_address)
    head.run_chunk, head.total, head.record = job.run_chunk, rows, address(job_array)
    head.least_chunk = rows // (helpers + 1) + 1
    return run_job(team, job_address, helpers, work, False)


def backward_chunk(job_address: Address, number: int) -> int:
    """Write the rows of chunk `number`. Always returns -1."""
    job = _job_at(record_job_at(job_address).record)
    low = first_of_chunk(job_address, number)
    high = end_of_chunk(job_address, number)
    row_bytes = job.row_items * job.sum_size
    clear(job.sums + low * row_bytes, (high - low) * row_bytes)
    has_nan = False
    for batch in range(low // job.result_rows, (high - 1) // job.result_rows + 1):
        first, begin = 0 if job.broadcast else batch * job.tuples, batch * job.result_rows
        named = int64_items(job.named + 8 * first, job.tuples)
        has_nan |= add_slices(job, batch, named, max(low - begin, 0), min(high - begin, job.result_rows))
    if has_nan or job.finishes:  # all NaNs of a result must have the same bits
        finish_rows(job, low, high)
    return -1
