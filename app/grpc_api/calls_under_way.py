"""How many calls are under way, and which of them is ended where there is no room for one more.

A message is in memory before it can be charged, so that only so many calls may be under way at once. For one more the
stream is ended that has waited the longest for a request. The call waits for a place, with its message unread, for a
moment: calls that their caller has reset take their places until the service is told, one after the other. Without a
place by then it is refused. Calls that need no key have a few places of their own, while their message is read (see
`call_limits`).
"""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import Any, Final

from app.errors import GatherError
from app.grpc_api.call_limits import FIRST_WINDOW, Places, PublicMessages
from app.grpc_api.rpc_table import Rpc

_MOST_PUBLIC: Final = 32
"""Messages of calls that need no key, such as those of the health, that may be read at once."""
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


def divided(most: int) -> tuple[int, int]:
    """How many of so many messages may be of calls with a place, and how many of those that need no key."""
    public = max(1, min(_MOST_PUBLIC, most // 8))
    return max(1, most - public), public


class CallsUnderWay:
    """The calls of one server: at most `most` at once, beside `public` that need no key and whose message is read.

    What is unread, of calls that wait and of watches, is `unread_bytes` at most.
    """

    def __init__(self, most: int, public: int, unread_bytes: int) -> None:
        unread = unread_bytes // FIRST_WINDOW
        most_waiting = max(1, min(_MOST_WAITING, unread // 4))
        self._most_watches = max(1, min(_MOST_WATCHES, unread // 2))
        self._begun = 0
        self._running: set[asyncio.Task[Any]] = set()
        self.public: set[asyncio.Task[Any]] = set()
        """Those that need no key and are no watch."""
        self.places = Places(most, most_waiting, _MOST_WAIT_S)
        self._giving_way: set[asyncio.Task[Any]] = set()
        self._messages = PublicMessages(public, most_waiting, self._giving_way)
        self._idle_streams: _Since = {}
        self._watches: _Since = {}

    def begin(self, rpc: Rpc) -> asyncio.Task[Any]:
        """Count a call that begins in the task that runs."""
        self._begun += 1
        task = _running_task()
        (self.public if rpc.is_public else self._running).add(task)
        return task

    async def take_public_place(self, task: asyncio.Task[Any]) -> None:
        """Take a place for the message of a call that needs no key, or wait for one. Raises overloaded."""
        if not await self._messages.take(task):
            raise self._too_many("too many calls wait for their message", self._messages.most)

    def has_public_message(self, task: asyncio.Task[Any]) -> None:
        """The message of a call that needs no key is there: it needs no place any more."""
        self._messages.has_message(task)

    async def take_place(self, task: asyncio.Task[Any]) -> None:
        """Take a place for the call of `task`, which has begun, or wait for one.

        Raises overloaded where too many wait already, or where it takes too long.
        """
        most = self.places.most
        if len(self.places.taken) >= most:
            self._end_idle_stream()
        if not await self.places.take(task):
            raise self._too_many(f"{most} calls are in progress, which is the limit", most)

    def end(self, task: asyncio.Task[Any]) -> None:
        """Count the end of a call."""
        for calls in (self._running, self.public, self._giving_way):
            calls.discard(task)
        self._watches.pop(task, None)
        self._messages.leave(task)
        self.places.leave(task)

    def watch(self, task: asyncio.Task[Any]) -> None:
        """Take a call that needs no key for a watch of the health from now on."""
        if len(self._watches) >= self._most_watches:
            self._end(next(iter(self._watches)), self._watches)
        self.public.discard(task)
        self._watches[task] = perf_counter()

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

    def gave_way(self) -> GatherError | None:
        """The error for the running call if it was ended for another, whose cancellation is then over; else None."""
        task = _running_task()
        if task not in self._giving_way:
            return None
        task.uncancel()
        places = self._messages if task in self._messages.taken else self.places
        return self._too_many("the call's place was needed for another", places.most)

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
        return len(self._running) > len(self._idle_streams) or bool(self.public)

    def _end_idle_stream(self) -> None:
        """End the stream that has waited the longest for a request, if it waits for more than a moment."""
        task, since = next(iter(self._idle_streams.items()), (None, 0.0))
        if task is not None and perf_counter() >= since + _IDLE_S:
            self._end(task, self._idle_streams)  # its place is free once gRPC has let go of what had come

    def _end(self, task: asyncio.Task[Any], among: _Since) -> None:
        del among[task]
        self._giving_way.add(task)
        task.cancel()

    def _too_many(self, detail: str, maximum: int) -> GatherError:
        return GatherError("overloaded", detail, facts={"limit": "grpc_calls", "maximum": maximum}, retry_after=1)


def _running_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task
