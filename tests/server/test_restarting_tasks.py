"""Tasks beside the requests: whatever happens to them is logged, counted and mended, and they end with the service."""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
from typing import Any

import pytest

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
