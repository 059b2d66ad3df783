"""Decide where a gather runs: on the GPU, split over threads, on the event loop, or on one thread of the pool.

The decision depends on size: how many items a gather picks and how many bytes it copies. The machine's measured rates
convert GATHERND_LOOP_MAX_US and GATHERND_SPLIT_MIN_US into thresholds for both. `BackendChooser.decide` chooses the
first open route in the order of `ROUTES`. It is a pure function, so tests need neither a GPU nor a particular machine.
An explanation shows the same decision.

Work other than the gather itself runs on the event loop if it is below LARGE_INDEX_SCAN, LARGE_COPY or FEW_STRINGS, and
on a thread otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import Final, Literal, NamedTuple

from app.operators.gather_plan import Plan
from app.tensors.gather_call import Device

LARGE_INDEX_SCAN: Final = 1 << 14
"""Indices are checked on a thread if there are at least this many. NumPy takes 0.1 to 0.3 ms for this number."""
LARGE_COPY: Final = 1 << 18
"""Bytes are written on a thread if there are at least this many.

Writing this many takes 5 to 50 µs, and longest if the pages are fresh.
"""
FEW_STRINGS: Final = 1 << 10
"""Maximum number of strings whose sizes are added up on the event loop. Each length may be anywhere in memory."""

Route = Literal["loop", "thread", "split", "gpu"]
ROUTES: Final[tuple[Route, ...]] = ("gpu", "split", "loop", "thread")
"""The routes in order of preference."""

NEAR_BYTES: Final = 1 << 20
"""Maximum size in bytes of data that fits into a core's cache."""
CACHE_LINE: Final = 64
"""Minimum number of bytes of memory traffic per item."""
_LOOP_HAND_OFFS: Final = 10
"""Maximum time for which a gather may block the event loop, as a multiple of the time for a hand-off.

A longer gather loses less than a tenth of its time by moving to a thread, and all other requests benefit.
"""
_LOOP_BOUNDS_S: Final = (50e-6, 1500e-6)
"""Bounds of that time in seconds, because a hand-off measured on a busy machine is unreliable."""
_SPLIT_MIN_S: Final = 10e-6
"""Duration in seconds of the shortest gather that is split. Splitting takes about a microsecond."""
_HELPER_S: Final = 20e-6
"""Seconds of work in a split for each additional helper.

A helper starts 10 to 40 µs after it is woken (`thread_team`).
"""
NO_STRINGS: Final = "strings cannot be held by a GPU"


class Size(NamedTuple):
    """The number of items that a gather picks and the number of bytes that it copies, or a threshold for both
    (infinity: never reached).
    """

    items: float
    bytes: float


NEVER: Final = Size(inf, inf)
"""A threshold that is never reached."""


def size_of(plan: Plan) -> Size:
    """Return the size of a gather.

    Its items are the components of indices or the slices, whichever are more numerous.
    """
    slices = plan.batches * plan.tuples
    items = max(plan.index_items, slices) if plan.slice_items else plan.index_items
    return Size(items, (slices * plan.slice_items + plan.copied_items) * plan.item_size)


def device_bytes(plan: Plan) -> int:
    """Return the maximum device memory that a gather needs, in bytes, excluding the copy of its data."""
    return 8 * plan.index_items + plan.output_bytes


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates of this machine in seconds, from `measured_rates`.

    `hand_off_s` is the time for a hand-off to a pool thread and back. A thread takes `byte_s` per byte that it copies
    from memory. Per item picked at random, it takes `near_item_s` if the data is in a core's cache, and `far_item_s` if
    it is in memory.
    """

    hand_off_s: float
    byte_s: float
    near_item_s: float
    far_item_s: float


TYPICAL: Final = Rates(hand_off_s=30e-6, byte_s=0.15e-9, near_item_s=1e-9, far_item_s=5e-9)
"""Rates of a typical server, used until the machine is measured."""


class Thresholds(NamedTuple):
    """The largest gather for the event loop, the smallest gather to split, and the smallest part that justifies a
    helper.
    """

    loop: Size
    split: Size
    helper: Size


class Facts(NamedTuple):
    """The inputs of a decision other than the plan and the machine.

    Few combinations of them occur with any one plan.
    """

    device: Device = "auto"
    """The device that the request specifies."""
    cpu_only: str | None = None
    """Why no GPU can run the gather, for example because its data consists of strings; None if a GPU can."""
    cold: bool = False
    """Whether reading the data requires disk I/O. If so, the event loop does not read it."""
    on_gpu: bool = False
    """Whether the GPU holds a copy of the data."""


class ConsideredRoute(NamedTuple):
    """A route, whether it is open, and why.

    `threshold` is the size that decided this, or None if size did not decide it.
    """

    route: Route
    is_open: bool
    reason: str
    threshold: Size | None = None


class ChosenRoute(NamedTuple):
    """A route, its number of threads, and whether the event loop runs the gather or leads the split."""

    route: Route
    parts: int = 1
    on_event_loop: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision about where a gather runs, with its reasons."""

    choice: ChosenRoute
    """The route that runs."""
    cpu: ChosenRoute
    """The route that would run without a GPU."""
    size: Size
    """The size of the gather."""
    routes: tuple[ConsideredRoute, ...]
    """Every route, in the order of `ROUTES`: the choice is the first open one."""
    missed_bytes: int
    """Number of bytes that the gather reads from host memory only because the GPU has no copy of the data; else 0."""
    refused: str | None
    """Why the requested device cannot run the gather; None if it can."""
    depends_on_request: bool
    """For data in memory: whether a copy on the GPU, or a request for the device cpu, would change the decision."""

    @property
    def device(self) -> Literal["cpu", "gpu"]:
        """The device of the chosen route."""
        return "gpu" if self.choice.route == "gpu" else "cpu"

    @property
    def fallback(self) -> ChosenRoute:
        """The route to use if the device fails: the route without a GPU, on a thread instead of the event loop."""
        return ChosenRoute("split" if self.cpu.parts > 1 else "thread", self.cpu.parts)


