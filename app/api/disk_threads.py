"""Thread pools for blocking disk I/O, shared so that a tensor whose disk stalls does not block other tensors.

Changes to one tensor wait for each other. So the tensors that share a lock (see `stripe`) use at most SHARE threads,
and other changes to them wait without occupying a thread. Metadata lookups, which take no lock, have a separate pool,
and so do uploads and downloads. In these pools, too, lookups and downloads of tensors that share a lock use only some
of the threads.
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
        """Threads for the pieces of uploads and downloads."""
        self._changes = _LimitedPerLock(ThreadPoolExecutor(THREADS, "change"), SHARE)
        self._lookups = _LimitedPerLock(ThreadPoolExecutor(THREADS, "lookup"), SHARE)
        self._downloads = _LimitedPerLock(self.streams, THREADS // 4)
        self._background = ThreadPoolExecutor(THREADS, "background")

    async def change(self, name: str, work: Callable[[], T]) -> T:
        """Run `work`, which may wait for the lock of tensor `name`, in a thread."""
        return await self._changes.run(name, work)

    async def look_up(self, name: str, work: Callable[[], T]) -> T:
        """Run `work`, which reads metadata of tensor `name` ("" for all tensors) and takes no lock, in a thread."""
        return await self._lookups.run(name, work)

    async def read(self, name: str, work: Callable[[], T]) -> T:
        """Run `work`, which reads a piece of tensor `name`, in a thread."""
        return await self._downloads.run(name, work)

    def run_in_background(self, work: Callable[[], None]) -> None:
        """Run `work` when a thread is free, and log its error if it fails. May be called from any thread."""
        self._background.submit(work).add_done_callback(_log_failure)

    def shutdown(self) -> None:
        """Finish all submitted work, and end the threads."""
        # This order matters, because changes submit background work.
        for executor in (self.streams, self._changes.executor, self._lookups.executor, self._background):
            executor.shutdown()


def _log_failure(done: Future[None]) -> None:
    error = done.exception()
    if error is not None:
        logger.error("background work failed", exc_info=error)


def _call_soon(loop: asyncio.AbstractEventLoop, function: Callable[[], None]) -> None:
    with suppress(RuntimeError):  # if the loop is closed, the request has ended too
        loop.call_soon_threadsafe(function)


class _LimitedPerLock:
    """An executor in which the tensors that share a lock use at most `share` threads."""

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
                # The request was canceled, but the thread is still busy.
                working.add_done_callback(lambda _: _call_soon(loop, free.release))
            del working  # avoids a reference cycle: its error's traceback refers to this frame
