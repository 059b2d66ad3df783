"""Threads that share one job without running Python: even waiting and the distribution of chunks are compiled.

A `ThreadTeam` is a block of memory and some helper threads that watch it. A thread with a job acquires the team, writes
the job into that memory, and publishes it. Then that thread, the owner, takes chunks like any helper, so it never waits
for a helper to wake. An idle helper spins for some microseconds before it sleeps, because waking a sleeping core takes
longer than many jobs. The spin is short, because a spinning core may slow its hyper-threading sibling.

States of the team. EPOCH counts up, and is odd while helpers may join:

    free      OWNED 0, EPOCH even
      | acquire
    owned     OWNED 1, EPOCH even: the owner writes the job
      | publish: EPOCH + 1
    open      OWNED 1, EPOCH odd: chunks are taken, helpers join and leave
      | close: EPOCH + 1
    closing   OWNED 1, EPOCH even, INSIDE may still fall
      | wait_for_helpers: INSIDE is 0              | INSIDE is not 0 and the owner's time is up: UNFINISHED;
    free                                           | closing, until `UnfinishedJob` waits again

    free, owned by shut_down: EPOCH stays negative; nobody can acquire the team any more, and its helpers end

States of a helper:

    watching ---- EPOCH is odd and new: INSIDE + 1; EPOCH is unchanged and there is room: JOINED + 1 ------> inside
       ^  ^                                                                                                    |
       |  `------------------------------- no chunk is left: INSIDE - 1 ---------------------------------------'
       | woken (sem_post) or a signal
    asleep <----- SPIN nanoseconds have passed: ASLEEP + 1; EPOCH is unchanged ----------------------------- watching

The team works on one job at a time. A thread that finds the team owned runs its whole job alone.

Every atomic operation is sequentially consistent (`atomics`). Two handshakes require this. In each, both sides write
one word and then read the other side's word. With acquire and release alone, both could read old values. In the first
handshake, a helper adds to INSIDE and reads EPOCH while the owner raises EPOCH and reads INSIDE. If both read old
values, the owner could end a job that a helper is still writing. The second handshake is the same with ASLEEP: if both
read old values, a helper could sleep through a job that relies on it. Everything else needs only acquire and release:
the job is written before EPOCH is raised and read afterward, and output is written before INSIDE falls and read after
INSIDE has become 0.

The operating system may suspend a helper in the middle of its chunk for any length of time. Only that helper can finish
the chunk: a second writer might still write after the memory has been reused. So after a timeout, an owner that must
not block leaves the job unfinished, together with the team and the arrays, and a thread that may block takes over the
job (`UnfinishedJob`).

The compiled functions and the objects that own the memory are in one module because both access the same words. No
other module knows the layout.
"""

from __future__ import annotations

import atexit
import ctypes
from collections.abc import Callable
from threading import Lock, Thread
from time import sleep
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from app.compilation.decorators import inner
from app.compilation.intrinsics import Address, Integers
from app.kernels import Unfinished
from app.kernels.numba_cpu.atomics import (
    compare_exchange_seq_cst,
    exchange_seq_cst,
    fetch_add_seq_cst,
    fetch_umin_seq_cst,
    load_seq_cst,
    nanoseconds,
    pause,
    sched_yield,
    sem_post,
    sem_wait,
)
from app.kernels.numba_cpu.thresholds import LEAST_TUPLES, NONTEMPORAL_BYTES, WAKE_FROM
from app.kernels.numba_cpu.typed_memory import dtype_of, record_of

_APART_BYTES: Final = 128
"""Distance between words: no two share a cache line of 64 bytes, or a pair of lines, which Intel processors fetch
together (Optimization Reference Manual, "Spatial Prefetcher").
"""
_APART: Final = _APART_BYTES // 8
(
    _OWNED,
    _EPOCH,
    _TAKEN,
    _JOINED,
    _INSIDE,
    _ASLEEP,
    _FIRST_BAD,
    _LAST_END,
    _SEMAPHORE,
    _SPIN,
    _HELPERS,
    _TAKEN_BY_HELPERS,
    _GIVES_WAY,
    _SETTINGS,
    _JOB,
    _,
    _ITEMS,
) = range(0, 17 * _APART, _APART)
"""Offsets in the team's memory, in int64.

- _TAKEN: chunks requested so far; _TAKEN_BY_HELPERS: how many of them helpers received.
- _JOINED: helpers that joined, minus the number that may join.
- _INSIDE: helpers that may be reading the job.
- _ASLEEP: helpers that sleep on the C library's semaphore at _SEMAPHORE until they are woken.
- _FIRST_BAD: the first invalid component; -1, the largest unsigned value, for none.
- _LAST_END: when the last job ended, on the clock of `nanoseconds`.
- _SPIN: nanoseconds for which a helper watches before it sleeps.
- _HELPERS: the number of helpers.
- _GIVES_WAY: 1 if threads yield to other threads between chunks of the job, else 0.
- _SETTINGS: a `TeamSettings`.
"""
assert _APART >= 32 // 8  # a sem_t has 32 bytes (glibc, musl)
JOB_WORDS: Final = 2 * _APART
"""Size of the longest job, in int64."""

