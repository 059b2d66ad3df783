"""The decision: a function of plan, facts and machine, whose reasons are those by which it was made."""

from __future__ import annotations

from dataclasses import replace
from math import inf, isfinite
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.dispatch.backend_cost_model import TYPICAL, device_bytes
from app.dispatch.choose_backend import (
    NO_STRINGS,
    ROUTES,
    USUAL,
    BackendChooser,
    Decision,
    Facts,
    PredictedRoute,
    Route,
    has_locality,
)
from app.operators.gather_plan import GatherPlan
from tests.dispatch.test_backend_cost_model import CARD, LARGE, LOOKUP, gathers, machines, priced

TINY = GatherPlan(1, 2, (2, 2), 1, 4, False, True)
SINGLE = GatherPlan(1, 1, (2,), 1, 4, False, True)
FEW = GatherPlan(1, 64, (200_000,), 64, 4, False, True)
MIDDLING = GatherPlan(1, 40_000, (100_000_000,), 1, 4, False, True)
WITH_CARD = BackendChooser(threads=2, coefficients=replace(TYPICAL, gpu=CARD), no_gpu=None)
ON_GPU = Facts(on_gpu=True)


def choosers() -> st.SearchStrategy[BackendChooser]:
    microseconds = st.none() | st.sampled_from((0.0, 10.0, 1e9))
    return st.builds(
        lambda machine, gpu, **options: BackendChooser(
            coefficients=replace(machine, gpu=machine.gpu or CARD if gpu else None),
            no_gpu=None if gpu else "there is none",
            **options,
        ),
        machines(),
        st.booleans(),
        threads=st.integers(1, 8),
        loop_max_us=microseconds,
        split_min_us=microseconds,
        force_route=st.none() | st.sampled_from(ROUTES),
        gpu_memory=st.sampled_from((1 << 10, 1 << 22, inf)),
        always_gpu=st.booleans(),
    )


def facts() -> st.SearchStrategy[Facts]:
    truth = st.booleans()
    return st.builds(
        Facts, st.sampled_from(("auto", "cpu", "gpu")), st.sampled_from((None, NO_STRINGS)), truth, truth, truth
    )


def routes_of(decision: Decision) -> dict[Route, PredictedRoute]:
    assert [each.route for each in decision.routes] == list(ROUTES) == list(get_args(Route))
    return {each.route: each for each in decision.routes}


def closed(plan: GatherPlan, chooser: BackendChooser, asked: Facts = USUAL) -> dict[Route, str]:
    """The routes that are closed, with the reasons."""
    found = routes_of(chooser.decide(plan, asked))
    return {route: each.closed for route, each in found.items() if each.closed is not None}


def chosen(plan: GatherPlan, chooser: BackendChooser, asked: Facts = USUAL) -> Route:
    return chooser.decide(plan, asked).choice.route


@given(plan=gathers(), chooser=choosers(), asked=facts())
def test_the_choice_is_the_shortest_of_the_routes_that_are_open(
    plan: GatherPlan, chooser: BackendChooser, asked: Facts
) -> None:
    decision = chooser.decide(plan, asked)
    found = routes_of(decision)
    choice = decision.choice
    assert found[choice.route] is choice
    assert choice.closed == decision.refused
    opened = [each for each in found.values() if each.closed is None]
    if decision.refused is not None:
        assert asked.device == "gpu"
        assert opened == []
        assert found["gpu"].seconds == inf
    else:
        assert choice.seconds == min(each.seconds for each in opened) < inf


@given(plan=gathers(), chooser=choosers(), asked=facts())
def test_a_device_is_obeyed_or_refused_and_never_changed(
    plan: GatherPlan, chooser: BackendChooser, asked: Facts
) -> None:
    decision = chooser.decide(plan, asked)
    assert decision.device == ("gpu" if decision.choice.route == "gpu" else "cpu")
    if asked.device == "gpu":
        assert decision.device == "gpu"
        assert decision.refused == (chooser.no_gpu or asked.cpu_only)
    else:
        assert decision.refused is None
    if asked.device == "cpu" and chooser.force_route != "gpu":
        assert decision.device == "cpu"


