"""Limits the number of calls in flight, and selects the call to end if there is no slot for another one.

A message is in memory before it can be charged, so the number of calls in flight is limited. If there is no slot for a
new call, the stream that has waited longest for a request is ended. The new call then waits briefly for a slot, with
its message unread, because a call that its caller has reset keeps its slot until gRPC reports the reset. If the new
call still gets no slot, it is refused.

Once a read has begun, gRPC receives the whole message, however slowly the caller sends it. So only a few messages of
calls that need no key are read concurrently, in separate slots. Before its message is read, a call holds at most the
first window of its stream, `FIRST_WINDOW` bytes. Honest messages have only a few bytes and arrive together with their
call. So if other calls are waiting, a call whose message does not arrive almost immediately is ended. The newest
waiting call is served first. Callers that send half a message, or none, cannot block the health checks of others.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from time import perf_counter
from typing import Any, Final

from app.errors import GatherError
from app.grpc_api.rpc_table import Rpc

FIRST_WINDOW: Final = (1 << 16) - 1
"""Bytes that a caller may send on a stream before its message is read: HTTP/2's initial window."""
MOST_PUBLIC_BYTES: Final = 1 << 14
"""Maximum size of a message of a call that needs no key; it contains at most the name of a service."""
MOST_SECONDS: Final = 2.0
"""Maximum number of seconds that a message may take to arrive if no other call is waiting for its slot."""
_MOMENT_S: Final = 0.01
"""Seconds after which a message that has not arrived is late."""
_LAST_LOOK_S: Final = 0.005
"""Seconds to wait before late calls are ended, in order to process messages that arrived while the event loop was
busy.
"""
_MOST_PUBLIC_WAIT_S: Final = 5.0
"""Maximum seconds that a call waits for a slot."""


class Places:
    """Slots for `most` tasks. Up to `most_waiting` others wait for a slot, each for up to `seconds`.

    With `newest_first`, the newest waiting task is served first, and the oldest one gives up if too many wait.
    """

    def __init__(self, most: int, most_waiting: int, seconds: float, *, newest_first: bool = False) -> None:
        self.most = most
        self.taken: dict[asyncio.Task[Any], float] = {}
        """The tasks that have a slot, with the time at which they got it; the oldest comes first."""
        self.waiting: OrderedDict[asyncio.Task[Any], asyncio.Future[bool]] = OrderedDict()
        self._most_waiting = most_waiting
        self._seconds = seconds
        self._newest_first = newest_first

    async def take(self, task: asyncio.Task[Any]) -> bool:
        """Acquire a slot for `task`, waiting if necessary. Returns False if it does not get a slot."""
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
    """Slots for reading messages of calls that need no key.

    `giving_way` holds the calls that are being ended to make room for others.
    """

    def __init__(self, most: int, most_waiting: int, giving_way: set[asyncio.Task[Any]]) -> None:
        super().__init__(most, most_waiting, _MOST_PUBLIC_WAIT_S, newest_first=True)
        self._giving_way = giving_way
        self._ending: asyncio.Task[None] | None = None

    def has_message(self, task: asyncio.Task[Any]) -> None:
        """Free the slot of a call whose message has arrived."""
        if task not in self._giving_way:  # a call that is being ended keeps its slot until its stream has ended
            self.leave(task)

    def hand_over(self) -> None:
        """Give free slots to waiting tasks.

        If some tasks are still waiting, start ending calls whose messages are late.
        """
        super().hand_over()
        if self.waiting and (self._ending is None or self._ending.done()):
            self._ending = asyncio.ensure_future(self._end_late_calls())

    async def _end_late_calls(self) -> None:
        """End calls whose messages are late, one for each waiting task."""
        while self.waiting and (coming := self._calls_receiving()):
            await asyncio.sleep(next(iter(coming.values())) + _MOMENT_S - perf_counter())
            latest = perf_counter() - _MOMENT_S
            late = [task for task, since in self._calls_receiving().items() if since <= latest]
            await asyncio.sleep(_LAST_LOOK_S)
            for task in [one for one in late if one in self.taken][: len(self.waiting)]:
                self._giving_way.add(task)
                task.cancel()

    def _calls_receiving(self) -> dict[asyncio.Task[Any], float]:
        """Return the calls whose messages are being received, with their start times, oldest first."""
        return {task: since for task, since in self.taken.items() if task not in self._giving_way}