_SPIN_NS: Final = 15_000
"""Nanoseconds for which an idle helper spins before it sleeps. Waking a helper costs the waker 13 to 23 µs, and the
helper starts after 10 to 40 µs. A spin of 50 µs slowed the event loop.
"""
_READS_PER_CLOCK: Final = 32
"""Reads of EPOCH per read of the clock, which costs as much as several of them."""
_PAUSES: Final = 1000
"""Reads of INSIDE before the owner yields its core: many times the remaining time of a chunk that is about to end."""
_SHUT_DOWN: Final = -(1 << 62)
"""A value so far below 0 that EPOCH stays negative, however often it is raised."""
UNFINISHED: Final = -3
"""Returned instead of a component if a helper still holds its chunk."""
_POLL_S: Final = 0.0005
"""Seconds between two polls by a thread that is waiting for a helper. This equals the owner's own timeout."""
_TURN_NS: Final = 100_000
"""Nanoseconds after which a thread yields its core. A yield takes less than a microsecond if no thread is waiting."""


class TeamSettings:
    """Settings that compiled code reads. The fields may change at any time."""

    array_type: Address
    """Address of the type `numpy.ndarray`."""
    wake_from: int
    """Amount of work (components, slices and units of 16 bytes of output) above which waking a sleeping helper pays
    off.
    """
    least_tuples: int
    """Minimum number of tuples in a chunk of a gather."""
    nontemporal_from: int
    """Size of an output in bytes above which a gather's stores bypass the caches, which could not hold the rows."""


settings_of: Final = record_of(TeamSettings, offset=8 * _SETTINGS)
"""Return the settings of the team at an address."""


@inner
def is_worth_sharing(team: Address, long: bool) -> bool:
    """Return whether sharing a job pays off: a helper is awake, or the job is `long` or closely follows another one.

    Waking a core may cost the owner as much time as a short job.
    """
    return long or load_seq_cst(team, _ASLEEP) < load_seq_cst(team, _HELPERS) or _is_in_series(team)


@inner
def _is_in_series(team: Address) -> bool:
    """Return whether the last job ended just now.

    "Just now" is much shorter than the time after which helpers fall asleep. Otherwise, each job of a series might wake
    them again.
    """
    return nanoseconds() - load_seq_cst(team, _LAST_END) < load_seq_cst(team, _SPIN) // 5


@inner
def acquire(team: Address) -> bool:
    """Reserve the team.

    Returns False if it is busy or shut down; otherwise the caller owns it and must publish a job.
    """
    if load_seq_cst(team, _EPOCH) < 0 or load_seq_cst(team, _OWNED) != 0:
        return False
    return compare_exchange_seq_cst(team, _OWNED, 0, 1)


@inner
def publish(team: Address, helpers: int, long: bool, gives_way: bool) -> None:
    """Let up to `helpers` helpers join. Wakes sleeping helpers if the job is `long` or closely follows another one.

    If `gives_way` is set, threads yield their core to other threads between chunks (see `give_way`).
    """
    exchange_seq_cst(team, _GIVES_WAY, 1 if gives_way else 0)
    exchange_seq_cst(team, _TAKEN, 0)
    exchange_seq_cst(team, _TAKEN_BY_HELPERS, 0)
    exchange_seq_cst(team, _FIRST_BAD, -1)
    exchange_seq_cst(team, _JOINED, -helpers)
    fetch_add_seq_cst(team, _EPOCH, 1)
    asleep = load_seq_cst(team, _ASLEEP)
    missing = helpers + asleep - load_seq_cst(team, _HELPERS)
    if asleep > 0 and missing > 0 and (long or _is_in_series(team)):
        _wake(team, missing)


@inner
def record_end(team: Address) -> None:
    """Record that a job which helpers could have shared has ended."""
    exchange_seq_cst(team, _LAST_END, nanoseconds())


@inner
def _wake(team: Address, most: int) -> None:
    """Wake at most two helpers. Each of them wakes two more while there is room."""
    for _ in range(min(most, 2)):
        if _claim_sleeper(team):
            sem_post(team + 8 * _SEMAPHORE)


