"""Calls whose message does not come in time are ended: one timer for all of them, as each has the same time."""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import Any, Final

_EARLY_S: Final = 0.002
"""A timer of the event loop may be so much early."""


class MessageTimeouts:
    """Ends calls that wait for their message for more than `seconds`."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._waiting: dict[asyncio.Task[Any], float] = {}  # since when; the one that has waited the longest first
        self._overdue: set[asyncio.Task[Any]] = set()
        self._has_timer = False

    def begin(self, task: asyncio.Task[Any]) -> None:
        """The call of `task` waits for its message from now on; it is cancelled when it has waited too long."""
        self._waiting[task] = perf_counter()
        if not self._has_timer:
            self._set_timer(self.seconds)

    def end(self, task: asyncio.Task[Any]) -> None:
        """It waits no longer."""
        self._waiting.pop(task, None)

    def ended(self, task: asyncio.Task[Any]) -> bool:
        """Whether a call that was cancelled has waited too long, and its cancellation is over with that."""
        if task not in self._overdue:
            return False
        self._overdue.discard(task)
        return task.uncancel() == 0

    def _set_timer(self, seconds: float) -> None:
        self._has_timer = True
        asyncio.get_running_loop().call_later(seconds, self._look)

    def _look(self) -> None:
        """Cancel the calls that have waited too long, and look again when the next one will have."""
        self._has_timer = False
        latest = perf_counter() + _EARLY_S - self.seconds
        while self._waiting:
            task, since = next(iter(self._waiting.items()))
            if since > latest:
                self._set_timer(since - latest)
                break
            del self._waiting[task]
            self._overdue.add(task)
            task.cancel()
