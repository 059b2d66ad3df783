"""Threads that share one gather, without Python between them: who waits and who takes what is compiled, too.

A crew is a piece of shared memory, the box, and helpers that look at it. The thread that has a gather leads: it posts
the gather, and takes part after part of it as every helper does, so that it never waits for one to wake. A helper that
finds nothing new looks on for some microseconds before it sleeps, since a sleeping core takes longer to wake than many
gathers take; not for long, since a core that looks may slow its sibling down. A gather is read only by helpers that
were let in, and is over only when they have left.

One gather at a time has the crew; a leader that finds it taken does the whole alone.

The system may take the core from a helper in the middle of its part, for as long as it likes, and only that helper can
finish the part: another writer of the same bytes might still write when they are long something else's. So a leader
that must not wait leaves the gather unfinished after a while, crew and arrays with it, and a thread that may wait takes
it over (`LeftGather`).
"""

from __future__ import annotations

import atexit
import ctypes
import os
from collections.abc import Callable, Sequence
from threading import Lock, Thread
from time import sleep
from typing import Any, Final

import numba.core.cgutils
import numba.extending
import numpy as np
from llvmlite import ir
from numba import types
from numpy.typing import NDArray

from app.kernels import Unfinished

_intrinsic: Any = numba.extending.intrinsic
_jitable: Any = numba.extending.register_jitable
_cgutils: Any = numba.core.cgutils

_INT64: Final = ir.IntType(64)

# Places in the box, in int64, no two on one line, or on two that are fetched together.
_OWNER: Final = 0  # 1 while somebody leads
_SERIAL: Final = 16  # of the gather; odd while it may be joined, negative once the helpers are to end
_TAKEN: Final = 32  # how many parts were asked for
_JOINED: Final = 48  # how many helpers were let in, less those that may be
_INSIDE: Final = 64  # how many helpers may be reading the note
_ASLEEP: Final = 80  # how many helpers look again only when they are woken
_BAD: Final = 96  # the first bad component, or -1: the largest when taken without a sign
_ENDED: Final = 112  # when the last gather was over
_SLEEP: Final = 128  # a semaphore of the C library's
_SPIN: Final = 144  # nanoseconds for which a helper looks before it sleeps
_HELPERS: Final = 160  # how many there are
_BACK: Final = 176  # how many of them helpers took, from the back
_NOTE: Final = 192  # what the leader says of the gather
_SETTINGS: Final = 208  # of whoever leads
_ITEMS: Final = 224
_LINES: Final = 128
_SPIN_NS: Final = 15_000
_LOOKS: Final = 32
_END: Final = -(1 << 62)
UNFINISHED: Final = -3
"""In place of a component: a helper has not given back its part."""
_POLL_S: Final = 0.0005


@_intrinsic
def _look(typing_context, box, place):  # type: ignore[no-untyped-def]
    """The int64 at that place of the box, in an order with all changes that all threads agree on."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load_atomic(_pointer(builder, *arguments), "seq_cst", 8)

    return types.int64(types.int64, types.int64), generate


def _changer(operation: str) -> Any:
    @_intrinsic
    def change(typing_context, box, place, value):  # type: ignore[no-untyped-def]
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.atomic_rmw(operation, _pointer(builder, *arguments[:2]), arguments[2], "seq_cst")

        return types.int64(types.int64, types.int64, types.int64), generate

    return change


# Change the int64 at that place of the box, in the same order, and give what it was.
_add = _changer("add")
_swap = _changer("xchg")
_least = _changer("umin")


@_intrinsic
def _take(typing_context, box, place, old, new):  # type: ignore[no-untyped-def]
    """Set the int64 at that place of the box to `new` if it is `old`; whether it was."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = _pointer(builder, *arguments[:2])
        return builder.extract_value(builder.cmpxchg(pointer, *arguments[2:], "seq_cst", "seq_cst"), 1)

    return types.boolean(types.int64, types.int64, types.int64, types.int64), generate


@_intrinsic
def _now(typing_context):  # type: ignore[no-untyped-def]
    """Nanoseconds of a clock that only goes forward."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pair = ir.ArrayType(_INT64, 2)
        room = _cgutils.alloca_once(builder, pair)
        clock = ir.FunctionType(ir.IntType(32), [ir.IntType(32), room.type])
        function = _cgutils.get_or_insert_function(builder.module, clock, "clock_gettime")
        builder.call(function, [ir.IntType(32)(1), room])
        seconds, rest = (builder.extract_value(builder.load(room, typ=pair), at) for at in (0, 1))
        return builder.add(builder.mul(seconds, _INT64(1_000_000_000)), rest)

    return types.int64(), generate


@_intrinsic
def _pause(typing_context):  # type: ignore[no-untyped-def]
    """Let a core that only looks leave its means to others."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if os.uname().machine == "x86_64":
            nothing = ir.FunctionType(ir.VoidType(), [])
            builder.call(_cgutils.get_or_insert_function(builder.module, nothing, "llvm.x86.sse2.pause"), [])
        return context.get_dummy_value()

    return types.none(), generate


