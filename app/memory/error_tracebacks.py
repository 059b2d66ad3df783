"""Free the arrays and bodies that an error's traceback keeps alive."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import Any


def drop_tracebacks(error: BaseException) -> None:
    """Drop the tracebacks of an error and of its causes after the error has been handled.

    A traceback refers to the frames of a request, and so to its body and arrays. Often, a frame refers back to the
    error, and this cycle would stay in memory, uncharged, until the next garbage collection. The frames themselves are
    not cleared, because several requests may share one error and some of them may still be answering.
    """
    seen = set()
    left: list[BaseException | None] = [error]
    while left:
        each = left.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            each.__traceback__ = None
            left += each.__cause__, each.__context__


def forget_failure(ended: asyncio.Future[Any] | Future[Any]) -> None:
    """If `ended` failed, free what its error refers to. The caller is gone, so nobody will handle the error."""
    if not ended.cancelled() and (error := ended.exception()) is not None:
        drop_tracebacks(error)