_MOST_PUBLIC: Final = 32
"""Maximum number of messages that are read concurrently for calls without a key, such as health checks."""
_MOST_WATCHES: Final = 500
"""Maximum number of health watches; each client may have one."""
_IDLE_S: Final = 1.0
"""Seconds that a stream must have waited before it is ended for another call; a message may be about to arrive."""
_MOST_WAIT_S: Final = 1.0
"""Maximum seconds that a call waits for a slot."""
_MOST_WAITING: Final = 256
"""Maximum number of calls that may wait for a slot; each takes a few kilobytes."""
_QUIET_S: Final = 0.003
"""A call begins within this many seconds after it arrives on the connection."""
_TURNS: Final = 8
"""A call begins within this many iterations of the event loop; the number includes a margin."""
_Since = dict[asyncio.Task[Any], float]
"""Tasks of calls, with the time at which their wait began; the longest wait comes first."""


def divide_limit(most: int) -> tuple[int, int]:
    """Divide a limit on messages. Returns the limit for calls with a slot, and the limit for calls that need no key."""
    public = max(1, min(_MOST_PUBLIC, most // 8))
    return max(1, most - public), public


class CallsUnderWay:
    """The calls of one server: at most `most` in flight, plus `public` calls without a key whose message is being read.

    Unread messages of waiting calls and of watches hold at most `unread_bytes`.
    """

    def __init__(self, most: int, public: int, unread_bytes: int) -> None:
        unread = unread_bytes // FIRST_WINDOW
        most_waiting = max(1, min(_MOST_WAITING, unread // 4))
        self._most_watches = max(1, min(_MOST_WATCHES, unread // 2))
        self._begun = 0
        self._running: set[asyncio.Task[Any]] = set()
        self.public: set[asyncio.Task[Any]] = set()
        """Tasks of calls that need no key, except watches."""
        self.places = Places(most, most_waiting, _MOST_WAIT_S)
        self._giving_way: set[asyncio.Task[Any]] = set()
        self._messages = PublicMessages(public, most_waiting, self._giving_way)
        self._idle_streams: _Since = {}
        self._watches: _Since = {}

    def begin(self, rpc: Rpc) -> asyncio.Task[Any]:
        """Register a new call. Returns its task, which is the current task."""
        self._begun += 1
        task = _running_task()
        (self.public if rpc.is_public else self._running).add(task)
        return task

    async def take_public_place(self, task: asyncio.Task[Any]) -> None:
        """Acquire a slot for the message of a call that needs no key, waiting if necessary. Raises overloaded."""
        if not await self._messages.take(task):
            raise self._too_many("too many calls are waiting for their message", self._messages.most)

    def has_public_message(self, task: asyncio.Task[Any]) -> None:
        """Free the slot of a call that needs no key, because its message has arrived."""
        self._messages.has_message(task)

    async def take_place(self, task: asyncio.Task[Any]) -> None:
        """Acquire a slot for the registered call of `task`, waiting if necessary.

        Raises overloaded if too many calls are waiting, or if the wait is too long.
        """
        most = self.places.most
        if len(self.places.taken) >= most:
            self._end_idle_stream()
        if not await self.places.take(task):
            raise self._too_many(f"{most} calls are in progress, which is the limit", most)

    def end(self, task: asyncio.Task[Any]) -> None:
        """Remove a call that has ended, and free its slot."""
        for calls in (self._running, self.public, self._giving_way):
            calls.discard(task)
        self._watches.pop(task, None)
        self._messages.leave(task)
        self.places.leave(task)

    def watch(self, task: asyncio.Task[Any]) -> None:
        """Mark a call that needs no key as a health watch. Ends the oldest watch if there are too many."""
        if len(self._watches) >= self._most_watches:
            self._end(next(iter(self._watches)), self._watches)
        self.public.discard(task)
        self._watches[task] = perf_counter()

    def wait_for_request(self, task: asyncio.Task[Any]) -> None:
        """Mark a stream as waiting for its next request."""
        self._idle_streams[task] = perf_counter()

    def has_request(self, task: asyncio.Task[Any]) -> None:
        """Mark a stream as no longer waiting."""
        self._idle_streams.pop(task, None)

    def cancel_idle_streams(self) -> None:
        """Cancel the streams that are waiting for a request."""
        for task in tuple(self._idle_streams):
            task.cancel()

    def preemption_error(self) -> GatherError | None:
        """If the current call was ended for another one, undo the cancellation and return the error; else None."""
        task = _running_task()
        if task not in self._giving_way:
            return None
        task.uncancel()
        places = self._messages if task in self._messages.taken else self.places
        return self._too_many("the call's place was needed for another", places.most)

    async def wait_until_idle(self, seconds: float) -> None:
        """Wait up to `seconds` until no calls are in flight.

        Health watches and streams that are waiting for a request do not count.
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
        """End the stream that has waited longest for a request, if it has waited at least `_IDLE_S`."""
        task, since = next(iter(self._idle_streams.items()), (None, 0.0))
        if task is not None and perf_counter() >= since + _IDLE_S:
            self._end(task, self._idle_streams)  # its slot is freed once gRPC has released its unread bytes

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
