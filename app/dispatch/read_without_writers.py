"""Read a resident tensor while writers are locked out. This is needed if scatters keep changing the tensor."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from threading import Lock
from time import perf_counter
from typing import Final, Protocol, Self

from app.errors import GatherError
from app.tensors.tensor import Tensor

RunInLockThread = Callable[[str, Callable[[], None]], Awaitable[None]]
"""Runs a function in a thread, so as not to block other tensors; the function may wait for the lock of the named
tensor.
"""
_MAX_TIMEOUT_S: Final = 1e6
"""Longer than any request may wait, and within the range of the event loop's clock."""


class VersionChanged(Exception):
    """A resident tensor changed during a read. The read mixes versions and must be repeated."""


class ExcludesWriters(Protocol):
    """Data whose writers can be locked out."""

    def exclude_writers(self) -> AbstractContextManager[object]:
        """Return a context in which the data does not change. Entering the context blocks."""
        ...


class ResidentTensor(ExcludesWriters, Protocol):
    """A resident tensor as of one moment. `app.store.Resident` implements this interface."""

    tensor: Tensor
    etag: str

    @property
    def is_consistent(self) -> bool:
        """Whether everything read since this object was created belongs to one version, that of `etag`."""
        ...

    def refreshed(self) -> Self:
        """Return the same data as of its current state."""
        ...


async def default_thread(name: str, work: Callable[[], None]) -> None:
    """Run `work` in an asyncio thread, for any tensor."""
    del name
    await asyncio.to_thread(work)


@asynccontextmanager
async def without_writers(
    content: ExcludesWriters, name: str, run_in_lock_thread: RunInLockThread, deadline: float
) -> AsyncIterator[None]:
    """Return a context in which no scatter changes `content`, the data of tensor `name`.

    `deadline` is a time of `perf_counter`. Raises deadline_exceeded if it passes before the writers are locked out.
    """
    lock = _AbandonableContext(content.exclude_writers())
    try:
        async with asyncio.timeout(min(deadline - perf_counter(), _MAX_TIMEOUT_S)):
            await run_in_lock_thread(name, lock.enter)
    except BaseException as error:
        lock.leave()
        if isinstance(error, TimeoutError):
            detail = "the request waited for changes of its tensor until its deadline passed"
            raise GatherError("deadline_exceeded", detail, retry_after=1) from None
        raise
    try:
        yield
    finally:
        lock.leave()


class _AbandonableContext:
    """A context that is entered in a thread. If the caller has given up by then, the context is left immediately."""

    def __init__(self, context: AbstractContextManager[object]) -> None:
        self._context = context
        self._lock = Lock()
        self._left = False
        self.entered = False

    def enter(self) -> None:
        """Enter the context, and leave it immediately if `leave` has been called. Blocks."""
        self._context.__enter__()
        with self._lock:
            self.entered = not self._left
        if not self.entered:
            self._context.__exit__(None, None, None)

    def leave(self) -> None:
        """Leave the context, now or as soon as `enter` has entered it."""
        with self._lock:
            self._left, entered = True, self.entered
        if entered:
            self._context.__exit__(None, None, None)