@inner
def _claim_sleeper(team: Address) -> bool:
    """Decrement the count of sleeping helpers. Returns False if none sleeps."""
    asleep = load_seq_cst(team, _ASLEEP)
    while asleep > 0:
        if compare_exchange_seq_cst(team, _ASLEEP, asleep, asleep - 1):
            return True
        asleep = load_seq_cst(team, _ASLEEP)
    return False


@inner
def close(team: Address, timeout_ns: int) -> int:
    """Stop helpers from joining, wait for those inside, and free the team.

    Returns the first invalid component, or -1 if none. After `timeout_ns` nanoseconds (negative: no limit), returns
    UNFINISHED and leaves the job as it is.
    """
    fetch_add_seq_cst(team, _EPOCH, 1)
    return wait_for_helpers(team, timeout_ns)


@inner
def wait_for_helpers(team: Address, timeout_ns: int) -> int:
    """Wait for the helpers inside a closed job and free the team. May be called again for an unfinished job.

    Returns the same as `close`.
    """
    reads = 0
    ends = 0
    while load_seq_cst(team, _INSIDE) != 0:
        if timeout_ns == 0:
            return UNFINISHED
        reads += 1
        if reads < _PAUSES:
            pause()
        else:
            sched_yield()  # the helper's core may be this one
            if timeout_ns >= 0:
                now = nanoseconds()
                if ends == 0:
                    ends = now + timeout_ns
                elif now >= ends:
                    return UNFINISHED
    bad = load_seq_cst(team, _FIRST_BAD)
    record_end(team)
    exchange_seq_cst(team, _OWNED, 0)
    return bad


@inner
def join(team: Address, last: int) -> int:
    """Wait for a new job and join it. The calling helper last saw epoch `last`.

    Returns the job's epoch, or a negative number after `shut_down`.
    """
    ends = 0
    reads = 0
    slept = False
    while True:
        epoch = load_seq_cst(team, _EPOCH)
        if epoch < 0:
            return epoch
        if epoch & 1 and epoch != last:
            last = epoch
            fetch_add_seq_cst(team, _INSIDE, 1)
            if load_seq_cst(team, _EPOCH) == epoch:
                room = -1 - fetch_add_seq_cst(team, _JOINED, 1)
                if room >= 0:
                    if slept and room > 0:
                        _wake(team, room)
                    return epoch
            fetch_add_seq_cst(team, _INSIDE, -1)
        reads += 1
        if reads % _READS_PER_CLOCK == 0:
            now = nanoseconds()
            if ends == 0:
                ends = now + load_seq_cst(team, _SPIN)
            elif now > ends:
                _sleep(team, epoch)
                slept = True
                ends = 0
        pause()


@inner
def _sleep(team: Address, epoch: int) -> None:
    """Sleep until woken, unless the epoch has already changed."""
    fetch_add_seq_cst(team, _ASLEEP, 1)
    # If another thread has already claimed this sleeper, that thread is about to post; in that case, wait for the post.
    if load_seq_cst(team, _EPOCH) != epoch and _claim_sleeper(team):
        return
    while sem_wait(team + 8 * _SEMAPHORE) != 0:
        pass  # interrupted by a signal


@inner
def leave(team: Address) -> None:
    """Leave the job. The calling helper reads nothing more of it."""
    fetch_add_seq_cst(team, _INSIDE, -1)


@inner
def shut_down(team: Address) -> None:
    """Wait until nobody owns the team, then end its helpers. The team can no longer be acquired."""
    while not compare_exchange_seq_cst(team, _OWNED, 0, 1):
        sched_yield()
    exchange_seq_cst(team, _EPOCH, _SHUT_DOWN)
    while load_seq_cst(team, _ASLEEP) > 0:
        _wake(team, 2)
    exchange_seq_cst(team, _OWNED, 0)


@inner
def take_chunk(team: Address, chunks: int) -> bool:
    """Take one of `chunks` chunks. Returns False if none is left.

    The owner works from the front, and helpers work from the back. In this way, each core is likely to work on the same
    memory as in the previous job.
    """
    return fetch_add_seq_cst(team, _TAKEN, 1) < chunks


@inner
def count_helper_chunk(team: Address) -> int:
    """Count a chunk that a helper takes. Returns how many chunks helpers had taken before."""
    return fetch_add_seq_cst(team, _TAKEN_BY_HELPERS, 1)


@inner
def give_way(team: Address, chunks: int, since: int) -> int:
    """Between two of `chunks` chunks, yield the core if the caller has had it long enough, counted from `since`.

    Returns the time at which the caller last got the core, on the clock of `nanoseconds`. Without yielding, kernel
    threads on all cores would keep the event loop and all other requests waiting for a scheduler time slice of a
    millisecond or more. Threads do not yield if the event loop itself is waiting for the chunks, or if no chunk is
    left.
    """
    if load_seq_cst(team, _GIVES_WAY) == 0 or load_seq_cst(team, _TAKEN) >= chunks or nanoseconds() - since < _TURN_NS:
        return since
    sched_yield()
    return nanoseconds()


