from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from time import perf_counter

import pytest

from app.dispatch.request_thread_pool import ClientGone, RequestThreadPool
from app.errors import GatherError
from app.memory.budget import Budget, MemoryReservation
from app.telemetry.served_request import ServedRequest
from tests.dispatch.coroutine_tests import in_a_loop


@dataclass
class Caller:
    """A caller as the server has them."""

    disconnected: bool = False
    on_disconnect: Callable[[], None] | None = None

    def go(self) -> None:
        self.disconnected = True
        if self.on_disconnect is not None:
            self.on_disconnect()


class Request(ServedRequest):
    """A request whose deadline is in so many seconds."""

    def __init__(self, seconds: float = 60.0) -> None:
        now = perf_counter()
        self.client = Caller()
        super().__init__(now, now + seconds, MemoryReservation(Budget(1 << 20)), self.client)


@pytest.fixture
def pool() -> Iterator[RequestThreadPool]:
    pool = RequestThreadPool(2, 3)
    yield pool
    pool.close()


@pytest.mark.parametrize("fails", [False, True])
def test_what_work_held_is_freed_with_its_call_and_not_by_the_collector(pool: RequestThreadPool, fails: bool) -> None:
    class Body:
        pass

    def read(body: Body) -> None:
        if fails:
            raise ValueError(type(body).__name__)

    async def call() -> weakref.ref[Body]:
        body = Body()
        with suppress(ValueError):
            await pool.run(lambda: read(body))
        return weakref.ref(body)

    async def main() -> None:
        held = await call()
        for _ in range(200):  # its thread is just coming back
            if held() is not None:
                await asyncio.sleep(0.01)
        assert held() is None

    gc.disable()
    try:
        asyncio.run(main())
    finally:
        gc.enable()


@in_a_loop
async def test_a_caller_that_goes_away_gives_its_place_back(pool: RequestThreadPool) -> None:
    go, ran = threading.Event(), threading.Event()
    running = [asyncio.ensure_future(pool.run(lambda: go.wait(60))) for _ in range(2)]
    waiting = asyncio.ensure_future(pool.run(ran.set))
    await asyncio.sleep(0.01)
    for call in (waiting, running[0]):
        call.cancel()
    go.set()
    assert await running[1]
    results = await asyncio.gather(waiting, running[0], return_exceptions=True)
    assert all(isinstance(result, asyncio.CancelledError) for result in results)
    await asyncio.sleep(0.02)
    assert not ran.is_set()
    gate = threading.Event()
    calls = [asyncio.ensure_future(pool.run(lambda: gate.wait(60))) for _ in range(5)]
    await asyncio.sleep(0.01)
    gate.set()
    assert await asyncio.gather(*calls) == [True] * 5


@in_a_loop
async def test_closing_finishes_what_waits_and_refuses_what_comes_later() -> None:
    pool = RequestThreadPool(1, 4)
    done: list[int] = []
    calls = [asyncio.ensure_future(pool.run(lambda number=number: done.append(number))) for number in range(4)]  # type: ignore[misc]
    await asyncio.sleep(0)
    pool.close()
    assert done == [0, 1, 2, 3]
    await asyncio.gather(*calls)
    with pytest.raises(GatherError, match="not_ready"):
        await pool.run(lambda: 1)


@in_a_loop
async def test_a_request_that_was_let_in_is_not_refused_and_goes_first() -> None:
    pool = RequestThreadPool(1, 1)
    go = threading.Event()
    order: list[str] = []
    begun = Request()
    await pool.run(lambda: order.append("begun"), begun)
    running = asyncio.ensure_future(pool.run(lambda: go.wait(60), Request()))
    await asyncio.sleep(0)
    fresh = asyncio.ensure_future(pool.run(lambda: order.append("fresh"), Request()))
    await asyncio.sleep(0)
    assert pool.full
    with pytest.raises(GatherError, match="overloaded") as refused:
        await pool.run(lambda: order.append("refused"), Request())
    assert refused.value.facts == {"limit": "queue", "maximum": 1}
    again = asyncio.ensure_future(pool.run(lambda: order.append("begun again"), begun))
    await asyncio.sleep(0)
    go.set()
    await asyncio.gather(running, fresh, again)
    assert order == ["begun", "begun again", "fresh"]
    assert pool.in_use == 0
    pool.close()


@in_a_loop
async def test_a_client_that_goes_leaves_its_place_at_once_and_nothing_is_done_for_it() -> None:
    pool = RequestThreadPool(1, 1)
    go, ran = threading.Event(), threading.Event()
    running = asyncio.ensure_future(pool.run(lambda: go.wait(60), Request()))
    await asyncio.sleep(0)
    gone = Request()
    waiting = asyncio.ensure_future(pool.run(ran.set, gone))
    await asyncio.sleep(0)
    assert pool.full
    assert not ran.is_set()
    gone.client.go()
    with pytest.raises(ClientGone):
        await waiting
    assert pool.in_use == 1
    next_one = asyncio.ensure_future(pool.run(lambda: 1, Request()))
    await asyncio.sleep(0)
    go.set()
    assert await next_one == 1
    assert await running
    assert not ran.is_set()
    with pytest.raises(ClientGone):
        await pool.run(ran.set, gone)
    pool.close()


@in_a_loop
async def test_what_runs_when_its_client_goes_keeps_its_place_until_it_ends() -> None:
    pool = RequestThreadPool(1, 0)
    go, begun = threading.Event(), threading.Event()

    def work() -> int:
        begun.set()
        go.wait(60)
        return 1

    gone = Request()
    running = asyncio.ensure_future(pool.run(work, gone))
    assert await asyncio.to_thread(begun.wait, 60)
    gone.client.go()
    await asyncio.sleep(0.01)
    assert pool.in_use == 1
    go.set()
    assert await running == 1
    assert gone.client.on_disconnect is None
    pool.close()
