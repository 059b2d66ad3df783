"""A job, the work of an operator that is cut into chunks, and how it is done: by its owner, or by helpers as well.

Each operator has a record of its own for its jobs, which begins with the fields of `Job`, and a function for one chunk.
"""

from __future__ import annotations

from typing import Final

from app.kernels.numba_cpu.memory_intrinsics import call_address, memcpy
from app.kernels.numba_cpu.split_over_threads import (
    JOB_WORDS,
    acquire,
    close,
    give_way,
    is_worth_sharing,
    job_of,
    nanoseconds,
    publish,
    record_end,
    report_bad,
    setting,
    take_chunk,
    taken_by_helpers,
)
from app.kernels.numba_cpu.typed_memory import record_of
from app.llvm_intrinsics import Address, inlined, inner, stack_words

CHUNKS_PER_THREAD: Final = 4
"""So that all end together: a helper that the system puts aside keeps all waiting for one chunk."""


# Settings of the team, by their places (`ThreadTeam.settings`).
LEAST_TUPLES: Final = 0
"""Tuples that a chunk has at least."""
NONTEMPORAL_FROM: Final = 1
"""Bytes of output, from which on it is stored past the caches, which would not hold it."""
GATHER_CHUNK_ADDRESS: Final = 2
"""Of `gather_chunk`."""
ARRAY_TYPE: Final = 3
"""The address of `numpy.ndarray`."""
TIMEOUT: Final = 4
"""Nanoseconds for which an owner waits before it leaves a gather unfinished: its event loop has other requests."""
WAKE_FROM: Final = 5
"""Components, slices and 16 bytes of output, from which on a sleeping helper is worth waking (`gather_kernel.tune`)."""
AHEAD_BYTES: Final = 6
"""The longest slices that are asked for ahead, in bytes (`gather_kernel.tune`)."""


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


class RecordJob(Job):
    """A job whose other fields are a record elsewhere."""

    record: Address


job_at: Final = record_of(Job)
record_job_at: Final = record_of(RecordJob)
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
def take_chunks(team: Address, owning: bool) -> None:
    """Take chunks of the team's job until none is left: the owner from the front, helpers from the back."""
    job = job_at(job_of(team))
    run_chunk, chunks = job.run_chunk, job.chunks
    front = 0
    since = nanoseconds()
    while take_chunk(team, chunks):
        number = front if owning else chunks - 1 - taken_by_helpers(team)
        front += 1
        bad = call_address(run_chunk, job_of(team), number)
        if bad >= 0:
            report_bad(team, bad)
        since = give_way(team, chunks, since)


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
