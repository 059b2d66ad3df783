"""The one decision where a gather runs: the event loop, a thread of the pool, a split over several, or the GPU.

`BackendChooser.decide` takes the shortest of the routes that are open, by the times that the cost model predicts. A
route is closed for a reason, which the decision tells; `Service.gather` runs what a decision says, and an explanation
is the same decision printed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import Any, Final, Literal, NamedTuple, get_args

from numpy.typing import NDArray

from app.dispatch import event_loop_limit
from app.dispatch.backend_cost_model import (
    TYPICAL,
    Coefficients,
    device_bytes,
    gpu_seconds,
    kernel_seconds,
    split_seconds,
)
from app.dispatch.event_loop_limit import NEVER
from app.operators.gather_plan import Plan
from app.tensors.gather_call import Device

Route = Literal["loop", "thread", "split", "gpu"]
ROUTES: Final[tuple[Route, ...]] = get_args(Route)

NO_STRINGS: Final = "a GPU holds no strings"
_ASKED_GPU: Final = "the request asks for the device gpu"
_ASKED_CPU: Final = "the request asks for the device cpu"
_ALWAYS_GPU: Final = "this service runs on its GPU whatever that can hold (GATHERND_DEVICE=gpu)"
_NO_GPU: Final = "this service has no GPU"
_LOCAL_BYTES: Final = 1 << 14
_SAMPLED_PAIRS: Final = 8
_SPLIT_MIN_S: Final = 10e-6
"""To share a gather takes about a microsecond, which is too much for a shorter one where no helper is awake."""


class Facts(NamedTuple):
    """What a decision depends on beside plan and machine. A plan meets few combinations of them."""

    device: Device = "auto"
    """The device that the request asks for."""
    cpu_only: str | None = None
    """Why no GPU can run the gather, such as that it holds no strings; None where one could."""
    locality: bool = False
    """Whether each slice lies near the one before (see `has_locality`)."""
    cold: bool = False
    """Whether reading the data waits for the disk, so that the event loop takes no part in it."""
    on_gpu: bool = False
    """Whether the GPU holds a copy of the data."""


class PredictedRoute(NamedTuple):
    """A route, the seconds predicted for it (infinity where there is none), and over how many threads it splits.

    `on_event_loop` says that the event loop runs the gather, or leads a split one; `closed` why the route may not be
    taken, None where it may.
    """

    route: Route
    seconds: float
    parts: int = 1
    on_event_loop: bool = False
    closed: str | None = None


class Decision(NamedTuple):
    """Where a gather runs, and why."""

    choice: PredictedRoute
    """What runs: one of `routes`."""
    routes: tuple[PredictedRoute, ...]
    """Every route, in the order of `ROUTES`. The choice is the shortest of those that are open."""
    cpu: PredictedRoute
    """The best of the CPU's routes."""
    saving_s: float
    """Seconds that a gather under `auto` would have saved with its data on the GPU; 0.0 where none, or where it is."""
    refused: str | None
    """Why the device that the request asks for cannot run it, and nothing may; None where it can."""
    depends_on_request: bool
    """Whether locality, a copy on the GPU or the device cpu would change anything, for data that is in memory."""

    @property
    def device(self) -> Literal["cpu", "gpu"]:
        """Where the choice runs."""
        return "gpu" if self.choice.route == "gpu" else "cpu"

    @property
    def fallback(self) -> PredictedRoute:
        """What runs where the device fails: the CPU's best route, or a thread in the place of the event loop."""
        return self.cpu._replace(route="split" if self.cpu.parts > 1 else "thread", on_event_loop=False)


USUAL: Final = Facts()


