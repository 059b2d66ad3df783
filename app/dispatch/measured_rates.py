"""Measure the rates for `choose_backend` in a fraction of a second, and cache them on disk.

A file is valid for one machine and one version of the software: its name contains a digest of both. The thresholds for
a GPU are measured at each startup, because the GPU may have been replaced.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import platform
from collections.abc import Callable
from dataclasses import asdict, astuple, fields
from functools import partial
from hashlib import sha256
from importlib.metadata import version
from itertools import cycle
from math import inf, isfinite
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import numpy as np

from app import __version__, kernels
from app.dispatch.choose_backend import Rates, Size
from app.dispatch.request_thread_pool import RequestThreadPool
from app.kernels import Kernel
from app.kernels.gpu_interface import Device
from app.operators.gather_plan import GatherPlan

new_event_loop: Callable[[], asyncio.AbstractEventLoop]
try:
    from uvloop import new_event_loop  # the software of the service
except ImportError:
    from asyncio import new_event_loop

logger = logging.getLogger("gathernd")

_NEAR_BYTES: Final = 1 << 15
"""Size in bytes of data that a few calls bring into the L1 cache."""
_FAR_BYTES: Final = 1 << 26
"""Size in bytes of data that exceeds any cache of a core."""
_ITEM: Final = 4
_ROW: Final = 4096
"""Slice sizes in bytes for measuring the rate of items and the rate of bytes."""
_ITEMS: Final = 1 << 16
_ROWS: Final = 1 << 10
_SHORT_ITEMS: Final = 1 << 13
"""Number of items in the gather that measures the hand-off.

It takes about as long as the shortest gather that is handed off.
"""
_REPEATS: Final = 5
_ROUNDS: Final = 25
_FLOOR: Final = 1e-13  # seconds; the difference of two measured times may be zero or negative
_GPU_GAIN: Final = 0.9
"""A GPU must take less than this fraction of the CPU's time."""
_MOST_GPU_ITEMS: Final = 1 << 20


def machine_rates(kernel: Kernel, cache_dir: Path, *, refresh: bool = False) -> Rates:
    """Load the rates of this machine from the file in `cache_dir`, or measure them and write the file.

    If the cache cannot be read or written, the rates are measured again at each startup, and a warning is logged.
    """
    path = cache_dir / f"rates-{_fingerprint(kernel)}.json"
    rates = None if refresh else _load(path)
    if rates is None:
        rates = measure(kernel)
        try:
            cache_dir.mkdir(parents=True, exist_ok=True)
            aside = path.with_suffix(f".{os.getpid()}")
            aside.write_text(json.dumps(asdict(rates), indent=1))
            aside.replace(path)
        except OSError as error:
            logger.warning("the measured rates could not be kept in GATHERND_CACHE_DIR: %s", error.strerror)
    return rates


def measure(kernel: Kernel) -> Rates:
    """Measure the kernel with items from a cache, with items from memory, with rows, and in another thread."""
    source = np.random.default_rng(1)
    data = np.ones(_FAR_BYTES // 4, np.uint32)

    def gather(size: int, width: int, count: int) -> Callable[[], int]:
        """Build a gather of `count` slices of `width` bytes from the first `size` bytes of data."""
        rows = size // width
        plan = GatherPlan(1, count, (rows,), width // _ITEM, _ITEM, False, True)
        # Use new indices for each call: repeated slices would be cached.
        indices = cycle([source.integers(0, rows, count) for _ in range(_REPEATS + 1)])
        out = np.zeros(plan.output_items, np.uint32)
        return lambda: kernel.run(plan, data[: size // 4], next(indices), out)

    near, far = (_best(gather(size, _ITEM, _ITEMS)) / _ITEMS for size in (_NEAR_BYTES, _FAR_BYTES))
    byte = _best(gather(_FAR_BYTES, _ROW, _ROWS)) / (_ROW * _ROWS)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        hand_off_s = runner.run(_measure_hand_off(gather(_FAR_BYTES, 16 * _ITEM, _SHORT_ITEMS)))
    return Rates(hand_off_s, byte_s=byte, near_item_s=near, far_item_s=max(far, near))


def measure_gpu(device: Device, kernel: Kernel, threads: int, nbytes: int = _FAR_BYTES) -> Size:
    """Find the smallest number of items, and of bytes in long rows, at which a GPU with a copy of the data is faster.

    Whole gathers are timed, including the transfer of indices and output. The data has `nbytes` bytes, or an eighth of
    the device's memory if that is less. May raise OutOfDeviceMemory or DeviceFailed.
    """
    nbytes = max(min(nbytes, device.memory // 8) // _ROW, 1) * _ROW
    source = np.random.default_rng(1)
    data = source.integers(0, 255, nbytes, np.uint8).view(np.uint32)
    copy = device.upload(data)

    def least(width: int) -> float:
        count = 64
        while count <= min(_MOST_GPU_ITEMS, nbytes // width):
            plan = GatherPlan(1, count, (nbytes // width,), width // _ITEM, _ITEM, False, True)
            indices = source.integers(0, nbytes // width, count)
            out = np.zeros(plan.output_items, np.uint32)
            there = _best(partial(device.run, plan, copy, indices, out))
            here = _best(partial(kernel.run, plan, data, indices, out, threads))
            if there < _GPU_GAIN * here:
                return count
            count *= 2
        return inf

    return Size(least(_ITEM), least(_ROW) * _ROW)


async def _measure_hand_off(work: Callable[[], Any]) -> float:
    """Return how many seconds longer `work` takes in a pool thread than in this thread. Compares the medians.

    Each side runs several times in a row. Its first run is discarded, because its memory is in the other core's caches.
    """
    pool = RequestThreadPool(1, 0)
    here, in_pool = [], []
    for _ in range(_ROUNDS):
        here += [_seconds(work) for _ in range(_REPEATS)][1:]
        for number in range(_REPEATS):
            started = perf_counter()
            await pool.run(work)
            if number:
                in_pool.append(perf_counter() - started)
    pool.close()
    return max(float(np.median(in_pool)) - float(np.median(here)), _FLOOR)


def _seconds(work: Callable[[], Any]) -> float:
    started = perf_counter()
    work()
    return perf_counter() - started


def _best(work: Callable[[], Any]) -> float:
    work()
    return min(_seconds(work) for _ in range(_REPEATS))


def _load(path: Path) -> Rates | None:
    """Return the rates in the file, or None if it is missing or incomplete."""
    try:
        rates = Rates(**json.loads(path.read_text()))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, TypeError) as error:
        logger.warning("the measured rates in %s cannot be read; measuring them again: %s", path.name, error)
        return None
    whole = all(isinstance(number, float) and isfinite(number) and number > 0 for number in astuple(rates))
    return rates if whole else None


def _fingerprint(kernel: Kernel) -> str:
    """Return a digest of the machine, the software versions, and the kernel sources.

    The sources are included because they may change without a new version.
    """
    names = (field.name for field in fields(Rates))
    versions = (__version__, np.__version__, version("numba"), platform.python_version())
    parts = (cpu_model(), platform.machine(), str(os.cpu_count()), kernel.name, *versions, *names)
    digest = sha256("\n".join(parts).encode())
    for source in sorted(Path(kernels.__file__).parent.rglob("*")):
        if source.suffix in (".py", ".cu"):
            digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def cpu_model() -> str:
    """Return the operating system's description of the processor, or "" if unknown."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith("model name")), platform.processor())
