"""The one decision where a gather runs: the event loop, a thread of the pool, a split over several, or the GPU.

It takes the shortest of the routes that the cost model predicts, within bounds that keep the event loop free (see
`event_loop_limit`).
"""

from __future__ import annotations

from typing import Any, Final, Literal

from numpy.typing import NDArray

from app.dispatch import event_loop_limit
from app.dispatch.backend_cost_model import (
    TYPICAL,
    Coefficients,
    Route,
    RouteChoice,
    kernel_seconds,
    predict_routes,
)
from app.dispatch.event_loop_limit import NEVER
from app.operators.gather_plan import Plan

Device = Literal["auto", "cpu", "gpu"]

_LOCAL_BYTES: Final = 1 << 14
_SAMPLED_PAIRS: Final = 8
_SPLIT_MIN_S: Final = 6e-6
"""To wake helpers takes about a microsecond, which is too much for a shorter gather."""


def choose_route(
    routes: dict[Route, RouteChoice],
    loop_max_s: float,
    split_min_s: float = 0.0,
    device: Device = "auto",
    gpu_fits: bool = True,
) -> RouteChoice:
    """The shortest of the routes that are allowed.

    Nothing runs on the event loop that is predicted to take longer than `loop_max_s`, since all other requests wait
    meanwhile; nothing shorter than `split_min_s` on one thread is split; `device` leaves out the CPU's routes or the
    GPU's. What does not fit into the device's memory (`gpu_fits`) runs there only if the request asks for the GPU, and
    is refused then. Raises KeyError for the device gpu where there is none.
    """
    if device == "gpu":
        return routes["gpu"]
    loop_s = routes["loop"].seconds
    best = routes["loop"] if loop_s <= loop_max_s else routes["thread"]
    # Helpers that are awake make a split shorter than predicted, so it wins a tie.
    if "split" in routes and loop_s >= split_min_s and routes["split"].seconds <= best.seconds:
        best = routes["split"]
    if device == "auto" and "gpu" in routes and gpu_fits and routes["gpu"].seconds < best.seconds:
        best = routes["gpu"]
    return best


class BackendChooser:
    """Chooses routes by the settings of the service; `coefficients` are replaced once they have been measured.

    `no_gpu` says why there is no GPU, None where there is one.
    """

    def __init__(
        self,
        *,
        threads: int,
        loop_max_us: float | None = None,
        split_min_us: float | None = None,
        force_route: Route | None = None,
        coefficients: Coefficients = TYPICAL,
        no_gpu: str | None = "this service has no GPU",
    ) -> None:
        self.threads = threads
        self.loop_max_us = loop_max_us
        self.split_min_us = split_min_us
        self.force_route = force_route
        self.coefficients = coefficients
        self.no_gpu = no_gpu

    def loop_max_s(self) -> float:
        """Seconds of the longest gather for the event loop."""
        return event_loop_limit.loop_max_s(self.loop_max_us, self.coefficients.hand_off_s)

    def split_min_s(self) -> float:
        """Seconds of the shortest gather to be split: as set, else one that waking helpers hardly lengthens."""
        return _SPLIT_MIN_S if self.split_min_us is None else self.split_min_us * 1e-6

    def predict(
        self, plan: Plan, resident: bool = False, locality: bool = False, cold: bool = False
    ) -> dict[Route, RouteChoice]:
        """The prediction for each route that exists."""
        loop_max_s = NEVER if cold else self.loop_max_s()
        routes = predict_routes(plan, resident, self.threads, self.coefficients, locality, loop_max_s)
        if self.no_gpu is not None:
            routes.pop("gpu", None)
        return routes

    def choose(
        self,
        plan: Plan,
        resident: bool = False,
        device: Device = "auto",
        gpu_fits: bool = True,
        locality: bool = False,
        cold: bool = False,
    ) -> RouteChoice:
        """The route for this plan. Raises KeyError for the device gpu where there is none.

        `locality` says that each slice lies near the one before (see `has_locality`), `cold` that reading the data
        waits for the disk, so that the event loop takes no part in it.
        """
        if self.force_route is None and device != "gpu" and not cold:
            kernel_s = kernel_seconds(plan, self.coefficients, locality)
            if kernel_s < min(self.split_min_s(), self.coefficients.hand_off_s, self.loop_max_s()):
                return RouteChoice(
                    "loop", kernel_s, on_event_loop=True
                )  # most requests are too short for any other route
        routes = self.predict(plan, resident, locality, cold)
        if self.force_route in routes and not (cold and self.force_route == "loop"):
            return routes[self.force_route]
        return choose_route(routes, NEVER if cold else self.loop_max_s(), self.split_min_s(), device, gpu_fits)


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
