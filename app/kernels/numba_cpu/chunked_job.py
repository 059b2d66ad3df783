"""Run a job: the work of an operator, divided into chunks that its owner and helpers run.

Each operator defines a record for its jobs, which begins with the fields of `Job`, and a function that runs one chunk.
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
    count_helper_chunk,
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
    wait_for_helpers,
)
from app.kernels.numba_cpu.thresholds import CHUNKS_PER_THREAD
from app.kernels.numba_cpu.typed_memory import record_of

_TIMEOUT_NS: Final = 500_000
"""How long, in nanoseconds, an owner waits before it leaves a job unfinished so that its event loop can serve other
requests.
"""
_HELP, _SHUT_DOWN, _POLL = range(3)
"""The tasks of `_run_helper_task`."""


class Job:
    """The fields that every job starts with."""

    run_chunk: Address
    """Address of the function for a chunk: (job address, chunk number) -> first invalid component, or -1."""
    total: int
    """Number of units of work in the job."""
    least_chunk: int
    """Minimum number of units in a chunk, if threads share the job."""
    chunk_size: int
    """Number of units in a chunk; the last chunk may have fewer. `run` sets this field and `chunks`."""
    chunks: int


class RecordJob(Job):
    """A job whose other fields are in a separate record, because they exceed JOB_WORDS."""

    record: Address


job_at: Final = record_of(Job)
record_job_at: Final = record_of(RecordJob)
stack_job: Final = stack_words(JOB_WORDS)
"""Return the address of a job on the caller's stack, for any operator. Its fields are uninitialized."""


@inlined
def first_of_chunk(job: Address, number: int) -> int:
    """Return the first unit of a chunk."""
    return number * job_at(job).chunk_size


@inlined
def end_of_chunk(job: Address, number: int) -> int:
    """Return the end (exclusive) of a chunk, in units."""
    return min((number + 1) * job_at(job).chunk_size, job_at(job).total)


@inner
def take_chunks(team: Address, owning: bool) -> None:
    """Run chunks of the team's job until none is left.

    The owner works from the front, and helpers work from the back.
    """
    job = job_at(job_of(team))
    run_chunk, chunks = job.run_chunk, job.chunks
    front = 0
    since = nanoseconds()
    while take_chunk(team, chunks):
        number = front if owning else chunks - 1 - count_helper_chunk(team)
        front += 1
        bad = call_address(run_chunk, job_of(team), number)
        if bad >= 0:
            report_bad(team, bad)
        since = give_way(team, chunks, since)


@inner
def run(team: Address, job: Address, helpers: int, work: int, may_leave_unfinished: bool) -> int:
    """Run a job with at most `helpers` helpers.

    Returns the position of the first invalid component, -1 if all are valid, or UNFINISHED if a helper is still
    running. `job` is a `stack_job`. `work` is the sum of components, slices and 16-byte units of output. If it exceeds
    the team's `wake_from`, sleeping helpers are woken.
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


def _run_helper_task(team: Address, what: int) -> int:
    """Run the task `what`: work as a helper until shutdown, shut the team down, or poll an unfinished job."""
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
    """Return the thread team of this process."""
    attend = compile_entry(_run_helper_task, (types.int64, types.int64))
    return ThreadTeam(
        lambda team: attend(team, _HELP),
        lambda team: attend(team, _SHUT_DOWN),
        lambda team: attend(team, _POLL),
    )
