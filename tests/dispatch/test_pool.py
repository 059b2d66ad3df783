from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Iterator
from contextlib import suppress

import pytest

from app.dispatch.pool import Pool
from app.errors import GatherError


@pytest.fixture
def pool() -> Iterator[Pool]:
    pool = Pool(2, 3)
    yield pool
    pool.close()


def test_work_runs_in_a_thread_of_the_pool_and_the_loop_goes_on(pool: Pool) -> None:
    async def main() -> None:
        go = threading.Event()
        waiting = asyncio.ensure_future(pool.run(lambda: (go.wait(10), threading.current_thread().name)))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        go.set()
        waited, name = await waiting
        assert waited
        assert name.startswith("gather-")

    asyncio.run(main())


@pytest.mark.parametrize("fails", [False, True])
def test_what_work_held_is_freed_with_its_call_and_not_by_the_collector(pool: Pool, fails: bool) -> None:
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


def test_what_work_raises_is_raised_to_the_caller(pool: Pool) -> None:
    def fail() -> None:
        raise ValueError("no")

    async def main() -> None:
        with pytest.raises(ValueError, match="no"):
            await pool.run(fail)
        assert await pool.run(lambda: 1) == 1

    asyncio.run(main())


def test_more_calls_than_threads_and_queue_are_refused_until_one_ends(pool: Pool) -> None:
    async def main() -> None:
        go = threading.Event()
        calls = [asyncio.ensure_future(pool.run(lambda: go.wait(10))) for _ in range(5)]
        await asyncio.sleep(0.01)
        with pytest.raises(GatherError) as refused:
            await pool.run(lambda: True)
        assert refused.value.code == "overloaded"
        assert refused.value.retry_after == 1
        go.set()
        assert await asyncio.gather(*calls) == [True] * 5
        assert await pool.run(lambda: True)

    asyncio.run(main())


def test_parts_run_at_once_and_results_keep_their_order(pool: Pool) -> None:
    async def main() -> None:
        together = threading.Barrier(2)

        def part(number: int) -> int:
            together.wait(10)
            return number

        assert await pool.split([lambda: part(1), lambda: part(2)]) == [1, 2]
        assert await pool.split([lambda number=number: number for number in range(20)]) == list(range(20))  # type: ignore[misc]

    asyncio.run(main())


def test_a_split_counts_as_one_call() -> None:
    async def main() -> None:
        pool = Pool(1, 0)
        assert await pool.split([lambda: 1] * 10) == [1] * 10
        assert await pool.run(lambda: 2) == 2
        pool.close()

    asyncio.run(main())


def test_a_split_raises_only_after_all_of_its_parts_have_ended(pool: Pool) -> None:
    async def main() -> None:
        failed, go, ended = threading.Event(), threading.Event(), threading.Event()

        def fail() -> None:
            failed.set()
            raise ValueError("no")

        def slow() -> None:
            go.wait(10)
            ended.set()

        async def let_go() -> None:
            assert await asyncio.to_thread(failed.wait, 10)
            await asyncio.sleep(0.02)
            go.set()

        helper = asyncio.ensure_future(let_go())
        with pytest.raises(ValueError, match="no"):
            await pool.split([slow, fail])
        assert ended.is_set()
        await helper

    asyncio.run(main())


def test_a_caller_that_goes_away_gives_its_place_back(pool: Pool) -> None:
    async def main() -> None:
        go, ran = threading.Event(), threading.Event()
        running = [asyncio.ensure_future(pool.run(lambda: go.wait(10))) for _ in range(2)]
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
        calls = [asyncio.ensure_future(pool.run(lambda: gate.wait(10))) for _ in range(5)]
        await asyncio.sleep(0.01)
        gate.set()
        assert await asyncio.gather(*calls) == [True] * 5

    asyncio.run(main())


def test_closing_finishes_what_waits_and_refuses_what_comes_later() -> None:
    async def main() -> None:
        pool = Pool(1, 4)
        done: list[int] = []
        calls = [asyncio.ensure_future(pool.run(lambda number=number: done.append(number))) for number in range(4)]  # type: ignore[misc]
        await asyncio.sleep(0)
        pool.close()
        assert done == [0, 1, 2, 3]
        await asyncio.gather(*calls)
        with pytest.raises(GatherError, match="not_ready"):
            await pool.run(lambda: 1)

    asyncio.run(main())


def test_no_threads_are_left_after_closing() -> None:
    async def main() -> None:
        before = set(threading.enumerate())
        pool = Pool(3, 0)
        await pool.run(lambda: 1)
        started = set(threading.enumerate()) - before
        assert len(started) == 3
        pool.close()
        assert not any(thread.is_alive() for thread in started)

    asyncio.run(main())
