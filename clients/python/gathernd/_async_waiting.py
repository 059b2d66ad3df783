"""Waiting in the asynchronous client; `_sync_waiting` defines the same names for the blocking client.

A thread packs large arrays and files and parses large answers, so that the event loop is not blocked.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from typing import Any, Final, ParamSpec, TypeVar

from ._answers import SAFETENSORS
from ._messages import Answer
from ._retries import Attempts
from .errors import TransportError

T = TypeVar("T")
P = ParamSpec("P")
LARGE_BYTES: Final = 1 << 20
"""Arrays and answers of at least this size are packed and parsed in a thread."""


async def sleep(seconds: float) -> None:
    """Wait."""
    await asyncio.sleep(seconds)


async def packed(sources: tuple[Any, ...], make: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
    """Call `make` and return its result; runs in a thread if one of `sources` is large or a file."""
    if any(_is_large(source) for source in sources):
        return await asyncio.to_thread(make, *args, **options)
    return make(*args, **options)


async def pause_after(attempts: Attempts[Any], outcome: Answer | TransportError) -> float | None:
    """Call `attempts.pause_after` and return its result; runs in a thread if the answer is large."""
    if isinstance(outcome, Answer) and _takes_long(outcome):
        return await asyncio.to_thread(attempts.pause_after, outcome)
    return attempts.pause_after(outcome)


class WholeAsArray:
    """Makes numpy.asarray() of a resident tensor an error, since NumPy cannot await."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        raise TypeError(f"numpy.asarray() does not await {self!r}: await its [...], which is the whole tensor")


def _is_large(source: Any) -> bool:
    """Return True if an array, list, file or iterator may take long to pack; a str is not treated as a file."""
    if isinstance(source, list | tuple):
        items = 1
        while isinstance(source, list | tuple) and source:
            items *= len(source)
            source = source[0]
        return 8 * items >= LARGE_BYTES
    return isinstance(source, os.PathLike | Iterator) or getattr(source, "nbytes", 0) >= LARGE_BYTES


def _takes_long(answer: Answer) -> bool:
    """Return True if an answer may take long to parse. Binary arrays do not, because they share the answer's memory."""
    return len(answer.body) >= LARGE_BYTES and not answer.headers.get("content-type", "").startswith(SAFETENSORS)
