"""Limit how many large bodies are read concurrently. The others wait in order of arrival.

Reading a thousand bodies at once would need memory for all of them and would finish none: all would be refused after
most of the work. So only a few bodies are read at a time, and only while the memory budget has room for them and for
responses of the same size. The other senders wait, as on a slow network. Only bodies that arrive briskly count: a slow
body does not block the others, whatever its announced size.
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
"""A body is brisk if at least this many bytes arrive per tick: 3 MB/s."""
JUDGED_AFTER: Final = 5
"""Ticks over which the rate of a body is measured. Bytes arrive in bursts, one per round trip."""
_AHEAD: Final = 10
"""Room is reserved for the bytes of a brisk body that will arrive within this time at its current rate. The time is a
multiple of JUDGED_AFTER ticks, and equals one second.
"""
GRACE_S: Final = 0.25
"""A waiting body counts as brisk for this many seconds; after that, only if ACTIVE_BYTES of it have arrived."""
_CHECKED_PER_TICK: Final = 64
"""Number of waiting bodies whose connections are checked per tick.

A connection that is not being read does not report its end.
"""


class IncomingBody(Protocol):
    """A body in transit. `on_disconnect` is called if its client disconnects while the connection is being read."""

    on_disconnect: Callable[[], None] | None

    @property
    def received(self) -> int:
        """Number of bytes that have arrived."""
        ...

    def unread(self) -> int:
        """Return the number of additional bytes that are waiting in the socket."""
        ...

    def ask_for_it(self) -> None:
        """Send 100-continue to a sender that is waiting for it."""
        ...

    def client_has_gone(self) -> bool:
        """Return whether the client disconnected before the end of the body.

        Polls the socket, and closes it if the client did.
        """
        ...


class BodyReadLimit:
    """The bodies being read, and the waiting ones in order of arrival.

    Use all methods from the thread of one event loop. The timer runs only while a body is waiting.
    """

    def __init__(self, budget: Budget, body_reads: int = MAX_BODY_READS, queue_timeout: float = 3600.0) -> None:
        self.budget = budget
        self.body_reads = body_reads
        self.queue_timeout = queue_timeout
        self.waiting: deque[_Body] = deque()
        self._reading: dict[IncomingBody, _Body] = {}
        self._unanswered: dict[MemoryReservation, int] = {}  # the body's bytes plus a response of the same size
        self._ticking = False
        self._ticks = 0
        self._next_check = 0  # index of the next waiting body to check

    def full(self, queue: int, size: int | None) -> bool:
        """Return whether the maximum number of bodies (`queue`, but at least one) is waiting.

        Small bodies count separately.
        """
        waiting = [each for each in self.waiting if each.small] if _is_small(size) else self.waiting
        return len(waiting) >= max(queue, 1)

    async def acquire(self, body: IncomingBody, size: int | None, patience: float = inf) -> None:
        """Wait until `body` may be read. Call `release` after the read. `size` is its announced size in bytes, or None.

        Raises overloaded after `queue_timeout` seconds, deadline_exceeded after `patience` seconds, and ClientGone if
        the client disconnects first.
        """
        waiting = _Body(body, size)
        behind = self.waiting and not waiting.small
        waiting.estimate_before_read()
        if not behind and self._free_slots() > 0 and (waiting.small or self._fits(waiting, self._planned_bytes())):
            self._reading[body] = waiting
            return
        body.ask_for_it()  # to see whether the body arrives
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
        """Record that a body of `size` bytes was read for `reservation`. A response of the same size may follow."""
        if not _is_small(size):
            self._unanswered[reservation] = 2 * size

    def begin_answer(self, reservation: MemoryReservation) -> None:
        """Record that the request of `reservation` is being answered, so it will not charge more memory."""
        self._unanswered.pop(reservation, None)

    def release(self, body: IncomingBody) -> None:
        """End the read of `body`: it is complete, or its client has disconnected."""
        if self._reading.pop(body, None) is not None and self.waiting:
            self._admit()

    def _free_slots(self) -> int:
        """Return how many more bodies may be read now."""
        return self.body_reads - sum(body.brisk for body in self._reading.values())

    def _planned_bytes(self) -> int:
        """Return the bytes of the budget that are held, or soon will be, for brisk bodies and for responses."""
        for reservation in [each for each in self._unanswered if not each.held]:  # for requests that have ended
            del self._unanswered[reservation]
        answers = sum(max(0, both - reservation.held) for reservation, both in self._unanswered.items())
        coming = sum(max(0, body.counted - _charged_bytes(body.incoming.received)) for body in self._reading.values())
        return self.budget.used + answers + coming

    def _fits(self, waiting: _Body, planned: int) -> bool:
        """Return whether a body and its response fit in addition to `planned` bytes.

        Room for the body alone is enough in two cases. First, when no other body is arriving quickly, all held bytes
        belong to responses, and the body has already waited for half of its timeout. The clients of those responses are
        then reading slowly, and this body's own response may turn out to be short. Second, when body and response
        together exceed the whole budget, so that waiting would never succeed.
        """
        total, both = self.budget.total, waiting.counted
        if both == 0 or planned + both <= total:
            return True
        if planned > self.budget.used or planned + both // 2 > total:
            return False
        return both > total or waiting.waiting_time() >= self.queue_timeout / 2

    def _admit(self) -> None:
        """Start reading waiting bodies while there is room.

        Small bodies have their own budget and may overtake large ones.
        """
        free, planned = self._free_slots(), self._planned_bytes()
        blocked = False
        for waiting in tuple(self.waiting):
            if free <= 0:
                return
            if waiting.future.done():
                continue  # its client has gone
            if blocked and not waiting.small:
                continue
            waiting.estimate_before_read()
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
                body.estimate_during_read(self.budget.total // self.body_reads)
        self._admit()
        if self.waiting:
            self._ticking = True
            asyncio.get_running_loop().call_later(TICK_S, self._tick)


class _Body:
    """A body that is waiting or being read. While it is `brisk`, room for `counted` of its bytes is reserved.

    `both` is the size of the body plus a response of the same size. It is 0 if the size is unknown, or if the body is
    charged to the budget for `small` requests. If the body must wait, its reader awaits `future`.
    """

    __slots__ = ("before", "begun", "both", "brisk", "counted", "future", "incoming", "small")

    future: asyncio.Future[None]

    def __init__(self, incoming: IncomingBody, size: int | None) -> None:
        self.before: int | None = None  # bytes received at the last check during the read; None before the first check
        self.begun = monotonic()
        self.incoming = incoming
        self.small = _is_small(size)
        self.both = 0 if size is None or self.small else 2 * size
        self.brisk = False
        self.counted = 0

    def waiting_time(self) -> float:
        """Return the seconds for which the body has waited."""
        return monotonic() - self.begun

    def estimate_before_read(self) -> None:
        """Update `brisk` and `counted` before the body is read. A sender may announce a body and not send it."""
        come = self.incoming.received + self.incoming.unread()
        self.brisk = self.waiting_time() < GRACE_S or come >= ACTIVE_BYTES
        self.counted = self.both if self.brisk else 0

    def estimate_during_read(self, least: int) -> None:
        """Update `brisk` and `counted` while the body is read. `counted` is at least `least` unless the whole body is
        shorter.

        A body that has been read for less than JUDGED_AFTER ticks is unchanged.
        """
        received = self.incoming.received
        if self.before is not None:
            brought = received - self.before
            self.brisk = brought >= JUDGED_AFTER * ACTIVE_BYTES
            self.counted = min(self.both, max(least, 2 * (received + _AHEAD * brought))) if self.brisk else 0
        self.before = received

    def abandon(self) -> None:
        """Raise ClientGone in the reader, because the client has disconnected."""
        if not self.future.done():
            self.future.set_exception(ClientGone())


def _is_small(size: int | None) -> bool:
    """Return whether a body of `size` bytes is charged to the budget for small requests."""
    return size is not None and size <= SMALL_REQUEST_BYTES


def _charged_bytes(received: int) -> int:
    """Return how many of the `received` bytes of a body are charged to the budget for large requests."""
    return received if received > SMALL_REQUEST_BYTES else 0
