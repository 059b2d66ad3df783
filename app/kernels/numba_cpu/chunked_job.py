"""A job, the work of an operator that is cut into chunks, and how it is done: by its owner, or by helpers as well.

Each operator has a record of its own for its jobs, which begins with the fields of `Job`, and a function for one chunk.
"""

from __future__ import annotations

from functools import cache
from typing import Final

from numba import types

from app.compilation.decorators import inlined, inner
from app.compilation.intrinsics import Address, stack_words
from app.kernels.numba_cpu.atomics import nanoseconds
from app.kernels.numba_cpu.compile_kernel import compile_entry
from app.kernels.numba_cpu.memory_intrinsics import call_address, memcpy
from app.kernels.numba_cpu.thread_team import (
    JOB_WORDS,
    ThreadTeam,
    acquire,
    close,
    give_way,
    is_worth_sharing,
    job_of,
    join,
    leave,
    publish,
    record_end,
    report_bad,
    settings_of,
    shut_down,
    take_chunk,
    taken_by_helpers,
    wait_for_helpers,
)
from app.kernels.numba_cpu.thresholds import CHUNKS_PER_THREAD
from app.kernels.numba_cpu.typed_memory import record_of

_TIMEOUT_NS: Final = 500_000
"""For how long an owner waits before it leaves a job unfinished: its event loop has other requests."""
_HELP, _SHUT_DOWN, _POLL = range(3)
"""What `_attend` is called for."""


class Job:
    """The fields that each job begins with."""

    run_chunk: Address
    """The address of the function for a chunk: of the job's address and the chunk's number the first bad component that
    it finds, or -1."""
    total: int
    """Units of work."""
    least_chunk: int
    """Units that a chunk has at least if threads share the job."""
    chunk_size: int
    """Units of a chunk, the last one has fewer; `run` sets this and the next one."""
    chunks: int


class RecordJob(Job):
    """A job whose other fields are a record elsewhere: one that is longer than the JOB_WORDS that helpers are given."""

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

    `job` is a `stack_job`. Sleeping helpers are woken if there is more `work` than the team's `wake_from`, which counts
    components, slices and 16 bytes of output.
    """
    head = job_at(job)
    long = work > settings_of(team).wake_from
    if helpers > 0 and head.total > 0 and is_worth_sharing(team, long) and acquire(team):
        head.chunk_size = max(head.total // (CHUNKS_PER_THREAD * (helpers + 1)), head.least_chunk, 1)
        head.chunks = (head.total + head.chunk_size - 1) // head.chunk_size
        memcpy(job_of(team), job, 8 * JOB_WORDS)
        publish(team, helpers, long, not may_leave_unfinished)
        take_chunks(team, True)
        return close(team, _TIMEOUT_NS if may_leave_unfinished else -1)
    head.chunk_size = head.total
    head.chunks = 1
    bad = call_address(head.run_chunk, job, 0)
    if helpers > 0:
        record_end(team)
    return bad


def _attend(team: Address, what: int) -> int:
    """The life of a helper; or the end of all of theirs; or whether a gather that was left is over."""
    if what == _SHUT_DOWN:
        shut_down(team)
        return 0
    if what == _POLL:
        return wait_for_helpers(team, 0)
    epoch = join(team, 0)
    while epoch >= 0:
        take_chunks(team, False)
        leave(team)
        epoch = join(team, epoch)
    return 0


@cache
def shared_team() -> ThreadTeam:
    """The process's threads that help with jobs."""
    attend = compile_entry(_attend, (types.int64, types.int64))
    return ThreadTeam(
        lambda team: attend(team, _HELP),
        lambda team: attend(team, _SHUT_DOWN),
        lambda team: attend(team, _POLL),
    )
