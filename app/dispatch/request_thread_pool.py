"""The thread pool for gathers that are too long for the event loop. It refuses requests when it is full.

Plain threads wait on one queue and return results through the event loop. In measurements, this hand-off took about
half as long as `loop.run_in_executor`, and a fifth as long under load.

A request may need several calls: to decompress, read, gather and write. Only its first call can be refused because the
queue is full. Its later calls run before the calls of new requests. Otherwise an overloaded service would spend most of
its time on requests that it finally refuses.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from threading import Lock, Thread
from time import perf_counter
from typing import Any, TypeVar

from app.errors import GatherError
from app.memory.error_tracebacks import drop_tracebacks
from app.telemetry.served_request import ServedRequest

Result = TypeVar("Result")


class ClientGone(Exception):
    """The client closed its connection before the request was complete or had been executed.

    No response can be sent.
    """


def past_deadline() -> GatherError:
    """Return the error for a request that has waited past its deadline."""
    return GatherError("deadline_exceeded", "the request waited until its deadline passed", retry_after=1)


class RequestThreadPool:
    """Runs calls in `threads` threads. Up to `queue` more calls wait, each for at most `queue_timeout` seconds.

    Use all methods from the thread of one event loop. Threads start with the first call.
    """

    def __init__(self, threads: int, queue: int, queue_timeout: float = 3600.0) -> None:
        self.threads = threads
        self.queue = queue
        self.queue_timeout = queue_timeout
        self._free = self._capacity = threads + queue
        self._admitted_calls: deque[_PoolCall] = deque()
        self._new_calls: deque[_PoolCall] = deque()
        self._wakeups: SimpleQueue[bool] = SimpleQueue()  # True for each queued call; False ends a thread
        self._threads: list[Thread] = []
        self._closed = False

    @property
    def in_use(self) -> int:
        """Number of calls that are running or waiting."""
        return self._capacity - self._free

    @property
    def full(self) -> bool:
        """Whether the first call of a request would be refused."""
        return self._free <= 0

    async def run(self, work: Callable[[], Result], request: ServedRequest | None = None) -> Result:
        """Run `work` in a thread, for `request` if it is given.

        Raises overloaded if too many calls are waiting or this one has waited too long, deadline_exceeded if the
        request's deadline passes while the call is waiting, not_ready after `close`, and ClientGone if the client
        disconnects.
        """
        if self._closed:
            raise GatherError("not_ready", "the service is stopping", retry_after=1)
        caller = None
        queue = self._new_calls
        if request is not None:
            caller = request.caller
            if caller is not None and caller.disconnected:
                raise ClientGone
            if request.admitted:
                queue = self._admitted_calls
        if self._free <= 0 and queue is self._new_calls:
            raise self.overloaded()
        if not self._threads:
            self._start()
        loop = asyncio.get_running_loop()
        self._free -= 1
        call = _PoolCall(work, loop, self._release)
        del work
        queue.append(call)
        self._wakeups.put(True)
        timer = None
        if request is not None:
            request.admitted = True
            if self._free < self.queue:  # all threads are busy, so the call waits
                left = request.deadline - perf_counter()
                timer = loop.call_later(min(self.queue_timeout, left), self._time_out, call, left < self.queue_timeout)
            if caller is not None:
                caller.on_disconnect = call.abandon
        future = call.future
        del call
        try:
            result: Result = await future
            return result
        finally:
            if timer is not None:
                timer.cancel()
            if caller is not None:
                caller.on_disconnect = None
            del future

    async def run_unless(self, short: bool, work: Callable[[], Result], request: ServedRequest | None = None) -> Result:
        """Run `work` in the calling thread if it is `short`, else with `run`."""
        return work() if short else await self.run(work, request)

    def overloaded(self) -> GatherError:
        """Return the error for a request when the queue is full."""
        return GatherError(
            "overloaded",
            "too many gathers are waiting for a thread",
            facts={"limit": "queue", "maximum": self.queue},
            retry_after=1,
        )

    def close(self) -> None:
        """Run the queued calls, then end the threads. Later calls are refused."""
        self._closed = True
        for _ in self._threads:
            self._wakeups.put(False)
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    def _time_out(self, work: _PoolCall, is_past_deadline: bool) -> None:
        """Drop a call that has waited too long."""
        if is_past_deadline:
            work.drop(past_deadline())
        else:
            detail = f"no thread was free for this request within {self.queue_timeout:g} s"
            work.drop(GatherError("overloaded", detail, facts={"limit": "queue_timeout"}, retry_after=1))

    def _release(self) -> None:
        self._free += 1

    def _start(self) -> None:
        for number in range(self.threads):
            thread = Thread(target=self._thread_main, name=f"gather-{number}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _thread_main(self) -> None:
        while self._wakeups.get():
            try:
                work = self._admitted_calls.popleft()
            except IndexError:
                work = self._new_calls.popleft()
            work.run()
            del work  # a waiting thread must not keep the call's arrays


class _PoolCall:
    """A call, its result, and the future that its request awaits."""

    __slots__ = ("_begun", "_dropped", "_failure", "_lock", "_loop", "_release", "_result", "_work", "future")

    def __init__(self, work: Callable[[], Any], loop: asyncio.AbstractEventLoop, release: Callable[[], None]) -> None:
        self.future: asyncio.Future[Any] = loop.create_future()
        self._work: Callable[[], Any] | None = work
        self._loop = loop
        self._release = release
        self._result: Any = None
        self._failure: BaseException | None = None
        self._begun = self._dropped = False
        self._lock = Lock()

    def abandon(self) -> None:
        """Drop the call, unless it has started, because its client has disconnected."""
        self.drop(ClientGone())

    def drop(self, reason: Exception) -> None:
        """Fail the call with `reason` and free its place, unless it has started. Call this on the event loop."""
        with self._lock:
            if self._begun or self._dropped or self.future.done():
                return
            self._dropped = True
        self._work = None
        self._release()
        self.future.set_exception(reason)

    def run(self) -> None:
        """Run the call in a pool thread, unless it was dropped."""
        with self._lock:
            if self._dropped:
                return
            self._begun = True
        work, self._work = self._work, None
        if work is not None and not self.future.cancelled():
            try:
                self._result = work()
            except BaseException as failure:  # noqa: BLE001  (the caller raises it)
                self._failure = failure
        del work
        # RuntimeError: the loop has been closed, so no request is waiting any more.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._set_result)

    def _set_result(self) -> None:
        self._release()
        # The failure's traceback refers to the frame of `run`, and thus to the call's arrays. Break this cycle.
        failure, self._failure = self._failure, None
        if self.future.cancelled():
            if failure is not None:
                drop_tracebacks(failure)
        elif failure is None:
            self.future.set_result(self._result)
        else:
            self.future.set_exception(failure)
            del self.future
