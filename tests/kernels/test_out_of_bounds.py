"""What replaces indices that are out of bounds, against the rules one component at a time."""

from __future__ import annotations

from importlib import import_module
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from app.kernels import Kernel
from app.kernels.replace_out_of_bounds import Replacement, fill_slices, replace_out_of_bounds
from app.operators.gather_plan import GatherPlan
from app.tensors.gather_call import OutOfBounds
from tests.conftest import SOAK, samples
from tests.for_each import for_each
from tests.kernels.cpu_kernels import every_kernel

__all__ = ["every_kernel"]

INDEX_TYPES = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
ODD = [0, 1, -1, 2, -2, 3, 127, -128, 2**31, -(2**31), 2**63 - 1, -(2**63)]

READ_ONLY = np.zeros(1, np.int64)
READ_ONLY.flags.writeable = False


def judged(component: int, size: int, wrap: bool, mode: OutOfBounds) -> tuple[int, bool]:
    if wrap and -size <= component < 0:
        component += size
    if 0 <= component < size:
        return component, False
    if size == 0:
        return (0, True) if mode == "fill" else (component, False)
    return (component % size if mode == "wrap" else 0 if component < 0 else size - 1), True


def assert_judged(components: list[int], sizes: list[int], wrap: bool, mode: OutOfBounds) -> None:
    """Each of the tuples' components has become what the rules say."""
    pairs = [judged(component, sizes[at % len(sizes)], wrap, mode) for at, component in enumerate(components)]
    wrong = [any(outside for _, outside in pairs[at : at + len(sizes)]) for at in range(0, len(pairs), len(sizes))]
    given = np.array(components, np.int64)
    found = replace_out_of_bounds(GatherPlan(1, len(wrong), tuple(sizes), 1, 4, False, wrap), given, mode)
    assert found.replaced == sum(outside for _, outside in pairs)
    if found.replaced:
        assert found.indices.tolist() == [component for component, _ in pairs]
    if found.replaced and mode == "fill":
        assert found.filled is not None
        assert found.filled.tolist() == wrong
    assert given.tolist() == components


@pytest.mark.parametrize("mode", ["clip", "wrap", "fill"])
@pytest.mark.parametrize("wrap", [False, True])
def test_each_component_is_judged_by_itself(wrap: bool, mode: OutOfBounds) -> None:
    rng = Random(mode)
    for _ in range(samples(200)):
        sizes = [rng.choice([0, 1, 2, 3, 5, 2**40]) for _ in range(rng.randrange(1, 4))]
        rows = rng.choice([0, 1, 2, 7])
        assert_judged([rng.choice([*ODD, rng.randrange(-6, 6)]) for _ in range(rows * len(sizes))], sizes, wrap, mode)


def test_more_tuples_than_a_block() -> None:
    assert_judged(np.random.default_rng(1).integers(-9, 9, 100_000).tolist(), [3, 5], True, "fill")


