from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.dispatch.cost import (
    FAR_BYTES,
    TYPICAL,
    Chooser,
    Coefficients,
    GpuCoefficients,
    choose,
    kernel_seconds,
    predict,
)
from app.spec.plan import GatherPlan

TINY = GatherPlan(1, 2, (2, 2), 1, 4, False, True)
LOOKUP = GatherPlan(1, 256, (200_000,), 64, 4, False, True)
MIDDLING = GatherPlan(1, 20_000, (100_000_000,), 1, 4, False, True)
LARGE = GatherPlan(1, 1_000_000, (100_000_000,), 1, 4, False, True)
CARD = GpuCoefficients(launch_s=10e-6, to_device_byte_s=0.1e-9, from_device_byte_s=0.1e-9, slice_s=1e-11, byte_s=1e-12)


def seconds(**changes: float) -> Coefficients:
    """Coefficients that are all zero but for a few."""
    names = ("hand_off_s", "call_s", "component_s", "near_slice_s", "near_byte_s", "far_slice_s", "far_byte_s")
    return Coefficients(**{**dict.fromkeys(names, 0.0), "split_gain": 1.0, **changes})  # type: ignore[arg-type]


def test_each_coefficient_is_counted_as_often_as_it_occurs() -> None:
    plan = GatherPlan(3, 5, (7, 11), 2, 4, False, True)
    assert kernel_seconds(plan, seconds(call_s=1.0)) == 1
    assert kernel_seconds(plan, seconds(component_s=1.0)) == 3 * 5 * 2
    assert kernel_seconds(plan, seconds(near_slice_s=1.0)) == 3 * 5
    assert kernel_seconds(plan, seconds(near_byte_s=1.0)) == 3 * 5 * 2 * 4
    assert kernel_seconds(plan, seconds(far_slice_s=1.0, far_byte_s=1.0)) == 0


def test_shared_tuples_are_checked_once() -> None:
    assert kernel_seconds(GatherPlan(3, 5, (7,), 2, 4, True, True), seconds(component_s=1.0)) == 5


def test_far_prices_are_for_large_data_and_there_is_a_way_between() -> None:
    far = seconds(far_slice_s=1.0)
    assert kernel_seconds(GatherPlan(1, 1, (FAR_BYTES,), 1, 1, False, True), far) == 1
    assert kernel_seconds(GatherPlan(1, 1, (1 << 22,), 1, 1, False, True), far) == pytest.approx(0.5)


def test_the_routes_of_a_machine_without_a_gpu() -> None:
    assert set(predict(TINY, True, TYPICAL)) == {"loop", "thread", "split"}


def test_resident_data_is_not_sent_to_the_gpu_and_inline_data_is() -> None:
    card = replace(TYPICAL, gpu=CARD)
    resident, inline = predict(LOOKUP, True, card)["gpu"], predict(LOOKUP, False, card)["gpu"]
    assert inline - resident == pytest.approx(200_000 * 64 * 4 * 0.1e-9)


@pytest.mark.parametrize(("plan", "route"), [(TINY, "loop"), (LOOKUP, "loop"), (MIDDLING, "thread"), (LARGE, "split")])
def test_typical_choices_without_a_gpu(plan: GatherPlan, route: str) -> None:
    assert Chooser(threads=2).choose(plan) == route


def test_one_thread_is_never_split_over() -> None:
    assert Chooser(threads=1).choose(LARGE) == "thread"


def test_a_gpu_takes_large_resident_lookups_and_leaves_inline_ones() -> None:
    chooser = Chooser(threads=2, coefficients=replace(TYPICAL, gpu=CARD))
    assert chooser.choose(LARGE, resident=True) == "gpu"
    assert chooser.choose(LARGE, resident=False) == "split"
    assert chooser.choose(TINY, resident=True) == "loop"


def test_settings_override_the_measured_limits() -> None:
    assert Chooser(threads=2, loop_max_us=0).choose(TINY) == "thread"
    assert Chooser(threads=2, loop_max_us=1e9).choose(LARGE) == "loop"
    assert Chooser(threads=2, split_min_us=1e9).choose(LARGE) == "thread"
    assert Chooser(threads=2, loop_max_us=0, split_min_us=0).choose(MIDDLING) == "split"


@pytest.mark.parametrize("route", ["loop", "thread", "split"])
def test_a_forced_route_is_taken(route: Any) -> None:
    for plan in (TINY, LARGE):
        assert Chooser(threads=2, force_route=route).choose(plan) == route


def test_a_forced_gpu_is_taken_where_there_is_one() -> None:
    assert Chooser(threads=2, force_route="gpu").choose(TINY) == "loop"
    card = replace(TYPICAL, gpu=CARD)
    assert Chooser(threads=2, force_route="gpu", coefficients=card).choose(TINY) == "gpu"


@given(times=st.lists(st.floats(0, 1), min_size=4, max_size=4), limit=st.floats(0, 1), threads=st.integers(1, 4))
def test_the_loop_never_takes_what_is_predicted_longer_than_its_limit(
    times: list[float], limit: float, threads: int
) -> None:
    routes = dict(zip(("loop", "thread", "split", "gpu"), times, strict=True))
    assert (choose(routes, limit, 0.0, threads) == "loop") == (times[0] <= limit)  # type: ignore[arg-type]


@given(times=st.lists(st.floats(0, 1), min_size=4, max_size=4))
def test_off_the_loop_the_shortest_route_is_chosen(times: list[float]) -> None:
    routes = dict(zip(("loop", "thread", "split", "gpu"), times, strict=True))
    chosen = choose(routes, -1.0, 0.0, 2)  # type: ignore[arg-type]
    assert routes[chosen] == min(times[1:])


@pytest.mark.parametrize("hand_off", [0.0, 1e-3])
def test_a_hand_off_measured_on_a_bad_day_neither_empties_nor_blocks_the_loop(hand_off: float) -> None:
    chooser = Chooser(threads=2, coefficients=replace(TYPICAL, hand_off_s=hand_off))
    assert chooser.choose(TINY) == "loop"
    assert chooser.loop_max_s() <= 100e-6
