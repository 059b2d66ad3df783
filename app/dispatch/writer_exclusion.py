"""Keeping writers from a content while it is read: for readers that met too many changes of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from threading import Lock
from time import perf_counter
from typing import Final, Protocol

from app.errors import GatherError

RunInLockThread = Callable[[str, Callable[[], None]], Awaitable[None]]
"""Runs in a thread what may wait for the lock of the tensor of this name, so that other tensors do not wait for it."""


class ResidentTensor(Protocol):
    """A resident tensor, as `app.store.Resident` is."""

    def exclude_writers(self) -> AbstractContextManager[object]:
        """A context in which it does not change; entering blocks."""
        ...


async def default_thread(name: str, work: Callable[[], None]) -> None:
    """A thread for work that waits for no lock, of whichever tensor."""
    del name
    await asyncio.to_thread(work)


@asynccontextmanager
async def without_writers(
    content: ResidentTensor, name: str, threads: RunInLockThread, deadline: float
) -> AsyncIterator[None]:
    """A context in which no scatter changes `content`, that of tensor `name`. `deadline` is a time of `perf_counter`.

    Raises deadline_exceeded when that passes before they could be kept out.
    """
    entry = _Entry(content.exclude_writers())
    try:
        async with asyncio.timeout(min(deadline - perf_counter(), _LONGEST_S)):
            await threads(name, entry.enter)
    except BaseException as error:
        entry.leave()
        if isinstance(error, TimeoutError):
            detail = "the request waited for changes of its tensor until its deadline had passed"
            raise GatherError("deadline_exceeded", detail, retry_after=1) from None
        raise
    try:
        yield
    finally:
        entry.leave()


_LONGEST_S: Final = 1e6
"""More than any request may wait, and within what the event loop's clock takes."""


class _Entry:
    """A context that is entered in a thread; whoever asked for it may have gone by then, and it is left at once."""

    def __init__(self, hold: AbstractContextManager[object]) -> None:
        self._hold = hold
        self._lock = Lock()
        self._left = False
        self.entered = False

    def enter(self) -> None:
        """Enter it, unless `leave` was called. Blocks."""
        self._hold.__enter__()
        with self._lock:
            self.entered = not self._left
        if not self.entered:
            self._hold.__exit__(None, None, None)

    def leave(self) -> None:
        """Leave it, now or as soon as it has been entered."""
        with self._lock:
            self._left, entered = True, self.entered
        if entered:
            self._hold.__exit__(None, None, None)
