"""What replaces indices that are out of bounds, against the rules one component at a time."""

from __future__ import annotations

from importlib import import_module
from random import Random

import numpy as np
import pytest

from app.kernels import Kernel
from app.kernels.replace_out_of_bounds import fill_slices, replace_out_of_bounds
from app.operators.gather_plan import GatherPlan
from app.tensors.gather_call import OutOfBounds
from tests.conftest import samples

ODD = [0, 1, -1, 2, -2, 3, 127, -128, 2**31, -(2**31), 2**63 - 1, -(2**63)]


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
