"""An event loop for one simulated process: its callbacks run on the world's clock, later while it is stopped."""

from __future__ import annotations

import asyncio
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.cluster.simulation.world import Process


class ProcessLoop(asyncio.AbstractEventLoop):
    """What tasks, timers and futures of asyncio need. When the process crashes, nothing of it runs any more."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._ready: deque[asyncio.Handle] = deque()
        """What is to run at the end of the process's event, in order."""
        self._is_running = False
        self._tasks: set[asyncio.Task[Any]] = set()
        """Those that run. They are kept, so that none of a crashed process is ended by the collector of garbage."""

    def time(self) -> float:
        return self._process.world.now

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._soon(handle)
        return handle

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._process.after(max(0.0, when - self.time()), self._soon, handle)
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Coroutine[Any, Any, Any], **options: Any) -> asyncio.Task[Any]:  # type: ignore[override]
        task = asyncio.Task(coro, loop=self, **options)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if "exception" in context:
            raise context["exception"]

    def _soon(self, handle: asyncio.Handle) -> None:
        self._ready.append(handle)

    def run_ready(self) -> None:
        """Run what is to run now, unless it is running."""
        if self._is_running:
            return
        self._is_running = True
        events._set_running_loop(self)
        try:
            while self._ready:
                handle = self._ready.popleft()
                if not handle.cancelled():
                    handle._run()
        finally:
            events._set_running_loop(None)
            self._is_running = False
