"""The cost model: predicts how long a gather takes on each route; `choose_backend` takes one of them.

Pure arithmetic over the plan and the coefficients that `backend_calibration` measured on this machine, so that every
choice can be tested without that machine. On one thread a gather takes the time of a call; of a visit of each slice,
from a table by data size and slice width, interpolated between its points; of the check of each further component of a
tuple; and a surcharge for output that caches do not hold. A pool thread adds a hand-off. A split shares the work with
helpers that take a while to wake and slow each other down a little. A GPU adds the transfers to it and back.

It is one formula: the functions are its terms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import exp, log, log2
from typing import Final, Literal, NamedTuple, get_args

from app.operators.gather_plan import Plan

Route = Literal["loop", "thread", "split", "gpu"]
ROUTES: Final[tuple[Route, ...]] = get_args(Route)

DATA_BYTES: Final = (1 << 15, 1 << 20, 1 << 23, 1 << 26)
"""Sizes of data at which slices are measured: those of a first, a second and a third cache, and beyond."""
WIDTHS: Final = (1, 16, 64, 512, 4096, 65536)
"""Widths of slices that are measured, in bytes."""
ODD_WIDTH: Final = 24
"""A width that is no power of two, for the surcharge of slices that no single instruction can move."""
DEPTHS: Final = (1, 2, 3, 5)
"""Lengths of tuples that are measured; the components of longer ones cost as much as the last."""
_CACHE_LINE_BYTES: Final = 64
_WIDE_SLICE_BYTES: Final = 512
_CACHE_LINE_COLUMN: Final = WIDTHS.index(_CACHE_LINE_BYTES)
SMALL_OUTPUT: Final = 1 << 21
LARGE_OUTPUT: Final = 1 << 24
"""Bytes of output up to which there is no surcharge, and from which it is full; interpolated by the logarithm."""
_MAX_SPLIT_SHARE: Final = 0.92
"""A split uses more of the machine than one thread does: it must be shorter by more than this factor."""


@dataclass(frozen=True, slots=True)
class GpuCoefficients:
    """Seconds on the device: of a launch with its return, of a byte to it and from it, and of a slice."""

    launch_s: float
    to_device_byte_s: float
    from_device_byte_s: float
    slice_s: float


@dataclass(frozen=True, slots=True)
class Coefficients:
    """Seconds on this machine.

    `slice_s[i][j]` is a slice of WIDTHS[j] bytes from data of DATA_BYTES[i], its tuple's first component included,
    `odd_slice_s` the surcharge of a narrow one whose width is no power of two, and `tuple_s[d]` what a tuple of
    DEPTHS[d] components takes beyond one of the first depth. `output_byte_s` is the surcharge of a byte of
    LARGE_OUTPUT. `hand_off_s` is the way to a thread of the pool and back, `wakeup_s` what a split loses for each
    helper that must wake first, `index_move_s` and `output_move_s` what a component and a byte of output take longer in
    another core's thread. The gains say how many times faster all threads are together than one: on items, on rows that
    memory must bring, and on rows of near data where only the output is large.
    """

    call_s: float
    slice_s: tuple[tuple[float, ...], ...]
    odd_slice_s: float
    tuple_s: tuple[float, ...]
    output_byte_s: float
    hand_off_s: float
    wakeup_s: float
    index_move_s: float
    output_move_s: float
    item_gain: float
    row_gain: float
    output_gain: float
    gpu: GpuCoefficients | None = None


class RouteChoice(NamedTuple):
    """A route, the seconds predicted for it, and over how many threads it splits the work.

    `on_event_loop` says that the event loop runs the gather, or owns a split one.
    """

    route: Route
    seconds: float
    parts: int = 1
    on_event_loop: bool = False


# Before anything is measured: a usual server. Choices differ little, because routes differ by large factors.
TYPICAL: Final = Coefficients(
    call_s=2e-6,
    slice_s=tuple(
        tuple(slice_s + width * byte_s for width in WIDTHS)
        for slice_s, byte_s in ((1e-9, 0.03e-9), (1e-9, 0.03e-9), (3e-9, 0.06e-9), (5e-9, 0.15e-9))
    ),
    odd_slice_s=0.5e-9,
    tuple_s=(0.0, 0.5e-9, 1e-9, 4e-9),
    output_byte_s=0.1e-9,
    hand_off_s=30e-6,
    wakeup_s=20e-6,
    index_move_s=0.2e-9,
    output_move_s=0.01e-9,
    item_gain=1.7,
    row_gain=1.4,
    output_gain=1.1,
)


def kernel_seconds(plan: Plan, coefficients: Coefficients, locality: bool = False) -> float:
    """How long one thread takes; with `locality`, as long as from data that a cache holds."""
    width = plan.slice_items * plan.item_size
    slices = plan.batches * plan.tuples
    tuples = plan.tuples if plan.broadcast_indices else slices  # those that batches share are checked once
    output = slices * width
    seconds = coefficients.call_s + tuples * _tuple_seconds(plan.depth, coefficients.tuple_s)
    if output:
        block = plan.block_items * plan.item_size
        if locality:
            seconds += slices * slice_seconds(min(block, DATA_BYTES[1]), width, coefficients.slice_s)
        else:
            seconds += plan.batches * _batch_seconds(plan.tuples, width, block, plan.batches, coefficients.slice_s)
        if width < _CACHE_LINE_BYTES and width & (width - 1):
            seconds += slices * coefficients.odd_slice_s
        seconds += output * coefficients.output_byte_s * _log_fraction(output, SMALL_OUTPUT, LARGE_OUTPUT)
    else:
        seconds += tuples * coefficients.slice_s[0][0]  # every component is checked, and nothing is copied
    return seconds


def cache_transfer_seconds(plan: Plan, coefficients: Coefficients) -> float:
    """What a thread takes longer than the event loop, whose core has the indices in its caches and reads the output."""
    return plan.index_items * coefficients.index_move_s + plan.output_bytes * coefficients.output_move_s


def split_seconds(plan: Plan, kernel_s: float, threads: int, coefficients: Coefficients) -> tuple[float, int]:
    """The seconds of the best split of a gather that one thread does in `kernel_s`, and its number of parts.

    The owner begins at once, so that helpers that wake too late cost nothing. Infinity and 1 where no number of
    threads is worth while.
    """
    gain = coefficients.item_gain
    if plan.slice_items * plan.item_size >= _WIDE_SLICE_BYTES:
        far = _log_fraction(plan.data_items * plan.item_size, DATA_BYTES[1], DATA_BYTES[-1])
        bound = coefficients.output_gain + far * (coefficients.row_gain - coefficients.output_gain)
        gain += (bound - gain) * _log_fraction(plan.output_bytes, SMALL_OUTPUT, LARGE_OUTPUT)
    call_s = coefficients.call_s
    work_s = kernel_s - call_s
    moved_s = cache_transfer_seconds(plan, coefficients)
    # How much each further thread slows the others down, so that all threads together gain what was measured.
    drag = max(0.0, (threads / gain - 1) / (threads - 1)) if threads > 1 else 0.0
    most = min(threads, plan.batches * plan.tuples)
    best, best_parts = float("inf"), 1
    parts = 2
    while parts <= most:
        share = (1 + drag * (parts - 1)) / parts
        shared_s = (work_s + moved_s * (parts - 1) / parts) * share
        seconds = call_s + min(work_s, (parts - 1) * coefficients.wakeup_s + shared_s)
        if share < _MAX_SPLIT_SHARE and seconds < best:
            best, best_parts = seconds, parts
        parts = most if parts < most < 2 * parts else 2 * parts
    return best, best_parts


def gpu_seconds(plan: Plan, resident: bool, hand_off_s: float, gpu: GpuCoefficients) -> float:
    """How long the device takes; `resident` says that it has a copy of the data, which else is sent."""
    sent = 8 * plan.index_items + (0 if resident else plan.data_items * plan.item_size)
    output = plan.output_bytes
    gathered = plan.batches * plan.tuples * gpu.slice_s
    moved = sent * gpu.to_device_byte_s + output * gpu.from_device_byte_s
    return hand_off_s + gpu.launch_s + moved + gathered


def device_bytes(plan: Plan, resident: bool) -> int:
    """Bytes of device memory that the gather takes, copies of resident tensors apart."""
    return 8 * plan.index_items + plan.output_bytes + (0 if resident else plan.data_items * plan.item_size)


def predict_routes(
    plan: Plan,
    resident: bool,
    threads: int,
    coefficients: Coefficients,
    locality: bool = False,
    loop_max_s: float = float("inf"),
) -> dict[Route, RouteChoice]:
    """The prediction for each route that exists; `resident` says that the GPU has a copy of the data.

    A split that takes longer than `loop_max_s` is led by a thread of the pool, and takes a hand-off more.
    """
    kernel_s = kernel_seconds(plan, coefficients, locality)
    hand_off_s = coefficients.hand_off_s
    moved_s = cache_transfer_seconds(plan, coefficients)
    routes: dict[Route, RouteChoice] = {
        "loop": RouteChoice("loop", kernel_s, on_event_loop=True),
        "thread": RouteChoice("thread", hand_off_s + kernel_s + moved_s),
    }
    seconds, parts = split_seconds(plan, kernel_s, threads, coefficients)
    if parts > 1:
        here = seconds <= loop_max_s
        routes["split"] = RouteChoice("split", seconds if here else hand_off_s + seconds + moved_s / parts, parts, here)
    if coefficients.gpu is not None:
        routes["gpu"] = RouteChoice("gpu", gpu_seconds(plan, resident, hand_off_s, coefficients.gpu))
    return routes


def _batch_seconds(slices: int, width: int, block: int, batches: int, prices: Sequence[Sequence[float]]) -> float:
    """Seconds of the slices of one batch, which has `block` bytes of data.

    With many slices the data of a batch is brought into the caches once, and read from there.
    """
    far = slices * slice_seconds(batches * block, width, prices)
    if batches == 1:
        return far
    return min(
        far,
        slices * slice_seconds(block, width, prices) + block / _CACHE_LINE_BYTES * prices[-1][_CACHE_LINE_COLUMN],
    )


def slice_seconds(data_bytes: int, width: int, prices: Sequence[Sequence[float]]) -> float:
    """Seconds of a slice, interpolated in the table `prices` by the logarithms of size, width and seconds."""
    row, share = _interval(data_bytes, DATA_BYTES)
    low = _width_seconds(width, prices[row])
    return low if not share else exp(log(low) + share * (log(_width_seconds(width, prices[row + 1])) - log(low)))


def _width_seconds(width: int, prices: Sequence[float]) -> float:
    if width >= WIDTHS[-1]:
        return prices[-1] * width / WIDTHS[-1]
    column, share = _interval(width, WIDTHS)
    low = prices[column]
    return low if not share else exp(log(low) + share * (log(prices[column + 1]) - log(low)))


def _interval(size: int, points: Sequence[int]) -> tuple[int, float]:
    """The last of `points` that is not above `size`, and how far `size` is on its way to the next, 0 to below 1."""
    if size <= points[0]:
        return 0, 0.0
    for at, (low, high) in enumerate(pairwise(points)):
        if size < high:
            return at, log2(size / low) / log2(high / low)
    return len(points) - 1, 0.0


def _tuple_seconds(depth: int, prices: Sequence[float]) -> float:
    for at, (low, high) in enumerate(pairwise(DEPTHS)):
        if depth <= high:
            return prices[at] + (depth - low) * (prices[at + 1] - prices[at]) / (high - low)
    return prices[-1] * (depth - 1) / (DEPTHS[-1] - 1)


def _log_fraction(size: int, low: int, high: int) -> float:
    """0 up to `low`, 1 from `high` on, by the logarithm in between."""
    if size <= low:
        return 0.0
    return 1.0 if size >= high else log2(size / low) / log2(high / low)
