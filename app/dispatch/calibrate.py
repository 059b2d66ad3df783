"""Measures the coefficients of `app.dispatch.cost` on this machine, in well under a second, and keeps them on disk.

The file is for one machine and one state of the software: its name holds a digest of CPU, cores, kernel and versions,
so that nothing measured elsewhere is ever taken for this place. `refresh` measures anew.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import platform
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from hashlib import sha256
from math import isfinite
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import numba
import numpy as np
from numpy.typing import NDArray

from app import __version__
from app.dispatch.cost import FAR_BYTES, NEAR_BYTES, Coefficients, GpuCoefficients
from app.dispatch.pool import Pool
from app.kernels import Kernel
from app.spec.plan import GatherPlan

logger = logging.getLogger("gathernd")

_ROW: Final = 4096
_REPEATS: Final = 5
_FLOOR: Final = 1e-13  # of a rate: a difference of two measured times may come out at nothing or below


def calibrated(
    kernel: Kernel,
    cache_dir: Path,
    *,
    threads: int | None = None,
    gpu: Callable[[], GpuCoefficients] | None = None,
    refresh: bool = False,
) -> Coefficients:
    """The coefficients of this machine, from the file in `cache_dir`, else measured and written there.

    `threads` is how many the pool has, by default one for each core; `gpu` measures the device where there is one. A
    cache that cannot be read or written costs a measurement at each start and is logged.
    """
    threads = threads or len(os.sched_getaffinity(0))
    path = cache_dir / f"calibration-{_fingerprint(kernel, threads, gpu is not None)}.json"
    if not refresh:
        found = _load(path)
        if found is not None:
            return found
    coefficients = measure(kernel, threads, gpu() if gpu is not None else None)
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        aside = path.with_suffix(f".{os.getpid()}")
        aside.write_text(json.dumps(asdict(coefficients), indent=1))
        aside.replace(path)
    except OSError as error:
        logger.warning("the calibration could not be kept in %s: %s", cache_dir, error)
    return coefficients


def measure(kernel: Kernel, threads: int, gpu: GpuCoefficients | None = None) -> Coefficients:
    """Time the kernel on small, on near and on far data, and a hand-off."""
    source = np.random.default_rng(1)
    far = source.integers(0, 255, FAR_BYTES, np.uint8)
    near = far[:NEAR_BYTES]
    call_s = _best(_gather(kernel, near, 4, (2, 2), 2, source), 50)
    # Two depths over data of one size: what differs is two components each.
    one = _best(_gather(kernel, near, 4, (near.size // 4,), 20_000, source))
    three = _best(_gather(kernel, near, 4, (near.size // 1024, 16, 16), 20_000, source))
    component_s = max((three - one) / 40_000, _FLOOR)
    near_slice_s, near_byte_s = _prices(kernel, near, 20_000, 256, component_s, call_s, source)
    far_slice_s, far_byte_s = _prices(kernel, far, 100_000, 2_000, component_s, call_s, source)
    return Coefficients(
        hand_off_s=_hand_off(),
        call_s=call_s,
        component_s=component_s,
        near_slice_s=near_slice_s,
        near_byte_s=near_byte_s,
        far_slice_s=max(far_slice_s, near_slice_s),
        far_byte_s=max(far_byte_s, near_byte_s),
        split_gain=_split_gain(kernel, far, threads, source),
        gpu=gpu,
    )


def _gather(
    kernel: Kernel, data: NDArray[np.uint8], width: int, dims: tuple[int, ...], tuples: int, source: np.random.Generator
) -> Callable[[], int]:
    """A call of the kernel for `tuples` random slices of `width` bytes."""
    plan = GatherPlan(1, tuples, dims, width // 4, 4, False, True)
    indices = np.stack([source.integers(0, size, tuples) for size in dims], axis=-1).reshape(-1)
    carriers = data[: plan.data_items * 4].view(np.uint32)
    out = np.zeros(plan.output_items, np.uint32)
    return lambda: kernel.run(plan, carriers, indices, out)


def _prices(
    kernel: Kernel,
    data: NDArray[np.uint8],
    items: int,
    rows: int,
    component_s: float,
    call_s: float,
    source: np.random.Generator,
) -> tuple[float, float]:
    """Seconds a slice and a byte, from single items and from wide rows."""
    item = _best(_gather(kernel, data, 4, (data.size // 4,), items, source))
    row = _best(_gather(kernel, data, _ROW, (data.size // _ROW,), rows, source))
    slice_s = max((item - call_s) / items - component_s, _FLOOR)
    return slice_s, max(((row - call_s) / rows - component_s - slice_s) / _ROW, _FLOOR)


def _split_gain(kernel: Kernel, far: NDArray[np.uint8], threads: int, source: np.random.Generator) -> float:
    """How many times faster `threads` threads gather far items than one.

    A busy neighbour makes this look worse than it is, and the file would keep it: the best of a few counts, and no less
    than a quarter of what the other threads could bring, so that one bad moment does not end all splitting.
    """
    if threads < 2:
        return 1.0
    calls = [_gather(kernel, far, 4, (far.size // 4,), 50_000, source) for _ in range(threads)]
    gain = 1 + (threads - 1) / 4
    with ThreadPoolExecutor(threads) as executor:
        for _ in range(4):
            alone = _best(calls[0])
            together = _best(lambda: list(executor.map(lambda call: call(), calls)))
            gain = max(gain, threads * alone / together)
    return min(gain, float(threads))


def _hand_off() -> float:
    """Seconds from the event loop to a thread of the pool and back; the median, for the least is a lucky one."""

    async def rounds() -> float:
        pool = Pool(1, 0)
        times = []
        for _ in range(300):
            started = perf_counter()
            await pool.run(lambda: None)
            times.append(perf_counter() - started)
        pool.close()
        return float(np.median(times))

    return asyncio.run(rounds())


def _best(call: Callable[[], Any], repeats: int = _REPEATS) -> float:
    call()
    times = []
    for _ in range(repeats):
        started = perf_counter()
        call()
        times.append(perf_counter() - started)
    return min(times)


def _load(path: Path) -> Coefficients | None:
    """What the file holds; None where there is none, or it is not whole."""
    try:
        content = json.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        logger.warning("the calibration in %s cannot be read and is measured again: %s", path, error)
        return None
    try:
        gpu = content.pop("gpu")
        found = Coefficients(**content, gpu=None if gpu is None else GpuCoefficients(**gpu))
    except (AttributeError, KeyError, TypeError):
        return None
    numbers = [*content.values(), *(gpu.values() if gpu is not None else ())]
    if not all(isinstance(number, float) and isfinite(number) and number > 0 for number in numbers):
        return None
    return found


def _fingerprint(kernel: Kernel, threads: int, gpu: bool) -> str:
    parts = (
        _cpu_model(),
        platform.machine(),
        str(os.cpu_count()),
        str(threads),
        str(gpu),
        kernel.name,
        __version__,
        np.__version__,
        numba.__version__,
        platform.python_version(),
    )
    return sha256("\n".join(parts).encode()).hexdigest()[:16]


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith("model name")), platform.processor())