@given(plan=gathers(), chooser=choosers(), asked=facts())
def test_the_event_loop_takes_no_part_in_what_would_hold_it(
    plan: GatherPlan, chooser: BackendChooser, asked: Facts
) -> None:
    unforced = replace(chooser, force_route=None)
    decision = unforced.decide(plan, asked)
    for each in (decision.choice, decision.cpu):
        if each.on_event_loop:
            assert not asked.cold
            assert each.seconds <= unforced.loop_max_s
    assert decision.fallback.route in ("thread", "split")
    assert not decision.fallback.on_event_loop
    assert decision.fallback.parts == decision.cpu.parts


@given(plan=gathers(), chooser=choosers(), asked=facts(), other=st.sampled_from(("auto", "cpu")))
def test_a_decision_that_does_not_depend_on_the_request_is_that_of_every_request(
    plan: GatherPlan, chooser: BackendChooser, asked: Facts, other: Any
) -> None:
    usual = chooser.decide(plan, Facts(cpu_only=asked.cpu_only))
    if not usual.depends_on_request:
        assert chooser.decide(plan, asked._replace(device=other, cold=False, locality=False)) == usual


def test_no_slice_far_away_makes_a_gather_shorter() -> None:
    for rows in (10, 1000, 100_000):
        plan = replace(LOOKUP, tuples=rows)
        far, near = (WITH_CARD.decide(plan, Facts(locality=each)) for each in (False, True))
        assert near.cpu.seconds <= far.cpu.seconds


def test_a_gpu_is_closed_for_a_reason() -> None:
    assert "gpu" not in closed(LARGE, WITH_CARD)
    assert closed(LARGE, WITH_CARD, Facts(cpu_only=NO_STRINGS))["gpu"] == "a GPU holds no strings"
    assert closed(LARGE, WITH_CARD, Facts("cpu"))["gpu"] == "the request asks for the device cpu"
    small = replace(WITH_CARD, gpu_memory=1 << 20)
    assert closed(LARGE, small)["gpu"] == "it does not fit into the device's memory"
    assert closed(LARGE, BackendChooser(threads=2, no_gpu="it is broken"))["gpu"] == "it is broken"


def test_only_the_gpu_is_open_to_who_asks_for_it_and_where_the_service_is_set_to_it() -> None:
    assert set(closed(LARGE, WITH_CARD, Facts("gpu"))) == {"loop", "thread", "split"}
    always = replace(WITH_CARD, always_gpu=True)
    assert set(closed(TINY, always)) == {"loop", "thread", "split"}
    assert closed(TINY, always, Facts("cpu"))["gpu"] == "the request asks for the device cpu"
    assert chosen(TINY, always, Facts(cpu_only=NO_STRINGS)) == "loop"


def test_routes_of_a_cpu_are_closed_for_a_reason() -> None:
    two = BackendChooser(threads=2)
    assert "hold up other requests for more than 300 µs" in closed(LARGE, two)["loop"]
    assert closed(LARGE, BackendChooser(threads=1))["split"] == "the pool has one thread"
    assert closed(SINGLE, two)["split"].startswith("there are not two")
    crowded = BackendChooser(threads=2, coefficients=replace(TYPICAL, gain=1.0))
    assert closed(LARGE, crowded)["split"] == "its threads would be in each other's way"
    assert "shorter than 1000 µs" in closed(TINY, replace(two, split_min_us=1000))["split"]
    assert "disk" in closed(TINY, two, Facts(cold=True))["loop"]


def test_a_route_without_a_prediction_is_never_open() -> None:
    for chooser in (WITH_CARD, BackendChooser(threads=1)):
        for plan in (TINY, SINGLE, LARGE):
            for each in chooser.decide(plan).routes:
                assert isfinite(each.seconds) or each.closed is not None


