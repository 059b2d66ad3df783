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
from dataclasses import asdict, astuple, fields, replace
from hashlib import sha256
from importlib.metadata import version
from itertools import cycle
from math import inf, isfinite
from pathlib import Path
from time import perf_counter
from typing import Any, Final, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from app import __version__, kernels
from app.dispatch.backend_cost_model import FAR_BYTES, Coefficients, kernel_seconds
from app.dispatch.request_thread_pool import RequestThreadPool
from app.kernels import ALWAYS_AHEAD, Kernel
from app.operators.gather_plan import GatherPlan

new_event_loop: Callable[[], asyncio.AbstractEventLoop]
try:
    from uvloop import new_event_loop  # what the service runs on
except ImportError:
    from asyncio import new_event_loop

logger = logging.getLogger("gathernd")

_NEAR_BYTES: Final = 1 << 15
"""Data that few calls bring into the first cache."""
_NARROW: Final = 4
_WIDE: Final = 4096
"""Bytes of the slices whose difference is the price of a byte."""
_DEPTH: Final = 3
"""Components of the tuples that tell the price of one."""
_SLICES: Final = 8192
_WORK_BYTES: Final = 1 << 18
_REPEATS: Final = 5
_HAND_OFFS: Final = 100
_CALLS_IN_A_ROW: Final = 5
_MANY_ITEMS: Final = 500_000
_FEW_ITEMS: Final = 60_000
"""Gathered by all threads together: many to tell the gain, few to tell what it takes longer to wake helpers first."""
_GAIN_ROUNDS: Final = 8
_GAIN_TRIES: Final = 3
_WAKEUPS: Final = 25
_PAUSE_S: Final = 0.0002
_USUAL_WORK: Final = GatherPlan(1, 100_000, (1 << 21,), 1, 4, False, True)
"""By whose predicted time work is translated into time: 100,000 items of 8 MiB."""
_WAKE_FROM: Final = (50_000, 1_000_000)
_AHEAD_ROW_BYTES: Final = 512
_AHEAD_OUTPUT: Final = 1 << 22
_AHEAD_ROUNDS: Final = 12
_UNASKED_ROW: Final = 1.03
"""Long rows are asked for ahead where they take this much longer without: on a busy machine both take as long."""
_SHORT_ROW_BYTES: Final = 256
"""Rows of up to this are asked for ahead in any case: processors that bring longer ones sooner by themselves do not
these."""
_MIN_GAIN_SHARE: Final = 0.4  # of what the other threads could bring, in what is kept: see `with_min_gain`
_FLOOR: Final = 1e-13  # seconds: a difference of two measured times may come out at zero or below


@runtime_checkable
class TunableKernel(Protocol):
    """A kernel with settings that depend on the machine; its results do not depend on them."""

    def tune(self, wake_from: int, ahead_bytes: int) -> None:
        """Set the work, in components, slices and 16 bytes of output, from which on helpers that sleep are woken, and
        the longest slices, in bytes, that are asked for ahead of their copy.
        """
        ...


def calibrated(
    kernel: Kernel,
    cache_dir: Path,
    *,
    threads: int | None = None,
    refresh: bool = False,
) -> Coefficients:
    """The coefficients of this machine, from the file in `cache_dir`, else measured and written there.

    A kernel that can be is tuned by them. `threads` is how many the pool has, by default one for each core. A cache
    that cannot be read or written costs a measurement at each start and is logged.
    """
    threads = threads or len(os.sched_getaffinity(0))
    path = cache_dir / f"calibration-{_fingerprint(kernel, threads)}.json"
    if not refresh:
        found = _load(path)
        if found is not None:
            _tune(kernel, found)
            return found
    coefficients = with_min_gain(measure(kernel, threads), threads)
    _tune(kernel, coefficients)
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        aside = path.with_suffix(f".{os.getpid()}")
        aside.write_text(json.dumps(asdict(coefficients), indent=1))
        aside.replace(path)
    except OSError as error:
        logger.warning("the calibration could not be kept in GATHERND_CACHE_DIR: %s", error.strerror)
    return coefficients


def _tune(kernel: Kernel, coefficients: Coefficients) -> None:
    """Wake helpers for gathers that take one thread twice as long as to wake them; leave long rows to the processor
    where it brings them sooner by itself.
    """
    if isinstance(kernel, TunableKernel):
        work = 2 * _USUAL_WORK.tuples + _USUAL_WORK.output_bytes // 16
        wake_from = 2 * coefficients.wakeup_s / kernel_seconds(_USUAL_WORK, coefficients) * work
        low, high = _WAKE_FROM
        asked = coefficients.unasked_row > _UNASKED_ROW
        kernel.tune(min(max(round(wake_from), low), high), ALWAYS_AHEAD if asked else _SHORT_ROW_BYTES)


def with_min_gain(measured: Coefficients, threads: int) -> Coefficients:
    """`measured` with a gain of no less than a part of what `threads` threads could bring.

    Another process makes the gain look worse than it is, and the file would keep that: one busy moment must not end all
    splitting.
    """
    return replace(measured, gain=max(measured.gain, _min_gain(threads)))


def _min_gain(threads: int) -> float:
    return 1 + (threads - 1) * _MIN_GAIN_SHARE


