from __future__ import annotations

import random
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.operators.gather_plan import GatherPlan
from tests.conftest import SOAK, slow_but_for
from tests.for_each import for_each
from tests.kernels.reference import CARRIERS, Case, check, gather, make_case


def plan_of_gathernd(
    data: list[int], indices: list[int], batch_dims: int = 0, item_size: int = 4, wrap: bool = True
) -> GatherPlan:
    """The plan of a GatherND by the shapes of its inputs."""
    depth = indices[-1]
    return GatherPlan(
        prod(data[:batch_dims]),
        prod(indices[batch_dims:-1]),
        tuple(data[batch_dims : batch_dims + depth]),
        prod(data[batch_dims + depth :]),
        item_size,
        False,
        wrap,
    )


def plan_of_gather(data: list[int], tuples: int, axis: int, item_size: int = 4, wrap: bool = True) -> GatherPlan:
    """The plan of a Gather by the shape of its data."""
    return GatherPlan(prod(data[:axis]), tuples, (data[axis],), prod(data[axis + 1 :]), item_size, True, wrap)


def run(kernel: Any, plan: GatherPlan, indices: list[int]) -> tuple[int, list[int]]:
    """The first bad position, and the output where data item i is i."""
    data = np.arange(plan.data_items).astype(CARRIERS[plan.item_size])
    out = np.zeros(plan.output_items, data.dtype)
    first = kernel.run(plan, data, np.array(indices, np.int64), out)
    return first, out.real.astype(np.int64).tolist()


@for_each("per_set", [-1, -4, 3, 5, 2**62])
def test_sets_that_do_not_make_the_batches_are_refused(kernel: Any, per_set: int) -> None:
    plan = GatherPlan(4, 2, (3,), 1, 4, False, True, batches_per_set=per_set)
    for count in (0, 2, 4, 8):
        with pytest.raises(TypeError):
            kernel.run(plan, np.zeros(12, np.uint32), np.zeros(count, np.int64), np.zeros(8, np.uint32))


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


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """GatherND and Gather by shapes of ranks 1 to 6, with good indices and with bad ones."""
    shape = draw(st.lists(st.integers(0, 5), min_size=1, max_size=6))
    item_size = draw(st.sampled_from(sorted(CARRIERS)))
    wrap = draw(st.booleans())
    if draw(st.booleans()):
        plan = plan_of_gather(shape, draw(st.integers(0, 9)), draw(st.integers(0, len(shape) - 1)), item_size, wrap)
    else:
        batch_dims = draw(st.integers(0, len(shape) - 1))
        depth = draw(st.integers(1, len(shape) - batch_dims))
        middle = draw(st.lists(st.integers(0, 4), max_size=3))
        plan = plan_of_gathernd(shape, [*shape[:batch_dims], *middle, depth], batch_dims, item_size, wrap)
    return make_case(plan, random.Random(draw(st.integers(0, 2**32))), draw(st.integers(0, 2)))


@given(case=cases())
@settings(
    max_examples=6 * settings().max_examples,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_any_plan_gives_what_the_reference_gives(kernel: Any, case: Case) -> None:
    check(kernel, case)
