"""Waiting in the blocking client; `_async_waiting` defines the same names for the asynchronous client."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from numpy.typing import NDArray

from ._messages import Answer
from ._retries import Attempts
from .errors import TransportError

T = TypeVar("T")
P = ParamSpec("P")


def sleep(seconds: float) -> None:
    """Wait."""
    time.sleep(seconds)


def packed(sources: tuple[Any, ...], make: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
    """Call `make` and return its result. `sources` are the arrays and files that it packs."""
    return make(*args, **options)


def pause_after(attempts: Attempts[Any], outcome: Answer | TransportError) -> float | None:
    """Call `attempts.pause_after` and return its result."""
    return attempts.pause_after(outcome)


class WholeAsArray:
    """Makes numpy.asarray() of a resident tensor download the whole tensor."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        found: NDArray[Any] = self[...]  # type: ignore[index]  # the class that inherits this one has it
        return found if dtype is None else found.astype(dtype, copy=False)
