"""What the service does at intervals: tidying the store, verifying it once, publishing gauges."""

from __future__ import annotations

import asyncio
from threading import Event

from app.errors import GatherError
from app.server.restarting_tasks import in_thread
from app.service import Service
from app.store import LocalStore
from app.telemetry.request_metrics import Metrics


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


async def verify(store: LocalStore, stop: Event) -> None:
    """Compare contents with their checksums, until that is done or `stop` is set."""
    await in_thread(store.verify, stop)


async def publish(metrics: Metrics, interval: float = 0.25) -> None:
    """Publish the gauges of this process to the others. Runs until it is cancelled."""
    while True:
        metrics.publish()
        metrics.log.sweep()
        metrics.changes.sweep()
        await asyncio.sleep(interval)
