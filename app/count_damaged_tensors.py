"""Counts the damaged versions of resident tensors at intervals, for the gauge `gathernd_resident_tensors_damaged`."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from time import thread_time
from typing import Final

from app.server.restarting_tasks import in_thread
from app.store import LocalStore

DAMAGE_INTERVAL_S: Final = 30.0
DAMAGE_PAUSE_RATIO: Final = 100
_DAMAGE_PAGE: Final = 100
"""Tensors whose files are read before other work gets a turn."""


@dataclass
class DamagedCount:
    """The number of damaged versions of resident tensors at the last count."""

    tensors: int = 0


async def count_damaged(store: LocalStore, damaged: DamagedCount) -> None:
    """Count the damaged versions again and again, until cancelled.

    A count reads the first page of each tensor's file, a few files at a time. The pause after it is DAMAGE_INTERVAL_S,
    or DAMAGE_PAUSE_RATIO times the processor time of the count if that is longer (many tensors).
    """

    def look(after: str | None) -> tuple[int, str | None, float]:
        begun = thread_time()
        page, further = store.page(_DAMAGE_PAGE, after)
        found = sum(version.damaged for tensor in page for version in (tensor, *store.older_versions(tensor)))
        return found, further, thread_time() - begun

    while True:
        found, after, worked = 0, None, 0.0
        while True:
            more, after, seconds = await in_thread(look, after)
            found += more
            worked += seconds
            if after is None:
                break
            await asyncio.sleep(0.1)
        damaged.tensors = found
        await asyncio.sleep(max(DAMAGE_INTERVAL_S, DAMAGE_PAUSE_RATIO * worked))