USUAL: Final = Facts()
_THREAD_ROUTE: Final = ConsideredRoute("thread", True, "a thread takes gathers of any size")
_ON_THREAD: Final = ChosenRoute("thread")
_ON_LOOP: Final = ChosenRoute("loop", 1, True)
_ON_GPU: Final = ChosenRoute("gpu")


@dataclass(frozen=True)
class BackendChooser:
    """Chooses a route based on the service's settings and the machine's rates.

    When one of these changes, a new chooser replaces this one, and decisions cached for the old one become invalid.
    `no_gpu` is the reason why there is no GPU, or None if there is one. The GPU has `gpu_memory` bytes for gathers.
    Under `auto`, it runs gathers of size `gpu_from` or more or, with `always_gpu`, all gathers that fit into its
    memory. `force_route` is for tests and measurements.
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
        """Duration in seconds of the longest gather for the event loop: the setting, or a multiple of the hand-off
        time.
        """
        if self.loop_max_us is not None:
            return self.loop_max_us * 1e-6
        low, high = _LOOP_BOUNDS_S
        return min(max(_LOOP_HAND_OFFS * self.rates.hand_off_s, low), high)

    @cached_property
    def cached_thresholds(self) -> Thresholds:
        """Thresholds for data that fits into a core's cache."""
        return self._thresholds(self.rates.near_item_s)

    @cached_property
    def memory_thresholds(self) -> Thresholds:
        """Thresholds for data in memory."""
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

        The event loop neither runs nor leads a gather above its threshold, because all other requests would wait. A
        request for a specific device gets that device or is refused. Under `auto`, the GPU runs a gather if it holds a
        copy of the data, if the gather reaches its threshold, and if its memory has room.
        """
        size, slices = size_of(plan), plan.batches * plan.tuples
        near = plan.batches * plan.block_items * plan.item_size <= NEAR_BYTES
        loop_most, split_least, per_helper = self.cached_thresholds if near else self.memory_thresholds
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
        return _route_from_threshold("gpu", size, self.gpu_from)

    def _split_route(self, slices: int, size: Size, least: Size) -> ConsideredRoute:
        if self.threads < 2:
            return ConsideredRoute("split", False, "the pool has one thread")
        if slices < 2:
            return ConsideredRoute("split", False, "there are fewer than two slices to share")
        return _route_from_threshold("split", size, least)

    def _only_route(
        self, facts: Facts, has_gpu: bool, split: ConsideredRoute, loop: ConsideredRoute
    ) -> tuple[Route | None, str]:
        """Return the only route that the request or the settings allow (None: no restriction), and the reason."""
        if facts.device == "gpu":
            return "gpu", "the request asks for the device gpu"
        may_use_gpu = has_gpu and facts.device == "auto"
        if self.force_route is not None:
            # A route is possible only if its size was checked.
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


def _route_from_threshold(route: Route, size: Size, least: Size) -> ConsideredRoute:
    if size.items >= least.items or size.bytes >= least.bytes:
        return ConsideredRoute(route, True, "it reaches the threshold in items or in bytes", least)
    return ConsideredRoute(route, False, "it is below the threshold in items and in bytes", least)
