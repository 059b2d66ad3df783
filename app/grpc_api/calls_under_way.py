"""How many calls are under way, and which of them is ended where there is no room for one more.

A message is in memory before it can be charged, so that only so many calls may be under way at once. For one more the
stream is ended that has waited the longest for a request. The call waits for a place, with its message unread, for a
moment: calls that their caller has reset take their places until the service is told, one after the other. Without a
place by then it is refused. Calls that need no key take no place of theirs: of more than a few the oldest is ended, so
that new ones run.
"""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import Any, Final

from app.errors import GatherError
from app.grpc_api.rpc_table import Rpc

_MOST_PUBLIC_CALLS: Final = 32
"""Calls that need no key, such as those of the health, that may wait for their message beside the others."""
_MOST_PUBLIC_AT_ONCE: Final = 1000
_MOST_WATCHES: Final = 500
"""Watches of the health: each client may have one."""
_IDLE_S: Final = 1.0
"""What has waited for so long may be ended for another; sooner, its message may just be coming."""
_MOST_WAIT_S: Final = 1.0
"""So long a call waits for a place."""
_MOST_WAITING: Final = 256
"""So many calls may wait for a place; each takes some kilobytes."""
_QUIET_S: Final = 0.003
"""In such a moment a call that has reached the connection has begun."""
_TURNS: Final = 8
"""So many turns of the event loop a call takes to begin, and a few more."""
_Since = dict[asyncio.Task[Any], float]
"""Tasks of calls, and since when they have waited; the longest first."""


class CallsUnderWay:
    """The calls of one server, at most `most` at once beside those that need no key."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._loop: asyncio.AbstractEventLoop | None = None
        self._begun = self._running = 0
        self._with_place: set[asyncio.Task[Any]] = set()
        self._waiting: dict[asyncio.Task[Any], asyncio.Future[None]] = {}
        self._idle_streams: _Since = {}
        self._public_calls: _Since = {}
        self._watches: _Since = {}
        self._giving_way: set[asyncio.Task[Any]] = set()

    @property
    def public(self) -> int:
        """How many of them need no key and are no watch."""
        return len(self._public_calls)

    def begin(self, rpc: Rpc) -> asyncio.Task[Any]:
        """Count a call that begins in the task that runs."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        self._begun += 1
        task = asyncio.current_task(self._loop)  # to find the loop takes a system call
        assert task is not None
        if rpc.is_public:
            self._add(task, self._public_calls, max(1, min(_MOST_PUBLIC_CALLS, self._most // 4)))
        else:
            self._running += 1
        return task

    async def take_place(self, task: asyncio.Task[Any]) -> None:
        """Take a place for the call of `task`, which has begun, or wait for one.

        Raises overloaded where too many wait already, or where it takes too long.
        """
        if len(self._with_place) >= self._most:
            self._end_first(self._idle_streams)
        if not self._waiting and len(self._with_place) < self._most:
            self._with_place.add(task)
            return
        if len(self._waiting) < _MOST_WAITING:
            place = self._waiting[task] = asyncio.get_running_loop().create_future()
            self._hand_over()
            try:
                async with asyncio.timeout(_MOST_WAIT_S):
                    await place
                return
            except TimeoutError:
                pass
            finally:
                self._waiting.pop(task, None)
        raise self._too_many(f"{self._most} calls are under way, as many as may be")

    def end(self, rpc: Rpc, task: asyncio.Task[Any]) -> None:
        """Count the end of a call."""
        self._giving_way.discard(task)
        if rpc.is_public:
            self._public_calls.pop(task, None)
            self._watches.pop(task, None)
        else:
            self._running -= 1
            self._with_place.discard(task)
            if self._waiting:
                self._hand_over()

    def watch(self, task: asyncio.Task[Any]) -> None:
        """Take a call that needs no key for a watch of the health from now on."""
        self._public_calls.pop(task, None)
        self._add(task, self._watches, _MOST_WATCHES)

    def wait_for_request(self, task: asyncio.Task[Any]) -> None:
        """A stream waits for its next request."""
        self._idle_streams[task] = perf_counter()

    def has_request(self, task: asyncio.Task[Any]) -> None:
        """A stream waits no more."""
        self._idle_streams.pop(task, None)

    def cancel_idle_streams(self) -> None:
        """Cancel the streams that wait for a request."""
        for task in tuple(self._idle_streams):
            task.cancel()

    def gave_way(self, task: asyncio.Task[Any]) -> GatherError | None:
        """The error for a call that was ended for another, whose cancellation is over with that; None for others."""
        if task not in self._giving_way:
            return None
        task.uncancel()
        return self._too_many("the call's place was needed for another")

    async def quiet(self, seconds: float) -> None:
        """Wait until no call has been under way for a moment, for so many seconds at most. Watches of the health and
        streams that wait for a request count as none.
        """
        end = perf_counter() + seconds
        begun = -1
        while (self._is_busy() or self._begun != begun) and perf_counter() < end:
            begun = self._begun
            await asyncio.sleep(_QUIET_S)
            for _ in range(_TURNS):
                await asyncio.sleep(0)

    def _is_busy(self) -> bool:
        return self._running > len(self._idle_streams) or bool(self._public_calls)

    def _add(self, task: asyncio.Task[Any], tasks: _Since, most: int) -> None:
        """Add a call to `tasks`, the first of which makes room where there are `most`."""
        if len(tasks) >= most:
            self._end_first(tasks)
        tasks[task] = perf_counter()

    def _hand_over(self) -> None:
        """Give the places that are free to those who wait, the first of them first."""
        while self._waiting and len(self._with_place) < self._most:
            task = next(iter(self._waiting))
            place = self._waiting.pop(task)
            if not place.done():  # else its caller has gone
                self._with_place.add(task)
                place.set_result(None)

    def _end_first(self, tasks: _Since) -> bool:
        """End the first of `tasks`, if there is one and it waits for more than a moment."""
        task, since = next(iter(tasks.items()), (None, 0.0))
        if task is None or (perf_counter() < since + _IDLE_S and len(tasks) < _MOST_PUBLIC_AT_ONCE):
            return False
        del tasks[task]
        self._with_place.discard(task)
        self._giving_way.add(task)
        task.cancel()
        return True

    def _too_many(self, detail: str) -> GatherError:
        facts = {"limit": "grpc_calls", "maximum": self._most}
        return GatherError("overloaded", detail, facts=facts, retry_after=1)
