from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.dispatch.backend_cost_model import (
    FAR_BYTES,
    NEAR_BYTES,
    TYPICAL,
    Coefficients,
    GpuCoefficients,
    device_bytes,
    gpu_seconds,
    kernel_seconds,
    split_seconds,
)
from app.operators.gather_plan import GatherPlan

LOOKUP = GatherPlan(1, 256, (200_000,), 64, 4, False, True)
LARGE = GatherPlan(1, 1_000_000, (100_000_000,), 1, 4, False, True)
CARD = GpuCoefficients(launch_s=10e-6, to_device_byte_s=0.1e-9, from_device_byte_s=0.1e-9, slice_s=1e-11)
NOTHING = Coefficients(
    call_s=0.0,
    near_slice_s=1e-300,
    near_byte_s=1e-300,
    far_slice_s=1e-300,
    far_byte_s=1e-300,
    component_s=0.0,
    hand_off_s=0.0,
    wakeup_s=0.0,
    gain=1.0,
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
        lambda near_slice_s, near_byte_s, further, **others: Coefficients(
            near_slice_s=near_slice_s,
            near_byte_s=near_byte_s,
            far_slice_s=near_slice_s * further,
            far_byte_s=near_byte_s * further,
            **others,
        ),
        rates,
        rates,
        st.floats(1, 100),
        call_s=rates,
        component_s=rates,
        hand_off_s=st.floats(1e-6, 1e-3),
        wakeup_s=st.floats(1e-7, 1e-4),
        gain=st.floats(1, 16),
        gpu=st.none() | st.builds(GpuCoefficients, rates, rates, rates, rates),
    )


