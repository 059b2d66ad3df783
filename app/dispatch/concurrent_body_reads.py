"""Limits how many large bodies are read at a time; the others wait in order of arrival.

Reading a thousand bodies at once takes the memory of all of them and finishes none: in the end all are refused after
most of the work. So only a few are read, and only while the memory budget has room for them and for answers of the same
size. The other senders wait, as on a slow network. Only brisk bodies count: a slow one does not block the others,
however large it is announced.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from math import inf
from time import monotonic
from typing import Final, Protocol

from app.dispatch.request_thread_pool import ClientGone, past_deadline
from app.errors import GatherError
from app.memory.budget import SMALL_REQUEST_BYTES, Budget, MemoryReservation

MAX_BODY_READS: Final = 8
TICK_S: Final = 0.02
ACTIVE_BYTES: Final = 1 << 16
"""Bytes per tick from which a body is brisk: 3 MB a second."""
JUDGED_AFTER: Final = 5
"""Ticks over which that is measured: bytes arrive in bursts, one per round trip."""
_AHEAD: Final = 10
"""Room is kept for the bytes that a brisk body will bring in this many times JUDGED_AFTER ticks (a second) at its
present rate.
"""
GRACE_S: Final = 0.25
"""Seconds for which a waiting body counts as brisk; after them only if ACTIVE_BYTES of it have arrived."""
_CHECKED_PER_TICK: Final = 64
"""Waiting bodies checked for closed connections per tick: a connection that is not read reports nothing."""


class IncomingBody(Protocol):
    """A body in transit. `on_disconnect` is called if its client disconnects while the connection is read."""

    on_disconnect: Callable[[], None] | None

    @property
    def received(self) -> int:
        """Bytes that have arrived."""
        ...

    def unread(self) -> int:
        """Further bytes that wait in the socket."""
        ...

    def ask_for_it(self) -> None:
        """Ask a sender that waits for it (100-continue) to begin the body."""
        ...

    def client_has_gone(self) -> bool:
        """Whether its client has disconnected before the end; asks the system, and then closes the connection."""
        ...


class BodyReadLimit:
    """The bodies that are being read, and the waiting ones in order of arrival.

    All methods are for one event loop, from its own thread. The timer runs only while a body waits.
    """

    def __init__(self, budget: Budget, body_reads: int = MAX_BODY_READS, queue_timeout: float = 3600.0) -> None:
        self.budget = budget
        self.body_reads = body_reads
        self.queue_timeout = queue_timeout
        self.waiting: deque[_Body] = deque()
        self._reading: dict[IncomingBody, _Body] = {}
        self._unanswered: dict[MemoryReservation, int] = {}  # bytes of the body and of an answer as long
        self._ticking = False
        self._ticks = 0
        self._next_check = 0  # of the waiting bodies, the next to be checked

    def full(self, queue: int, size: int | None) -> bool:
        """Whether the limit of waiting bodies, `queue` or one, is reached; small ones are counted separately."""
        waiting = [each for each in self.waiting if each.small] if _is_small(size) else self.waiting
        return len(waiting) >= max(queue, 1)

    async def acquire(self, body: IncomingBody, size: int | None, patience: float = inf) -> None:
        """Wait until `body`, announced to have `size` bytes if that is known, may be read; `release` must follow.

        Raises overloaded after `queue_timeout` seconds, deadline_exceeded after `patience`, ClientGone if its client
        disconnects first.
        """
        waiting = _Body(body, size)
        behind = self.waiting and not waiting.small
        waiting.look()
        if not behind and self._free() > 0 and (waiting.small or self._fits(waiting, self._planned())):
            self._reading[body] = waiting
            return
        body.ask_for_it()  # to see whether it arrives
        waiting.future = asyncio.get_running_loop().create_future()
        self.waiting.append(waiting)
        body.on_disconnect = waiting.abandon
        if not self._ticking:
            self._ticking = True
            asyncio.get_running_loop().call_later(TICK_S, self._tick)
        try:
            async with asyncio.timeout(min(self.queue_timeout, patience)):
                await waiting.future
        except BaseException as failure:
            self._reading.pop(body, None)
            if not isinstance(failure, TimeoutError):
                raise
            if patience < self.queue_timeout:
                raise past_deadline() from None
            detail = f"there was no room for the body of this request within {self.queue_timeout:g} s"
            raise GatherError("overloaded", detail, facts={"limit": "queue_timeout"}, retry_after=1) from None
        finally:
            body.on_disconnect = None
            with suppress(ValueError):
                self.waiting.remove(waiting)

    def expect_answer(self, reservation: MemoryReservation, size: int) -> None:
        """A body of `size` bytes has been read for the request of `reservation`: an answer of that size may follow."""
        if not _is_small(size):
            self._unanswered[reservation] = 2 * size

    def begin_answer(self, reservation: MemoryReservation) -> None:
        """The request of `reservation` is being answered: it will not charge more."""
        self._unanswered.pop(reservation, None)

    def release(self, body: IncomingBody) -> None:
        """`body` has been read, or its client has disconnected."""
        if self._reading.pop(body, None) is not None and self.waiting:
            self._admit()

    def _free(self) -> int:
        """How many more bodies may be read."""
        return self.body_reads - sum(body.brisk for body in self._reading.values())

    def _planned(self) -> int:
        """Bytes of the budget that are held, or soon will be, for brisk bodies and for answers."""
        for reservation in [each for each in self._unanswered if not each.held]:  # their requests have ended
            del self._unanswered[reservation]
        answers = sum(max(0, both - reservation.held) for reservation, both in self._unanswered.items())
        coming = sum(max(0, body.counted - _charged(body.incoming.received)) for body in self._reading.values())
        return self.budget.used + answers + coming

    def _fits(self, waiting: _Body, planned: int) -> bool:
        """Whether a body and its answer fit in addition to `planned`.

        Room for the body alone is enough in two cases. First, no other body is brisk, all held bytes are for answers,
        and the body has waited for half of its time: the clients of those answers read slowly, and its own answer may
        be short. Second, body and answer can never fit together.
        """
        total, both = self.budget.total, waiting.counted
        if both == 0 or planned + both <= total:
            return True
        if planned > self.budget.used or planned + both // 2 > total:
            return False
        return both > total or waiting.waited() >= self.queue_timeout / 2

    def _admit(self) -> None:
        """Start reading bodies while there is room. Small ones, which have another budget, may overtake large ones."""
        free, planned = self._free(), self._planned()
        blocked = False
        for waiting in tuple(self.waiting):
            if free <= 0:
                return
            if waiting.future.done():
                continue  # its client has gone
            if blocked and not waiting.small:
                continue
            waiting.look()
            if not self._fits(waiting, planned):
                blocked = True
                continue
            self._reading[waiting.incoming] = waiting
            planned += waiting.counted
            self.waiting.remove(waiting)
            waiting.future.set_result(None)
            free -= waiting.brisk

    def _tick(self) -> None:
        self._ticking = False
        for _ in range(min(len(self.waiting), _CHECKED_PER_TICK)):
            waiting = self.waiting[self._next_check % len(self.waiting)]
            self._next_check += 1
            if waiting.incoming.client_has_gone():
                waiting.abandon()
        if not self.waiting:
            return
        self._ticks += 1
        if self._ticks % JUDGED_AFTER == 0:
            for body in self._reading.values():
                body.judge(self.budget.total // self.body_reads)
        self._admit()
        if self.waiting:
            self._ticking = True
            asyncio.get_running_loop().call_later(TICK_S, self._tick)


class _Body:
    """A body that waits to be read, or is being read. Room is kept for `counted` bytes of it while it is `brisk`.

    `both` is the size of it and of an answer as long, 0 if unknown or if it is in the budget for `small` requests. Its
    reader awaits `future` if it has to wait.
    """

    __slots__ = ("before", "begun", "both", "brisk", "counted", "future", "incoming", "small")

    future: asyncio.Future[None]

    def __init__(self, incoming: IncomingBody, size: int | None) -> None:
        self.before: int | None = None  # bytes that had arrived when it was last checked while being read; None before
        self.begun = monotonic()
        self.incoming = incoming
        self.small = _is_small(size)
        self.both = 0 if size is None or self.small else 2 * size
        self.brisk = False
        self.counted = 0

    def waited(self) -> float:
        """Seconds that it has waited."""
        return monotonic() - self.begun

    def look(self) -> None:
        """Update whether it arrives, or has just begun to, before it is read. Its sender may only claim to send."""
        come = self.incoming.received + self.incoming.unread()
        self.brisk = self.waited() < GRACE_S or come >= ACTIVE_BYTES
        self.counted = self.both if self.brisk else 0

    def judge(self, least: int) -> None:
        """Update whether it is brisk while it is read, and how many bytes count: at least `least`, if it is as long.

        A body that has been read for less than JUDGED_AFTER ticks is unchanged.
        """
        received = self.incoming.received
        if self.before is not None:
            brought = received - self.before
            self.brisk = brought >= JUDGED_AFTER * ACTIVE_BYTES
            self.counted = min(self.both, max(least, 2 * (received + _AHEAD * brought))) if self.brisk else 0
        self.before = received

    def abandon(self) -> None:
        """The client has disconnected: raise ClientGone to the reader."""
        if not self.future.done():
            self.future.set_exception(ClientGone())


def _is_small(size: int | None) -> bool:
    """Whether a body of `size` bytes is charged to the budget for small requests."""
    return size is not None and size <= SMALL_REQUEST_BYTES


def _charged(received: int) -> int:
    """How many of the `received` bytes of a body are charged to the budget for large requests."""
    return received if received > SMALL_REQUEST_BYTES else 0
