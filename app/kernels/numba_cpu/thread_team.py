"""Threads that share one job, without Python between them: who waits and who takes which chunk is compiled, too.

A `ThreadTeam` is a piece of memory and helpers, threads that watch it. The thread that has a job acquires the team,
writes the job into that memory, publishes it, and takes chunk after chunk of it as every helper does, so that it never
waits for one to wake. A helper that finds nothing new watches for some microseconds before it sleeps, since a sleeping
core takes longer to wake than many jobs take; not for long, since a core that watches may slow its sibling down.

States of the team. EPOCH counts up, and is odd while helpers may join:

    free      OWNED 0, EPOCH even
      | acquire
    owned     OWNED 1, EPOCH even: the owner writes the job
      | publish: EPOCH + 1
    open      OWNED 1, EPOCH odd: chunks are taken, helpers join and leave
      | close: EPOCH + 1
    closing   OWNED 1, EPOCH even, INSIDE may still fall
      | wait_for_helpers: INSIDE is 0              | it is not, and the owner's time is up: UNFINISHED;
    free                                           | closing, until `UnfinishedJob` waits again

    free, owned by shut_down: EPOCH negative for good; nobody acquires the team any more, and its helpers end

States of a helper:

    watching ---- EPOCH is odd and new: INSIDE + 1; it is still the same, and there is room: JOINED + 1 ---> inside
       ^  ^                                                                                                    |
       |  `------------------------------- no chunk is left: INSIDE - 1 ---------------------------------------'
       | woken (sem_post) or a signal
    asleep <----- SPIN nanoseconds have passed: ASLEEP + 1; EPOCH is still the same ------------------------ watching

One job at a time has the team; a thread that finds it owned does its whole job alone.

Every atomic operation is sequentially consistent (`atomics`). Two handshakes need that, for each side
writes one word and then reads the other's, and under acquire and release alone both could read the old value: a helper
adds to INSIDE and reads EPOCH while the owner raises EPOCH and reads INSIDE (else the owner could end a job that a
helper still writes), and the same with ASLEEP (else a helper could sleep through a job that counts on it). The rest
needs acquire and release, which that includes: the job is written before EPOCH is raised and read after it was found
raised; output is written before INSIDE falls and read after it was found to be 0.

The system may take the core from a helper in the middle of its chunk, for as long as it likes, and only that helper can
finish the chunk: another writer of the same bytes might still write when they are long something else's. So an owner
that must not wait leaves the job unfinished after a while, with team and arrays, and a thread that may wait takes it
over (`UnfinishedJob`).

The compiled functions and the objects that own the memory stand in one module, for both read and write the same words,
and no other module knows where these lie.
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
"""No two words lie on one cache line of 64 bytes, or on two neighbours, which Intel's processors fetch together
(Optimization Reference Manual, "Spatial Prefetcher")."""
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
"""Places in the team's memory, in int64. _TAKEN counts the chunks that were asked for, _TAKEN_BY_HELPERS those of them
that helpers had; _JOINED the helpers that joined, less those that may; _INSIDE the helpers that may be reading the job;
_ASLEEP those that watch again only when they are woken, on the C library's semaphore at _SEMAPHORE. _FIRST_BAD is the
first bad component or -1, the largest when taken as unsigned; _LAST_END the clock when the last job was over; _SPIN
the nanoseconds for which a helper watches before it sleeps; _HELPERS how many there are; _GIVES_WAY whether those who
take chunks of the job give way to other threads in between, 1 or 0; at _SETTINGS is a `TeamSettings`."""
assert _APART >= 32 // 8  # a sem_t has 32 bytes (glibc, musl)
JOB_WORDS: Final = 2 * _APART
"""int64 of the longest job."""

_SPIN_NS: Final = 15_000
"""A helper that sleeps costs its waker 13 to 23 µs and comes after 10 to 40; with 50 µs the event loop was slower."""
_READS_PER_CLOCK: Final = 32
"""Reads of EPOCH between two of the clock, which takes as long as several of them."""
_PAUSES: Final = 1000
"""Reads of INSIDE before the owner lets the system run another thread on its core: many times what a chunk takes that
is about to end."""
_SHUT_DOWN: Final = -(1 << 62)
"""So far below 0 that no counting up of EPOCH comes back."""
UNFINISHED: Final = -3
"""In place of a component: a helper has not given back its chunk."""
_POLL_S: Final = 0.0005
"""Between two looks of a thread that waits for that helper: as long as an owner in a hurry waits for it."""
_TURN_NS: Final = 100_000
"""For so long a thread may have its core before it lets the system run others, which takes less than
a microsecond where none waits."""


class TeamSettings:
    """What compiled code reads of the machine and the process; its fields may be changed at any time."""

    array_type: Address
    """Of `numpy.ndarray`."""
    wake_from: int
    """Components, slices and 16 bytes of output, from which on a sleeping helper is worth waking."""
    least_tuples: int
    """Tuples that a chunk of a gather has at least."""
    nontemporal_from: int
    """Bytes of output, from which on a gather stores rows past the caches, which would not hold them."""


settings_of: Final = record_of(TeamSettings, offset=8 * _SETTINGS)
"""The settings of a team, by its address."""


@inner
def is_worth_sharing(team: Address, long: bool) -> bool:
    """Whether a helper can be had: one that is awake, or any for a `long` job or one of a close series.

    To wake a core may take the owner as long as a short job does.
    """
    return long or load_seq_cst(team, _ASLEEP) < load_seq_cst(team, _HELPERS) or _in_series(team)


@inner
def _in_series(team: Address) -> bool:
    """Whether the last job ended just now.

    That is much sooner than helpers fall asleep again: else each job of a series might wake them once more.
    """
    return nanoseconds() - load_seq_cst(team, _LAST_END) < load_seq_cst(team, _SPIN) // 5


@inner
def acquire(team: Address) -> bool:
    """Whether the team was free and is there: then it is the caller's, who writes the job and publishes it."""
    if load_seq_cst(team, _EPOCH) < 0 or load_seq_cst(team, _OWNED) != 0:
        return False
    return compare_exchange_seq_cst(team, _OWNED, 0, 1)