def _pointer(builder: Any, box: Any, place: Any) -> Any:
    return builder.gep(builder.inttoptr(box, _INT64.as_pointer()), [place], inbounds=True, source_etype=_INT64)


_sem_wait: Any = types.ExternalFunction("sem_wait", types.int32(types.int64))
_sem_post: Any = types.ExternalFunction("sem_post", types.int32(types.int64))
_sched_yield: Any = types.ExternalFunction("sched_yield", types.int32())


@_jitable
def is_awake(box, long):  # type: ignore[no-untyped-def]
    """Whether there is a helper to be had: one that is awake, or any for a `long` gather or one of a close series.

    To wake a core may take the leader as long as a short gather does.
    """
    asleep = _look(box, _ASLEEP)
    return long or asleep < _look(box, _HELPERS) or _in_series(box)


@_jitable
def _in_series(box):  # type: ignore[no-untyped-def]
    # Much sooner than helpers fall asleep again, or each gather of a series might wake them once more.
    return _now() - _look(box, _ENDED) < _look(box, _SPIN) // 5


@_jitable
def lead(box):  # type: ignore[no-untyped-def]
    """Whether the crew was free and is there; it is the caller's now, who writes the note and opens."""
    return _look(box, _SERIAL) >= 0 and _look(box, _OWNER) == 0 and _take(box, _OWNER, 0, 1)


@_jitable
def open_to(box, helpers, long):  # type: ignore[no-untyped-def]
    """Let so many helpers in; those that sleep are woken for a `long` gather or one of a close series."""
    _swap(box, _TAKEN, 0)
    _swap(box, _BACK, 0)
    _swap(box, _BAD, -1)
    _swap(box, _JOINED, -helpers)
    _add(box, _SERIAL, 1)
    asleep = _look(box, _ASLEEP)
    missing = helpers + asleep - _look(box, _HELPERS)
    if asleep > 0 and missing > 0 and (long or _in_series(box)):
        _wake(box, missing)


@_jitable
def ended(box):  # type: ignore[no-untyped-def]
    """A gather that helpers might have shared is over."""
    _swap(box, _ENDED, _now())


@_jitable
def _wake(box, most):  # type: ignore[no-untyped-def]
    """Wake two helpers or fewer; each of them wakes two more while there is room for them."""
    for _ in range(min(most, 2)):
        asleep = _look(box, _ASLEEP)
        while asleep > 0:
            if _take(box, _ASLEEP, asleep, asleep - 1):
                _sem_post(box + 8 * _SLEEP)
                break
            asleep = _look(box, _ASLEEP)


@_jitable
def close(box, patience):  # type: ignore[no-untyped-def]
    """Let no more helpers in, wait for those that are inside, give the crew back, and give the first bad component.

    After `patience` nanoseconds, unless that is negative, the gather is left as it is: UNFINISHED.
    """
    _add(box, _SERIAL, 1)
    return wait(box, patience)


@_jitable
def wait(box, patience):  # type: ignore[no-untyped-def]
    """The rest of `close`, for a gather that it has left."""
    looks = 0
    until = 0
    while _look(box, _INSIDE) != 0:
        if patience == 0:
            return UNFINISHED
        looks += 1
        if looks < 1000:
            _pause()
        else:
            _sched_yield()  # the helper's core may be this one
            if patience >= 0:
                now = _now()
                if until == 0:
                    until = now + patience
                elif now >= until:
                    return UNFINISHED
    bad = _look(box, _BAD)
    ended(box)
    _swap(box, _OWNER, 0)
    return bad


@_jitable
def join(box, last):  # type: ignore[no-untyped-def]
    """For a helper that has done `last`: wait for another gather and go in. Its serial; negative for the end."""
    until = 0
    looks = 0
    slept = False
    while True:
        serial = _look(box, _SERIAL)
        if serial < 0:
            return serial
        if serial & 1 and serial != last:
            last = serial
            _add(box, _INSIDE, 1)
            if _look(box, _SERIAL) == serial:
                left = -1 - _add(box, _JOINED, 1)
                if left >= 0:
                    if slept and left > 0:
                        _wake(box, left)
                    return serial
            _add(box, _INSIDE, -1)
        looks += 1
        if looks % _LOOKS == 0:
            now = _now()
            if until == 0:
                until = now + _look(box, _SPIN)
            elif now > until:
                _sleep(box, serial)
                slept = True
                until = 0
        _pause()


@_jitable
def _sleep(box, serial):  # type: ignore[no-untyped-def]
    _add(box, _ASLEEP, 1)
    if _look(box, _SERIAL) != serial:
        # Something came meanwhile. Who does not find itself among the sleepers is about to be woken.
        asleep = _look(box, _ASLEEP)
        while asleep > 0:
            if _take(box, _ASLEEP, asleep, asleep - 1):
                return
            asleep = _look(box, _ASLEEP)
    while _sem_wait(box + 8 * _SLEEP) != 0:
        pass  # a signal


