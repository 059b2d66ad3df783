"""The cost model: how long a gather takes on one thread, on several and on a GPU; `choose_backend` decides by it.

Pure arithmetic over the plan and nine coefficients that `backend_calibration` measured on this machine, so that every
decision can be tested without that machine. On one thread a gather takes the time of a call; of each slice and of each
of its bytes, by how far away the data is; and of each further component of a tuple. A split shares the work with
helpers that take a while to wake and slow each other down a little. A GPU adds the transfers to it and back.

`benchmarks/selection.md` compares it with a table of 37 coefficients that it replaced.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, log2
from typing import Final

from app.operators.gather_plan import Plan

NEAR_BYTES: Final = 1 << 18
"""Data of up to so many bytes lies in the first caches."""
FAR_BYTES: Final = 1 << 26
"""Data of so many bytes and more lies in memory, or in as distant a cache as a processor has."""
_LOCAL_BYTES: Final = 1 << 20
"""Slices that lie close together are read as from data of at most this size."""
_SMALL_OUTPUT: Final = 1 << 21
_LARGE_OUTPUT: Final = 1 << 24
"""Bytes of output up to which they are written to caches, and from which on to memory; between by the logarithm."""
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

    `call_s` is a call of the kernel, `near_slice_s` a slice of data of at most NEAR_BYTES, its tuple's first component
    included, and `near_byte_s` each of its bytes; `far_slice_s` and `far_byte_s` are those of data of FAR_BYTES.
    `component_s` is a further component of a tuple. `hand_off_s` is the way to a thread of the pool and back,
    `wakeup_s` what a split loses for each helper that must wake first. `gain` says how many times faster all threads
    are together than one. `unasked_row` is in no prediction, it tunes the kernel: the time of a row of 512 bytes that
    the kernel does not ask for ahead, over that of one that it does.
    """

    call_s: float
    near_slice_s: float
    near_byte_s: float
    far_slice_s: float
    far_byte_s: float
    component_s: float
    hand_off_s: float
    wakeup_s: float
    gain: float
    unasked_row: float = 1.0
    gpu: GpuCoefficients | None = None


# Before anything is measured: a usual server. Choices differ little, because routes differ by large factors.
TYPICAL: Final = Coefficients(
    call_s=2e-6,
    near_slice_s=1e-9,
    near_byte_s=0.03e-9,
    far_slice_s=5e-9,
    far_byte_s=0.15e-9,
    component_s=0.6e-9,
    hand_off_s=30e-6,
    wakeup_s=20e-6,
    gain=1.7,
)


def kernel_seconds(plan: Plan, coefficients: Coefficients, locality: bool = False) -> float:
    """How long one thread takes; with `locality`, as long as from data that a cache holds."""
    width = plan.slice_items * plan.item_size
    slices = plan.batches * plan.tuples
    tuples = plan.tuples if plan.broadcast_indices else slices  # those that batches share are checked once
    seconds = coefficients.call_s + tuples * (plan.depth - 1) * coefficients.component_s
    copied = plan.copied_items * plan.item_size
    if copied:
        far = _log_fraction(copied, _SMALL_OUTPUT, _LARGE_OUTPUT)
        seconds += copied * (coefficients.near_byte_s + far * (coefficients.far_byte_s - coefficients.near_byte_s))
    output = slices * width
    if not output:
        return seconds + tuples * coefficients.near_slice_s  # every component is checked, and nothing is copied
    block = plan.block_items * plan.item_size
    if locality:
        seconds += slices * _slice_seconds(width, min(block, _LOCAL_BYTES), coefficients)
    else:
        gathered_s = slices * _slice_seconds(width, plan.batches * block, coefficients)
        if plan.batches > 1:
            # With many slices the data of a batch is brought into the caches once, and read from there.
            brought_s = plan.batches * block * coefficients.far_byte_s
            gathered_s = min(gathered_s, brought_s + slices * _slice_seconds(width, block, coefficients))
        seconds += gathered_s
    if output > _SMALL_OUTPUT:
        far = _log_fraction(output, _SMALL_OUTPUT, _LARGE_OUTPUT)
        seconds += output * far * (coefficients.far_byte_s - coefficients.near_byte_s)
    return seconds


def split_seconds(plan: Plan, kernel_s: float, threads: int, coefficients: Coefficients) -> tuple[float, int]:
    """The seconds of the best split of a gather that one thread does in `kernel_s`, and its number of parts.

    The owner begins at once, so that helpers that wake too late cost nothing. Infinity and 1 where no number of
    threads is worth while.
    """
    best, best_parts = inf, 1
    most = min(threads, plan.batches * plan.tuples)
    if most < 2:
        return best, best_parts
    call_s = coefficients.call_s
    work_s = kernel_s - call_s
    # How much each further thread slows the others down, so that all threads together gain what was measured.
    drag = max(0.0, (threads / coefficients.gain - 1) / (threads - 1))
    parts = 2
    while parts <= most:
        share = (1 + drag * (parts - 1)) / parts
        seconds = call_s + min(work_s, (parts - 1) * coefficients.wakeup_s + work_s * share)
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
    """Most bytes of device memory that the gather takes, copies of resident tensors apart."""
    return 8 * plan.index_items + plan.output_bytes + (0 if resident else plan.data_items * plan.item_size)


def _slice_seconds(width: int, data_bytes: int, coefficients: Coefficients) -> float:
    """Seconds of a slice of `width` bytes, between near and far data by the logarithms of size and seconds."""
    near_s = coefficients.near_slice_s + width * coefficients.near_byte_s
    if data_bytes <= NEAR_BYTES:
        return near_s
    far_s = coefficients.far_slice_s + width * coefficients.far_byte_s
    return float(near_s * (far_s / near_s) ** _log_fraction(data_bytes, NEAR_BYTES, FAR_BYTES))


def _log_fraction(size: int, low: int, high: int) -> float:
    """0 up to `low`, 1 from `high` on, by the logarithm in between."""
    if size <= low:
        return 0.0
    return 1.0 if size >= high else log2(size / low) / log2(high / low)
