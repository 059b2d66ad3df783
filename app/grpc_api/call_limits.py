"""Places for calls, of which only so many may be under way at once, and for the messages of those that need no key.

gRPC takes a message in up to its end once it is read, however long the caller takes, so only a few messages of calls
that need no key are read at once. Until then a call holds no more than the first window of its stream, `FIRST_WINDOW`
bytes.

A call without a place waits for one. Honest messages have a few bytes and come together with their call: a call whose
message is not there in a moment gives its place to one that waits, and the newest is served first. So callers who send
half of a message, or none, cannot keep the health from others.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from time import perf_counter
from typing import Any, Final

FIRST_WINDOW: Final = (1 << 16) - 1
"""Bytes of a stream that a caller may send before its message is read: the first window of HTTP/2."""
MOST_PUBLIC_BYTES: Final = 1 << 14
"""The longest message of a call that needs no key. It holds the name of a service at most."""
MOST_SECONDS: Final = 2.0
"""So long a message may be on its way where nobody waits for its place."""
_MOMENT_S: Final = 0.01
"""A message that is not there so soon is still on its way."""
_LAST_LOOK_S: Final = 0.005
"""Before a call is ended, what has come in the meantime is looked at: the event loop may have been busy."""
_MOST_WAIT_S: Final = 5.0
"""So long a call waits for a place."""


class Places:
    """At most `most` tasks have a place at once, and `most_waiting` others wait for one, each for so many `seconds`.

    With `newest_first` the newest of those who wait is served first, and the oldest gives up where too many wait.
    """

    def __init__(self, most: int, most_waiting: int, seconds: float, *, newest_first: bool = False) -> None:
        self.most = most
        self.taken: dict[asyncio.Task[Any], float] = {}
        """The tasks with a place, and since when, the oldest first."""
        self.waiting: OrderedDict[asyncio.Task[Any], asyncio.Future[bool]] = OrderedDict()
        self._most_waiting = most_waiting
        self._seconds = seconds
        self._newest_first = newest_first

    async def take(self, task: asyncio.Task[Any]) -> bool:
        """Take a place for `task`, or wait for one; False if it gets none."""
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
        """Give up the place of `task`, if it has one."""
        if self.taken.pop(task, None) is not None:
            self.hand_over()

    def hand_over(self) -> None:
        """Give free places to those who wait."""
        while self.waiting and len(self.taken) < self.most:
            task, place = self.waiting.popitem(last=self._newest_first)
            if not place.done():  # else its caller has gone
                self.taken[task] = perf_counter()
                place.set_result(True)


class PublicMessages(Places):
    """The places of the messages of calls that need no key. A call that is ended for another is `giving_way`."""

    def __init__(self, most: int, most_waiting: int, giving_way: set[asyncio.Task[Any]]) -> None:
        super().__init__(most, most_waiting, _MOST_WAIT_S, newest_first=True)
        self._giving_way = giving_way
        self._ending: asyncio.Task[None] | None = None

    def has_message(self, task: asyncio.Task[Any]) -> None:
        """The message of a call is there."""
        if task not in self._giving_way:  # else the place is needed until its stream has ended
            self.leave(task)

    def hand_over(self) -> None:
        """Give free places to those who wait; if some still do, look for calls whose message does not come."""
        super().hand_over()
        if self.waiting and (self._ending is None or self._ending.done()):
            self._ending = asyncio.ensure_future(self._end_late_calls())

    async def _end_late_calls(self) -> None:
        """As long as others wait, end as many calls whose message has not come in its moment."""
        while self.waiting and (coming := self._coming()):
            await asyncio.sleep(next(iter(coming.values())) + _MOMENT_S - perf_counter())
            latest = perf_counter() - _MOMENT_S
            late = [task for task, since in self._coming().items() if since <= latest]
            await asyncio.sleep(_LAST_LOOK_S)
            for task in [one for one in late if one in self.taken][: len(self.waiting)]:
                self._giving_way.add(task)
                task.cancel()

    def _coming(self) -> dict[asyncio.Task[Any], float]:
        """The calls whose message is on its way, and since when, the oldest first."""
        return {task: since for task, since in self.taken.items() if task not in self._giving_way}
