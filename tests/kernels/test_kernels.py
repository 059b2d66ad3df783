from __future__ import annotations

import random
from typing import Any

import numpy as np

from app.operators.gather_plan import GatherPlan
from tests.conftest import SOAK, slow_but_for
from tests.for_each import for_each
from tests.kernels.reference import CARRIERS, Case, check, gather, make_case


def test_axes_whose_product_overflows_where_nothing_is_read(kernel: Any) -> None:
    huge = 2**62
    empty = np.zeros(0, np.uint32)
    for plan in (
        GatherPlan(1, 2, (huge, huge, huge), 0, 4, False, True),
        GatherPlan(0, 2, (huge, huge, huge), 3, 4, True, True),
        GatherPlan(0, 2, (huge, huge, huge), huge, 4, True, True),
    ):
        good = np.array([huge - 1, -huge, 0, 1, 2, 3])
        assert kernel.run(plan, empty, good, empty) == -1
        assert kernel.run(plan, empty, np.array([huge - 1, -huge, huge, 1, 2, 3]), empty) == 2
        assert kernel.run(plan, empty, np.array([0, 0, 0, 1, -huge - 1, 3]), empty) == 4
    plan = GatherPlan(1, 1, (huge, 0, huge), 1, 4, False, True)
    assert kernel.run(plan, empty, np.array([1, 0, 1]), np.zeros(1, np.uint32)) == 1


@for_each("place", [65_535, 65_536, 131_073, 299_999])
def test_the_first_bad_component_far_into_a_large_request(kernel: Any, place: int) -> None:
    case = large_case(GatherPlan(1, 100_000, (5, 7, 3), 1, 1, False, True))
    case.indices[[place, -1]] = 7
    assert kernel.run(case.plan, case.data, case.indices, case.out()) == place


@for_each("item_size", CARRIERS)
@for_each("shared", [True, False])
@for_each("batches", slow_but_for((1, 2, 5), (1, 2, 5, 700)))
def test_tuples_around_the_size_of_a_block(kernel: Any, item_size: int, shared: bool, batches: int) -> None:
    source = random.Random(item_size * batches)
    counts: tuple[int, ...] = (1, 3, 85, 86, 128, 255, 256, 257, 511, 512, 513)
    if not SOAK:
        counts = (1, 85, 86, 255, 256, 257, 513)
    if batches == 700:
        counts = (1, 2, 3, 127, 128, 129) if SOAK else (2, 127, 129)
    for tuples in counts:
        check(kernel, make_case(GatherPlan(batches, tuples, (3, 2), 1, item_size, shared, True), source))


@for_each("slice_items", [*range(1, 70), 95, 96, 127, 128, 129, 255, 256, 257, 511, 513, 1024, 4097])
@for_each("item_size", [1, 2, 8])
def test_every_width_of_slice(kernel: Any, slice_items: int, item_size: int) -> None:
    source = random.Random(slice_items)
    check(kernel, make_case(GatherPlan(1, 300, (3,), slice_items, item_size, False, True), source))
    check(kernel, make_case(GatherPlan(3, 5, (2, 2), slice_items, item_size, True, True), source))


@for_each("width", slow_but_for((64, 127, 4096), (64, 65, 127, 511, 512, 513, 1000, 4096, 65537)))
@for_each("shift", [0, 1, 63])
def test_outputs_larger_than_the_caches(kernel: Any, width: int, shift: int) -> None:
    """Rows stored past the caches, at every kind of alignment, and not a byte beside them."""
    rows = (1 << 22) // width + 3
    check_between(kernel, large_case(GatherPlan(1, rows, (300,), width, 1, False, True)), shift)


def large_case(plan: GatherPlan) -> Case:
    source = np.random.default_rng(plan.slice_items)
    data = source.integers(0, 256, plan.data_items, np.uint8)
    rows = plan.index_items // plan.depth
    indices = np.stack([source.integers(-size, size, rows) for size in plan.dims], axis=-1).reshape(-1)
    return Case(plan, data, indices)


def check_between(kernel: Any, case: Case, shift: int) -> None:
    room = np.full(case.plan.output_items + 192, 7, np.uint8)
    start = -room.ctypes.data % 64 + shift
    out = room[start : start + case.plan.output_items]
    assert kernel.run(case.plan, case.data, case.indices, out) == -1
    assert out.tobytes() == gather(case)[0]
    assert (room[:start] == 7).all()
    assert (room[start + out.size :] == 7).all()
