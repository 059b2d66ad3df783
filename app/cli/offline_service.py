"""A service without a server or a store, with which `gathernd calibrate` and `gathernd explain` choose routes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final

import typer

from app.cli.failure import failure
from app.cli.read_settings import read_settings
from app.dispatch.choose_backend import BackendChooser, Route
from app.dispatch.measured_rates import machine_rates
from app.dispatch.request_thread_pool import RequestThreadPool
from app.kernels.gpu_interface import NoDevice
from app.kernels.kernel_by_name import kernel_named
from app.main import split_threads, use_gpu
from app.memory.budget import Budget
from app.memory.malloc_tuning import keep_freed_memory
from app.services.service import Service
from app.settings import Settings
from app.store import Store

ROUTE_NAMES: Final[dict[Route, str]] = {
    "loop": "event loop",
    "thread": "one thread",
    "split": "split over threads",
    "gpu": "the GPU",
}
"""The names of the routes in the output of commands."""

CacheDir = Annotated[Path | None, typer.Option(help="Folder of the measured rates. If omitted: GATHERND_CACHE_DIR.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


def size_text(size: Mapping[str, int | None]) -> str:
    """Format a size or a threshold, such as "256 items, 65,536 bytes"."""
    return ", ".join(f"{number:,} {name}" for name, number in size.items() if number is not None) or "none"


def settings_with(cache_dir: Path | None) -> Settings:
    """Read the settings from the environment, with this cache folder if one is given."""
    return read_settings() if cache_dir is None else read_settings(cache_dir=cache_dir)


def service_of(settings: Settings, *, refresh: bool) -> Service:
    """Return a service without a store that chooses backends like a server with these settings.

    The machine's rates are read from the cache folder. They are measured if `refresh` is set or if there is no file. If
    the settings require a GPU and there is none, the command ends with exit code 1.
    """
    keep_freed_memory(settings.memory_budget // 8)
    kernel = kernel_named(settings.kernel)
    threads = split_threads(settings)
    if settings.kernel == "numba":
        from app.kernels import numba_cpu  # noqa: PLC0415

        numba_cpu.configure(settings.cache_dir)
        numba_cpu.warm()
    chooser = BackendChooser(
        loop_max_us=settings.loop_max_us,
        split_min_us=settings.split_min_us,
        threads=threads,
        rates=machine_rates(kernel, settings.cache_dir, refresh=refresh),
    )
    budget = Budget(settings.memory_budget // settings.workers)
    service = Service(settings.limits, Store(), kernel, RequestThreadPool(settings.threads, 0), chooser, budget)
    try:
        use_gpu(settings, service)
    except NoDevice as reason:
        raise failure(str(reason)) from None
    return service
