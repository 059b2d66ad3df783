"""Measures the cost model's coefficients on this machine, in well under a second, and keeps them on disk.

The file is for one machine and one version of the software: its name holds a digest of CPU, cores, kernel and versions,
so that no measurement of another machine is used. `refresh` measures anew.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import platform
from collections.abc import Callable
from dataclasses import asdict, replace
from hashlib import sha256
from itertools import accumulate, chain, cycle
from math import isfinite
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import numba
import numpy as np
from numpy.typing import NDArray

from app import __version__, kernels
from app.dispatch.backend_cost_model import (
    DATA_BYTES,
    DEPTHS,
    LARGE_OUTPUT,
    ODD_WIDTH,
    WIDTHS,
    Coefficients,
    GpuCoefficients,
    slice_seconds,
)
from app.dispatch.request_thread_pool import RequestThreadPool
from app.kernels import Kernel
from app.operators.gather_plan import GatherPlan

new_event_loop: Callable[[], asyncio.AbstractEventLoop]
try:
    from uvloop import new_event_loop  # what the service runs on
except ImportError:
    from asyncio import new_event_loop

logger = logging.getLogger("gathernd")

_SLICES: Final = 8192
_WORK_BYTES: Final = 1 << 18
_REPEATS: Final = 5
_HAND_OFFS: Final = 100
_TRANSFER_CALLS: Final = 30
_CALLS_IN_A_ROW: Final = 5
_MANY_ITEMS: Final = 250_000
_TRANSFER_BYTES: Final = 1 << 21
_GAIN_BYTES: Final = 1 << 26
_ROW_BYTES: Final = 4096
_GAIN_ROUNDS: Final = 8
_GAIN_TRIES: Final = 3
_WAKEUPS: Final = 25
_PAUSE_S: Final = 0.0002
_MIN_GAIN_SHARE: Final = 0.4  # of what the other threads could bring, in what is kept: see `with_min_gain`
_FLOOR: Final = 1e-13  # seconds: a difference of two measured times may come out at zero or below


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
    coefficients = with_min_gain(measure(kernel, threads, gpu() if gpu is not None else None), threads)
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        aside = path.with_suffix(f".{os.getpid()}")
        aside.write_text(json.dumps(asdict(coefficients), indent=1))
        aside.replace(path)
    except OSError as error:
        logger.warning("the calibration could not be kept in GATHERND_CACHE_DIR: %s", error.strerror)
    return coefficients


def with_min_gain(measured: Coefficients, threads: int) -> Coefficients:
    """`measured` with a gain on items of no less than a part of what `threads` threads could bring.

    Another process makes gains look worse than they are, and the file would keep that: one busy moment must not end all
    splitting. Gains on rows stay as measured, since memory alone may bound those.
    """
    return replace(measured, item_gain=max(measured.item_gain, _min_gain(threads)))


def _min_gain(threads: int) -> float:
    return 1 + (threads - 1) * _MIN_GAIN_SHARE


def measure(kernel: Kernel, threads: int, gpu: GpuCoefficients | None = None) -> Coefficients:
    """Time the kernel over the table's data sizes and widths, the depths of a tuple, large output, and hand-offs."""
    source = np.random.default_rng(1)
    data = source.integers(0, 255, DATA_BYTES[-1], np.uint8)
    call_s = _best(_KernelCall(kernel, data, 16, 4, 1, 2, source), 50)
    slice_s = tuple(
        tuple(
            _slice_price(_KernelCall(kernel, data, size, width, 1, _slice_count(width), source), call_s)
            for width in WIDTHS
        )
        for size in DATA_BYTES
    )
    odd = _slice_price(_KernelCall(kernel, data, DATA_BYTES[0], ODD_WIDTH, 1, _SLICES, source), call_s)
    flat, *deep = (
        _slice_price(_KernelCall(kernel, data, DATA_BYTES[0], 4, depth, _SLICES, source), call_s) for depth in DEPTHS
    )
    tuple_s = (0.0, *accumulate((max(price - flat, _FLOOR) for price in deep), max))
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        handed = runner.run(_measure_hand_off(kernel, data, source))
    return Coefficients(
        call_s=call_s,
        slice_s=slice_s,
        odd_slice_s=max(odd - slice_seconds(DATA_BYTES[0], ODD_WIDTH, slice_s), _FLOOR),
        tuple_s=tuple_s,
        output_byte_s=_output_price(kernel, data, slice_s[0], source),
        gpu=gpu,
        **handed,
        **_measure_split(kernel, data, threads, source),
    )


