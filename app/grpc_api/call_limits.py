"""Slots that limit the calls in flight, and the messages being read of calls that need no key.

Once a read has begun, gRPC receives the whole message, however slowly the caller sends it. So only a few messages of
calls that need no key are read concurrently. Before that, a call holds at most the first window of its stream,
`FIRST_WINDOW` bytes.

A call without a slot waits for one. Honest messages have a few bytes and arrive together with their call. So a call
whose message does not arrive within a moment is ended if others wait, and the newest waiting call is served first.
Callers that send half a message, or none, cannot block the health checks of others.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from time import perf_counter
from typing import Any, Final

FIRST_WINDOW: Final = (1 << 16) - 1
"""Bytes that a caller may send on a stream before its message is read: HTTP/2's initial window."""
MOST_PUBLIC_BYTES: Final = 1 << 14
"""Maximum size of a message of a call that needs no key; it contains at most the name of a service."""
MOST_SECONDS: Final = 2.0
"""Maximum seconds that a message may take to arrive if no other call waits for its slot."""
_MOMENT_S: Final = 0.01
"""Seconds after which a message that has not arrived is late."""
_LAST_LOOK_S: Final = 0.005
"""Seconds to wait before late calls are ended, to process messages that arrived while the event loop was busy."""
_MOST_WAIT_S: Final = 5.0
"""Maximum seconds that a call waits for a slot."""


class Places:
    """Slots for `most` tasks. Up to `most_waiting` others wait for a slot, each for up to `seconds`.

    With `newest_first`, the newest waiting task is served first, and the oldest one gives up if too many wait.
    """

    def __init__(self, most: int, most_waiting: int, seconds: float, *, newest_first: bool = False) -> None:
        self.most = most
        self.taken: dict[asyncio.Task[Any], float] = {}
        """The tasks with a slot, with the time at which they got it; the oldest comes first."""
        self.waiting: OrderedDict[asyncio.Task[Any], asyncio.Future[bool]] = OrderedDict()
        self._most_waiting = most_waiting
        self._seconds = seconds
        self._newest_first = newest_first

    async def take(self, task: asyncio.Task[Any]) -> bool:
        """Take a slot for `task`; waits for one. Returns False if it does not get a slot."""
        if not self.waiting and len(self.taken) < self.most:
            self.taken[task] = perf_counter()
            return True
        if len(self.waiting) >= self._most_waiting:
            if not self._newest_first:
                return False
            _, oldest = self.waiting.popitem(last=False)
            oldest.set_result(False)
        place: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.waiting[task] = place
        self.hand_over()
        try:
            async with asyncio.timeout(self._seconds):
                return await place
        except TimeoutError:
            return False
        finally:
            self.waiting.pop(task, None)

    def leave(self, task: asyncio.Task[Any]) -> None:
        """Free the slot of `task`, if it has one."""
        if self.taken.pop(task, None) is not None:
            self.hand_over()

    def hand_over(self) -> None:
        """Give free slots to waiting tasks."""
        while self.waiting and len(self.taken) < self.most:
            task, place = self.waiting.popitem(last=self._newest_first)
            if not place.done():  # otherwise the caller is gone
                self.taken[task] = perf_counter()
                place.set_result(True)


class PublicMessages(Places):
    """Slots for reading messages of calls that need no key. Calls that are ended for others are in `giving_way`."""

    def __init__(self, most: int, most_waiting: int, giving_way: set[asyncio.Task[Any]]) -> None:
        super().__init__(most, most_waiting, _MOST_WAIT_S, newest_first=True)
        self._giving_way = giving_way
        self._ending: asyncio.Task[None] | None = None

    def has_message(self, task: asyncio.Task[Any]) -> None:
        """Free the slot of a call whose message has arrived."""
        if task not in self._giving_way:  # a call that is being ended keeps its slot until its stream has ended
            self.leave(task)

    def hand_over(self) -> None:
        """Give free slots to waiting tasks. If some still wait, start to end calls whose messages are late."""
        super().hand_over()
        if self.waiting and (self._ending is None or self._ending.done()):
            self._ending = asyncio.ensure_future(self._end_late_calls())

    async def _end_late_calls(self) -> None:
        """While tasks wait, end the same number of calls whose messages are late."""
        while self.waiting and (coming := self._coming()):
            await asyncio.sleep(next(iter(coming.values())) + _MOMENT_S - perf_counter())
            latest = perf_counter() - _MOMENT_S
            late = [task for task, since in self._coming().items() if since <= latest]
            await asyncio.sleep(_LAST_LOOK_S)
            for task in [one for one in late if one in self.taken][: len(self.waiting)]:
                self._giving_way.add(task)
                task.cancel()

    def _coming(self) -> dict[asyncio.Task[Any], float]:
        """Return the calls whose messages are being received, with their start; the oldest comes first."""
        return {task: since for task, since in self.taken.items() if task not in self._giving_way}
