"""How many calls are under way, and which of them is ended where there is no room for one more.

A message is in memory before it can be charged, so that only so many calls may be under way at once. For one more the
stream is ended that has waited the longest for a request; without such a stream it is refused. Calls that need no key
take no place of theirs: of more than a few the oldest is ended, so that new ones run.
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

    def check(self) -> None:
        """Make room for the call that has begun last. Raises overloaded where there is none."""
        if self._running - len(self._giving_way) > self._most and not self._end_first(self._idle_streams):
            raise self._too_many(f"{self._most} calls are under way, as many as may be")

    def end(self, rpc: Rpc, task: asyncio.Task[Any]) -> None:
        """Count the end of a call."""
        self._giving_way.discard(task)
        if rpc.is_public:
            self._public_calls.pop(task, None)
            self._watches.pop(task, None)
        else:
            self._running -= 1

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

    def _end_first(self, tasks: _Since) -> bool:
        """End the first of `tasks`, if there is one and it waits for more than a moment."""
        task, since = next(iter(tasks.items()), (None, 0.0))
        if task is None or (perf_counter() < since + _IDLE_S and len(tasks) < _MOST_PUBLIC_AT_ONCE):
            return False
        del tasks[task]
        self._giving_way.add(task)
        task.cancel()
        return True

    def _too_many(self, detail: str) -> GatherError:
        facts = {"limit": "grpc_calls", "maximum": self._most}
        return GatherError("overloaded", detail, facts=facts, retry_after=1)