class _KernelCall:
    """A call of the kernel for `count` slices of `width` bytes from the first `size` bytes of `data`.

    The tuples of `depth` components are random, and others in each call: the slices of repeated ones would come out of
    the caches. With several `threads` each has as much work.
    """

    def __init__(
        self,
        kernel: Kernel,
        data: NDArray[np.uint8],
        size: int,
        width: int,
        depth: int,
        count: int,
        source: np.random.Generator,
        *,
        threads: int = 1,
    ) -> None:
        count *= threads
        rows = max(1, size // width)
        side = int(rows ** (1 / depth))
        dims = (*(side,) * (depth - 1), rows // side ** (depth - 1))
        item = 4 if width % 4 == 0 else 1
        self.count = count
        self._plan = GatherPlan(1, count, dims, width // item, item, False, True)
        self._indices = cycle(
            [
                np.stack([source.integers(0, size, count) for size in dims], axis=-1).reshape(-1)
                for _ in range(_REPEATS + 1)
            ]
        )
        self._data = data[: self._plan.data_items * item].view(f"u{item}")
        self._out = np.zeros(self._plan.output_items, f"u{item}")
        self._kernel = kernel
        self._threads = threads

    def __call__(self) -> int:
        return self._kernel.run(self._plan, self._data, next(self._indices), self._out, self._threads)


def _slice_count(width: int) -> int:
    """How many slices of a width are enough to be timed, with an output that fits into the second cache."""
    return max(4, min(_SLICES, _WORK_BYTES // width))


def _slice_price(work: _KernelCall, call_s: float) -> float:
    return max((_best(work) - call_s) / work.count, _FLOOR)


def _output_price(
    kernel: Kernel, data: NDArray[np.uint8], prices: tuple[float, ...], source: np.random.Generator
) -> float:
    """Seconds a byte that output of LARGE_OUTPUT bytes takes beyond what its slices cost in a small one."""
    work = _KernelCall(kernel, data, DATA_BYTES[0], _ROW_BYTES, 1, LARGE_OUTPUT // _ROW_BYTES, source)
    return max(_best(work, 3) / LARGE_OUTPUT - prices[WIDTHS.index(_ROW_BYTES)] / _ROW_BYTES, _FLOOR)


async def _measure_hand_off(kernel: Kernel, data: NDArray[np.uint8], source: np.random.Generator) -> dict[str, float]:
    """The coefficients of a thread of the pool.

    The median of the hand-offs counts. Each is measured around work as long as the shortest that is handed off, since a
    core that has waited so long takes longer to wake; then comes what more indices and more output take longer in
    another core's thread.
    """
    pool = RequestThreadPool(1, 0)
    usual = _KernelCall(kernel, data, data.size, 64, 1, _SLICES, source)
    hand_off_s = await _median_extra(pool, usual, _HAND_OFFS)
    indices = _KernelCall(kernel, data, DATA_BYTES[0], 1, 1, _MANY_ITEMS, source)
    output = _KernelCall(kernel, data, DATA_BYTES[0], 64, 1, _TRANSFER_BYTES // 64, source)
    index_move_s = (await _median_extra(pool, indices, _TRANSFER_CALLS) - hand_off_s) / indices.count
    output_move_s = (await _median_extra(pool, output, _TRANSFER_CALLS) - hand_off_s) / _TRANSFER_BYTES
    pool.close()
    return {
        "hand_off_s": max(hand_off_s, _FLOOR),
        "index_move_s": max(index_move_s, _FLOOR),
        "output_move_s": max(output_move_s, _FLOOR),
    }


def _measure_split(
    kernel: Kernel, data: NDArray[np.uint8], threads: int, source: np.random.Generator
) -> dict[str, float]:
    """The coefficients of a split over `threads`: what helpers that sleep cost, and how much faster all are than one.

    The largest gain counts, since other processes only lower it; a small one is measured again.
    """
    # The memory of all threads together is that of two, however many there are.
    rows = min(4_000, _GAIN_BYTES // _ROW_BYTES // threads)
    items = min(_MANY_ITEMS, 2 * _MANY_ITEMS // threads)
    found = {}
    wakeup_s = 0.0
    for name, size, width, count in (
        ("item_gain", data.size, 4, items),
        ("row_gain", data.size, _ROW_BYTES, rows),
        ("output_gain", DATA_BYTES[0], _ROW_BYTES, rows),
    ):
        gain = 1.0
        if threads > 1 and kernel.splits:
            one, all_of_them = (
                _KernelCall(kernel, data, size, width, 1, count, source, threads=n) for n in (1, threads)
            )
            alone, shared = [], []
            for _ in range(_GAIN_TRIES):
                for _ in range(_GAIN_ROUNDS):
                    alone.append(_best(one, 1))
                    shared.append(_best(all_of_them, 2))
                gain = min(max(threads * min(alone) / min(shared), 1.0), float(threads))
                if gain >= _min_gain(threads):
                    break
            if name == "item_gain":
                late = float(np.median([_after_pause(all_of_them) for _ in range(_WAKEUPS)]))
                wakeup_s = (late - float(np.median(shared))) / (threads - 1)
        found[name] = gain
    return {**found, "wakeup_s": max(wakeup_s, _FLOOR)}


def _after_pause(work: Callable[[], Any]) -> float:
    """Seconds of `work` once helpers sleep, in a thread that does not."""
    until = perf_counter() + _PAUSE_S
    while perf_counter() < until:
        pass
    return _seconds(work)


async def _median_extra(pool: RequestThreadPool, work: Callable[[], Any], times: int) -> float:
    """How many seconds longer `work` takes in the pool than in this thread, 0 at least.

    Each side runs a few times in a row, and the first run does not count: its memory is in the other core's caches.
    """
    here, in_pool = [], []
    for _ in range(times // _CALLS_IN_A_ROW):
        here += [_seconds(work) for _ in range(_CALLS_IN_A_ROW + 1)][1:]
        in_pool += [await _in_pool(pool, work) for _ in range(_CALLS_IN_A_ROW + 1)][1:]
    return max(float(np.median(in_pool)) - float(np.median(here)), 0.0)


async def _in_pool(pool: RequestThreadPool, work: Callable[[], Any]) -> float:
    started = perf_counter()
    await pool.run(work)
    return perf_counter() - started


def _seconds(work: Callable[[], Any]) -> float:
    started = perf_counter()
    work()
    return perf_counter() - started


def _best(call: Callable[[], Any], repeats: int = _REPEATS) -> float:
    call()
    return min(_seconds(call) for _ in range(repeats))


def _load(path: Path) -> Coefficients | None:
    """The coefficients in the file; None where there is none, or it is not whole."""
    try:
        content = json.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        logger.warning("the calibration in %s cannot be read and is measured again: %s", path.name, reason)
        return None
    try:
        gpu = content.pop("gpu")
        slice_s = tuple(map(tuple, content.pop("slice_s")))
        tuple_s = tuple(content.pop("tuple_s"))
        found = Coefficients(**content, slice_s=slice_s, tuple_s=tuple_s, gpu=gpu and GpuCoefficients(**gpu))
    except (AttributeError, KeyError, TypeError):
        return None
    numbers = [*content.values(), *chain(*slice_s), *tuple_s[1:], *(gpu.values() if gpu else ())]
    if not all(isinstance(number, float) and isfinite(number) and number > 0 for number in numbers):
        return None
    if [*map(len, slice_s)] != [len(WIDTHS)] * len(DATA_BYTES) or len(tuple_s) != len(DEPTHS) or tuple_s[0] != 0:
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
        _kernels_digest(),
        np.__version__,
        numba.__version__,
        platform.python_version(),
    )
    return sha256("\n".join(parts).encode()).hexdigest()[:16]


def _kernels_digest() -> str:
    """A digest of the kernels' sources, which in a checkout change without the version."""
    digest = sha256()
    for source in sorted(Path(kernels.__file__).parent.rglob("*")):
        if source.suffix in (".py", ".cu"):
            digest.update(source.read_bytes())
    return digest.hexdigest()


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith("model name")), platform.processor())
