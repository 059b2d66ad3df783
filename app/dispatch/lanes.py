"""How many large bodies are read at a time: as many as bring something, the others wait their turn.

To read a thousand bodies at once takes the memory of all of them and finishes none: then all are refused in the end,
after most of the work was done. So a few are read, in the order in which they came, while the others stay with their
senders, who feel it as a slow network. A sender who brings little takes no lane from the others, however much it has
announced.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import Final, Protocol

from app.errors import GatherError

LANES: Final = 8
TICK_S: Final = 0.02
BRISK: Final = 1 << 16
"""Bytes that a body has to bring within a tick to be counted: 3 MB a second."""


class Arriving(Protocol):
    """A body on its way: how many of its bytes have come."""

    @property
    def received(self) -> int:
        """Bytes that have come."""
        ...


class Lanes:
    """The bodies that are being read, and those that wait for their turn, in the order in which they came.

    All methods are for one event loop, from its own thread. The timer runs only while somebody waits.
    """

    def __init__(self, lanes: int = LANES, patience: float = 3600.0) -> None:
        self.lanes = lanes
        self.patience = patience
        self.waiting: deque[asyncio.Future[None]] = deque()
        self._seen: dict[Arriving, int] = {}  # bytes at the last tick, -1 for those that have come since
        self._ticking = False

    def full(self, queue: int) -> bool:
        """Whether every lane is taken, and `queue` bodies, or one, wait already."""
        return len(self._seen) >= self.lanes and len(self.waiting) >= max(queue, 1)

    async def enter(self, body: Arriving) -> None:
        """Wait until `body` may be read; `leave` is to follow, whatever comes of it.

        Raises overloaded where that takes longer than `patience` seconds.
        """
        if self.waiting or len(self._seen) >= self.lanes:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.waiting.append(turn)
            if not self._ticking:
                self._ticking = True
                asyncio.get_running_loop().call_later(TICK_S, self._tick)
            try:
                async with asyncio.timeout(self.patience):
                    await turn
            except TimeoutError:
                detail = f"there was no room for the body of this request within {self.patience:g} s"
                facts = {"limit": "queue_timeout"}
                raise GatherError("overloaded", detail, facts=facts, retry_after=1) from None
            finally:
                with suppress(ValueError):
                    self.waiting.remove(turn)
        self._seen[body] = -1

    def leave(self, body: Arriving) -> None:
        """`body` is here, or will never be."""
        if self._seen.pop(body, None) is not None and self.waiting:
            self._let_in(1)

    def _let_in(self, count: int) -> None:
        while count > 0 and self.waiting:
            turn = self.waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                count -= 1

    def _tick(self) -> None:
        self._ticking = False
        if not self.waiting:
            return
        used = 0
        for body, before in self._seen.items():
            self._seen[body] = body.received
            used += before < 0 or body.received - before >= BRISK
        self._let_in(self.lanes - used)
        if self.waiting:
            self._ticking = True
            asyncio.get_running_loop().call_later(TICK_S, self._tick)