@pytest.mark.parametrize(("loop_max_us", "on_loop"), [(1e6, True), (0.4e6, False)])
def test_a_split_is_led_by_the_event_loop_unless_it_holds_that_for_too_long(loop_max_us: float, on_loop: bool) -> None:
    machine = priced(near_slice_s=1e-6, far_slice_s=1e-6, gain=2.0, hand_off_s=0.2)
    split = BackendChooser(2, loop_max_us, coefficients=machine).decide(LARGE).routes[2]
    assert split.on_event_loop is on_loop
    assert split.seconds == pytest.approx(0.5 if on_loop else 0.7)


def test_the_event_loop_does_not_lead_a_split_that_waits_for_the_disk() -> None:
    chooser = BackendChooser(2, 1e9)
    for cold in (False, True):
        choice = chooser.decide(LARGE, Facts(cold=cold)).choice
        assert (choice.route, choice.on_event_loop) == ("split", not cold)


def test_a_thread_of_the_pool_takes_a_hand_off_longer() -> None:
    loop, thread, _, _ = BackendChooser(2, coefficients=priced(call_s=1.0, hand_off_s=5.0)).decide(LOOKUP).routes
    assert (loop.seconds, thread.seconds) == (1.0, 6.0)


@pytest.mark.parametrize(
    ("plan", "route"), [(TINY, "loop"), (FEW, "loop"), (LOOKUP, "split"), (MIDDLING, "split"), (LARGE, "split")]
)
def test_typical_choices_without_a_gpu(plan: GatherPlan, route: str) -> None:
    assert chosen(plan, BackendChooser(threads=2)) == route


def test_one_thread_is_never_split_over() -> None:
    assert chosen(LARGE, BackendChooser(threads=1)) == "thread"


def test_a_split_that_takes_no_longer_is_taken_since_helpers_may_be_awake() -> None:
    machine = priced(near_slice_s=1e-6, far_slice_s=1e-6, gain=2.0, wakeup_s=100.0)
    chooser = BackendChooser(2, 1e9, coefficients=machine)
    loop, _, split, _ = chooser.decide(LARGE).routes
    assert loop.seconds == split.seconds
    assert chosen(LARGE, chooser) == "split"
    assert chosen(LARGE, replace(chooser, split_min_us=1.01e6)) == "loop"


@pytest.mark.parametrize(
    ("rows", "locality"),
    [
        (range(1000), True),
        (range(1000, 0, -1), True),
        ([7] * 1000, True),
        ([0, 1], True),
        ([-1, -2, -3], True),
        (range(0, 100_000, 99), False),
        ([0, 99_999], False),
        ([5], False),
        ([], False),
    ],
)
def test_neighbouring_tuples_tell_whether_slices_lie_close(rows: Any, locality: bool) -> None:
    plan = GatherPlan(1, len(rows), (100_000,), 64, 4, False, True)
    assert has_locality(plan, np.array(rows, np.int32)) is locality


def test_only_the_first_component_counts_and_hostile_ones_do_no_harm() -> None:
    plan = GatherPlan(1, 3, (100, 100), 1, 4, False, True)
    assert has_locality(plan, np.array([0, 99, 1, 0, 2, 50]))
    assert not has_locality(plan, np.array([0, 0, 2**63 - 1, 0, -(2**63), 0]))
    assert not has_locality(plan, np.array([0, 0, 2**64 - 1, 0, 0, 0], np.uint64))
    assert not has_locality(GatherPlan(1, 3, (0, 5), 1, 4, False, True), np.zeros(6, np.int64))


def crossover(asked: Facts) -> int:
    """The power of two of rows of 64 float32 from which on the card is chosen, up to 24; 25 where it never is."""
    for power in range(25):
        if chosen(GatherPlan(1, 1 << power, (200_000,), 64, 4, False, True), WITH_CARD, asked) == "gpu":
            return power
    return 25


