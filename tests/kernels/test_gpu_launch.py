from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from app.kernels.cupy_gpu import kernel_launch
from app.kernels.cupy_gpu.kernel_launch import Launch, division, launch
from app.operators.gather_plan import GatherPlan
from tests.for_each import for_each
from tests.kernels import emulated
from tests.kernels.reference import gather, make_case, random_plan

ALIGNED = (1 << 20, 2 << 20, 3 << 20, 4 << 20)
MULTIPROCESSORS = 100


def prepared(plan: GatherPlan, index_size: int = 8) -> Launch:
    found = launch(plan, index_size, ALIGNED, MULTIPROCESSORS)
    assert found is not None
    return found


@given(st.integers(2, 2**63 - 1), st.integers(0, 2**63 - 1))
@example(2**63 - 1, 2**63 - 1)
@example(2**62 + 1, 2**63 - 1)
@example(3, 2**63 - 1)
@settings(max_examples=20 * settings().max_examples)
def test_multiplication_in_the_place_of_division_is_exact(divisor: int, number: int) -> None:
    factor, shift = division(divisor)
    assert 0 < factor < 2**64
    for near in (number, number // divisor * divisor, max(number // divisor * divisor - 1, 0)):
        assert (near * factor >> 64) >> shift == near // divisor


@for_each("divisor", [2, 3, 2**31, 2**32 - 1, 2**32 + 1, 2**62, 2**63 - 1])
def test_multiplication_in_the_place_of_division_is_exact_at_the_edges(divisor: int) -> None:
    factor, shift = division(divisor)
    top = (2**63 - 1) // divisor * divisor
    for number in (0, 1, divisor - 1, divisor, divisor + 1, top - 1, top, 2**63 - 1):
        if 0 <= number < 2**63:
            assert (number * factor >> 64) >> shift == number // divisor


def test_more_slices_than_blocks_can_have_are_reached_in_turns() -> None:
    assert prepared(GatherPlan(1, 1 << 45, (1000,), 1, 4, False, True)).grid == (2**31 - 1, 1)
    assert prepared(GatherPlan(1, 1 << 45, (1000,), 1001, 1, False, True)).grid == (1, 65535)


@pytest.fixture
def emulator() -> None:
    try:
        emulated.library()
    except ImportError as absent:
        pytest.skip(str(absent))


@pytest.mark.usefixtures("emulator")
@pytest.mark.parametrize("width", [17, 18, 20, 33, 66, 100, 130, 260, 264, 520, 528, 1001, 4100, 6000])
def test_wide_slices_are_whole_wherever_they_begin_and_whatever_is_bad_beside_them(width: int) -> None:
    source = random.Random(width)
    for tuples in (1, 2, 3, 4, 5, 9, 40):
        plan = GatherPlan(1, tuples, (30,), width, 1, False, True)
        case = make_case(plan, source)
        # The lowest bit of an address is the widest unit: 0 is for the usual one, others make it smaller.
        for behind in (0, 1, 2, 4, 8):
            room = np.full(plan.output_items + 48, 7, np.uint8)
            begin = -room.ctypes.data % 16 + behind
            out = room[begin : begin + plan.output_items]
            assert emulated.run(plan, case.data, case.indices, out) == -1
            assert out.tobytes() == gather(case)[0]
            assert (room[:begin] == 7).all()
            assert (room[begin + plan.output_items :] == 7).all()
            bad = source.randrange(tuples)
            indices = case.indices.copy()
            indices[bad] = 30
            before = out.copy()
            out[:] = 7
            assert emulated.run(plan, case.data, indices, out) == bad
            expected = before.reshape(tuples, width)
            expected[bad] = 7
            assert out.tobytes() == expected.tobytes()


@pytest.mark.usefixtures("emulator")
@pytest.mark.parametrize("most", [(1, 1), (3, 2)])
def test_blocks_take_turns_where_there_are_fewer_than_the_work_needs(
    most: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_launch, "_MOST_BLOCKS", most)
    kernel_launch._shape.cache_clear()
    try:
        source = random.Random(8)
        for number in range(400):
            case = make_case(random_plan(source), source, spoiled=number % 2)
            expected, bad = gather(case)
            out = case.out()
            assert emulated.run(case.plan, case.data, case.indices, out) == bad
            assert bad >= 0 or out.tobytes() == expected
    finally:
        kernel_launch._shape.cache_clear()
