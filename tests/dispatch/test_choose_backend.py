"""The decision: a function of plan, facts and machine, whose reasons are those by which it was made."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.dispatch.choose_backend import (
    NEVER,
    NO_STRINGS,
    ROUTES,
    TYPICAL,
    USUAL,
    BackendChooser,
    ConsideredRoute,
    Decision,
    Facts,
    Rates,
    Route,
    Size,
    device_bytes,
    size_of,
)
from app.operators.gather_plan import GatherPlan

TINY = GatherPlan(1, 2, (2, 2), 1, 4, False, True)
SINGLE = GatherPlan(1, 1, (2,), 1, 4, False, True)
FEW = GatherPlan(1, 64, (200_000,), 64, 4, False, True)
LOOKUP = GatherPlan(1, 300, (200_000,), 64, 4, False, True)
LARGE = GatherPlan(1, 1_000_000, (100_000_000,), 1, 4, False, True)
CARD = Size(items=100_000, bytes=1 << 22)
WITH_CARD = BackendChooser(threads=2, no_gpu=None, gpu_from=CARD)
ON_GPU = Facts(on_gpu=True)


def gathers() -> st.SearchStrategy[GatherPlan]:
    return st.builds(
        GatherPlan,
        st.integers(1, 30),
        st.integers(0, 1 << 20),
        st.lists(st.integers(1, 1000), min_size=1, max_size=5).map(tuple),
        st.integers(0, 5000),
        st.sampled_from((1, 2, 4, 8, 16)),
        st.booleans(),
        st.booleans(),
    )


def choosers() -> st.SearchStrategy[BackendChooser]:
    microseconds = st.none() | st.sampled_from((0.0, 10.0, 1e9))
    rates = st.floats(1e-12, 1e-6)
    thresholds = st.sampled_from((Size(0, 0), CARD, NEVER))
    return st.builds(
        BackendChooser,
        threads=st.integers(1, 8),
        loop_max_us=microseconds,
        split_min_us=microseconds,
        force_route=st.none() | st.sampled_from(ROUTES),
        rates=st.builds(Rates, st.floats(1e-6, 1e-3), rates, rates, rates),
        no_gpu=st.sampled_from((None, "there is none")),
        gpu_memory=st.sampled_from((1 << 10, 1 << 22, inf)),
        gpu_from=thresholds,
        always_gpu=st.booleans(),
    )


def facts() -> st.SearchStrategy[Facts]:
    truth = st.booleans()
    return st.builds(Facts, st.sampled_from(("auto", "cpu", "gpu")), st.sampled_from((None, NO_STRINGS)), truth, truth)


def considered(plan: GatherPlan, chooser: BackendChooser, asked: Facts = USUAL) -> dict[Route, ConsideredRoute]:
    return {each.route: each for each in chooser.decide(plan, asked).routes}


def chosen(plan: GatherPlan, chooser: BackendChooser, asked: Facts = USUAL) -> Route:
    return chooser.decide(plan, asked).choice.route


@given(plan=gathers(), chooser=choosers(), asked=facts())
def test_the_choice_is_the_first_route_that_is_open(plan: GatherPlan, chooser: BackendChooser, asked: Facts) -> None:
    decision = chooser.decide(plan, asked)
    assert [each.route for each in decision.routes] == list(ROUTES)
    assert {*ROUTES} == {*get_args(Route)}
    assert decision.choice.route == next(each.route for each in decision.routes if each.is_open)
    assert all(each.reason for each in decision.routes)
    assert decision.size == size_of(plan)
    for each in decision.routes:
        if each.threshold is not None:
            reaches = decision.size.items >= each.threshold.items or decision.size.bytes >= each.threshold.bytes
            exceeds = decision.size.items > each.threshold.items or decision.size.bytes > each.threshold.bytes
            assert each.is_open == (not exceeds if each.route == "loop" else reaches)


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
        if decision.device == "gpu":
            assert chooser.no_gpu is None
            assert asked.cpu_only is None
    if asked.device == "cpu":
        assert decision.device == "cpu"


@given(plan=gathers(), chooser=choosers(), asked=facts())
def test_the_event_loop_takes_no_part_in_what_would_hold_it(
    plan: GatherPlan, chooser: BackendChooser, asked: Facts
) -> None:
    unforced = replace(chooser, force_route=None)
    decision = unforced.decide(plan, asked)
    most = max(unforced.cached_thresholds.loop, unforced.memory_thresholds.loop)
    for each in (decision.choice, decision.cpu):
        if each.on_event_loop:
            assert not asked.cold
            assert decision.size.items <= most.items
            assert decision.size.bytes <= most.bytes
    assert decision.fallback.route in ("thread", "split")
    assert not decision.fallback.on_event_loop
    assert decision.fallback.parts == decision.cpu.parts


@given(plan=gathers(), chooser=choosers(), asked=facts())
def test_a_split_has_two_parts_at_least_and_no_more_than_threads_or_slices(
    plan: GatherPlan, chooser: BackendChooser, asked: Facts
) -> None:
    decision = chooser.decide(plan, asked)
    for each in (decision.choice, decision.cpu):
        if each.route == "split":
            assert 2 <= each.parts <= min(chooser.threads, plan.batches * plan.tuples)
        else:
            assert each.parts == 1


@given(plan=gathers(), chooser=choosers(), asked=facts(), other=st.sampled_from(("auto", "cpu")))
def test_a_decision_that_does_not_depend_on_the_request_is_that_of_every_request(
    plan: GatherPlan, chooser: BackendChooser, asked: Facts, other: Any
) -> None:
    usual = chooser.decide(plan, Facts(cpu_only=asked.cpu_only))
    if not usual.depends_on_request:
        asked = asked._replace(device=other, cold=False)

        def without_gpu(decision: Decision) -> Decision:  # whose reason may be another
            return replace(decision, routes=decision.routes[1:])

        assert without_gpu(chooser.decide(plan, asked)) == without_gpu(usual)


def test_a_gpu_is_closed_for_a_reason() -> None:
    assert considered(LARGE, WITH_CARD, ON_GPU)["gpu"].is_open
    for reason, asked in (
        ("the device has no copy of the data", USUAL),
        ("strings cannot be held by a GPU", Facts(cpu_only=NO_STRINGS)),
        ("the request asks for the device cpu", Facts("cpu")),
    ):
        assert considered(LARGE, WITH_CARD, asked)["gpu"] == ("gpu", False, reason, None)
    small = replace(WITH_CARD, gpu_memory=1 << 20)
    assert considered(LARGE, small, ON_GPU)["gpu"].reason == "it does not fit into the device's memory"
    assert considered(LARGE, BackendChooser(threads=2, no_gpu="it is broken"))["gpu"].reason == "it is broken"
    below = considered(TINY, WITH_CARD, ON_GPU)["gpu"]
    assert (below.is_open, below.threshold) == (False, CARD)


def test_only_the_gpu_is_open_to_who_asks_for_it_and_where_the_service_is_set_to_it() -> None:
    always = replace(WITH_CARD, always_gpu=True)
    for plan, chooser, asked in ((LARGE, WITH_CARD, Facts("gpu")), (TINY, always, USUAL)):
        assert [each.route for each in chooser.decide(plan, asked).routes if each.is_open] == ["gpu"]
    assert considered(TINY, always, Facts("cpu"))["gpu"].reason == "the request asks for the device cpu"
    assert chosen(TINY, always, Facts(cpu_only=NO_STRINGS)) == "loop"


def test_routes_of_a_cpu_are_closed_for_a_reason() -> None:
    two = BackendChooser(threads=2)
    loop = considered(LARGE, two)["loop"]
    assert "hold up other requests" in loop.reason
    assert loop.threshold == two.memory_thresholds.loop
    assert considered(LARGE, BackendChooser(threads=1))["split"].reason == "the pool has one thread"
    assert considered(SINGLE, two)["split"].reason.startswith("there are fewer than two")
    split = considered(TINY, replace(two, split_min_us=1000))["split"]
    assert (split.is_open, split.threshold) == (False, replace(two, split_min_us=1000).cached_thresholds.split)
    assert "disk" in considered(TINY, two, Facts(cold=True))["loop"].reason


def test_what_does_not_fit_into_device_memory_stays_on_the_cpu_under_auto_only() -> None:
    memory = device_bytes(LARGE)
    enough, short = (replace(WITH_CARD, gpu_memory=each) for each in (memory, memory - 1))
    assert chosen(LARGE, enough, ON_GPU) == "gpu"
    assert chosen(LARGE, short, ON_GPU) == "split"
    assert chosen(LARGE, short, Facts("gpu", on_gpu=True)) == "gpu"


def test_settings_override_the_measured_limits() -> None:
    assert chosen(TINY, BackendChooser(threads=2, loop_max_us=0)) == "thread"
    assert chosen(LARGE, BackendChooser(threads=1, loop_max_us=1e9)) == "loop"
    assert chosen(LARGE, BackendChooser(threads=2, split_min_us=1e9)) == "thread"


@pytest.mark.parametrize("hand_off", [0.0, 1e-3])
def test_a_hand_off_measured_on_a_bad_day_neither_empties_nor_blocks_the_loop(hand_off: float) -> None:
    chooser = BackendChooser(threads=2, rates=replace(TYPICAL, hand_off_s=hand_off))
    assert chosen(TINY, chooser) == "loop"
    assert 50e-6 <= chooser.loop_max_s <= 1500e-6