def measure(kernel: Kernel, threads: int) -> Coefficients:
    """Time the kernel on near and far data, narrow and wide slices, deeper tuples, and hand-offs."""
    source = np.random.default_rng(1)
    data = np.ones(FAR_BYTES, np.uint8)
    call_s = _best(_KernelCall(kernel, data, 16, _NARROW, 1, 2, source), 50)

    def slice_s(size: int, width: int, depth: int = 1) -> float:
        work = _KernelCall(kernel, data, size, width, depth, min(_SLICES, _WORK_BYTES // width), source)
        return (_best(work) - call_s) / work.count

    prices = []
    for size in (_NEAR_BYTES, FAR_BYTES):
        narrow_s = slice_s(size, _NARROW)
        byte_s = (slice_s(size, _WIDE) - narrow_s) / (_WIDE - _NARROW)
        prices.append((max(narrow_s - _NARROW * byte_s, _FLOOR), max(byte_s, _FLOOR)))
    (near_slice_s, near_byte_s), (far_slice_s, far_byte_s) = prices
    shallow_s, deep_s = (slice_s(_NEAR_BYTES, _NARROW, depth) for depth in (1, _DEPTH))
    unasked_row = _measure_unasked_row(kernel, data, source)
    gain, wakeup_s = _measure_split(kernel, data, threads, source)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        hand_off_s = runner.run(_measure_hand_off(_KernelCall(kernel, data, FAR_BYTES, 64, 1, _SLICES, source)))
    return Coefficients(
        call_s=call_s,
        near_slice_s=near_slice_s,
        near_byte_s=near_byte_s,
        far_slice_s=max(far_slice_s, near_slice_s),
        far_byte_s=max(far_byte_s, near_byte_s),
        component_s=max((deep_s - shallow_s) / (_DEPTH - 1), _FLOOR),
        hand_off_s=hand_off_s,
        wakeup_s=wakeup_s,
        gain=gain,
        unasked_row=unasked_row,
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


def _measure_unasked_row(kernel: Kernel, data: NDArray[np.uint8], source: np.random.Generator) -> float:
    """The time of long rows that are not asked for ahead over that of rows that are, both in turns.

    It is 1.0 for a kernel that asks for none.
    """
    if not isinstance(kernel, TunableKernel):
        return 1.0
    work = _KernelCall(kernel, data, data.size, _AHEAD_ROW_BYTES, 1, _AHEAD_OUTPUT // _AHEAD_ROW_BYTES, source)
    work()
    wake_from = _WAKE_FROM[0]
    best = {ALWAYS_AHEAD: inf, 0: inf}
    for number in range(_AHEAD_ROUNDS):
        for ahead_bytes in sorted(best, reverse=number % 2 == 1):
            kernel.tune(wake_from, ahead_bytes)
            best[ahead_bytes] = min(best[ahead_bytes], _seconds(work))
    kernel.tune(wake_from, ALWAYS_AHEAD)
    return best[0] / best[ALWAYS_AHEAD]


async def _measure_hand_off(work: Callable[[], Any]) -> float:
    """How many seconds longer `work` takes in a thread of the pool than in this one, by the medians of both.

    It is as long as the shortest that is handed off, since a core that has waited so long takes longer to wake. Each
    side runs a few times in a row, and the first run does not count: its memory is in the other core's caches.
    """
    pool = RequestThreadPool(1, 0)
    here, in_pool = [], []
    for _ in range(_HAND_OFFS // _CALLS_IN_A_ROW):
        here += [_seconds(work) for _ in range(_CALLS_IN_A_ROW + 1)][1:]
        in_pool += [await _in_pool(pool, work) for _ in range(_CALLS_IN_A_ROW + 1)][1:]
    pool.close()
    return max(float(np.median(in_pool)) - float(np.median(here)), _FLOOR)


def _measure_split(
    kernel: Kernel, data: NDArray[np.uint8], threads: int, source: np.random.Generator
) -> tuple[float, float]:
    """How many times faster all threads are than one, and the seconds that a split takes longer for each that sleeps.

    The largest gain counts, since other processes only lower it; a small one is measured again.
    """
    if threads < 2 or not kernel.splits:
        return 1.0, _FLOOR

    def gather(items: int, by: int) -> _KernelCall:
        return _KernelCall(kernel, data, FAR_BYTES, _NARROW, 1, items // threads, source, threads=by)

    one, all_of_them = gather(_MANY_ITEMS, 1), gather(_MANY_ITEMS, threads)
    gain = 1.0
    alone, shared = [], []
    for _ in range(_GAIN_TRIES):
        for _ in range(_GAIN_ROUNDS):
            alone.append(_best(one, 1))
            shared.append(_best(all_of_them, 2))
        gain = min(max(threads * min(alone) / min(shared), 1.0), float(threads))
        if gain >= _min_gain(threads):
            break
    short = gather(_FEW_ITEMS, threads)
    awake, late = [], []
    for _ in range(_WAKEUPS):
        short()
        awake.append(_seconds(short))
        late.append(_after_pause(short))
    return gain, max(float(np.median(late) - np.median(awake)) / (threads - 1), _FLOOR)


def _after_pause(work: Callable[[], Any]) -> float:
    """Seconds of `work` once helpers sleep, in a thread that does not."""
    until = perf_counter() + _PAUSE_S
    while perf_counter() < until:
        pass
    return _seconds(work)


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
        found = Coefficients(**content)
    except TypeError:
        return None
    numbers = astuple(found)[:-1]
    if found.gpu is not None or not all(isinstance(n, float) and isfinite(n) and n > 0 for n in numbers):
        return None
    return found


def _fingerprint(kernel: Kernel, threads: int) -> str:
    parts = (
        cpu_model(),
        platform.machine(),
        str(os.cpu_count()),
        str(threads),
        *(field.name for field in fields(Coefficients)),
        kernel.name,
        __version__,
        _kernels_digest(),
        np.__version__,
        version("numba"),
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


def cpu_model() -> str:
    """What the system says of its processor, "" where nothing."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith("model name")), platform.processor())
