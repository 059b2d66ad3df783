"""Read the values of the gauges: those of this process (queue, memory, GPU), and those of the store and the settings.

Their names, labels and help texts are in `app.telemetry.metric_definitions`.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable

from app.cluster.router.sharded_tensors import ShardedTensors
from app.services.service import Service
from app.settings import Settings
from app.store import LocalStore


def process_gauges(service: Service, settings: Settings) -> dict[str, Callable[[], float]]:
    """Return this process's gauges as functions that are called whenever metrics are requested."""
    return {
        "gathernd_queue_depth": lambda: service.pool.in_use,
        "gathernd_requests_limit": lambda: settings.max_requests,
        "gathernd_connections_limit": lambda: settings.max_connections,
        "gathernd_queue_capacity": lambda: settings.threads + settings.max_queue,
        "gathernd_memory_used_bytes": lambda: service.budget.all_used,
        "gathernd_memory_budget_bytes": lambda: service.budget.all_total,
        "gathernd_gpu_memory_bytes": lambda: service.gpu.device.memory if service.gpu else 0,
        "gathernd_gpu_used_bytes": lambda: service.gpu.device.used() if service.gpu else 0,
        "gathernd_gpu_resident_bytes": lambda: service.gpu.copies.nbytes if service.gpu else 0,
    }


def common_gauges(store: LocalStore, settings: Settings, tables: ShardedTensors | None = None) -> dict[str, float]:
    """Return the gauges of the store and the settings, which are the same in every process.

    `tables` replaces the tensors of the store if tensors are split into row ranges.
    """
    tensors, size = store.usage()
    free = shutil.disk_usage(store.folder).free
    if settings.max_store_bytes is not None:
        free = min(free, max(0, settings.max_store_bytes - size))
    found = store if tables is None else tables
    return {
        "gathernd_processes_expected": settings.workers,
        "gathernd_resident_tensors": tensors if tables is None else tables.usage()[0],
        "gathernd_resident_versions": found.version_count(),
        "gathernd_aliases": len(found.alias_names()),
        "gathernd_resident_bytes": size if tables is None else tables.usage()[1],
        "gathernd_resident_tensors_limit": settings.max_tensors,
        "gathernd_resident_bytes_free": free,
    }
