from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.dispatch.backend_cost_model import (
    DATA_BYTES,
    LARGE_OUTPUT,
    ROUTES,
    TYPICAL,
    WIDTHS,
    Coefficients,
    GpuCoefficients,
    Route,
    RouteChoice,
    device_bytes,
    kernel_seconds,
    predict_routes,
    split_seconds,
)
from app.dispatch.choose_backend import BackendChooser, choose_route, has_locality
from app.operators.gather_plan import GatherPlan

TINY = GatherPlan(1, 2, (2, 2), 1, 4, False, True)
LOOKUP = GatherPlan(1, 256, (200_000,), 64, 4, False, True)
FEW = GatherPlan(1, 64, (200_000,), 64, 4, False, True)
MIDDLING = GatherPlan(1, 40_000, (100_000_000,), 1, 4, False, True)
LARGE = GatherPlan(1, 1_000_000, (100_000_000,), 1, 4, False, True)
CARD = GpuCoefficients(launch_s=10e-6, to_device_byte_s=0.1e-9, from_device_byte_s=0.1e-9, slice_s=1e-11)
WITH_CARD = replace(TYPICAL, gpu=CARD)
NOTHING = Coefficients(
    call_s=0.0,
    slice_s=tuple((1e-300,) * len(WIDTHS) for _ in DATA_BYTES),
    odd_slice_s=0.0,
    tuple_s=(0.0, 0.0, 0.0, 0.0),
    output_byte_s=0.0,
    hand_off_s=0.0,
    wakeup_s=0.0,
    index_move_s=0.0,
    output_move_s=0.0,
    item_gain=1.0,
    row_gain=1.0,
    output_gain=1.0,
)


def priced(**changes: Any) -> Coefficients:
    """Coefficients that are all nothing but for a few."""
    return replace(NOTHING, **changes)


def gathers(most: int = 1 << 20) -> st.SearchStrategy[GatherPlan]:
    sizes = st.integers(1, 1000)
    return st.builds(
        GatherPlan,
        st.integers(1, 30),
        st.integers(1, most),
        st.lists(sizes, min_size=1, max_size=5).map(tuple),
        st.integers(1, 5000),
        st.sampled_from((1, 2, 4, 8, 16)),
        st.booleans(),
        st.booleans(),
    )


def machines() -> st.SearchStrategy[Coefficients]:
    rates = st.floats(1e-12, 1e-6)
    return st.builds(
        Coefficients,
        rates,
        st.tuples(*(st.tuples(*(rates for _ in WIDTHS)) for _ in DATA_BYTES)),
        rates,
        st.tuples(st.just(0.0), rates, rates, rates),
        rates,
        st.floats(1e-6, 1e-3),
        st.floats(1e-7, 1e-4),
        rates,
        rates,
        st.floats(1, 16),
        st.floats(1, 16),
        st.floats(1, 16),
        st.none() | st.builds(GpuCoefficients, rates, rates, rates, rates),
    )


def test_each_price_is_paid_as_often_as_it_occurs() -> None:
    plan = GatherPlan(3, 5, (7, 11), 1, 4, False, True)
    each = tuple((1.0,) * len(WIDTHS) for _ in DATA_BYTES)
    assert kernel_seconds(plan, priced(call_s=1.0)) == pytest.approx(1)
    assert kernel_seconds(plan, priced(slice_s=each)) == pytest.approx(3 * 5)
    assert kernel_seconds(plan, priced(tuple_s=(0.0, 1.0, 2.0, 9.0))) == pytest.approx(3 * 5)
    assert kernel_seconds(plan, priced(output_byte_s=1.0)) == pytest.approx(0)
    large = GatherPlan(1, LARGE_OUTPUT, (7,), 1, 1, False, True)
    assert kernel_seconds(large, priced(output_byte_s=1.0)) == pytest.approx(LARGE_OUTPUT)


