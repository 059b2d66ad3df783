"""What a refused request held is freed when it has been answered, not when the garbage collector comes by."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Event
from typing import Any

import numpy as np
import pytest

from app.dispatch.request_thread_pool import RequestThreadPool
from app.errors import GatherError
from app.memory.error_tracebacks import drop_tracebacks, forget_failure
from app.server.start_request import run_rest

Kept = list[weakref.ref[Any]]


@pytest.fixture(autouse=True)
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def refuse(kept: Kept) -> None:
    items = np.zeros(1000)
    kept.append(weakref.ref(items))
    raise GatherError("overloaded", "the memory budget is full")


async def wait_for_refusal(threads: ThreadPoolExecutor, kept: Kept) -> None:
    """As a route does: the future is named in the frame that its error leads to."""
    working = threads.submit(refuse, kept)
    try:
        await asyncio.wrap_future(working)
    finally:
        assert working.done()


def test_a_refusal_out_of_a_thread_keeps_nothing() -> None:
    kept: Kept = []

    async def answer() -> None:
        with ThreadPoolExecutor(1) as threads:
            try:
                await wait_for_refusal(threads, kept)
            except GatherError as error:
                drop_tracebacks(error)

    asyncio.run(answer())
    assert [each() for each in kept] == [None]


def test_work_that_fails_after_its_caller_has_gone_keeps_nothing() -> None:
    kept: Kept = []
    begun, gone = Event(), Event()

    def work() -> None:
        begun.set()
        gone.wait(60)
        refuse(kept)

    async def run() -> None:
        pool = RequestThreadPool(1, 1)
        request = asyncio.create_task(pool.run(work))
        await asyncio.to_thread(begun.wait, 60)
        request.cancel()
        with suppress(asyncio.CancelledError):
            await request
        gone.set()
        await asyncio.to_thread(pool.close)
        await asyncio.sleep(0)

    asyncio.run(run())
    assert [each() for each in kept] == [None]


def test_a_task_that_fails_after_its_caller_has_gone_keeps_nothing() -> None:
    """As of a call over gRPC whose message is inflated in a thread."""
    kept: Kept = []

    async def run() -> None:
        pool = RequestThreadPool(1, 1)
        work: Any = pool.run(lambda: refuse(kept))
        task = asyncio.create_task(run_rest(work, work.send(None)))
        del work
        task.add_done_callback(forget_failure)
        await asyncio.wait([task])
        del task
        await asyncio.to_thread(pool.close)

    asyncio.run(run())
    assert [each() for each in kept] == [None]


def test_an_error_that_several_requests_meet_ends_none_of_the_others() -> None:
    """As a refusal of the disk does that meets all scatters which were carried out together."""
    shared = GatherError("insufficient_storage", "the disk is full")
    answered = []

    async def answer(name: str, client_reads: asyncio.Event) -> None:
        try:
            raise shared
        except GatherError as error:
            drop_tracebacks(error)
            await client_reads.wait()
            answered.append(name)

    async def run() -> None:
        client_reads = asyncio.Event()
        tasks = [asyncio.create_task(answer(name, client_reads)) for name in ("first", "second")]
        await asyncio.sleep(0)
        client_reads.set()
        await asyncio.wait(tasks, timeout=60)

    asyncio.run(run())
    assert answered == ["first", "second"]
