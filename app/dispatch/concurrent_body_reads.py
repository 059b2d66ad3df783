"""How many large bodies are read at a time; the others wait in the order in which they came.

To read a thousand bodies at once takes the memory of all of them and finishes none: in the end all are refused, after
most of the work was done. So a few are read, while the others stay with their senders, to whom it looks like a slow
network. A body that arrives slowly is not counted, however large it is announced, so that it does not block the others.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol

from app.dispatch.request_thread_pool import ClientGone
from app.errors import GatherError

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

    def __init__(self, body_reads: int = MAX_BODY_READS, queue_timeout: float = 3600.0) -> None:
        self.body_reads = body_reads
        self.queue_timeout = queue_timeout
        self.waiting: deque[_WaitingBody] = deque()
        self._received: dict[IncomingBody, int] = {}  # bytes at the last tick, -1 for new bodies
        self._ticking = False
        self._next_check = 0  # of the waiting bodies, the next to be checked

    def full(self, queue: int) -> bool:
        """Whether as many bodies as may be are read, and `queue` of them, at least one, wait already."""
        return len(self._received) >= self.body_reads and len(self.waiting) >= max(queue, 1)

    async def acquire(self, body: IncomingBody) -> None:
        """Wait until `body` may be read; `release` must follow.

        Raises overloaded where that takes longer than `queue_timeout` seconds, ClientGone where its client goes first.
        """
        if self.waiting or len(self._received) >= self.body_reads:
            waiting = _WaitingBody(body, asyncio.get_running_loop().create_future())
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
        self._received[body] = -1

    def release(self, body: IncomingBody) -> None:
        """`body` has been read, or its client has gone."""
        if self._received.pop(body, None) is not None and self.waiting:
            self._admit(1)

    def _admit(self, count: int) -> None:
        while count > 0 and self.waiting:
            future = self.waiting.popleft().future
            if not future.done():
                future.set_result(None)
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
        for body, before in self._received.items():
            self._received[body] = body.received
            active += before < 0 or body.received - before >= ACTIVE_BYTES
        self._admit(self.body_reads - active)
        if self.waiting:
            self._ticking = True
            asyncio.get_running_loop().call_later(TICK_S, self._tick)


class _WaitingBody:
    """A waiting body, and the future that its reader awaits."""

    __slots__ = ("body", "future")

    def __init__(self, body: IncomingBody, future: asyncio.Future[None]) -> None:
        self.body = body
        self.future = future

    def abandon(self) -> None:
        """The client has gone: raise ClientGone to the reader."""
        if not self.future.done():
            self.future.set_exception(ClientGone())