@pytest.mark.parametrize(
    ("width", "paid"), [(1, 0), (2, 0), (3, 5), (4, 0), (16, 0), (24, 5), (63, 5), (64, 0), (100, 0)]
)
def test_narrow_slices_of_odd_width_cost_more(width: int, paid: int) -> None:
    plan = GatherPlan(1, 5, (7,), width, 1, False, True)
    assert kernel_seconds(plan, priced(odd_slice_s=1.0)) == pytest.approx(paid)


def test_batches_that_are_visited_often_are_brought_into_the_caches_once() -> None:
    far = (*((1e-9,) * len(WIDTHS) for _ in DATA_BYTES[1:]), (100e-9,) * len(WIDTHS))
    block = GatherPlan(2048, 1, (DATA_BYTES[0],), 1, 1, False, True)
    few, many = (kernel_seconds(replace(block, tuples=tuples), priced(slice_s=far)) for tuples in (1, 100_000))
    assert few == pytest.approx(2048 * 100e-9)
    assert many == pytest.approx(2048 * (100_000 * 1e-9 + DATA_BYTES[0] / 64 * 100e-9))


def test_tuples_that_batches_share_are_checked_once() -> None:
    shared = GatherPlan(3, 5, (7, 7), 2, 4, True, True)
    assert kernel_seconds(shared, priced(tuple_s=(0.0, 1.0, 1.0, 1.0))) == pytest.approx(5)


def test_an_empty_output_still_has_its_indices_checked() -> None:
    empty = GatherPlan(1, 1000, (7,), 0, 4, False, True)
    each = tuple((1.0,) * len(WIDTHS) for _ in DATA_BYTES)
    assert kernel_seconds(empty, priced(slice_s=each)) == pytest.approx(1000)