@inner
def report_bad(team: Address, component: int) -> None:
    """Record that the component is out of bounds."""
    fetch_umin_seq_cst(team, _FIRST_BAD, component)


@inner
def job_of(team: Address) -> Address:
    """Return the address of the job's description, JOB_WORDS int64."""
    return team + 8 * _JOB


class UnfinishedJob(Unfinished):
    """A job that its owner left because a helper still holds a chunk. Keeps the arrays alive until the job ends."""

    def __init__(self, team: ThreadTeam, arrays: tuple[object, ...]) -> None:
        super().__init__("a helper has not given back its chunk")
        self._team = team
        self._arrays = arrays
        self._lock = Lock()
        self._bad: int | None = None
        team.unfinished.add(self)

    def wait(self) -> int:
        """See `Unfinished.wait`."""
        while True:
            with self._lock:
                self._poll()
            if self._bad is not None:
                return self._bad
            sleep(_POLL_S)

    def free_team(self) -> None:
        """Free the team if the job has ended. Does not block."""
        if self._lock.acquire(blocking=False):
            try:
                self._poll()
            finally:
                self._lock.release()

    def _poll(self) -> None:
        if self._bad is None:
            bad = self._team.poll()
            if bad != UNFINISHED:
                self._bad = bad
                self._arrays = ()
                self._team.unfinished.discard(self)


class ThreadTeam:
    """The memory at `address` and its helpers: threads that run `help_with(address)` until `shut_down(address)` is
    called.

    The three functions are compiled and run without the GIL. `poll_helpers` calls `wait_for_helpers(address, 0)`.
    `settings` is an array of one `TeamSettings`. `unfinished` contains the unfinished job, if there is one. `helpers`
    is the number of helper threads.
    """

    def __init__(
        self,
        help_with: Callable[[Address], object],
        shut_down: Callable[[Address], object],
        poll_helpers: Callable[[Address], int],
    ) -> None:
        self._help_with = help_with
        self._shut_down = shut_down
        self._poll_helpers = poll_helpers
        self.unfinished: set[UnfinishedJob] = set()
        self._lock = Lock()
        self._threads: list[Thread] = []
        self.helpers = 0
        self._ended = False
        self._memory: Integers = np.zeros(_ITEMS + _APART, np.int64)
        self.address: Address = -(-self._memory.ctypes.data // _APART_BYTES) * _APART_BYTES
        start = (self.address - self._memory.ctypes.data) // 8
        self._items = self._memory[start : start + _ITEMS]
        self._items[_SPIN] = _SPIN_NS
        dtype = dtype_of(TeamSettings)
        self.settings: NDArray[Any] = self._items[_SETTINGS : _SETTINGS + dtype.itemsize // 8].view(dtype)
        self.settings[:] = id(np.ndarray), WAKE_FROM, LEAST_TUPLES, NONTEMPORAL_BYTES
        if ctypes.CDLL(None).sem_init(ctypes.c_void_p(self.address + 8 * _SEMAPHORE), 0, 0) != 0:
            raise OSError("the C library has no semaphores")
        atexit.register(self.end)

    def prepare(self, threads: int) -> None:
        """Start helpers so that there are `threads` threads in total, and free the team if its unfinished job has
        ended.
        """
        if threads - 1 > self.helpers:
            self.grow(threads - 1)
        if self.unfinished:
            for left in tuple(self.unfinished):
                left.free_team()

    def check_finished(self, first_bad: int, arrays: tuple[object, ...]) -> None:
        """Raise UnfinishedJob if a kernel returned UNFINISHED for a job on these arrays."""
        if first_bad == UNFINISHED:
            raise UnfinishedJob(self, arrays)

    def poll(self) -> int:
        """Return UNFINISHED or, if the unfinished job has ended, its first invalid component (-1 if none)."""
        return self._poll_helpers(self.address)

    def grow(self, helpers: int) -> None:
        """Start helpers until there are at least `helpers` of them, unless the team has ended."""
        with self._lock:
            while len(self._threads) < helpers and not self._ended:
                thread = Thread(target=self._help_with, args=(self.address,), name="gather-helper", daemon=True)
                thread.start()
                self._threads.append(thread)
                self.helpers += 1
                self._items[_HELPERS] += 1

    def end(self) -> None:
        """End the helpers after their current job. Each later job runs only on the thread that calls it."""
        for left in tuple(self.unfinished):
            left.wait()
        with self._lock:
            self._ended = True
            self._shut_down(self.address)
            for thread in self._threads:
                thread.join()