@inner
def publish(team: Address, helpers: int, long: bool, gives_way: bool) -> None:
    """Let so many helpers join; those that sleep are woken for a `long` job or one of a close series.

    With `gives_way` other threads have their turn on each core between chunks (see `give_way`).
    """
    exchange_seq_cst(team, _GIVES_WAY, 1 if gives_way else 0)
    exchange_seq_cst(team, _TAKEN, 0)
    exchange_seq_cst(team, _TAKEN_BY_HELPERS, 0)
    exchange_seq_cst(team, _FIRST_BAD, -1)
    exchange_seq_cst(team, _JOINED, -helpers)
    fetch_add_seq_cst(team, _EPOCH, 1)
    asleep = load_seq_cst(team, _ASLEEP)
    missing = helpers + asleep - load_seq_cst(team, _HELPERS)
    if asleep > 0 and missing > 0 and (long or _in_series(team)):
        _wake(team, missing)


@inner
def record_end(team: Address) -> None:
    """A job that helpers might have shared is over."""
    exchange_seq_cst(team, _LAST_END, nanoseconds())


@inner
def _wake(team: Address, most: int) -> None:
    """Wake two helpers or fewer; each of them wakes two more while there is room for them."""
    for _ in range(min(most, 2)):
        if _claim_sleeper(team):
            sem_post(team + 8 * _SEMAPHORE)


@inner
def _claim_sleeper(team: Address) -> bool:
    """Whether a helper was counted as asleep; it is no longer."""
    asleep = load_seq_cst(team, _ASLEEP)
    while asleep > 0:
        if compare_exchange_seq_cst(team, _ASLEEP, asleep, asleep - 1):
            return True
        asleep = load_seq_cst(team, _ASLEEP)
    return False


@inner
def close(team: Address, timeout_ns: int) -> int:
    """Let no more helpers join, wait for those that are inside, and free the team: the first bad component, or -1.

    After `timeout_ns`, unless that is negative, the job is left as it is: UNFINISHED.
    """
    fetch_add_seq_cst(team, _EPOCH, 1)
    return wait_for_helpers(team, timeout_ns)


@inner
def wait_for_helpers(team: Address, timeout_ns: int) -> int:
    """The rest of `close`, also for a job that was left unfinished."""
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
    """For a helper that was in epoch `last`: wait for another job and go inside. Its epoch; negative for the end."""
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
    """Sleep until woken, unless there is another epoch by now."""
    fetch_add_seq_cst(team, _ASLEEP, 1)
    # Whoever has claimed this sleeper meanwhile is about to wake it: then there is a post to wait for all the same.
    if load_seq_cst(team, _EPOCH) != epoch and _claim_sleeper(team):
        return
    while sem_wait(team + 8 * _SEMAPHORE) != 0:
        pass  # a signal


