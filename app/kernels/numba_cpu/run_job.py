"""Carrying out a job of any operator, by its owner alone or chunk by chunk with the helpers of a `ThreadTeam`.

The team's settings say where the functions for chunks are and what the machine decides.
"""

from __future__ import annotations

from typing import Final

from app.kernels.numba_cpu.gather_job import CHUNK_SIZE, CHUNKS, GATHER_CHUNK, TOTAL
from app.kernels.numba_cpu.memory_intrinsics import call_address, load_item, store_item
from app.kernels.numba_cpu.split_over_threads import (
    close,
    give_way,
    job_of,
    nanoseconds,
    publish,
    record_end,
    report_bad,
    setting,
    take_chunk,
    taken_by_helpers,
)
from app.llvm_intrinsics import Address, inlined, inner

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
ZEROS_PAST_CACHES_FROM: Final = 7
"""Bytes of a gradient, from which on its zeros are stored past the caches: where those hold them, to add to them takes
less."""


@inlined
def carry_out(team: Address, job: Address, split: bool, helpers: int, long: bool, may_leave_unfinished: bool) -> int:
    """Carry out a job, where `split` that of the team, which its owner has acquired, with up to so many helpers.

    The first bad component, -1, or UNFINISHED.
    """
    if not split:
        bad = call_address(load_item(job, GATHER_CHUNK), job, 0)
        if helpers > 0:
            record_end(team)
        return bad
    size = load_item(job, CHUNK_SIZE)
    store_item(job, CHUNKS, (load_item(job, TOTAL) + size - 1) // size)
    publish(team, helpers, long, not may_leave_unfinished)
    take_chunks(team, True)
    return close(team, setting(team, TIMEOUT) if may_leave_unfinished else -1)


@inner
def take_chunks(team: Address, owning: bool) -> None:
    """Take chunks of the team's job until none is left."""
    job = job_of(team)
    function = load_item(job, GATHER_CHUNK)
    chunks = load_item(job, CHUNKS)
    front = 0
    since = nanoseconds()
    while take_chunk(team, chunks):
        number = front if owning else chunks - 1 - taken_by_helpers(team)
        front += 1
        bad = call_address(function, job, number)
        if bad >= 0:
            report_bad(team, bad)
        since = give_way(team, chunks, since)
