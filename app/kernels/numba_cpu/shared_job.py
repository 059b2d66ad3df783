"""A job, the work of an operator that is cut into chunks, and how it is done: by its owner, or by helpers as well.

Each operator has a record of its own for its jobs, which begins with the fields of `Job`, and a function for one chunk.
"""

from __future__ import annotations

from typing import Final

from app.kernels.numba_cpu.memory_intrinsics import call_address, memcpy
from app.kernels.numba_cpu.records import record_at
from app.kernels.numba_cpu.run_job import TIMEOUT, WAKE_FROM, take_chunks
from app.kernels.numba_cpu.split_over_threads import (
    JOB_WORDS,
    acquire,
    close,
    is_worth_sharing,
    job_of,
    publish,
    record_end,
    setting,
)
from app.llvm_intrinsics import Address, inlined, inner, stack_words

CHUNKS_PER_THREAD: Final = 4
"""So that all end together: a helper that the system puts aside keeps all waiting for one chunk."""


class Job:
    """The fields that each job begins with."""

    run_chunk: Address
    """The address of the function for a chunk: of the job's address and the chunk's number the first bad component that
    it finds, or -1."""
    total: int
    """Units of work."""
    chunk_size: int
    """Units of a chunk, the last one has fewer; before the job is run, those that a chunk has at least."""
    chunks: int


job_at: Final = record_at(Job)
stack_job: Final = stack_words(JOB_WORDS)
"""The address of a job that a function has until it returns, of any operator's; its fields are not set."""


@inlined
def first_of_chunk(job: Address, number: int) -> int:
    """The first unit of a chunk."""
    return number * job_at(job).chunk_size


@inlined
def end_of_chunk(job: Address, number: int) -> int:
    """The unit behind the last one of a chunk."""
    return min((number + 1) * job_at(job).chunk_size, job_at(job).total)


@inner
def run(team: Address, job: Address, helpers: int, work: int, may_leave_unfinished: bool) -> int:
    """Do a job with up to so many helpers of the team: the first bad component, -1, or UNFINISHED.

    `job` is a `stack_job`, of which `run` sets the last fields. Sleeping helpers are woken if there is more `work` than
    the team's WAKE_FROM, which counts components, slices and 16 bytes of output.
    """
    head = job_at(job)
    long = work > setting(team, WAKE_FROM)
    if helpers > 0 and head.total > 0 and is_worth_sharing(team, long) and acquire(team):
        head.chunk_size = max(head.total // (CHUNKS_PER_THREAD * (helpers + 1)), head.chunk_size, 1)
        head.chunks = (head.total + head.chunk_size - 1) // head.chunk_size
        memcpy(job_of(team), job, 8 * JOB_WORDS)
        publish(team, helpers, long, not may_leave_unfinished)
        take_chunks(team, True)
        return close(team, setting(team, TIMEOUT) if may_leave_unfinished else -1)
    head.chunk_size = head.total
    head.chunks = 1
    bad = call_address(head.run_chunk, job, 0)
    if helpers > 0:
        record_end(team)
    return bad
