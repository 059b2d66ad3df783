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
    """The places of the messages of calls that need no key."""

    def __init__(self, most: int, most_waiting: int) -> None:
        super().__init__(most, most_waiting, _MOST_WAIT_S, newest_first=True)
        self._ended: set[asyncio.Task[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None

    def has_message(self, task: asyncio.Task[Any]) -> None:
        """The message of a call is there."""
        if task not in self._ended:  # else the place is needed until its stream has ended
            self.leave(task)

    def leave(self, task: asyncio.Task[Any]) -> None:
        """A call has ended, and with it what gRPC held of its message."""
        self._ended.discard(task)
        super().leave(task)

    def gave_way(self, task: asyncio.Task[Any]) -> bool:
        """Whether a call was ended for another."""
        return task in self._ended

    def hand_over(self) -> None:
        """Give free places to those who wait; where some still do, look for calls whose message does not come."""
        super().hand_over()
        if self.waiting and self._timer is None:
            self._look()

    def _look(self) -> None:
        """Come back when the next of those who read will have had its moment, as long as others wait."""
        self._timer = None
        coming = [since for task, since in self.taken.items() if task not in self._ended]
        if self.waiting and coming:
            pause = max(coming[0] + _MOMENT_S - perf_counter(), 0.0)
            self._timer = asyncio.get_running_loop().call_later(pause, self._look_again)

    def _look_again(self) -> None:
        latest = perf_counter() - _MOMENT_S
        late = [task for task, since in self.taken.items() if since <= latest and task not in self._ended]
        self._timer = asyncio.get_running_loop().call_later(_LAST_LOOK_S, self._end, late)

    def _end(self, late: list[asyncio.Task[Any]]) -> None:
        """End those of `late` whose message has still not come, as many as others wait."""
        for task in [one for one in late if one in self.taken][: len(self.waiting)]:
            self._ended.add(task)
            task.cancel()
        self._look()
