"""How many large bodies are read at a time: as many as bring something, the others wait their turn.

To read a thousand bodies at once takes the memory of all of them and finishes none: then all are refused in the end,
after most of the work was done. So a few are read, in the order in which they came, while the others stay with their
senders, who feel it as a slow network. A sender who brings little takes no lane from the others, however much it has
announced.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol

from app.dispatch.request_thread_pool import ClientGone
from app.errors import GatherError

LANES: Final = 8
TICK_S: Final = 0.02
BRISK: Final = 1 << 16
"""Bytes that a body has to bring within a tick to be counted: 3 MB a second."""


_LOOKED_AT: Final = 64
"""Waiting bodies whose connections are looked at in a tick: a connection that is not read says nothing by itself."""


class Arriving(Protocol):
    """A body on its way. `on_disconnect` is called when its client goes, which does not show while it is not read."""

    on_disconnect: Callable[[], None] | None

    @property
    def received(self) -> int:
        """Bytes that have come."""
        ...

    def departed(self) -> bool:
        """Whether its client has gone and left it incomplete; asks the system, and closes the connection then."""
        ...


class BodyReadLimit:
    """The bodies that are being read, and those that wait for their turn, in the order in which they came.

    All methods are for one event loop, from its own thread. The timer runs only while somebody waits.
    """

    def __init__(self, body_reads: int = LANES, patience: float = 3600.0) -> None:
        self.body_reads = body_reads
        self.patience = patience
        self.waiting: deque[_Turn] = deque()
        self._seen: dict[Arriving, int] = {}  # bytes at the last tick, -1 for those that have come since
        self._ticking = False
        self._next = 0  # of those that wait, to be looked at

    def full(self, queue: int) -> bool:
        """Whether every lane is taken, and `queue` bodies, or one, wait already."""
        return len(self._seen) >= self.body_reads and len(self.waiting) >= max(queue, 1)

    async def enter(self, body: Arriving) -> None:
        """Wait until `body` may be read; `leave` is to follow, whatever comes of it.

        Raises overloaded where that takes longer than `patience` seconds, and ClientGone where its client goes first.
        """
        if self.waiting or len(self._seen) >= self.body_reads:
            turn = _Turn(body, asyncio.get_running_loop().create_future())
            self.waiting.append(turn)
            body.on_disconnect = turn.abandon
            if not self._ticking:
                self._ticking = True
                asyncio.get_running_loop().call_later(TICK_S, self._tick)
            try:
                async with asyncio.timeout(self.patience):
                    await turn.future
            except TimeoutError:
                detail = f"there was no room for the body of this request within {self.patience:g} s"
                facts = {"limit": "queue_timeout"}
                raise GatherError("overloaded", detail, facts=facts, retry_after=1) from None
            finally:
                body.on_disconnect = None
                with suppress(ValueError):
                    self.waiting.remove(turn)
        self._seen[body] = -1

    def leave(self, body: Arriving) -> None:
        """`body` is here, or will never be."""
        if self._seen.pop(body, None) is not None and self.waiting:
            self._let_in(1)

    def _let_in(self, count: int) -> None:
        while count > 0 and self.waiting:
            turn = self.waiting.popleft().future
            if not turn.done():
                turn.set_result(None)
                count -= 1

    def _tick(self) -> None:
        self._ticking = False
        for _ in range(min(len(self.waiting), _LOOKED_AT)):
            turn = self.waiting[self._next % len(self.waiting)]
            self._next += 1
            if turn.body.departed():
                turn.abandon()
        if not self.waiting:
            return
        used = 0
        for body, before in self._seen.items():
            self._seen[body] = body.received
            used += before < 0 or body.received - before >= BRISK
        self._let_in(self.body_reads - used)
        if self.waiting:
            self._ticking = True
            asyncio.get_running_loop().call_later(TICK_S, self._tick)


class _Turn:
    """A body that waits, and the future that its reader awaits."""

    __slots__ = ("body", "future")

    def __init__(self, body: Arriving, future: asyncio.Future[None]) -> None:
        self.body = body
        self.future = future

    def abandon(self) -> None:
        """The client has gone: nobody waits any more."""
        if not self.future.done():
            self.future.set_exception(ClientGone())
