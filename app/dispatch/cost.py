"""Predicts how long a gather takes on each route, and chooses one.

Pure arithmetic over the plan and coefficients that `app.dispatch.calibrate` measured on this machine, so that every
choice can be tested without that machine. The model is small on purpose: a call, then for each component its check, for
each slice its visit, for each byte its copy, the last two at prices between those of data that lies in the caches
and of data that does not.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log2
from typing import Final, Literal

from app.spec.plan import GatherPlan

Route = Literal["loop", "thread", "split", "gpu"]

NEAR_BYTES: Final = 1 << 18
FAR_BYTES: Final = 1 << 26
_LOOP_MAX_S: Final = (20e-6, 100e-6)  # between these the measured hand-off is what may run on the loop
_SPLIT_MIN: Final = 8  # a gather shorter than this many hand-offs is left to one thread


@dataclass(frozen=True, slots=True)
class GpuCoefficients:
    """Seconds on the device: to launch and come back, a byte to it and from it, a slice, and a byte gathered."""

    launch_s: float
    to_device_byte_s: float
    from_device_byte_s: float
    slice_s: float
    byte_s: float


@dataclass(frozen=True, slots=True)
class Coefficients:
    """Seconds on this machine. `near` prices are for data of NEAR_BYTES, which caches hold, `far` for FAR_BYTES."""

    hand_off_s: float
    call_s: float
    component_s: float
    near_slice_s: float
    near_byte_s: float
    far_slice_s: float
    far_byte_s: float
    split_gain: float  # how many times faster all threads together are than one
    gpu: GpuCoefficients | None = None


# Before anything is measured: a usual server. Choices differ little, because routes differ by large factors.
TYPICAL: Final = Coefficients(
    hand_off_s=40e-6,
    call_s=2e-6,
    component_s=1e-9,
    near_slice_s=1e-9,
    near_byte_s=0.03e-9,
    far_slice_s=5e-9,
    far_byte_s=0.15e-9,
    split_gain=1.7,
)


def kernel_seconds(plan: GatherPlan, coefficients: Coefficients) -> float:
    """How long one thread takes."""
    slices = plan.batches * plan.tuples
    width = plan.slice_items * plan.item_size
    far = _farness(plan.data_items * plan.item_size)
    slice_s = coefficients.near_slice_s + far * (coefficients.far_slice_s - coefficients.near_slice_s)
    byte_s = coefficients.near_byte_s + far * (coefficients.far_byte_s - coefficients.near_byte_s)
    # Tuples that batches share are checked once for all of them, or once for each part of a split.
    return coefficients.call_s + plan.index_items * coefficients.component_s + slices * (slice_s + width * byte_s)


def predict(plan: GatherPlan, resident: bool, coefficients: Coefficients) -> dict[Route, float]:
    """Seconds on each route there is; `resident` says that the data lies on the GPU already, where there is one."""
    kernel = kernel_seconds(plan, coefficients)
    hand_off = coefficients.hand_off_s
    routes: dict[Route, float] = {
        "loop": kernel,
        "thread": hand_off + kernel,
        "split": 2 * hand_off + kernel / coefficients.split_gain,
    }
    gpu = coefficients.gpu
    if gpu is not None:
        sent = 8 * plan.index_items + (0 if resident else plan.data_items * plan.item_size)
        gathered = plan.batches * plan.tuples * gpu.slice_s + plan.output_bytes * gpu.byte_s
        moved = sent * gpu.to_device_byte_s + plan.output_bytes * gpu.from_device_byte_s
        routes["gpu"] = hand_off + gpu.launch_s + moved + gathered
    return routes


def choose(
    times: dict[Route, float], loop_max_s: float, split_min_s: float, threads: int, override: Route | None = None
) -> Route:
    """The shortest of the routes that are allowed; an override that is not there, as `gpu` without one, is ignored.

    The event loop takes what is predicted to be shorter than `loop_max_s` and nothing else: whatever is longer would
    hold up all other requests, even where it would be the shortest for this one.
    """
    if override in times:
        return override
    if times["loop"] <= loop_max_s:
        return "loop"
    best: Route = "thread"
    if threads > 1 and times["loop"] >= split_min_s and times["split"] < times["thread"]:
        best = "split"
    if "gpu" in times and times["gpu"] < times[best]:
        best = "gpu"
    return best


class Chooser:
    """`choose` with the settings of the service; `coefficients` are replaced once they have been measured."""

    def __init__(
        self,
        *,
        threads: int,
        loop_max_us: float | None = None,
        split_min_us: float | None = None,
        force_route: Route | None = None,
        coefficients: Coefficients = TYPICAL,
    ) -> None:
        self.threads = threads
        self.loop_max_us = loop_max_us
        self.split_min_us = split_min_us
        self.force_route = force_route
        self.coefficients = coefficients

    def loop_max_s(self) -> float:
        """Longest gather for the event loop: as set, else about what a hand-off takes."""
        if self.loop_max_us is not None:
            return self.loop_max_us * 1e-6
        low, high = _LOOP_MAX_S
        return min(max(self.coefficients.hand_off_s, low), high)

    def split_min_s(self) -> float:
        """Shortest gather worth splitting: as set, else a few hand-offs."""
        if self.split_min_us is not None:
            return self.split_min_us * 1e-6
        return _SPLIT_MIN * self.coefficients.hand_off_s

    def choose(self, plan: GatherPlan, resident: bool = False) -> Route:
        """The route for this plan."""
        if self.force_route is None and kernel_seconds(plan, self.coefficients) <= self.loop_max_s():
            return "loop"  # what most requests are, decided without looking at the other routes
        times = predict(plan, resident, self.coefficients)
        return choose(times, self.loop_max_s(), self.split_min_s(), self.threads, self.force_route)


def _farness(data_bytes: int) -> float:
    """0 for data of NEAR_BYTES or less, 1 for FAR_BYTES or more, by the logarithm in between."""
    if data_bytes <= NEAR_BYTES:
        return 0.0
    if data_bytes >= FAR_BYTES:
        return 1.0
    return log2(data_bytes / NEAR_BYTES) / log2(FAR_BYTES / NEAR_BYTES)
