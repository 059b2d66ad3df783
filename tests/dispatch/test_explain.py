from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from app.dispatch.backend_cost_model import ROUTES, TYPICAL, Coefficients, Route
from app.dispatch.choose_backend import BackendChooser
from app.dispatch.explain import NO_STRINGS, explain_routes
from app.operators.gather_plan import GatherPlan
from tests.dispatch.test_backend_cost_model import CARD, LARGE, TINY, WITH_CARD, gathers, machines


def closed(plan: GatherPlan, chooser: BackendChooser, **options: Any) -> dict[Route, str]:
    """The routes that are closed, with the reasons."""
    found = explain_routes(plan, chooser, **options)
    assert [note.route for note in found] == list(ROUTES)
    return {note.route: note.closed for note in found if note.closed is not None}


@given(
    plan=gathers(),
    machine=machines(),
    threads=st.integers(1, 8),
    resident=st.booleans(),
    device=st.sampled_from(("auto", "cpu")),
    fits=st.booleans(),
)
def test_the_choice_is_open_and_the_shortest_of_those(
    plan: GatherPlan, machine: Coefficients, threads: int, resident: bool, device: Any, fits: bool
) -> None:
    card = replace(machine, gpu=machine.gpu or CARD)
    chooser = BackendChooser(threads=threads, coefficients=card, no_gpu=None)
    choice = chooser.choose(plan, resident, device, fits)
    found = {
        note.route: note for note in explain_routes(plan, chooser, resident=resident, device=device, gpu_fits=fits)
    }
    assert found[choice.route].closed is None
    assert found[choice.route].seconds == choice.seconds
    for note in found.values():
        if note.closed is None:
            assert note.seconds is not None
            assert note.seconds >= choice.seconds


def test_a_gpu_is_closed_for_a_reason() -> None:
    chooser = BackendChooser(threads=2, coefficients=WITH_CARD, no_gpu=None)
    assert "gpu" not in closed(LARGE, chooser)
    assert closed(LARGE, chooser, cpu_only=NO_STRINGS)["gpu"] == "a GPU holds no strings"
    assert closed(LARGE, chooser, device="cpu")["gpu"] == "the request asks for the device cpu"
    assert closed(LARGE, chooser, gpu_fits=False)["gpu"] == "it does not fit into the device's memory"
    assert closed(LARGE, BackendChooser(threads=2, no_gpu="it is broken"))["gpu"] == "it is broken"


def test_only_the_gpu_is_open_to_who_asks_for_it() -> None:
    chooser = BackendChooser(threads=2, coefficients=WITH_CARD, no_gpu=None)
    assert set(closed(LARGE, chooser, device="gpu")) == {"loop", "thread", "split"}


def test_routes_of_a_cpu_are_closed_for_a_reason() -> None:
    assert "hold up other requests for more than 300 µs" in closed(LARGE, BackendChooser(threads=2))["loop"]
    assert closed(LARGE, BackendChooser(threads=1))["split"] == "the pool has one thread"
    single = GatherPlan(1, 1, (2,), 1, 4, False, True)
    assert closed(single, BackendChooser(threads=2))["split"].startswith("there are not two")
    crowded = replace(TYPICAL, item_gain=1.0)
    assert (
        closed(LARGE, BackendChooser(threads=2, coefficients=crowded))["split"]
        == "its threads would be in each other's way"
    )
    assert "shorter than 1000 µs" in closed(TINY, BackendChooser(threads=2, split_min_us=1000))["split"]
    assert "disk" in closed(TINY, BackendChooser(threads=2), cold=True)["loop"]
