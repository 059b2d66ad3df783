"""The threads on which requests for tensors wait for the disk, so that one tensor whose disk stalls stops no other.

Changes wait for each other by tensor: those that share a lock (see `Group.stripe`) have SHARE threads at a time, and
the others wait without one. Lookups of what is known of a tensor never wait for a lock, and have threads of their own,
as have uploads and downloads; of these, too, tensors of one lock have a share only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Final, TypeVar

from app.store.processes.store_locks import STRIPES, stripe

logger = logging.getLogger("gathernd")
T = TypeVar("T")
THREADS: Final = 16
SHARE: Final = 2


class DiskThreads:
    """Runs blocking work for the event loop."""

    def __init__(self) -> None:
        self.streams: Executor = ThreadPoolExecutor(THREADS, "disk")
        """For the pieces of uploads and downloads."""
        self._changes = _Shared(ThreadPoolExecutor(THREADS, "change"), SHARE)
        self._lookups = _Shared(ThreadPoolExecutor(THREADS, "lookup"), SHARE)
        self._downloads = _Shared(self.streams, THREADS // 4)
        self._background = ThreadPoolExecutor(THREADS, "background")

    async def change(self, name: str, work: Callable[[], T]) -> T:
        """The result of `work`, which may wait for the lock of tensor `name`."""
        return await self._changes.run(name, work)

    async def look_up(self, name: str, work: Callable[[], T]) -> T:
        """The result of `work`, which reads what is known of tensor `name` ("" for all) and waits for no lock."""
        return await self._lookups.run(name, work)

    async def read(self, name: str, work: Callable[[], T]) -> T:
        """The result of `work`, which reads a piece of tensor `name`."""
        return await self._downloads.run(name, work)

    def run_in_background(self, work: Callable[[], None]) -> None:
        """Do `work` when a thread is free, and log its error if it fails. From any thread."""
        self._background.submit(work).add_done_callback(_log_failure)

    def shutdown(self) -> None:
        """Finish what was begun."""
        # In this order, since changes submit work for the background.
        for executor in (self.streams, self._changes.executor, self._lookups.executor, self._background):
            executor.shutdown()


def _log_failure(done: Future[None]) -> None:
    error = done.exception()
    if error is not None:
        logger.error("background work failed", exc_info=error)


def _call_in(loop: asyncio.AbstractEventLoop, function: Callable[[], None]) -> None:
    with suppress(RuntimeError):  # the loop has been closed, and the request has ended with it
        loop.call_soon_threadsafe(function)


class _Shared:
    """An executor of which all tensors of one lock have `share` threads at a time."""

    def __init__(self, executor: Executor, share: int) -> None:
        self.executor = executor
        self._free = [asyncio.Semaphore(share) for _ in range(STRIPES)]

    async def run(self, name: str, work: Callable[[], T]) -> T:
        loop, free = asyncio.get_running_loop(), self._free[stripe(name)]
        await free.acquire()
        try:
            working = self.executor.submit(work)
        except BaseException:
            free.release()
            raise
        try:
            return await asyncio.wrap_future(working)
        finally:
            if working.done():
                free.release()
            else:
                # The request was cancelled, and the thread is still taken.
                working.add_done_callback(lambda _: _call_in(loop, free.release))
            del working  # it keeps its error, whose traceback refers to this frame
