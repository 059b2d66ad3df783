"""Explains where a gather runs: every route with the time predicted for it, and why it is closed if it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from app.dispatch.backend_cost_model import ROUTES, Route, RouteChoice
from app.dispatch.choose_backend import BackendChooser, Device
from app.operators.gather_plan import Plan

NO_STRINGS: Final = "a GPU holds no strings"
_ASKED_GPU: Final = "the request asks for the device gpu"
_ALWAYS_GPU: Final = "this service runs on its GPU whatever that can hold (GATHERND_DEVICE=gpu)"


@dataclass(frozen=True, slots=True)
class RouteNote:
    """One route: its predicted seconds, None where there are none, and why it is closed, None where it is open."""

    route: Route
    seconds: float | None
    closed: str | None


def explain_routes(
    plan: Plan,
    chooser: BackendChooser,
    *,
    resident: bool = False,
    device: Device = "auto",
    gpu_fits: bool = True,
    cold: bool = False,
    locality: bool = False,
    always_gpu: bool = False,
    cpu_only: str | None = None,
) -> list[RouteNote]:
    """Every route, in the order of `ROUTES`. The choice is the shortest of those that are open.

    `device` is what the request asks for, `resident` says that the data lies on the GPU, `cold` that reading it waits
    for the disk, `locality` that slices lie close together, `always_gpu` that the service is set to use its GPU for
    whatever it can hold, and `cpu_only` why no GPU can run this gather.
    """
    routes = chooser.predict(plan, resident, locality, cold)
    times = {route: choice.seconds for route, choice in routes.items()}
    if cpu_only is not None:
        times.pop("gpu", None)
    closed: dict[Route, str | None] = {
        "loop": _loop_closed(plan, chooser, routes["loop"].seconds, cold),
        "thread": None,
        "split": _split_closed(plan, chooser, routes),
        "gpu": _gpu_closed(chooser, device, gpu_fits, cpu_only),
    }
    only = None
    if device == "gpu":
        only = _ASKED_GPU
    elif device == "auto" and always_gpu and cpu_only is None and chooser.no_gpu is None:
        only, closed["gpu"] = _ALWAYS_GPU, None
    if only is not None:
        closed = {route: reason if route == "gpu" else only for route, reason in closed.items()}
    return [RouteNote(route, times.get(route), closed[route]) for route in ROUTES]


def _loop_closed(plan: Plan, chooser: BackendChooser, seconds: float, cold: bool) -> str | None:
    if cold:
        return "reading this content waits for the disk"
    if seconds > chooser.loop_max_s():
        return f"it would hold up other requests for more than {chooser.loop_max_s() * 1e6:.0f} µs"
    return None


def _split_closed(plan: Plan, chooser: BackendChooser, routes: dict[Route, RouteChoice]) -> str | None:
    if chooser.threads < 2:
        return "the pool has one thread"
    if plan.batches * plan.tuples < 2:
        return "there are not two slices to share out"
    if "split" not in routes:
        return "its threads would be in each other's way"
    if routes["loop"].seconds < chooser.split_min_s():
        return f"it is shorter than {chooser.split_min_s() * 1e6:.0f} µs on one thread"
    return None


def _gpu_closed(chooser: BackendChooser, device: Device, gpu_fits: bool, cpu_only: str | None) -> str | None:
    if chooser.no_gpu is not None:
        return chooser.no_gpu
    if device == "cpu":
        return "the request asks for the device cpu"
    if cpu_only is not None:
        return cpu_only
    return None if gpu_fits else "it does not fit into the device's memory"
