"""How many large bodies are read at a time; the others wait in the order in which they came.

To read a thousand bodies at once takes the memory of all of them and finishes none: in the end all are refused, after
most of the work was done. So a few are read, and only while the memory budget has room for them and for answers as
long; the others stay with their senders, to whom it looks like a slow network. Only brisk bodies are counted: one that
brings little does not block the others, however large it is announced.
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
"""Bytes in a tick, from which on a body is brisk: 3 MB a second."""
JUDGED_AFTER: Final = 5
"""Ticks over which that is measured: bytes come in bursts, one for each round trip."""
_AHEAD: Final = 10
"""Room is kept for what a brisk body will bring in so many times JUDGED_AFTER ticks, a second, at its present rate."""
GRACE_S: Final = 0.25
"""Seconds for which a body that waits is taken for brisk; after them only if ACTIVE_BYTES of it have come."""
_CHECKED_PER_TICK: Final = 64
"""Waiting bodies checked for closed connections in a tick: a connection that is not read reports nothing."""


class IncomingBody(Protocol):
    """A body that is being received. `on_disconnect` is called when its client goes, if the connection is read."""

    on_disconnect: Callable[[], None] | None

    @property
    def received(self) -> int:
        """Bytes that have come."""
        ...

    def unread(self) -> int:
        """Bytes that have come behind them, and wait in the socket."""
        ...

    def ask_for_it(self) -> None:
        """Have a sender that waits to be asked for the body begin."""
        ...

    def client_has_gone(self) -> bool:
        """Whether its client has gone and left it incomplete; asks the system, and closes the connection then."""
        ...


class BodyReadLimit:
    """The bodies that are being read, and those that wait for their turn, in the order in which they came.

    All methods are for one event loop, from its own thread. The timer runs only while somebody waits.
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
        """Whether as many bodies wait as may, `queue` or one; small ones are counted by themselves."""
        waiting = [each for each in self.waiting if each.small] if _is_small(size) else self.waiting
        return len(waiting) >= max(queue, 1)

    async def acquire(self, body: IncomingBody, size: int | None, patience: float = inf) -> None:
        """Wait until `body`, announced to have `size` bytes if that is known, may be read; `release` must follow.

        Raises overloaded if that takes longer than `queue_timeout` seconds, deadline_exceeded if it takes longer
        than `patience`, ClientGone where its client goes first.
        """
        waiting = _Body(body, size)
        behind = self.waiting and not waiting.small
        waiting.look()
        if not behind and self._free() > 0 and (waiting.small or self._fits(waiting, self._planned())):
            self._reading[body] = waiting
            return
        body.ask_for_it()  # to see whether it comes
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
        """A body of `size` bytes has been read for the request of `reservation`: an answer as long may follow."""
        if not _is_small(size):
            self._unanswered[reservation] = 2 * size

    def begin_answer(self, reservation: MemoryReservation) -> None:
        """The request of `reservation` is being answered: it will not hold more."""
        self._unanswered.pop(reservation, None)

    def release(self, body: IncomingBody) -> None:
        """`body` has been read, or its client has gone."""
        if self._reading.pop(body, None) is not None and self.waiting:
            self._admit()

    def _free(self) -> int:
        """How many more bodies may be read."""
        return self.body_reads - sum(body.brisk for body in self._reading.values())

    def _planned(self) -> int:
        """Bytes of the budget that are held, or soon will be, of brisk bodies and of answers."""
        for reservation in [each for each in self._unanswered if not each.held]:  # their requests have ended
            del self._unanswered[reservation]
        answers = sum(max(0, both - reservation.held) for reservation, both in self._unanswered.items())
        coming = sum(max(0, body.counted - _charged(body.incoming.received)) for body in self._reading.values())
        return self.budget.used + answers + coming

    def _fits(self, waiting: _Body, planned: int) -> bool:
        """Whether a body and its answer fit beside what is `planned`.

        Room for the body is enough, since its answer may be short, where no other body is brisk and all that is held is
        for answers, and it has waited for half of its time, for the clients of those answers read slowly; or where the
        two can never fit together.
        """
        total, both = self.budget.total, waiting.counted
        if both == 0 or planned + both <= total:
            return True
        if planned > self.budget.used or planned + both // 2 > total:
            return False
        return both > total or waiting.waited() >= self.queue_timeout / 2

    def _admit(self) -> None:
        """Let bodies be read as there is room. Small ones, of another budget, pass those for which there is none."""
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

    `both` are its bytes and those of an answer as long, 0 where they are unknown or of the budget for `small` requests.
    Its reader awaits `future` if it has to wait.
    """

    __slots__ = ("before", "begun", "both", "brisk", "counted", "future", "incoming", "small")

    future: asyncio.Future[None]

    def __init__(self, incoming: IncomingBody, size: int | None) -> None:
        self.before: int | None = None  # bytes that had come when it was judged while it was read; None before
        self.begun = monotonic()
        self.incoming = incoming
        self.small = _is_small(size)
        self.both = 0 if size is None or self.small else 2 * size
        self.brisk = False
        self.counted = 0

    def waited(self) -> float:
        """For how many seconds it has waited."""
        return monotonic() - self.begun

    def look(self) -> None:
        """Find whether it comes, or has just begun to, before it is read: else its sender only claims to send."""
        come = self.incoming.received + self.incoming.unread()
        self.brisk = self.waited() < GRACE_S or come >= ACTIVE_BYTES
        self.counted = self.both if self.brisk else 0

    def judge(self, least: int) -> None:
        """Find whether it is brisk while it is read, and how many bytes count: at least `least`, if it is as long.

        One that has been read for less than JUDGED_AFTER ticks stays as it was.
        """
        received = self.incoming.received
        if self.before is not None:
            brought = received - self.before
            self.brisk = brought >= JUDGED_AFTER * ACTIVE_BYTES
            self.counted = min(self.both, max(least, 2 * (received + _AHEAD * brought))) if self.brisk else 0
        self.before = received

    def abandon(self) -> None:
        """The client has gone: raise ClientGone to the reader."""
        if not self.future.done():
            self.future.set_exception(ClientGone())


def _is_small(size: int | None) -> bool:
    """Whether a body of `size` bytes is charged to the budget for small requests."""
    return size is not None and size <= SMALL_REQUEST_BYTES


def _charged(received: int) -> int:
    """How many of the bytes `received` of a body are charged to the budget for large requests."""
    return received if received > SMALL_REQUEST_BYTES else 0
