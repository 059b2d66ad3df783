"""Tasks that the service runs at intervals or once in the background.

They clean up the store, verify it once, count its damaged versions, publish gauges, and return memory to the kernel.
"""

from __future__ import annotations

import asyncio
from threading import Event
from time import thread_time
from typing import Final

from app.errors import GatherError
from app.memory import malloc_tuning
from app.server.restarting_tasks import in_thread
from app.services.service import Service
from app.store import LocalStore
from app.telemetry.request_metrics import Metrics

DAMAGE_INTERVAL_S: Final = 30.0
DAMAGE_PAUSE_RATIO: Final = 100
_DAMAGE_PAGE: Final = 100
"""Number of tensors whose files are read before other work gets a turn."""
_IDLE_INTERVALS: Final = 3
"""The service is idle after this many intervals without work."""
_IDLE_REQUESTS: Final = 10
"""Up to this many requests per interval do not count as work: health probes and scrapes of metrics."""
_FREED_BYTES: Final = 8 << 20
"""Memory is returned only if it has grown by at least this much since the last time."""


async def sweep(store: LocalStore, service: Service, interval: float = 0.5) -> None:
    """At intervals, unmap replaced versions, remove the files of dead workers, and drop stale copies on the GPU.

    Runs until it is canceled. The work runs in a thread, because it may read the file of every tensor.
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
    """Compare all data in the store with its checksums, once, or until `stop` is set."""
    await in_thread(store.verify, stop)


async def count_damaged(store: LocalStore, metrics: Metrics) -> None:
    """Repeatedly count the damaged versions of resident tensors for their gauge, until canceled.

    A count reads the first page of each tensor's file, a few files at a time. The pause after it is DAMAGE_INTERVAL_S,
    or DAMAGE_PAUSE_RATIO times the CPU time of the count if that is longer (with many tensors).
    """

    def look(after: str | None) -> tuple[int, str | None, float]:
        begun = thread_time()
        page, further = store.page(_DAMAGE_PAGE, after)
        found = sum(version.damaged for tensor in page for version in (tensor, *store.older_versions(tensor)))
        return found, further, thread_time() - begun

    damaged = 0
    metrics.unsummed["gathernd_resident_tensors_damaged"] = lambda: damaged
    while True:
        found, after, worked = 0, None, 0.0
        while True:
            more, after, seconds = await in_thread(look, after)
            found += more
            worked += seconds
            if after is None:
                break
            await asyncio.sleep(0.1)
        damaged = found
        await asyncio.sleep(max(DAMAGE_INTERVAL_S, DAMAGE_PAUSE_RATIO * worked))


async def publish(metrics: Metrics, interval: float = 0.25) -> None:
    """Publish this process's gauges to the other processes at intervals. Runs until it is canceled."""
    while True:
        metrics.publish()
        metrics.log.sweep()
        metrics.changes.sweep()
        await asyncio.sleep(interval)


async def give_back_memory(metrics: Metrics, service: Service, interval: float = 1.0) -> None:
    """Return freed memory to the kernel whenever the service has become idle. Runs until it is canceled."""
    budget, begun, idle, settled = service.budget, 0, 0, 0
    while True:
        await asyncio.sleep(interval)
        few = metrics.begun - begun <= _IDLE_REQUESTS
        begun = metrics.begun
        idle = 0 if budget.used or budget.small_used or not few else idle + 1
        if idle >= _IDLE_INTERVALS and malloc_tuning.private_bytes() > settled + _FREED_BYTES:
            await in_thread(service.outputs.clear)
            await in_thread(malloc_tuning.return_freed_memory)
            settled = malloc_tuning.private_bytes()