@pytest.mark.parametrize(
    ("row", "column"),
    [(i, j) for i, size in enumerate(DATA_BYTES) for j, width in enumerate(WIDTHS) if size % width == 0],
)
def test_a_point_of_the_table_is_its_own_price(row: int, column: int) -> None:
    prices = tuple(
        tuple(1.0 if (i, j) == (row, column) else 1e-300 for j in range(len(WIDTHS))) for i in range(len(DATA_BYTES))
    )
    plan = GatherPlan(1, 1, (DATA_BYTES[row] // WIDTHS[column],), WIDTHS[column], 1, False, True)
    assert kernel_seconds(plan, priced(slice_s=prices)) == pytest.approx(1)


def test_between_two_points_of_the_table_there_is_a_way() -> None:
    far = (*((1e-9,) * len(WIDTHS) for _ in DATA_BYTES[1:]), (4e-9,) * len(WIDTHS))
    middle = GatherPlan(1, 1, (round((DATA_BYTES[-2] * DATA_BYTES[-1]) ** 0.5),), 1, 1, False, True)
    assert kernel_seconds(middle, priced(slice_s=far)) == pytest.approx(2e-9, rel=1e-3)
    wide = tuple((1e-9,) * (len(WIDTHS) - 1) + (4e-9,) for _ in DATA_BYTES)
    middle = GatherPlan(1, 1, (1,), round((WIDTHS[-2] * WIDTHS[-1]) ** 0.5), 1, False, True)
    assert kernel_seconds(middle, priced(slice_s=wide)) == pytest.approx(2e-9, rel=1e-3)
    wider = GatherPlan(1, 1, (1,), 3 * WIDTHS[-1], 1, False, True)
    assert kernel_seconds(wider, priced(slice_s=wide)) == pytest.approx(12e-9)


@given(plan=gathers(), machine=machines(), threads=st.integers(1, 64))
def test_more_of_the_same_never_takes_less(plan: GatherPlan, machine: Coefficients, threads: int) -> None:
    more = replace(plan, tuples=2 * plan.tuples)
    before, after = (predict_routes(each, False, threads, machine) for each in (plan, more))
    for route in before.keys() & after.keys():
        assert after[route].seconds >= before[route].seconds * (1 - 1e-9)


@given(plan=gathers(), machine=machines(), threads=st.integers(1, 64))
def test_the_choice_is_the_shortest_prediction_that_is_allowed(
    plan: GatherPlan, machine: Coefficients, threads: int
) -> None:
    chooser = BackendChooser(threads=threads, coefficients=machine, no_gpu=None)
    routes = chooser.predict(plan)
    allowed = [choice for choice in routes.values() if choice.route != "loop"]
    if routes["loop"].seconds <= chooser.loop_max_s():
        allowed.append(routes["loop"])
    shortest = min(choice.seconds for choice in allowed)
    chosen = chooser.choose(plan)
    assert chosen in allowed
    # What is too short to be split is left alone: that is all that the choice may lose.
    assert chosen.seconds == shortest or (routes["split"].seconds == shortest and routes["loop"].seconds < 6e-6)


@given(plan=gathers(), machine=machines(), threads=st.integers(2, 64))
def test_a_split_has_no_more_parts_than_threads_or_slices_and_is_the_best_of_its_kind(
    plan: GatherPlan, machine: Coefficients, threads: int
) -> None:
    kernel_s = kernel_seconds(plan, machine)
    seconds, parts = split_seconds(plan, kernel_s, threads, machine)
    if parts == 1:
        assert seconds == float("inf")
    else:
        assert 2 <= parts <= min(threads, plan.batches * plan.tuples)
        assert seconds <= kernel_s * (1 + 1e-9)  # who leads begins at once


def test_a_hand_off_that_costs_more_makes_fewer_parts() -> None:
    few, many = (
        split_seconds(LARGE, 1e-3, 16, replace(TYPICAL, item_gain=16.0, wakeup_s=each))[1] for each in (1e-4, 1e-6)
    )
    assert few < many == 16


def test_all_threads_together_gain_what_was_measured() -> None:
    perfect = priced(item_gain=6.0)
    seconds, parts = split_seconds(LARGE, 1.0, 8, perfect)
    assert parts == 8
    assert seconds == pytest.approx(1 / 6)


def test_another_cores_thread_has_indices_and_output_to_move() -> None:
    plan = GatherPlan(1, 100, (7, 7), 3, 4, False, True)
    moving = priced(index_move_s=1.0, output_move_s=10.0)
    routes = predict_routes(plan, False, 2, moving)
    assert routes["loop"].seconds == pytest.approx(0)
    assert routes["thread"].seconds == pytest.approx(100 * 2 + 10 * 100 * 12)


def test_a_split_has_half_of_the_indices_and_the_output_to_move_from_or_to_another_core() -> None:
    plan = GatherPlan(1, 100, (7, 7), 3, 4, False, True)
    machine = priced(index_move_s=1.0, output_move_s=10.0, item_gain=2.0)
    moved = 100 * 2 + 10 * 100 * 12
    assert split_seconds(plan, 10.0 * moved, 2, machine)[0] == pytest.approx(10 * moved / 2 + moved / 4)


@pytest.mark.parametrize(("wakeup_s", "seconds"), [(0.0, 0.5), (0.3, 0.8), (0.6, 1.0)])
def test_helpers_that_come_too_late_cost_nothing(wakeup_s: float, seconds: float) -> None:
    assert split_seconds(LARGE, 1.0, 2, priced(item_gain=2.0, wakeup_s=wakeup_s))[0] == pytest.approx(seconds)


def test_threads_that_are_in_each_others_way_are_no_split() -> None:
    assert split_seconds(LARGE, 1.0, 2, priced(item_gain=1.05)) == (float("inf"), 1)
    assert split_seconds(LARGE, 1.0, 2, priced(item_gain=1.1))[1] == 2


@pytest.mark.parametrize(("loop_max_s", "on_loop"), [(1.0, True), (0.4, False)])
def test_a_split_is_led_by_the_event_loop_unless_it_holds_that_for_too_long(loop_max_s: float, on_loop: bool) -> None:
    machine = priced(slice_s=tuple((1e-6,) * len(WIDTHS) for _ in DATA_BYTES), item_gain=2.0, hand_off_s=0.2)
    split = predict_routes(LARGE, False, 2, machine, loop_max_s=loop_max_s)["split"]
    assert split.on_event_loop is on_loop
    assert split.seconds == pytest.approx(0.5 if on_loop else 0.7)


@pytest.mark.parametrize(
    ("width", "tuples", "data", "gain"),
    [(4, 10_000_000, 1 << 26, 8), (4096, 100, 1 << 26, 8), (4096, 10_000, 1 << 26, 4), (4096, 10_000, 1 << 15, 2)],
)
def test_rows_gain_less_than_items_where_memory_bounds_them(width: int, tuples: int, data: int, gain: int) -> None:
    plan = GatherPlan(1, tuples, (data // width,), width, 1, False, True)
    machine = priced(item_gain=8.0, row_gain=4.0, output_gain=2.0)
    assert split_seconds(plan, 1.0, 8, machine)[0] == pytest.approx(1 / gain)


def test_the_routes_of_a_machine_without_a_gpu() -> None:
    assert set(predict_routes(LARGE, True, 2, TYPICAL)) == {"loop", "thread", "split"}
    assert set(predict_routes(LARGE, True, 1, TYPICAL)) == {"loop", "thread"}
    assert set(predict_routes(LARGE, True, 2, WITH_CARD)) == set(ROUTES) == set(get_args(Route))


def test_resident_data_is_not_sent_to_the_gpu_and_inline_data_is() -> None:
    resident, inline = (predict_routes(LOOKUP, each, 2, WITH_CARD)["gpu"].seconds for each in (True, False))
    assert inline - resident == pytest.approx(200_000 * 64 * 4 * 0.1e-9)
    assert device_bytes(LOOKUP, True) == 8 * 256 + 256 * 64 * 4
    assert device_bytes(LOOKUP, False) == 8 * 256 + 256 * 64 * 4 + 200_000 * 64 * 4


@pytest.mark.parametrize(
    ("plan", "route"), [(TINY, "loop"), (FEW, "loop"), (LOOKUP, "split"), (MIDDLING, "split"), (LARGE, "split")]
)
def test_typical_choices_without_a_gpu(plan: GatherPlan, route: str) -> None:
    assert BackendChooser(threads=2).choose(plan).route == route


def test_one_thread_is_never_split_over() -> None:
    assert BackendChooser(threads=1).choose(LARGE).route == "thread"


@pytest.mark.parametrize(("split_s", "route"), [(1.01, "loop"), (1.0, "split")])
def test_a_split_that_takes_no_longer_is_taken_since_helpers_may_be_awake(split_s: float, route: str) -> None:
    routes: dict[Route, RouteChoice] = {
        "loop": RouteChoice("loop", 1.0, on_event_loop=True),
        "thread": RouteChoice("thread", 1.1),
        "split": RouteChoice("split", split_s, 2, on_event_loop=True),
    }
    assert choose_route(routes, 2.0).route == route
    assert choose_route(routes, 2.0, split_min_s=1.1).route == "loop"


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


def test_close_slices_cost_what_near_ones_do() -> None:
    far = (*((1e-9,) * len(WIDTHS) for _ in DATA_BYTES[2:]), (1e-9,) * len(WIDTHS), (4e-9,) * len(WIDTHS))
    assert kernel_seconds(LARGE, priced(slice_s=far)) == pytest.approx(4e-3)
    assert kernel_seconds(LARGE, priced(slice_s=far), locality=True) == pytest.approx(1e-3)


def crossover(resident: bool) -> int:
    """Rows of 64 float32 from which on the card is chosen, up to 2^24; 2^25 where it never is."""
    chooser = BackendChooser(threads=2, coefficients=WITH_CARD, no_gpu=None)
    for power in range(25):
        plan = GatherPlan(1, 1 << power, (200_000,), 64, 4, False, True)
        if chooser.choose(plan, resident).route == "gpu":
            return power
    return 25


def test_the_crossover_comes_sooner_for_resident_data_than_for_inline_data() -> None:
    assert 5 < crossover(resident=True) < crossover(resident=False) < 25


def test_a_gpu_takes_large_resident_lookups_and_leaves_inline_ones() -> None:
    chooser = BackendChooser(threads=2, coefficients=WITH_CARD, no_gpu=None)
    assert chooser.choose(LARGE, resident=True).route == "gpu"
    assert chooser.choose(LARGE, resident=True, device="cpu").route == "split"
    assert chooser.choose(LARGE, resident=False).route == "split"
    assert chooser.choose(TINY, resident=True).route == "loop"


def test_what_does_not_fit_into_device_memory_stays_on_the_cpu_under_auto_only() -> None:
    chooser = BackendChooser(threads=2, coefficients=WITH_CARD, no_gpu=None)
    assert chooser.choose(LARGE, resident=True, gpu_fits=False).route == "split"
    assert chooser.choose(LARGE, resident=True, device="gpu", gpu_fits=False).route == "gpu"


@given(plan=gathers(), machine=machines(), resident=st.booleans(), fits=st.booleans())
def test_a_device_is_obeyed_or_refused_and_never_changed(
    plan: GatherPlan, machine: Coefficients, resident: bool, fits: bool
) -> None:
    chooser = BackendChooser(threads=4, coefficients=machine, no_gpu=None)
    assert chooser.choose(plan, resident, "cpu", fits).route != "gpu"
    if machine.gpu is None:
        with pytest.raises(KeyError):
            chooser.choose(plan, resident, "gpu", fits)
    else:
        assert chooser.choose(plan, resident, "gpu", fits).route == "gpu"


def test_a_gpu_that_may_not_be_used_is_no_route() -> None:
    chooser = BackendChooser(threads=2, coefficients=WITH_CARD, no_gpu="several workers")
    assert chooser.choose(LARGE, resident=True).route == "split"
    with pytest.raises(KeyError):
        chooser.choose(LARGE, resident=True, device="gpu")


def test_settings_override_the_measured_limits() -> None:
    assert BackendChooser(threads=2, loop_max_us=0).choose(TINY).route == "thread"
    assert BackendChooser(threads=1, loop_max_us=1e9).choose(LARGE).route == "loop"
    assert BackendChooser(threads=2, split_min_us=1e9).choose(LARGE).route == "thread"


@pytest.mark.parametrize("route", ["loop", "thread", "split"])
def test_a_forced_route_is_taken(route: Any) -> None:
    for plan in (LOOKUP, LARGE):
        assert BackendChooser(threads=2, force_route=route).choose(plan).route == route


def test_a_forced_route_that_is_not_there_is_not_taken() -> None:
    assert BackendChooser(threads=2, force_route="gpu").choose(TINY).route == "loop"
    card = BackendChooser(threads=2, force_route="gpu", coefficients=WITH_CARD, no_gpu=None)
    assert card.choose(TINY).route == "gpu"


@given(times=st.lists(st.floats(0, 1), min_size=4, max_size=4), limit=st.floats(0, 1))
def test_the_loop_never_takes_what_is_predicted_longer_than_its_limit(times: list[float], limit: float) -> None:
    routes: dict[Route, RouteChoice] = {
        route: RouteChoice(route, seconds) for route, seconds in zip(ROUTES, times, strict=True)
    }
    chosen = choose_route(routes, limit)
    assert chosen.route != "loop" or chosen.seconds <= limit


@pytest.mark.parametrize("hand_off", [0.0, 1e-3])
def test_a_hand_off_measured_on_a_bad_day_neither_empties_nor_blocks_the_loop(hand_off: float) -> None:
    chooser = BackendChooser(threads=2, coefficients=replace(TYPICAL, hand_off_s=hand_off))
    assert chooser.choose(TINY).route == "loop"
    assert 50e-6 <= chooser.loop_max_s() <= 1200e-6
