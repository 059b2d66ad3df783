"""How many large bodies are read at a time; the others wait in the order in which they came.

To read a thousand bodies at once takes the memory of all of them and finishes none: in the end all are refused, after
most of the work was done. So a few are read, and only while the memory budget has room for them and for answers as
long, while the others stay with their senders, to whom it looks like a slow network. A body that arrives slowly is not
counted, however large it is announced, so that it does not block the others.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol

from app.dispatch.request_thread_pool import ClientGone
from app.errors import GatherError
from app.memory.budget import SMALL_REQUEST_BYTES, Budget, MemoryReservation

MAX_BODY_READS: Final = 8
TICK_S: Final = 0.02
ACTIVE_BYTES: Final = 1 << 16
"""A body that brings fewer bytes in a tick is not counted: 3 MB a second."""


_CHECKED_PER_TICK: Final = 64
"""Waiting bodies checked for closed connections in a tick: a connection that is not read reports nothing."""


class IncomingBody(Protocol):
    """A body that is being received. `on_disconnect` is called when its client goes, if the connection is read."""

    on_disconnect: Callable[[], None] | None

    @property
    def received(self) -> int:
        """Bytes that have come."""
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
        self._unproven = budget.total // body_reads  # bytes that are counted at most for a body just begun
        self.waiting: deque[_WaitingBody] = deque()
        self._reading: dict[IncomingBody, _BodyRead] = {}
        self._unanswered: dict[MemoryReservation, int] = {}  # what each holds once its answer is as long as its body
        self._ticking = False
        self._next_check = 0  # of the waiting bodies, the next to be checked

    def full(self, queue: int) -> bool:
        """Whether `queue` bodies, at least one, wait already."""
        return len(self.waiting) >= max(queue, 1)

    async def acquire(self, body: IncomingBody, size: int = 0) -> None:
        """Wait until `body`, announced to have `size` bytes (0: unknown), may be read; `release` must follow.

        Raises overloaded where that takes longer than `queue_timeout` seconds, ClientGone where its client goes first.
        """
        both = 2 * size if 2 * size > SMALL_REQUEST_BYTES else 0
        if self.waiting or len(self._reading) >= self.body_reads or not self._fits(both, self._planned()):
            waiting = _WaitingBody(body, both, asyncio.get_running_loop().create_future())
            self.waiting.append(waiting)
            body.on_disconnect = waiting.abandon
            if not self._ticking:
                self._ticking = True
                asyncio.get_running_loop().call_later(TICK_S, self._tick)
            try:
                async with asyncio.timeout(self.queue_timeout):
                    await waiting.future
            except TimeoutError:
                detail = f"there was no room for the body of this request within {self.queue_timeout:g} s"
                facts = {"limit": "queue_timeout"}
                raise GatherError("overloaded", detail, facts=facts, retry_after=1) from None
            finally:
                body.on_disconnect = None
                with suppress(ValueError):
                    self.waiting.remove(waiting)
        self._reading[body] = _BodyRead(both, min(both, self._unproven))

    def expect_answer(self, reservation: MemoryReservation, size: int) -> None:
        """A body of `size` bytes has been read for the request of `reservation`: an answer as long may follow."""
        if 2 * size > SMALL_REQUEST_BYTES:
            self._unanswered[reservation] = 2 * size

    def release(self, body: IncomingBody) -> None:
        """`body` has been read, or its client has gone."""
        if self._reading.pop(body, None) is not None and self.waiting:
            self._admit(1)

    def _planned(self) -> int:
        """Bytes of the budget that are held, or will be once those that are read briskly have been answered."""
        for reservation in [each for each in self._unanswered if not each.held]:
            del self._unanswered[reservation]
        answers = sum(max(0, both - reservation.held) for reservation, both in self._unanswered.items())
        coming = sum(max(0, read.counted - body.received) for body, read in self._reading.items())
        return self.budget.used + answers + coming

    def _fits(self, both: int, planned: int) -> bool:
        """Whether a body and its answer, `both` together, fit beside what is `planned`.

        Where nothing else is being read or unanswered, room for the body is enough: its answer may be short, and what
        is held then may be for answers whose clients read slowly.
        """
        total = self.budget.total
        return not both or planned + both <= total or (planned <= self.budget.used and planned + both // 2 <= total)

    def _admit(self, count: int) -> None:
        """Let up to `count` bodies be read that fit. Small ones, whose budget is another, pass those that do not."""
        planned = self._planned()
        blocked = False
        for waiting in tuple(self.waiting):
            if count <= 0:
                return
            if waiting.both and (blocked or not self._fits(waiting.both, planned)):
                blocked = True
                continue
            self.waiting.remove(waiting)
            if not waiting.future.done():
                waiting.future.set_result(None)
                planned += min(waiting.both, self._unproven)
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
        active = 0
        for body, read in self._reading.items():
            active += read.judge(body.received)
        self._admit(self.body_reads - active)
        if self.waiting:
            self._ticking = True
            asyncio.get_running_loop().call_later(TICK_S, self._tick)


class _BodyRead:
    """A body that is being read. `both` are its bytes and those of an answer as long, of which `counted` count now."""

    __slots__ = ("before", "both", "counted")

    def __init__(self, both: int, counted: int) -> None:
        self.both = both
        self.counted = counted
        self.before = -1  # bytes that had come at the last tick; -1 for a new body

    def judge(self, received: int) -> bool:
        """Whether it comes briskly, so that it counts as a whole until the next tick, or has just begun."""
        active = self.before < 0 or received - self.before >= ACTIVE_BYTES
        if self.before >= 0:
            self.counted = self.both if active else 0
        self.before = received
        return active


class _WaitingBody:
    """A waiting body, the bytes that it and an answer as long take, and the future that its reader awaits."""

    __slots__ = ("body", "both", "future")

    def __init__(self, body: IncomingBody, both: int, future: asyncio.Future[None]) -> None:
        self.body = body
        self.both = both
        self.future = future

    def abandon(self) -> None:
        """The client has gone: raise ClientGone to the reader."""
        if not self.future.done():
            self.future.set_exception(ClientGone())