def test_the_crossover_comes_sooner_for_resident_data_than_for_inline_data() -> None:
    assert 5 < crossover(ON_GPU) < crossover(Facts()) < 25


def test_a_gpu_takes_large_resident_lookups_and_leaves_inline_ones() -> None:
    assert chosen(LARGE, WITH_CARD, ON_GPU) == "gpu"
    assert chosen(LARGE, WITH_CARD, Facts("cpu", on_gpu=True)) == "split"
    assert chosen(LARGE, WITH_CARD) == "split"
    assert chosen(TINY, WITH_CARD, ON_GPU) == "loop"


def test_what_does_not_fit_into_device_memory_stays_on_the_cpu_under_auto_only() -> None:
    memory = device_bytes(LARGE, True)
    enough, short = (replace(WITH_CARD, gpu_memory=each) for each in (memory, memory - 1))
    assert chosen(LARGE, enough, ON_GPU) == "gpu"
    assert chosen(LARGE, short, ON_GPU) == "split"
    assert chosen(LARGE, short, Facts("gpu", on_gpu=True)) == "gpu"


def test_what_a_copy_on_the_gpu_would_save_is_told_where_one_may_be_made() -> None:
    there = WITH_CARD.decide(LARGE, ON_GPU)
    not_there = WITH_CARD.decide(LARGE)
    assert not_there.saving_s == pytest.approx(not_there.cpu.seconds - there.choice.seconds)
    assert not_there.saving_s > 0
    assert there.saving_s == 0
    for none in (Facts("cpu"), Facts("gpu"), Facts(cpu_only=NO_STRINGS)):
        assert WITH_CARD.decide(LARGE, none).saving_s == 0
    assert WITH_CARD.decide(TINY).saving_s == 0
    assert BackendChooser(threads=2).decide(LARGE).saving_s == 0
    assert replace(WITH_CARD, always_gpu=True).decide(LARGE).saving_s == 0


def test_a_gpu_that_may_not_be_used_is_no_route() -> None:
    chooser = replace(WITH_CARD, no_gpu="several workers")
    assert chosen(LARGE, chooser, ON_GPU) == "split"
    assert chooser.decide(LARGE, Facts("gpu")).refused == "several workers"


def test_settings_override_the_measured_limits() -> None:
    assert chosen(TINY, BackendChooser(threads=2, loop_max_us=0)) == "thread"
    assert chosen(LARGE, BackendChooser(threads=1, loop_max_us=1e9)) == "loop"
    assert chosen(LARGE, BackendChooser(threads=2, split_min_us=1e9)) == "thread"


@pytest.mark.parametrize("route", ["loop", "thread", "split"])
def test_a_forced_route_is_taken(route: Any) -> None:
    for plan in (LOOKUP, LARGE):
        chooser = BackendChooser(threads=2, force_route=route)
        assert chosen(plan, chooser) == route
        assert set(closed(plan, chooser)) == {*ROUTES} - {route}


def test_a_forced_route_that_is_not_there_is_not_taken() -> None:
    assert chosen(TINY, BackendChooser(threads=2, force_route="gpu")) == "loop"
    assert chosen(SINGLE, BackendChooser(threads=2, force_route="split")) == "loop"
    assert chosen(TINY, replace(WITH_CARD, force_route="gpu")) == "gpu"
    assert chosen(TINY, BackendChooser(threads=2, force_route="loop"), Facts(cold=True)) == "thread"


@pytest.mark.parametrize("hand_off", [0.0, 1e-3])
def test_a_hand_off_measured_on_a_bad_day_neither_empties_nor_blocks_the_loop(hand_off: float) -> None:
    chooser = BackendChooser(threads=2, coefficients=replace(TYPICAL, hand_off_s=hand_off))
    assert chosen(TINY, chooser) == "loop"
    assert 50e-6 <= chooser.loop_max_s <= 1500e-6
