"""What the service does at intervals: tidying the store, counting damaged tensors, publishing gauges."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from threading import Event
from time import thread_time
from typing import Final

from app.errors import GatherError
from app.server.restarting_tasks import in_thread
from app.service import Service
from app.store import LocalStore
from app.telemetry.request_metrics import Metrics

DAMAGE_INTERVAL_S: Final = 30.0
DAMAGE_PAUSE_RATIO: Final = 100
_DAMAGE_PAGE: Final = 100
"""Tensors whose files are read before other work gets a turn."""


@dataclass
class DamagedCount:
    """The number of damaged resident tensors at the last count."""

    tensors: int = 0


async def sweep(store: LocalStore, service: Service, interval: float = 0.5) -> None:
    """Unmap replaced contents, remove the files of dead workers, and drop stale copies on the GPU.

    Runs until it is cancelled; the work is done in a thread, since it may read the file of every tensor.
    """

    def etag_of(name: str) -> str | None:
        try:
            resident = store.get(name)
        except GatherError:
            return None
        return None if resident is None else resident.etag

    while True:
        await asyncio.sleep(interval)
        await in_thread(store.sweep)
        await in_thread(store.remove_leftovers)
        if service.gpu is not None:
            await in_thread(service.gpu.copies.sweep, etag_of)


async def count_damaged(store: LocalStore, damaged: DamagedCount) -> None:
    """Count the damaged tensors every DAMAGE_INTERVAL_S, more rarely where there are many. Runs until it is cancelled.

    It reads the first page of each tensor's file, a few at a time, and then pauses DAMAGE_PAUSE_RATIO times the
    processor time that this took.
    """

    def look(after: str | None) -> tuple[int, str | None, float]:
        begun = thread_time()
        page, further = store.page(_DAMAGE_PAGE, after)
        return sum(tensor.damaged for tensor in page), further, thread_time() - begun

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


async def verify(store: LocalStore, stop: Event) -> None:
    """Compare contents with their checksums, until that is done or `stop` is set."""
    await in_thread(store.verify, stop)


async def publish(metrics: Metrics, interval: float = 0.25) -> None:
    """Publish the gauges of this process to the others. Runs until it is cancelled."""
    while True:
        metrics.publish()
        metrics.log.sweep()
        await asyncio.sleep(interval)
