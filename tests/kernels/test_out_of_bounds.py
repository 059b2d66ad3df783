"""What replaces indices that are out of bounds, in NumPy and compiled, against the rules one component at a time."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from app.kernels import compiled_out_of_bounds, plain_out_of_bounds
from app.kernels.out_of_bounds import Replacement, fill_slices, replace_out_of_bounds
from app.kernels.plain_out_of_bounds import CLIP, FILL, WRAP
from app.operators.gather_plan import GatherPlan
from app.tensors.gather_call import OutOfBounds
from tests.conftest import samples

Replace = Callable[..., int]
INDEX_TYPES = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
ODD = [0, 1, -1, 2, -2, 3, 127, -128, 2**31, -(2**31), 2**63 - 1, -(2**63)]


@pytest.fixture(params=[plain_out_of_bounds, compiled_out_of_bounds], ids=["NumPy", "compiled"])
def replace(request: pytest.FixtureRequest) -> Replace:
    function: Replace = request.param.replace_components
    return function


def int64(values: Any) -> NDArray[np.int64]:
    """Read-only, as the compiled function takes it."""
    array = np.array(values, np.int64)
    array.flags.writeable = False
    return array


def judged(component: int, size: int, wrap: bool, mode: int) -> tuple[int, bool]:
    if wrap and -size <= component < 0:
        component += size
    if 0 <= component < size:
        return component, False
    if size == 0:
        return (0, True) if mode == FILL else (component, False)
    return (component % size if mode == WRAP else 0 if component < 0 else size - 1), True


@pytest.mark.parametrize("mode", [CLIP, WRAP, FILL])
@pytest.mark.parametrize("wrap", [False, True])
def test_each_component_is_judged_by_itself(replace: Replace, mode: int, wrap: bool) -> None:
    rng = Random(mode)
    for _ in range(samples(200)):
        sizes = [rng.choice([0, 1, 2, 3, 5, 2**40]) for _ in range(rng.randrange(1, 4))]
        rows = rng.choice([0, 1, 2, 7])
        components = [rng.choice([*ODD, rng.randrange(-6, 6)]) for _ in range(rows * len(sizes))]
        pairs = [judged(component, sizes[at % len(sizes)], wrap, mode) for at, component in enumerate(components)]
        wrong = np.array([outside for _, outside in pairs], bool).reshape(rows, len(sizes)).any(axis=1)
        valid, filled = np.empty(len(components), np.int64), np.full(rows if mode == FILL else 0, 7, np.uint8)
        count = replace(int64(components), int64(sizes), wrap, mode, valid, filled)
        assert count == sum(outside for _, outside in pairs)
        assert valid.tolist() == [component for component, _ in pairs]
        if mode == FILL:
            assert filled.tolist() == wrong.tolist()


def test_more_tuples_than_a_block(replace: Replace) -> None:
    components = np.random.default_rng(1).integers(-9, 9, 100_000)
    valid, filled = np.empty_like(components), np.empty(50_000, np.uint8)
    count = replace(int64(components), int64([3, 5]), True, FILL, valid, filled)
    pairs = [judged(int(component), (3, 5)[at % 2], True, FILL) for at, component in enumerate(components)]
    assert count == sum(outside for _, outside in pairs)
    assert valid.tolist() == [component for component, _ in pairs]
    assert filled.tolist() == [pairs[at][1] or pairs[at + 1][1] for at in range(0, len(pairs), 2)]


@pytest.mark.parametrize(
    ("components", "sizes", "valid", "filled"), [(4, 0, 4, 0), (5, 2, 5, 2), (4, 2, 3, 2), (4, 2, 4, 1), (4, 2, 5, 2)]
)
def test_arrays_that_do_not_fit_each_other_are_refused(
    replace: Replace, components: int, sizes: int, valid: int, filled: int
) -> None:
    arrays = np.zeros(valid, np.int64), np.zeros(filled, np.uint8)
    assert replace(int64([0] * components), int64([1] * sizes), True, FILL, *arrays) == -1


def replaced(indices: NDArray[Any], mode: OutOfBounds, dims: tuple[int, ...] = (3,)) -> Replacement:
    plan = GatherPlan(1, indices.size // len(dims), dims, 1, 4, False, True)
    return replace_out_of_bounds(plan, indices, mode)


@pytest.mark.parametrize("dtype", INDEX_TYPES)
@pytest.mark.parametrize("mode", ["clip", "wrap", "fill"])
def test_indices_of_any_type(dtype: str, mode: OutOfBounds) -> None:
    info = np.iinfo(dtype)
    found = replaced(np.array([info.min, 0, 2, 3, info.max], dtype), mode)
    kept = [0, 2]
    low, high, last = (info.min % 3, 0, info.max % 3) if mode == "wrap" else (0, 2, 2)
    assert found.indices.tolist() == [low, *kept, high, last]
    assert found.replaced == (2 if info.min == 0 else 3)
    assert (found.filled is not None) == (mode == "fill")


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


@pytest.mark.parametrize("slice_items", [0, 1, 2, 3, 64, 255, 256, 257, 2000])
@pytest.mark.parametrize("dtype", ["bool", "uint8", "int16", "float32", "float64", "complex128"])
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