def test_each_price_is_paid_as_often_as_it_occurs() -> None:
    plan = GatherPlan(3, 5, (7, 11, 2), 6, 4, False, True)
    assert kernel_seconds(plan, priced(call_s=1.0)) == pytest.approx(1)
    assert kernel_seconds(plan, priced(near_slice_s=1.0)) == pytest.approx(3 * 5)
    assert kernel_seconds(plan, priced(near_byte_s=1.0)) == pytest.approx(3 * 5 * 6 * 4)
    assert kernel_seconds(plan, priced(component_s=1.0)) == pytest.approx(3 * 5 * 2)
    far = GatherPlan(1, 5, (FAR_BYTES // 32,), 8, 4, False, True)
    assert kernel_seconds(far, priced(far_slice_s=1.0)) == pytest.approx(5)
    assert kernel_seconds(far, priced(far_byte_s=1.0)) == pytest.approx(5 * 8 * 4)


@pytest.mark.parametrize(("data", "share"), [(1, 0.0), (NEAR_BYTES, 0.0), (FAR_BYTES, 1.0), (4 * FAR_BYTES, 1.0)])
def test_data_costs_what_the_cache_or_the_memory_that_holds_it_does(data: int, share: float) -> None:
    plan = GatherPlan(1, 10, (data,), 1, 1, False, True)
    assert kernel_seconds(plan, priced(near_slice_s=1.0, far_slice_s=5.0)) == pytest.approx(10 * (1 + 4 * share))


def test_between_near_and_far_data_the_logarithm_of_the_size_leads() -> None:
    middle = GatherPlan(1, 10, (round((NEAR_BYTES * FAR_BYTES) ** 0.5),), 1, 1, False, True)
    machine = priced(near_slice_s=1.0, far_slice_s=4.0)
    assert kernel_seconds(middle, machine) == pytest.approx(10 * 2, rel=1e-3)
    machine = priced(near_byte_s=1.0, far_byte_s=9.0)
    assert kernel_seconds(middle, machine) == pytest.approx(10 * 3, rel=1e-3)


def test_bytes_of_a_large_output_are_written_to_memory() -> None:
    machine = priced(near_byte_s=1.0, far_byte_s=5.0)
    small, middle, large = (GatherPlan(1, each, (7,), 1, 1, False, True) for each in (1 << 21, 1 << 23, 1 << 24))
    assert kernel_seconds(small, machine) == pytest.approx(small.output_bytes)
    assert kernel_seconds(middle, machine) == pytest.approx((1 + 4 * 2 / 3) * middle.output_bytes)
    assert kernel_seconds(large, machine) == pytest.approx(5 * large.output_bytes)


def test_batches_that_are_visited_often_are_brought_into_the_caches_once() -> None:
    machine = priced(near_slice_s=1e-9, far_slice_s=100e-9, near_byte_s=1e-9, far_byte_s=1e-9)
    block = GatherPlan(2048, 1, (NEAR_BYTES,), 1, 1, False, True)
    few, many = (kernel_seconds(replace(block, tuples=tuples), machine) for tuples in (1, 100_000))
    assert few == pytest.approx(2048 * 101e-9)
    assert many == pytest.approx(2048 * (100_000 * 2e-9 + NEAR_BYTES * 1e-9))


def test_tuples_that_batches_share_are_checked_once() -> None:
    shared = GatherPlan(3, 5, (7, 7), 2, 4, True, True)
    assert kernel_seconds(shared, priced(component_s=1.0)) == pytest.approx(5)


def test_an_empty_output_still_has_its_indices_checked() -> None:
    empty = GatherPlan(1, 1000, (7, 7), 0, 4, False, True)
    assert kernel_seconds(empty, priced(near_slice_s=1.0, component_s=0.1)) == pytest.approx(1100)


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
    few, many = (split_seconds(LARGE, 1e-3, 16, replace(TYPICAL, gain=16.0, wakeup_s=each))[1] for each in (1e-4, 1e-6))
    assert few < many == 16


def test_all_threads_together_gain_what_was_measured() -> None:
    perfect = priced(gain=6.0)
    seconds, parts = split_seconds(LARGE, 1.0, 8, perfect)
    assert parts == 8
    assert seconds == pytest.approx(1 / 6)


@pytest.mark.parametrize(("wakeup_s", "seconds"), [(0.0, 0.5), (0.3, 0.8), (0.6, 1.0)])
def test_helpers_that_come_too_late_cost_nothing(wakeup_s: float, seconds: float) -> None:
    assert split_seconds(LARGE, 1.0, 2, priced(gain=2.0, wakeup_s=wakeup_s))[0] == pytest.approx(seconds)


def test_threads_that_are_in_each_others_way_are_no_split() -> None:
    assert split_seconds(LARGE, 1.0, 2, priced(gain=1.05)) == (float("inf"), 1)
    assert split_seconds(LARGE, 1.0, 2, priced(gain=1.1))[1] == 2


@given(plan=gathers(), machine=machines(), threads=st.integers(1, 64), locality=st.booleans())
def test_more_of_the_same_never_takes_less(
    plan: GatherPlan, machine: Coefficients, threads: int, locality: bool
) -> None:
    times = []
    for each in (plan, replace(plan, tuples=2 * plan.tuples)):
        kernel_s = kernel_seconds(each, machine, locality)
        shared_s, parts = split_seconds(each, kernel_s, threads, machine)
        times.append((kernel_s, shared_s if parts > 1 else 0.0))
    assert all(after >= before * (1 - 1e-9) for before, after in zip(*times, strict=True))


def test_resident_data_is_not_sent_to_the_gpu_and_inline_data_is() -> None:
    resident, inline = (gpu_seconds(LOOKUP, each, 1.0, CARD) for each in (True, False))
    assert resident == pytest.approx(1 + 10e-6 + 256 * (1e-11 + (8 + 256) * 0.1e-9))
    assert inline - resident == pytest.approx(200_000 * 64 * 4 * 0.1e-9)
    assert device_bytes(LOOKUP, True) == 8 * 256 + 256 * 64 * 4
    assert device_bytes(LOOKUP, False) == 8 * 256 + 256 * 64 * 4 + 200_000 * 64 * 4


def test_close_slices_cost_what_those_of_a_second_cache_do() -> None:
    machine = priced(near_slice_s=1e-9, far_slice_s=16e-9)
    assert kernel_seconds(LARGE, machine) == pytest.approx(16e-3)
    assert kernel_seconds(LARGE, machine, locality=True) == pytest.approx(2e-3)
