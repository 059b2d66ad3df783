"""Readers that keep writers out of one tensor: when its lock is not to be had they stop no other."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from threading import Event
from time import perf_counter

import pytest

from app.api.disk_threads import DiskThreads
from app.dispatch.read_without_writers import without_writers
from app.errors import GatherError
from tests.dispatch.coroutine_tests import in_a_loop


class Stalled:
    """A content whose lock somebody else has until `free` is set."""

    def __init__(self) -> None:
        self.free = Event()
        self.waiting = self.entered = self.left = 0

    @contextmanager
    def _hold(self) -> Iterator[None]:
        self.waiting += 1
        assert self.free.wait(60)
        self.entered += 1
        try:
            yield
        finally:
            self.left += 1

    def exclude_writers(self) -> AbstractContextManager[object]:
        return self._hold()


@pytest.fixture
def threads() -> Iterator[DiskThreads]:
    made = DiskThreads()
    yield made
    made.shutdown()


async def read(content: Stalled, name: str, threads: DiskThreads, seconds: float = 60) -> None:
    async with without_writers(content, name, threads.change, perf_counter() + seconds):
        pass


async def until(condition: object) -> None:
    """Let the event loop go on until `condition()` holds."""
    assert callable(condition)
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110  (threads change it)
            await asyncio.sleep(0.001)


@in_a_loop
async def test_readers_of_a_stalled_tensor_wait_on_a_share_of_the_threads_and_others_do_not_wait(
    threads: DiskThreads,
) -> None:
    stalled, free = Stalled(), Stalled()
    free.free.set()
    readers = [asyncio.create_task(read(stalled, "x", threads)) for _ in range(40)]
    await until(lambda: stalled.waiting == 2)
    async with asyncio.timeout(60):
        await asyncio.to_thread(int)
        for name in ("y", "z"):
            await read(free, name, threads)
    assert stalled.waiting == 2
    stalled.free.set()
    await asyncio.gather(*readers)
    assert (stalled.entered, stalled.left) == (40, 40)


@in_a_loop
async def test_a_reader_whose_deadline_passes_keeps_its_thread_and_leaves_the_lock_once_it_has_it(
    threads: DiskThreads,
) -> None:
    stalled = Stalled()
    async with asyncio.timeout(60):
        while stalled.waiting < 2:  # a deadline may pass before its reader has a thread
            with pytest.raises(GatherError, match="deadline_exceeded"):
                await read(stalled, "x", threads, 0.01)
    for _ in range(4):
        with pytest.raises(GatherError, match="deadline_exceeded"):
            await read(stalled, "x", threads, 0.01)
    assert stalled.waiting == 2  # the others never take a thread
    stalled.free.set()
    await until(lambda: stalled.left == 2)
    await read(stalled, "x", threads)
    assert (stalled.entered, stalled.left) == (3, 3)


@in_a_loop
async def test_a_reader_that_is_cancelled_leaves_the_lock(threads: DiskThreads) -> None:
    stalled = Stalled()
    reader = asyncio.create_task(read(stalled, "x", threads))
    await until(lambda: stalled.waiting == 1)
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert stalled.entered == 0
    stalled.free.set()
    await until(lambda: stalled.left == 1)
