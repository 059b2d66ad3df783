"""How many large bodies are read at a time; the others wait in the order in which they came.

To read a thousand bodies at once takes the memory of all of them and finishes none: in the end all are refused, after
most of the work was done. So a few are read, and only while the memory budget has room for them and for answers as
long; the others stay with their senders, to whom it looks like a slow network. A body that brings little is not
counted, however large it is announced, so that it does not block the others.
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
"""A body that brings fewer bytes in a tick is not counted: 3 MB a second. One that has waited for a tick has so many in
its socket, if its sender sends."""
_TICKS_AHEAD: Final = 50
"""Of a body that is being read, room is kept for what it brings in so many ticks at its present rate, a second."""
_SLOW_READERS_S: Final = 1.0
"""Without anything given back, after which what is held is taken to be for answers whose clients read slowly."""
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
        self.waiting: deque[_WaitingBody] = deque()
        self._reading: dict[IncomingBody, _BodyRead] = {}
        self._unanswered: dict[MemoryReservation, int] = {}  # bytes of the body and of an answer as long
        self._given_back = 0.0  # when a tick found less held than the one before
        self._used = 0
        self._ticking = False
        self._next_check = 0  # of the waiting bodies, the next to be checked

    def full(self, queue: int, size: int | None) -> bool:
        """Whether a body of `size` bytes would have to wait behind `queue` others, at least one."""
        waits = not _is_small(size) or len(self._reading) >= self.body_reads
        return waits and len(self.waiting) >= max(queue, 1)

    async def acquire(self, body: IncomingBody, size: int | None, patience: float = inf) -> None:
        """Wait until `body`, announced to have `size` bytes if that is known, may be read; `release` must follow.

        Raises overloaded where that takes longer than `queue_timeout` seconds, deadline_exceeded where it takes longer
        than `patience`, ClientGone where its client goes first.
        """
        waiting = _WaitingBody(body, size)
        behind = self.waiting and not waiting.small
        if not behind and len(self._reading) < self.body_reads and self._fits(waiting, self._planned(waiting)):
            self._reading[body] = _BodyRead(waiting)
            return
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
            self._admit(1)

    def _planned(self, waiting: _WaitingBody | None = None) -> int:
        """Bytes of the budget that are held, or soon will be: of bodies that come briskly, and of answers.

        For a small body, of another budget, nobody needs to know.
        """
        if waiting is not None and waiting.small:
            return 0
        for reservation in [each for each in self._unanswered if not each.held]:  # their requests have ended
            del self._unanswered[reservation]
        answers = sum(max(0, both - reservation.held) for reservation, both in self._unanswered.items())
        coming = sum(max(0, read.counted - _charged(body.received)) for body, read in self._reading.items())
        return self.budget.used + answers + coming

    def _fits(self, waiting: _WaitingBody, planned: int) -> bool:
        """Whether a body and its answer fit beside what is `planned`.

        Where no other body comes and all that is held is for answers, room for the body is enough, since its own
        answer may be short: if both together never fit, or nothing was given back for a while, for clients read slowly.
        """
        total, both = self.budget.total, waiting.needs()
        if both == 0 or planned + both <= total:
            return True
        if planned > self.budget.used or planned + both // 2 > total:
            return False
        return both > total or monotonic() - max(self._given_back, waiting.begun) >= _SLOW_READERS_S

    def _admit(self, count: int) -> None:
        """Let up to `count` bodies be read that fit. Small ones, whose budget is another, pass those that do not."""
        planned = self._planned()
        blocked = False
        for waiting in tuple(self.waiting):
            if count <= 0:
                return
            if waiting.future.done():
                continue  # its client has gone
            blocked = blocked or not self._fits(waiting, planned)
            if blocked and not waiting.small:
                continue
            read = self._reading[waiting.body] = _BodyRead(waiting)
            planned += read.counted
            self.waiting.remove(waiting)
            waiting.future.set_result(None)
            count -= 1

    def _tick(self) -> None:
        self._ticking = False
        for _ in range(min(len(self.waiting), _CHECKED_PER_TICK)):
            waiting = self.waiting[self._next_check % len(self.waiting)]
            self._next_check += 1
            if waiting.body.client_has_gone():
                waiting.abandon()
        if not self.waiting:
            return
        if self.budget.used < self._used:
            self._given_back = monotonic()
        self._used = self.budget.used
        active = 0
        for body, read in self._reading.items():
            active += read.judge(body.received)
        self._admit(self.body_reads - active)
        if self.waiting:
            self._ticking = True
            asyncio.get_running_loop().call_later(TICK_S, self._tick)


class _WaitingBody:
    """A body before it is read: `both` are its bytes and those of an answer as long, 0 where they are unknown or of the
    budget for `small` requests. Its reader awaits `future`.
    """

    __slots__ = ("begun", "body", "both", "future", "small")

    future: asyncio.Future[None]

    def __init__(self, body: IncomingBody, size: int | None) -> None:
        self.begun = monotonic()
        self.body = body
        self.small = _is_small(size)
        self.both = 0 if size is None or self.small else 2 * size

    def needs(self) -> int:
        """The room that it needs: none where its sender only claims to send."""
        waited = monotonic() - self.begun >= TICK_S
        return 0 if waited and self.body.received + self.body.unread() < ACTIVE_BYTES else self.both

    def abandon(self) -> None:
        """The client has gone: raise ClientGone to the reader."""
        if not self.future.done():
            self.future.set_exception(ClientGone())


class _BodyRead:
    """A body that is being read: room is kept for `counted` bytes, of itself and its answer."""

    __slots__ = ("before", "both", "counted")

    def __init__(self, waiting: _WaitingBody) -> None:
        self.both = waiting.both
        self.counted = waiting.needs()
        self.before = -1  # bytes that had come at the last tick; -1 for a new body

    def judge(self, received: int) -> bool:
        """True for a body just begun, or one that brought ACTIVE_BYTES since the last tick; at a tick."""
        brought, self.before = received - self.before, received
        if brought > received:
            return True
        active = brought >= ACTIVE_BYTES
        self.counted = min(self.both, 2 * (received + _TICKS_AHEAD * brought)) if active else 0
        return active


def _is_small(size: int | None) -> bool:
    """Whether a body of `size` bytes is charged to the budget for small requests."""
    return size is not None and size <= SMALL_REQUEST_BYTES


def _charged(received: int) -> int:
    """How many of the bytes `received` of a body are charged to the budget for large requests."""
    return received if received > SMALL_REQUEST_BYTES else 0
