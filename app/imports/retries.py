"""Asking a source again: how often, and with which pauses."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from app.imports.source_errors import Interrupted, SourceFailed

T = TypeVar("T")
ATTEMPTS: Final = 6
"""So often in a row a source may fail without a byte more, before the import fails."""
FIRST_ATTEMPTS: Final = 3
"""The same for the first bytes, while the client waits for its answer."""
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 10.0


class Attempts:
    """The failures in a row of one range."""

    def __init__(self, most: int = ATTEMPTS) -> None:
        self._most = most
        self._failures = 0

    def progress(self) -> None:
        """Bytes came."""
        self._failures = 0

    async def after(self, failure: Interrupted) -> None:
        """Wait until it is time to ask again. Raises SourceFailed where it was asked often enough."""
        self._failures += 1
        if self._failures >= self._most:
            raise SourceFailed(f"{failure.why}, {self._most} times in a row")
        pause = min(_FIRST_PAUSE_S * 3 ** (self._failures - 1), _LONGEST_PAUSE_S)
        await asyncio.sleep(max(min(failure.retry_after, _LONGEST_PAUSE_S), pause * random.uniform(0.5, 1)))  # noqa: S311


async def with_retries(ask: Callable[[], Awaitable[T]], most: int = ATTEMPTS) -> T:
    """The result of `ask`, which is called `most` times if it raises Interrupted. Raises SourceFailed."""
    attempts = Attempts(most)
    while True:
        try:
            return await ask()
        except Interrupted as failure:
            await attempts.after(failure)
