"""Decide where a gather runs: on the GPU, split over threads, on the event loop, or on one thread of the pool.

Size decides. A gather has a number of items that it picks and of bytes that it copies; the measured rates of the
machine turn GATHERND_LOOP_MAX_US and GATHERND_SPLIT_MIN_US into thresholds for both. `BackendChooser.decide` takes the
first open route in the order of `ROUTES`. It is a function of its arguments, so that tests need neither a GPU nor a
certain machine. An explanation prints the same decision.

Work beside a gather is small if it stays below LARGE_INDEX_SCAN, LARGE_COPY or FEW_STRINGS. The event loop does small
work itself, a thread the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import Final, Literal, NamedTuple

from app.operators.gather_plan import Plan
from app.tensors.gather_call import Device

LARGE_INDEX_SCAN: Final = 1 << 14
"""Indices from which on a thread looks at them: NumPy takes 0.1 to 0.3 ms for so many."""
LARGE_COPY: Final = 1 << 18
"""Bytes from which on a thread writes them: 5 to 50 µs, the longer time into fresh pages."""
FEW_STRINGS: Final = 1 << 10
"""Strings whose sizes are added up on the event loop: the head of each may be anywhere in memory."""

Route = Literal["loop", "thread", "split", "gpu"]
ROUTES: Final[tuple[Route, ...]] = ("gpu", "split", "loop", "thread")
"""In the order of preference."""

NEAR_BYTES: Final = 1 << 20
"""A cache of the core holds data of up to this size."""
CACHE_LINE: Final = 64
"""Bytes of memory that an item costs at least."""
_LOOP_HAND_OFFS: Final = 10
"""The event loop is held for this many hand-offs at most: a longer gather loses less than a tenth by moving to a
thread, and all other requests gain."""
_LOOP_BOUNDS_S: Final = (50e-6, 1500e-6)
"""Bounds of that time, since a hand-off measured on a busy machine says little."""
_SPLIT_MIN_S: Final = 10e-6
"""To share a gather takes about a microsecond, which is too much for a shorter one."""
_HELPER_S: Final = 20e-6
"""One more helper is woken for each such part of a split: it comes 10 to 40 µs after it is woken (`thread_team`)."""
NO_STRINGS: Final = "strings cannot be held by a GPU"


class Size(NamedTuple):
    """Items that a gather picks and bytes that it copies: its own, or a threshold (infinity: no number is enough)."""

    items: float
    bytes: float


NEVER: Final = Size(inf, inf)
"""As a threshold that none reaches."""


def size_of(plan: Plan) -> Size:
    """The size of a gather. Components of indices count as items if there are more of them than slices."""
    slices = plan.batches * plan.tuples
    items = max(plan.index_items, slices) if plan.slice_items else plan.index_items
    return Size(items, (slices * plan.slice_items + plan.copied_items) * plan.item_size)


def device_bytes(plan: Plan) -> int:
    """Most bytes of device memory that a gather takes beside the copy of its data."""
    return 8 * plan.index_items + plan.output_bytes


@dataclass(frozen=True, slots=True)
class Rates:
    """Seconds on this machine, from `measured_rates`.

    `hand_off_s` is the way to a thread of the pool and back. One thread takes `byte_s` for a byte that it copies from
    memory, and for an item picked at random `near_item_s` from data in a core's cache and `far_item_s` from memory.
    """

    hand_off_s: float
    byte_s: float
    near_item_s: float
    far_item_s: float


TYPICAL: Final = Rates(hand_off_s=30e-6, byte_s=0.15e-9, near_item_s=1e-9, far_item_s=5e-9)
"""Until the machine is measured: a usual server."""


class Thresholds(NamedTuple):
    """The most for the event loop, the least to split, and the least that is worth waking one more helper."""

    loop: Size
    split: Size
    helper: Size


class Facts(NamedTuple):
    """What a decision depends on beside plan and machine. A plan meets few combinations of them."""

    device: Device = "auto"
    """The device that the request asks for."""
    cpu_only: str | None = None
    """Why no GPU can run the gather, such as that it holds no strings; None if one can."""
    cold: bool = False
    """Whether reading the data waits for the disk, so that the event loop takes no part in it."""
    on_gpu: bool = False
    """Whether the GPU holds a copy of the data."""


class ConsideredRoute(NamedTuple):
    """A route, whether it is open, and why. `threshold` is the size that decided; None if size did not."""

    route: Route
    is_open: bool
    reason: str
    threshold: Size | None = None


class ChosenRoute(NamedTuple):
    """A route, over how many threads it splits, and whether the event loop runs the gather or leads the split."""

    route: Route
    parts: int = 1
    on_event_loop: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """Where a gather runs, and why."""

    choice: ChosenRoute
    """What runs."""
    cpu: ChosenRoute
    """What would run without a GPU."""
    size: Size
    """The size of the gather."""
    routes: tuple[ConsideredRoute, ...]
    """Every route, in the order of `ROUTES`: the choice is the first that is open."""
    missed_bytes: int
    """Bytes of memory that the gather reads here, and would read on the GPU if that had a copy of the data; else 0."""
    refused: str | None
    """Why the device that the request asks for cannot run it; None if it can."""
    depends_on_request: bool
    """Whether a copy on the GPU or the device cpu would change anything, for data that is in memory."""

    @property
    def device(self) -> Literal["cpu", "gpu"]:
        """Where the choice runs."""
        return "gpu" if self.choice.route == "gpu" else "cpu"

    @property
    def fallback(self) -> ChosenRoute:
        """What runs if the device fails: the same as without a GPU, but a thread in place of the event loop."""
        return ChosenRoute("split" if self.cpu.parts > 1 else "thread", self.cpu.parts)


USUAL: Final = Facts()
_THREAD_ROUTE: Final = ConsideredRoute("thread", True, "a thread takes gathers of any size")
_ON_THREAD: Final = ChosenRoute("thread")
_ON_LOOP: Final = ChosenRoute("loop", 1, True)
_ON_GPU: Final = ChosenRoute("gpu")


@dataclass(frozen=True)
class BackendChooser:
    """Decides by the settings of the service and the rates of the machine.

    When one of them changes another chooser takes its place, and decisions of the old one count no more. `no_gpu`
    says why there is no GPU, None if there is one. It has `gpu_memory` bytes for gathers, takes those of `gpu_from` on
    under `auto`, and with `always_gpu` all that it can hold. `force_route` is for tests and measurements.
    """

    threads: int
    loop_max_us: float | None = None
    split_min_us: float | None = None
    force_route: Route | None = None
    rates: Rates = TYPICAL
    no_gpu: str | None = "this service has no GPU"
    gpu_memory: float = inf
    gpu_from: Size = NEVER
    always_gpu: bool = False

    @cached_property
    def loop_max_s(self) -> float:
        """Seconds of the longest gather for the event loop: as set, else a number of hand-offs."""
        if self.loop_max_us is not None:
            return self.loop_max_us * 1e-6
        low, high = _LOOP_BOUNDS_S
        return min(max(_LOOP_HAND_OFFS * self.rates.hand_off_s, low), high)

    @cached_property
    def near(self) -> Thresholds:
        """For data that a core's cache holds."""
        return self._thresholds(self.rates.near_item_s)

    @cached_property
    def far(self) -> Thresholds:
        """For data in memory."""
        return self._thresholds(self.rates.far_item_s)

    def _thresholds(self, item_s: float) -> Thresholds:
        split_min_s = _SPLIT_MIN_S if self.split_min_us is None else self.split_min_us * 1e-6
        loop, split, helper = (
            Size(seconds // item_s, seconds // self.rates.byte_s)
            for seconds in (self.loop_max_s, split_min_s, _HELPER_S)
        )
        return Thresholds(loop, split, Size(max(helper.items, 1), max(helper.bytes, 1)))

    def decide(self, plan: Plan, facts: Facts = USUAL) -> Decision:
        """Decide where a gather with this plan runs.

        Nothing above the event loop's threshold runs on it or is led by it, since all other requests wait meanwhile. A
        request that asks for a device is obeyed or refused. Under `auto` the GPU takes what it has a copy of, from its
        threshold on and if its memory has room.
        """
        size, slices = size_of(plan), plan.batches * plan.tuples
        near = plan.batches * plan.block_items * plan.item_size <= NEAR_BYTES
        loop_most, split_least, per_helper = self.near if near else self.far
        gpu = self._gpu_route(plan, facts, size)
        split = self._split_route(slices, size, split_least)
        loop = _loop_route(facts, size, loop_most)
        routes: tuple[ConsideredRoute, ...] = (gpu, split, loop, _THREAD_ROUTE)
        helpers = max(size.items // per_helper.items, size.bytes // per_helper.bytes, 1)
        over_threads = ChosenRoute("split", int(min(self.threads, slices, helpers + 1)), loop.is_open)
        cpu = over_threads if split.is_open else _ON_LOOP if loop.is_open else _ON_THREAD
        choice = _ON_GPU if gpu.is_open else cpu
        has_gpu = self.no_gpu is None and facts.cpu_only is None
        missed_bytes = 0
        only, why = self._only_route(facts, has_gpu, split, loop)
        if only is not None:
            routes = tuple(ConsideredRoute(each.route, each.route == only, why) for each in routes)
            choice = {"gpu": _ON_GPU, "split": over_threads, "loop": _ON_LOOP, "thread": _ON_THREAD}[only]
            cpu = cpu if only == "gpu" else choice
        elif has_gpu and facts.device == "auto" and not facts.on_gpu:
            with_copy = self._gpu_route(plan, facts._replace(on_gpu=True), size)
            missed_bytes = int(max(size.bytes, CACHE_LINE * size.items)) if with_copy.is_open else 0
        refused = (self.no_gpu or facts.cpu_only) if facts.device == "gpu" else None
        return Decision(choice, cpu, size, routes, missed_bytes, refused, has_gpu)

    def _gpu_route(self, plan: Plan, facts: Facts, size: Size) -> ConsideredRoute:
        closed = self.no_gpu or facts.cpu_only
        if closed is None and facts.device == "cpu":
            closed = "the request asks for the device cpu"
        elif closed is None and not facts.on_gpu:
            closed = "the device has no copy of the data"
        elif closed is None and device_bytes(plan) > self.gpu_memory:
            closed = "it does not fit into the device's memory"
        if closed is not None:
            return ConsideredRoute("gpu", False, closed)
        return _reaches("gpu", size, self.gpu_from)

    def _split_route(self, slices: int, size: Size, least: Size) -> ConsideredRoute:
        if self.threads < 2:
            return ConsideredRoute("split", False, "the pool has one thread")
        if slices < 2:
            return ConsideredRoute("split", False, "there are fewer than two slices to share")
        return _reaches("split", size, least)

    def _only_route(
        self, facts: Facts, has_gpu: bool, split: ConsideredRoute, loop: ConsideredRoute
    ) -> tuple[Route | None, str]:
        """The route that the request or the settings leave, if only one, and why they close the others."""
        if facts.device == "gpu":
            return "gpu", "the request asks for the device gpu"
        may_use_gpu = has_gpu and facts.device == "auto"
        if self.force_route is not None:
            # A route whose size was looked at is possible.
            split_is, loop_is = split.threshold is not None, loop.threshold is not None
            possible = {"gpu": may_use_gpu, "split": split_is, "loop": loop_is, "thread": True}
            if possible[self.force_route]:
                return self.force_route, "the settings force this route for every gather that can take it"
        if self.always_gpu and may_use_gpu:
            return "gpu", "GATHERND_DEVICE=gpu runs everything on the GPU that fits there"
        return None, ""


def _loop_route(facts: Facts, size: Size, most: Size) -> ConsideredRoute:
    if facts.cold:
        return ConsideredRoute("loop", False, "reading this content waits for the disk")
    if size.items <= most.items and size.bytes <= most.bytes:
        return ConsideredRoute("loop", True, "it is within the threshold in items and in bytes", most)
    return ConsideredRoute("loop", False, "it would hold up other requests: it is above the threshold", most)


def _reaches(route: Route, size: Size, least: Size) -> ConsideredRoute:
    if size.items >= least.items or size.bytes >= least.bytes:
        return ConsideredRoute(route, True, "it reaches the threshold in items or in bytes", least)
    return ConsideredRoute(route, False, "it is below the threshold in items and in bytes", least)
