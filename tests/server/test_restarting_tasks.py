"""Tasks beside the requests: whatever happens to them is logged, counted and mended, and they end with the service."""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
from typing import Any

import pytest

from app.server import restarting_tasks
from app.server.restarting_tasks import BackgroundTasks, in_thread


def test_a_task_that_fails_is_logged_counted_and_started_again(caplog: pytest.LogCaptureFixture) -> None:
    failed: list[str] = []
    runs: list[float] = []

    async def scenario() -> None:
        enough = asyncio.Event()
        loop = asyncio.get_running_loop()

        async def work() -> None:
            runs.append(loop.time())
            if len(runs) == 5:
                enough.set()
                await asyncio.sleep(60)
            raise ValueError("an unexpected one")

        tasks = BackgroundTasks(failed.append, first_pause=0.01, longest_pause=0.04)
        tasks.start("sweep", work)
        await asyncio.wait_for(enough.wait(), 60)
        await tasks.close()

    with caplog.at_level(logging.ERROR, "gathernd"):
        asyncio.run(scenario())
    assert failed == ["sweep"] * 4
    assert len(caplog.records) == 4
    assert all("'sweep' failed" in record.getMessage() and record.exc_info for record in caplog.records)
    pauses = [later - earlier for earlier, later in itertools.pairwise(runs)]
    for pause, least, record in zip(pauses, (0.01, 0.02, 0.04, 0.04), caplog.records, strict=True):
        assert pause >= least
        assert record.getMessage().endswith(f"in {least:g} s")


def test_after_a_long_good_run_the_first_pause_holds_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = [0.0]
    monkeypatch.setattr(restarting_tasks, "monotonic", lambda: now[0])

    async def scenario() -> None:
        lives = iter((0, 0, 100))
        enough = asyncio.Event()

        async def work() -> None:
            life = next(lives, None)
            if life is None:
                enough.set()
                await asyncio.sleep(60)
            else:
                now[0] += life
            raise ValueError

        tasks = BackgroundTasks(lambda _: None, first_pause=0.001, longest_pause=0.1)
        tasks.start("sweep", work)
        await asyncio.wait_for(enough.wait(), 60)
        await tasks.close()

    asyncio.run(scenario())
    pauses = [record.getMessage().rpartition(" in ")[2] for record in caplog.records]
    assert pauses == ["0.001 s", "0.002 s", "0.001 s"]


def test_a_task_that_ends_by_itself_is_not_started_again() -> None:
    runs: list[int] = []

    async def scenario() -> None:
        async def work() -> None:
            runs.append(1)

        tasks = BackgroundTasks(lambda _: None, first_pause=0.0)
        tasks.start("verify", work)
        await asyncio.sleep(0.05)
        await tasks.close()

    asyncio.run(scenario())
    assert runs == [1]


def test_closing_cancels_tasks_whether_they_run_or_wait_for_their_next_start() -> None:
    async def scenario() -> None:
        async def fails() -> None:
            raise ValueError

        tasks = BackgroundTasks(lambda _: None, first_pause=60.0)
        tasks.start("runs", lambda: asyncio.sleep(60))
        tasks.start("waits", fails)
        await asyncio.sleep(0.01)
        await asyncio.wait_for(tasks.close(), 30)
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(scenario())


def test_who_cancels_work_in_a_thread_waits_for_the_thread() -> None:
    let_go = threading.Event()
    ended: list[Any] = []

    def block() -> None:
        let_go.wait(60)
        ended.append(1)

    async def scenario() -> None:
        task = asyncio.ensure_future(in_thread(block))
        await asyncio.sleep(0.02)
        task.cancel()
        await asyncio.sleep(0.02)
        assert not task.done()
        let_go.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended == [1]

    asyncio.run(scenario())


def test_work_in_a_thread_gives_its_result_or_its_exception() -> None:
    assert asyncio.run(in_thread(divmod, 7, 2)) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        asyncio.run(in_thread(divmod, 7, 0))