@dataclass(frozen=True)
class BackendChooser:
    """Decides by the settings of the service and the figures of the machine.

    When one of them changes another chooser takes its place, and decisions of the old one count no more. `no_gpu`
    says why there is no GPU, None where there is one: it has `gpu_memory` bytes for gathers, and with `always_gpu`
    everything runs there that it can hold. `force_route` is for tests and measurements.
    """

    threads: int
    loop_max_us: float | None = None
    split_min_us: float | None = None
    force_route: Route | None = None
    coefficients: Coefficients = TYPICAL
    no_gpu: str | None = _NO_GPU
    gpu_memory: float = inf
    always_gpu: bool = False

    @cached_property
    def loop_max_s(self) -> float:
        """Seconds of the longest gather for the event loop."""
        return event_loop_limit.loop_max_s(self.loop_max_us, self.coefficients.hand_off_s)

    @cached_property
    def split_min_s(self) -> float:
        """Seconds of the shortest gather to be split: as set, else one that waking helpers hardly lengthens."""
        return _SPLIT_MIN_S if self.split_min_us is None else self.split_min_us * 1e-6

    def decide(self, plan: Plan, facts: Facts = USUAL) -> Decision:
        """Where a gather with this plan runs: a function of its arguments and of this chooser alone.

        Nothing runs on the event loop, or is led by it, that is predicted to take longer than `loop_max_s`, since all
        other requests wait meanwhile; nothing shorter than `split_min_s` on one thread is split. What does not fit into
        the GPU's memory runs there only if the request or the settings ask for the GPU.
        """
        loop, thread, split = self._cpu_routes(plan, facts)
        gpu = self._gpu_route(plan, facts)
        routes: tuple[PredictedRoute, ...] = (loop, thread, split, gpu)
        cpu = thread if loop.closed is not None else loop
        # Helpers that are awake make a split shorter than predicted, so it wins a tie.
        if split.closed is None and split.seconds <= cpu.seconds:
            cpu = split
        choice = gpu if gpu.closed is None and gpu.seconds < cpu.seconds else cpu
        only, why = self._only_route(routes, facts)
        refused = gpu.closed if facts.device == "gpu" else None
        if only is not None:
            choice = only._replace(closed=refused)
            routes = tuple(choice if each is only else each._replace(closed=why) for each in routes)
        if choice.route != "gpu":
            cpu = choice
        has_gpu = gpu.seconds < inf
        saving_s = 0.0
        if has_gpu and only is None and facts.device == "auto" and not facts.on_gpu:
            saving_s = max(cpu.seconds - self._gpu_seconds(plan, on_gpu=True), 0.0)
        return Decision(choice, routes, cpu, saving_s, refused, has_gpu or not choice.on_event_loop)

    def _only_route(self, routes: tuple[PredictedRoute, ...], facts: Facts) -> tuple[PredictedRoute | None, str | None]:
        """The route that the request or the settings leave, if only one, and why they close the others."""
        gpu = routes[-1]
        if facts.device == "gpu":
            return gpu, _ASKED_GPU
        if self.force_route is not None:
            forced = routes[ROUTES.index(self.force_route)]
            if forced.seconds < inf and not (forced.on_event_loop and facts.cold):
                return forced, f"every gather that can take the route {forced.route} has to"
        if self.always_gpu and gpu.seconds < inf and facts.device == "auto":
            return gpu, _ALWAYS_GPU
        return None, None

    def _cpu_routes(self, plan: Plan, facts: Facts) -> tuple[PredictedRoute, PredictedRoute, PredictedRoute]:
        """Loop, thread and split; a split that the event loop may not lead has a thread to lead it."""
        coefficients, loop_max_s = self.coefficients, NEVER if facts.cold else self.loop_max_s
        loop_s = kernel_seconds(plan, coefficients, facts.locality)
        split_s, parts = split_seconds(plan, loop_s, self.threads, coefficients)
        split_on_loop = split_s <= loop_max_s
        if not split_on_loop:
            split_s += coefficients.hand_off_s
        loop_closed = split_closed = None
        if facts.cold:
            loop_closed = "reading this content waits for the disk"
        elif loop_s > loop_max_s:
            loop_closed = f"it would hold up other requests for more than {loop_max_s * 1e6:.0f} µs"
        if self.threads < 2:
            split_closed = "the pool has one thread"
        elif plan.batches * plan.tuples < 2:
            split_closed = "there are not two slices to share out"
        elif parts < 2:
            split_closed = "its threads would be in each other's way"
        elif loop_s < self.split_min_s:
            split_closed = f"it is shorter than {self.split_min_s * 1e6:.0f} µs on one thread"
        return (
            PredictedRoute("loop", loop_s, 1, True, loop_closed),
            PredictedRoute("thread", coefficients.hand_off_s + loop_s),
            PredictedRoute("split", split_s, parts, split_on_loop, split_closed),
        )

    def _gpu_route(self, plan: Plan, facts: Facts) -> PredictedRoute:
        """The route of the GPU; without one, or without a way for this gather to run there, it has no prediction."""
        closed = self.no_gpu or facts.cpu_only
        if closed is not None:
            return PredictedRoute("gpu", inf, closed=closed)
        if facts.device == "cpu":
            closed = _ASKED_CPU
        elif facts.device == "auto" and device_bytes(plan, facts.on_gpu) > self.gpu_memory:
            closed = "it does not fit into the device's memory"
        return PredictedRoute("gpu", self._gpu_seconds(plan, facts.on_gpu), closed=closed)

    def _gpu_seconds(self, plan: Plan, on_gpu: bool) -> float:
        gpu = self.coefficients.gpu
        assert gpu is not None, "a service with a GPU has measured it"
        return gpu_seconds(plan, on_gpu, self.coefficients.hand_off_s, gpu)


def has_locality(plan: Plan, indices: NDArray[Any]) -> bool:
    """Whether neighbouring slices lie close together, judged by some pairs of neighbouring tuples of `indices`."""
    depth = plan.depth
    tuples = indices.size // depth
    if tuples < 2 or not plan.dims[0]:
        return False
    firsts = indices[::depth]
    at = [(tuples - 2) * pair // (_SAMPLED_PAIRS - 1) for pair in range(_SAMPLED_PAIRS)]
    step = plan.block_items // plan.dims[0] * plan.item_size  # bytes of a step along the first axis
    return all(abs(int(firsts[place + 1]) - int(firsts[place])) * step <= _LOCAL_BYTES for place in at)