@_jitable
def finish(box):  # type: ignore[no-untyped-def]
    """Let the helpers end, once nobody leads; whoever wants to lead from now on is told that there is no crew."""
    while not _take(box, _OWNER, 0, 1):
        _sched_yield()
    _swap(box, _SERIAL, _END)
    while _look(box, _ASLEEP) > 0:
        _wake(box, 2)
    _swap(box, _OWNER, 0)


@_jitable
def leave(box):  # type: ignore[no-untyped-def]
    """A helper reads nothing more of the gather."""
    _add(box, _INSIDE, -1)


@_jitable
def take(box, count):  # type: ignore[no-untyped-def]
    """Whether one of `count` parts is left: the caller's now, from the front for the leader, from the back for helpers.

    So that every core is likely to have the memory again that it had in the gather before.
    """
    return _add(box, _TAKEN, 1) < count


@_jitable
def from_back(box):  # type: ignore[no-untyped-def]
    """How many parts helpers had before: once for each that a helper takes."""
    return _add(box, _BACK, 1)


@_jitable
def found_bad(box, component):  # type: ignore[no-untyped-def]
    """Say that the component is bad."""
    _least(box, _BAD, component)


@_jitable
def note_in(box):  # type: ignore[no-untyped-def]
    """The address of the note about the gather, some int64."""
    return box + 8 * _NOTE


@_jitable
def setting(box, number):  # type: ignore[no-untyped-def]
    """One of the crew's settings."""
    return _look(box, _SETTINGS + number)


class LeftGather(Unfinished):
    """A gather that its leader has left, for a helper has not given back its part."""

    def __init__(self, crew: Crew, arrays: tuple[object, ...]) -> None:
        super().__init__("a helper has not given back its part of a gather")
        self._crew = crew
        self._arrays = arrays
        self._lock = Lock()
        self._bad: int | None = None

    def wait(self) -> int:
        """See `Unfinished.wait`."""
        while True:
            with self._lock:
                self._look()
            if self._bad is not None:
                return self._bad
            sleep(_POLL_S)

    def settle(self) -> None:
        """Give the crew back if the gather is over; returns at once."""
        if self._lock.acquire(blocking=False):
            try:
                self._look()
            finally:
                self._lock.release()

    def _look(self) -> None:
        if self._bad is None:
            bad = self._crew.look_again()
            if bad != UNFINISHED:
                self._bad = bad
                self._arrays = ()
                self._crew.left.discard(self)


class Crew:
    """A box and its helpers, threads that run `attend(box)`, compiled and without the GIL, until `finish(box)`.

    `settings` are for those who lead, and may be changed. `look_again` is `wait(box, 0)`, compiled, and `left` holds
    the gather that was left, while there is one.
    """

    def __init__(
        self,
        attend: Callable[[int], object],
        finish: Callable[[int], object],
        look_again: Callable[[int], int],
        settings: Sequence[int],
    ) -> None:
        self._attend = attend
        self._finish = finish
        self._look_again = look_again
        self.left: set[LeftGather] = set()
        self._lock = Lock()
        self._threads: list[Thread] = []
        self._ended = False
        self._room: NDArray[np.int64] = np.zeros(_ITEMS + _LINES // 8, np.int64)
        self.box = -(-self._room.ctypes.data // _LINES) * _LINES
        start = (self.box - self._room.ctypes.data) // 8
        self._items = self._room[start : start + _ITEMS]
        self._items[_SPIN] = _SPIN_NS
        self.settings = self._items[_SETTINGS : _SETTINGS + len(settings)]
        self.settings[:] = settings
        if ctypes.CDLL(None).sem_init(ctypes.c_void_p(self.box + 8 * _SLEEP), 0, 0) != 0:
            raise OSError("the C library has no semaphores")
        atexit.register(self.end)

    def look_again(self) -> int:
        """The first bad component, or -1, of the gather that was left, if it is over, else UNFINISHED."""
        return self._look_again(self.box)

    @property
    def helpers(self) -> int:
        """How many there are."""
        return len(self._threads)

    def grow(self, helpers: int) -> None:
        """Have at least so many helpers, unless the crew has ended."""
        with self._lock:
            while len(self._threads) < helpers and not self._ended:
                thread = Thread(target=self._attend, args=(self.box,), name="gather-helper", daemon=True)
                thread.start()
                self._threads.append(thread)
                self._items[_HELPERS] += 1

    def end(self) -> None:
        """Let the helpers end, once the gather is done that they have; later ones are done by who leads alone."""
        for left in tuple(self.left):
            left.wait()
        with self._lock:
            self._ended = True
            self._finish(self.box)
            for thread in self._threads:
                thread.join()