@inner
def leave(team: Address) -> None:
    """A helper reads nothing more of the job."""
    fetch_add_seq_cst(team, _INSIDE, -1)


@inner
def shut_down(team: Address) -> None:
    """Let the helpers end, once nobody owns the team; from now on it cannot be acquired."""
    while not compare_exchange_seq_cst(team, _OWNED, 0, 1):
        sched_yield()
    exchange_seq_cst(team, _EPOCH, _SHUT_DOWN)
    while load_seq_cst(team, _ASLEEP) > 0:
        _wake(team, 2)
    exchange_seq_cst(team, _OWNED, 0)


@inner
def take_chunk(team: Address, chunks: int) -> bool:
    """Whether one of so many chunks is left: the caller's now, from the front for the owner, from the back for helpers.

    So every core is likely to have the memory again that it had in the job before.
    """
    return fetch_add_seq_cst(team, _TAKEN, 1) < chunks


@inner
def taken_by_helpers(team: Address) -> int:
    """How many chunks helpers had before: called once for each that a helper takes."""
    return fetch_add_seq_cst(team, _TAKEN_BY_HELPERS, 1)


@inner
def give_way(team: Address, chunks: int, since: int) -> int:
    """Between two of so many chunks: let the system run another thread on this core, if the caller has had it since
    `since` and for long enough. Since when it has it now, in `nanoseconds`.

    Threads of kernels that had all cores would keep the event loop from its turn, and with it all other requests, for
    a time slice of the system's: a millisecond and more. Where the event loop itself waits for the chunks, none gives
    way, nor does a thread for which none is left.
    """
    if load_seq_cst(team, _GIVES_WAY) == 0 or load_seq_cst(team, _TAKEN) >= chunks or nanoseconds() - since < _TURN_NS:
        return since
    sched_yield()
    return nanoseconds()


@inner
def report_bad(team: Address, component: int) -> None:
    """The component is out of bounds."""
    fetch_umin_seq_cst(team, _FIRST_BAD, component)


@inner
def job_of(team: Address) -> Address:
    """Where the owner describes its job, in JOB_WORDS int64."""
    return team + 8 * _JOB


class UnfinishedJob(Unfinished):
    """A job that its owner left: a helper has not given back its chunk. It keeps the arrays until the job is over."""

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
        """Free the team if the job is over; returns at once."""
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
    """The memory at `address` and its helpers, threads that run `help_with(address)` until `shut_down(address)`.

    The three functions are compiled and run without the GIL; `poll_helpers` is `wait_for_helpers(address, 0)`.
    `settings` is an array of one `TeamSettings`. `unfinished` holds the job that was left, while there is one, and
    `helpers` is how many threads help.
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
        """Have helpers for so many threads, and be free again if the job that was left is over."""
        if threads - 1 > self.helpers:
            self.grow(threads - 1)
        if self.unfinished:
            for left in tuple(self.unfinished):
                left.free_team()

    def check_finished(self, first_bad: int, arrays: tuple[object, ...]) -> None:
        """Raise UnfinishedJob if that is what a kernel returned for a job on these arrays."""
        if first_bad == UNFINISHED:
            raise UnfinishedJob(self, arrays)

    def poll(self) -> int:
        """The first bad component, or -1, of the job that was left, if it is over, else UNFINISHED."""
        return self._poll_helpers(self.address)

    def grow(self, helpers: int) -> None:
        """Have at least so many helpers, unless the team has ended."""
        with self._lock:
            while len(self._threads) < helpers and not self._ended:
                thread = Thread(target=self._help_with, args=(self.address,), name="gather-helper", daemon=True)
                thread.start()
                self._threads.append(thread)
                self.helpers += 1
                self._items[_HELPERS] += 1

    def end(self) -> None:
        """Let the helpers end, once the job is done that they have; later ones their own threads do alone."""
        for left in tuple(self.unfinished):
            left.wait()
        with self._lock:
            self._ended = True
            self._shut_down(self.address)
            for thread in self._threads:
                thread.join()
