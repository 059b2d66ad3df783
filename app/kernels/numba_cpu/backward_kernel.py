"""The gradient of a gather in one function compiled by Numba, with the threads of the gather's kernel.

The rows that tuples name are checked and written down first; of a sparse gradient the distinct ones are numbered, and
those are the rows of its result. Then each chunk owns some rows: it clears their sums, goes over all tuples in their
order, adds the slices that belong there (`add_gradients`), and writes the result. Sums of float32 and float64 are made
in the result itself, those of 16-bit floats in working memory. So no two threads add to one sum, each is added up in
the order of the tuples, and the bits are the same for any number of threads.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from time import perf_counter
from typing import Any, Final

import numpy as np
from numba import cfunc, njit, types
from numpy.typing import NDArray

from app.kernels.backward_arrays import check_backward_arrays, sets_of
from app.kernels.numba_cpu import gather_kernel
from app.kernels.numba_cpu.add_gradients import FLOAT32, FLOAT64, KINDS, add_slices, finish_rows
from app.kernels.numba_cpu.gather_kernel import CHUNK_OPTIONS, ENTRY_OPTIONS
from app.kernels.numba_cpu.memory_intrinsics import LINE, clear
from app.kernels.numba_cpu.ndarray_abi import ArrayHeader, address, header, index_type
from app.kernels.numba_cpu.shared_job import end_of_chunk, first_of_chunk, record_job_at, stack_job
from app.kernels.numba_cpu.shared_job import run as run_job
from app.kernels.numba_cpu.sort_rows import DIGITS, number_distinct_rows
from app.kernels.numba_cpu.typed_memory import record_at
from app.kernels.numba_cpu.widen_indices import MAX_DEPTH
from app.kernels.numba_cpu.write_rows import int64_items, write_rows
from app.llvm_intrinsics import Address
from app.operators.backward_plan import SCRATCH_HEAD, BackwardPlan

_FIELDS: Final = (
    "gradient", "result", "sums", "indices", "named",  # addresses; `named` of the row that each tuple names
    "index_type",  # see `ndarray_abi.index_type`
    "chunk",  # the address of `backward_chunk`
    "batches", "tuples", "broadcast",  # tuples of a batch, or of all, where these are `broadcast`
    "depth", "wrap", "sparse",
    "rows", "width",  # of the result of a batch, items of each
    "kind", "item_size", "sum_size",
    "finishes",  # whether sums are to be multiplied or rounded
)  # fmt: skip
JOB: Final = np.dtype([
    *((name, np.int64) for name in _FIELDS), ("coefficient", np.float64), ("sizes", np.int64, MAX_DEPTH)
])  # fmt: skip
"""A gradient. `sizes` are those of the indexed axes."""
assert DIGITS <= SCRATCH_HEAD

_job_at = record_at(JOB)


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
    """See `app.kernels.reference.backward.run`; it never leaves a gradient unfinished."""
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
    job = job_of_plan(plan, chunk)
    distinct = scratch if places is None else places
    first: int = entry(data, indices, out, scratch, distinct, job, team.address, threads - 1)
    if first < 0 and count is not None:
        count += job["rows"]
    return first


def job_of_plan(plan: BackwardPlan, chunk: Address) -> NDArray[Any]:
    """The job of a plan without its arrays, one record of JOB. Raises TypeError or OverflowError for a wrong plan."""
    if not 1 <= plan.depth <= MAX_DEPTH:
        raise TypeError(f"the plan has {plan.depth} axes")
    kind = KINDS[plan.float_type]
    values = {
        "chunk": chunk,
        "batches": plan.batches,
        "tuples": plan.tuples,
        "broadcast": plan.broadcast_indices,
        "depth": plan.depth,
        "wrap": plan.wrap,
        "sparse": plan.sparse,
        "rows": plan.batch_rows,
        "width": plan.slice_items,
        "kind": kind,
        "item_size": plan.item_size,
        "sum_size": plan.sum_size,
        "finishes": kind not in (FLOAT32, FLOAT64) or plan.coefficient != 1.0,
        "coefficient": plan.coefficient,
    }
    job = np.zeros(1, JOB)
    for name, value in values.items():
        job[name] = value
    job["sizes"][0, : plan.depth] = plan.dims
    return job


@cache
def _compiled() -> tuple[Any, Any]:
    """`_backward` and `backward_chunk`."""
    integer = types.int64
    compiler: Any = njit(**ENTRY_OPTIONS)
    chunk, backward = cfunc(integer(integer, integer), **CHUNK_OPTIONS)(backward_chunk), compiler(_backward)
    backward.compile((*(header,) * 6, integer, integer))
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
    scratch: ArrayHeader,
    distinct: ArrayHeader,
    job_array: ArrayHeader,
    team: Address,
    helpers: int,
) -> int:
    """The whole gradient, with up to so many helpers: the first bad component, or -1. The arrays are checked.

    A sparse one writes the rows that are named to `distinct`, and how many there are to the job's `rows`.
    """
    job = _job_at(address(job_array))
    job.gradient, job.result, job.indices = address(data), address(out), address(indices)
    job.index_type = index_type(indices)
    tuples = job.tuples if job.broadcast != 0 else job.batches * job.tuples
    job.named = address(scratch) + 8 * SCRATCH_HEAD
    free = job.named + 8 * tuples
    named = int64_items(job.named, tuples)
    bad = write_rows(job, 0, tuples, named)
    if bad >= 0:
        return bad
    if job.sparse != 0:
        counts, order = int64_items(address(scratch), DIGITS), int64_items(free, 2 * tuples)
        job.rows = number_distinct_rows(named, int64_items(address(distinct), job.rows), order, counts, job.rows)
        free += 16 * tuples
    job.sums = job.result if job.sum_size == job.item_size else free
    rows = job.batches * job.rows
    if rows == 0 or job.width == 0:
        return -1
    row_bytes, slices = job.width * job.item_size, job.batches * job.tuples
    work = (slices + rows) * row_bytes // 8 + tuples * job.depth
    # Each chunk looks at all tuples: of short slices that takes as long as to add them.
    if row_bytes < LINE and rows * row_bytes < slices * LINE:
        helpers = 0
    words = stack_job()
    shared = record_job_at(words)
    shared.run_chunk, shared.total, shared.chunk_size, shared.record = job.chunk, rows, 1, address(job_array)
    return run_job(team, words, helpers, work, False)


def backward_chunk(words: Address, number: int) -> int:
    """Write the rows of chunk `number` of a gradient: -1."""
    job = _job_at(record_job_at(words).record)
    low = first_of_chunk(words, number)
    high = end_of_chunk(words, number)
    row_bytes = job.width * job.sum_size
    clear(job.sums + low * row_bytes, (high - low) * row_bytes)
    has_nan = False
    for batch in range(low // job.rows, (high - 1) // job.rows + 1):
        first, begin = 0 if job.broadcast != 0 else batch * job.tuples, batch * job.rows
        named = int64_items(job.named + 8 * first, job.tuples)
        has_nan |= add_slices(job, batch, named, low - begin, high - begin)
    if has_nan or job.finishes != 0:
        finish_rows(job, low, high)
    return -1
