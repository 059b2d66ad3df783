"""Run background tasks for the lifetime of the service.

A task that fails is logged, counted and restarted after a pause.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from time import monotonic
from typing import Any, Final, TypeVar

logger = logging.getLogger("gathernd")

FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 60.0
"""Longest pause before a restart: a task that always fails immediately logs one line a minute."""
Result = TypeVar("Result")


class BackgroundTasks:
    """The background tasks of a process. `failed` is called with the name of each task that raises an exception.

    A failed task restarts after `first_pause` seconds. The pause doubles with each failure, up to `longest_pause`, and
    is reset after the task has run for `longest_pause` seconds.
    """

    def __init__(
        self,
        failed: Callable[[str], None],
        first_pause: float = FIRST_PAUSE_S,
        longest_pause: float = LONGEST_PAUSE_S,
    ) -> None:
        self._failed = failed
        self._first_pause = first_pause
        self._longest_pause = longest_pause
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run `work()` until it returns or the tasks are closed. Call this within the event loop."""
        task = asyncio.get_running_loop().create_task(self._supervise(name, work), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Cancel all tasks and wait until they have ended."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _supervise(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        pause = self._first_pause
        while True:
            started = monotonic()
            try:
                await work()
            except Exception:
                if monotonic() - started >= self._longest_pause:
                    pause = self._first_pause
                self._failed(name)
                logger.exception("the background task %r failed; it will be restarted in %g s", name, pause)
            else:
                return
            await asyncio.sleep(pause)
            pause = min(2 * pause, self._longest_pause)


async def in_thread(function: Callable[..., Result], *arguments: Any) -> Result:
    """Run `function(*arguments)` in a thread. Waits until the thread has finished, even after a cancellation."""
    call = asyncio.ensure_future(asyncio.to_thread(function, *arguments))
    try:
        return await asyncio.shield(call)
    except asyncio.CancelledError:
        await asyncio.gather(call, return_exceptions=True)
        raise