def replaced(indices: NDArray[Any], mode: OutOfBounds, dims: tuple[int, ...] = (3,)) -> Replacement:
    plan = GatherPlan(1, indices.size // len(dims), dims, 1, 4, False, True)
    return replace_out_of_bounds(plan, indices, mode)


@for_each("dtype", INDEX_TYPES)
@for_each("mode", ["clip", "wrap", "fill"])
def test_indices_of_any_type(dtype: str, mode: OutOfBounds) -> None:
    info = np.iinfo(dtype)
    found = replaced(np.array([info.min, 0, 2, 3, info.max], dtype), mode)
    kept = [0, 2]
    low, high, last = (info.min % 3, 0, info.max % 3) if mode == "wrap" else (0, 2, 2)
    assert found.indices.tolist() == [low, *kept, high, last]
    assert found.replaced == (2 if info.min == 0 else 3)
    assert (found.filled is not None) == (mode == "fill")


@for_each("mode", ["clip", "wrap", "fill"])
def test_indices_beyond_int64_are_counted_on_an_axis_of_any_size(mode: OutOfBounds) -> None:
    size = 2**63 - 1
    found = replaced(np.array([3, 2**63 + 3, 2**64 - 1], np.uint64), mode, (size,))
    assert found.replaced == 2
    assert all(0 <= index < size for index in found.indices.tolist())


@for_each("dtype", INDEX_TYPES)
@for_each("mode", ["clip", "wrap"])
def test_components_of_an_axis_of_size_0_stay_as_they_are(dtype: str, mode: OutOfBounds) -> None:
    info = np.iinfo(dtype)
    found = replaced(np.array([info.max, 4, info.min, 1], dtype), mode, (0, 3))
    assert found.indices.tolist() == [info.max, 2 if mode == "clip" else 1, info.min, 1]
    assert found.replaced == 1


@pytest.mark.parametrize(
    ("batches", "tuples", "per_set"), [(6, 4, 0), (6, 4, 1), (6, 4, 2), (6, 4, 3), (9000, 30, 2), (6, 70_000, 3)]
)
def test_the_slices_of_marked_tuples_are_filled_in_each_batch_that_uses_them(
    batches: int, tuples: int, per_set: int
) -> None:
    plan = GatherPlan(batches, tuples, (5,), 2, 4, per_set == 0, True, batches_per_set=per_set or 1)
    filled = np.random.default_rng(per_set).random(plan.index_items) < 0.3
    out = np.arange(plan.output_items, dtype=np.uint32)
    wanted = out.reshape(batches, tuples, 2).copy()
    sets = filled.reshape(-1, tuples)
    for batch in range(batches):
        wanted[batch][sets[batch // per_set if per_set else 0]] = 7
    fill_slices(plan, out, filled, 7)
    assert (out == wanted.ravel()).all()


@for_each("slice_items", [0, 1, 2, 3, 64, 255, 256, 257, 2000])
@for_each("dtype", ["bool", "uint8", "int16", "float32", "float64", "complex128"])
def test_slices_of_any_width_are_filled(slice_items: int, dtype: str) -> None:
    value = np.array(1.5).astype(dtype)
    for batches, per_set in ((1, 1), (3, 0), (3, 1), (6, 3)):
        plan = GatherPlan(batches, 5, (4,), slice_items, 1, per_set == 0, True, batches_per_set=per_set or 1)
        filled = np.random.default_rng(slice_items).random(plan.index_items) < 0.5
        out = np.zeros(plan.output_items, dtype)
        wanted = out.reshape(batches, 5, slice_items).copy()
        for batch in range(batches):
            wanted[batch][filled.reshape(-1, 5)[batch // per_set if per_set else 0]] = value
        fill_slices(plan, out, filled, value[()])
        assert out.tobytes() == wanted.tobytes()


def test_indices_that_are_all_valid_are_not_copied() -> None:
    indices = np.array([0, -3, 2])
    found = replaced(indices, "fill")
    assert found.indices is indices
    assert (found.replaced, found.filled) == (0, None)


def filled_by_loops(
    plan: GatherPlan, data: NDArray[Any], indices: NDArray[Any], fill: NDArray[Any]
) -> tuple[NDArray[Any], int]:
    """The gather one tuple at a time, with `fill` for those out of bounds, and how many components are."""
    count = 0
    source = data.reshape(plan.batches, *plan.dims, plan.slice_items)
    out = np.zeros((plan.batches * plan.tuples, plan.slice_items), data.dtype)
    for number, components in enumerate(indices.reshape(-1, plan.depth).tolist()):
        good = [(-size if plan.wrap else 0) <= value < size for value, size in zip(components, plan.dims, strict=True)]
        count += good.count(False)
        out[number] = source[(number // plan.tuples, *components)] if all(good) else fill
    return out.reshape(-1), count


@st.composite
def fill_cases(draw: st.DrawFn) -> tuple[GatherPlan, str, Random]:
    dims = tuple(draw(st.lists(st.sampled_from((0, 1, 2, 3, 7)), min_size=1, max_size=6)))
    batches = draw(st.sampled_from((1, 1, 2, 5)))
    plan = GatherPlan(
        batches,
        draw(st.sampled_from((0, 1, 5, 255, 300, 1100))),
        dims,
        draw(st.sampled_from((0, 1, 2, 3, 16, 40))),
        draw(st.sampled_from((1, 2, 4, 8, 16))),
        batches == 1 and draw(st.booleans()),
        draw(st.booleans()),
    )
    return plan, draw(st.sampled_from(INDEX_TYPES)), draw(st.randoms(use_true_random=False))


@settings(max_examples=samples(300) if SOAK else 8, deadline=None)
@given(fill_cases(), st.sampled_from((1, 1, 2, 7)))
def test_kernels_fill_the_slices_of_tuples_out_of_bounds(
    every_kernel: list[Kernel], case: tuple[GatherPlan, str, Random], threads: int
) -> None:
    plan, dtype, source = case
    carrier = np.dtype({1: "u1", 2: "u2", 4: "u4", 8: "u8", 16: "c16"}[plan.item_size])
    data, fill = (np.frombuffer(source.randbytes(16 * size), "u1") for size in (plan.data_items, plan.slice_items))
    data, fill = data[::16].astype(carrier), fill[::16].astype(carrier)
    info, often = np.iinfo(dtype), source.choice((0.0, 0.02, 0.5, 1.0))
    odd = [value for value in (*ODD, info.max, info.min) if info.min <= value <= info.max]
    indices = np.array(
        [
            source.choice(odd)
            if source.random() < often
            else source.randrange(-size if plan.wrap and info.min else 0, size or 1)
            for _ in range(plan.index_items // plan.depth)
            for size in plan.dims
        ],
        dtype,
    )
    expected, count = filled_by_loops(plan, data, indices, fill)
    for each in every_kernel:
        out, replaced = np.full(plan.output_items, 3, carrier), np.full(1, -7)
        further = {"fill": fill, "replaced": replaced}
        assert each.run(plan, data, indices, out, threads, further=further) == -1
        assert (int(replaced[0]), out.tobytes()) == (count, expected.tobytes()), each.name


FILL_PLAN = GatherPlan(1, 4, (3,), 2, 4, False, True)


@pytest.mark.parametrize(
    ("plan", "fill", "replaced"),
    [
        (FILL_PLAN, np.zeros(1, np.uint32), np.zeros(1, np.int64)),
        (FILL_PLAN, np.zeros(3, np.uint32), np.zeros(1, np.int64)),
        (FILL_PLAN, np.zeros(2, np.uint64), np.zeros(1, np.int64)),
        (FILL_PLAN, np.zeros(2, np.float32), np.zeros(1, np.int64)),
        (FILL_PLAN, np.zeros(4, np.uint32)[::2], np.zeros(1, np.int64)),
        (FILL_PLAN, None, np.zeros(1, np.int64)),
        (FILL_PLAN, np.zeros(2, np.uint32), np.zeros(0, np.int64)),
        (FILL_PLAN, np.zeros(2, np.uint32), np.zeros(1, np.int32)),
        (FILL_PLAN, np.zeros(2, np.uint32), READ_ONLY),
        (FILL_PLAN, np.zeros(2, np.uint32), None),
        (GatherPlan(2, 4, (3,), 2, 4, True, True), np.zeros(2, np.uint32), np.zeros(1, np.int64)),
        (GatherPlan(4, 4, (3,), 2, 4, False, True, 2), np.zeros(2, np.uint32), np.zeros(1, np.int64)),
    ],
)
def test_another_slice_to_fill_with_is_refused(
    every_kernel: list[Kernel], plan: GatherPlan, fill: Any, replaced: Any
) -> None:
    data, indices = np.zeros(plan.data_items, np.uint32), np.zeros(plan.index_items, np.int64)
    for each in every_kernel:
        out = np.full(plan.output_items, 3, np.uint32)
        with pytest.raises(TypeError):
            each.run(plan, data, indices, out, further={"fill": fill, "replaced": replaced})
        assert (out == 3).all()


@pytest.mark.parametrize("threads", [1, 2, 7])
@pytest.mark.parametrize("width", [1, 64])
def test_threads_count_together_what_is_out_of_bounds(compiled: None, width: int, threads: int) -> None:
    plan = GatherPlan(1, 300_000 // width, (1000,), width, 4, False, False)
    numbers = np.random.default_rng(width)
    indices = numbers.integers(-500, 1500, plan.tuples)
    data = numbers.integers(0, 99, plan.data_items).astype(np.uint32)
    fill, replaced = np.arange(width, dtype=np.uint32), np.zeros(1, np.int64)
    out = np.zeros(plan.output_items, np.uint32)
    kernel: Kernel = import_module("app.kernels.numba_cpu")
    for _ in range(3):
        assert kernel.run(plan, data, indices, out, threads, further={"fill": fill, "replaced": replaced}) == -1
        outside = (indices < 0) | (indices >= 1000)
        assert replaced[0] == np.count_nonzero(outside)
        rows = out.reshape(-1, width)
        assert (rows[outside] == fill).all()
        assert (rows[~outside] == data.reshape(-1, width)[indices[~outside]]).all()
