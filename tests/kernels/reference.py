"""Random plans of every type with their arrays, and gathers compared with the loops of `tests.kernels.loops`."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.operators.gather_elements import GatherElementsPlan
from app.operators.gather_plan import GatherPlan
from app.operators.scatter_plan import ScatterElementsPlan, ScatterNDPlan
from app.tensors.operator_signature import Reduction
from tests.kernels.loops import gather_by_loops

CARRIERS: Mapping[int, type[np.generic]] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64, 16: np.complex128}
_SHARED_BYTES = 1 << 21
"""Most bytes of a random plan's data and output whose batches share sets of tuples."""
EXTREMES = (-(2**63), 2**63 - 1, -(2**62), 2**62, -(2**32), 2**32, -(2**31), 2**31)


@dataclass(frozen=True)
class Case:
    plan: GatherPlan
    data: NDArray[Any]
    indices: NDArray[np.int64]

    def out(self) -> NDArray[Any]:
        return np.zeros(self.plan.output_items, CARRIERS[self.plan.item_size])


def make_case(plan: GatherPlan, source: random.Random, spoiled: int = 0) -> Case:
    """Random data and indices for a plan; the indices are good but for `spoiled` components put in at random places."""
    chance = np.random.default_rng(source.getrandbits(32))
    data: NDArray[Any] = np.frombuffer(chance.bytes(plan.data_items * plan.item_size), CARRIERS[plan.item_size])
    sizes = np.resize(np.array(plan.dims, np.int64), plan.index_items)
    low = -sizes if plan.wrap else np.zeros_like(sizes)
    indices = np.where(sizes > 0, chance.integers(low, np.maximum(sizes, 1)), -chance.integers(0, 2, len(sizes)))
    for _ in range(spoiled if plan.index_items else 0):
        place = source.randrange(plan.index_items)
        size = plan.dims[place % plan.depth]
        indices[place] = source.choice((size, -size - 1, size + 1, -1 if not plan.wrap else size, *EXTREMES))
    return Case(plan, data, indices)


def gather(case: Case) -> tuple[bytes, int]:
    """The output's bytes and -1, or nothing and the position of the first bad component."""
    out = np.zeros(case.plan.output_bytes, np.uint8)
    indices = case.indices.clip(None, 2**63 - 1) if case.indices.dtype == np.uint64 else case.indices
    bad = gather_by_loops(case.plan, case.data, indices.astype(np.int64), out)
    return (out.tobytes(), -1) if bad < 0 else (b"", bad)


def check(kernel: Any, case: Case) -> None:
    """Run the kernel and compare: the same bytes, or the same first bad component."""
    expected, bad = gather(case)
    out = case.out()
    first = kernel.run(case.plan, case.data, case.indices, out)
    assert first == bad, (kernel.name, case.plan)
    if bad < 0:
        assert out.tobytes() == expected, (kernel.name, case.plan)


def random_plan(source: random.Random) -> GatherPlan:
    """Mostly small plans, with now and then a zero, more tuples than a block, more data or output than the caches.

    Of those whose batches have tuples of their own, each set is for several batches in one of three.
    """
    plan = _random_plan(source)
    if plan.broadcast_indices or source.random() > 0.3:
        return plan
    shared = source.choice((2, 3, 5, source.randint(2, 40)))
    fewer = plan.batches if plan.batches < 10 else max(1, plan.batches // shared)
    if max(plan.output_bytes, plan.data_items * plan.item_size) * fewer * shared > _SHARED_BYTES * max(plan.batches, 1):
        return plan
    return replace(plan, batches=fewer * shared, batches_per_set=shared)


def _random_plan(source: random.Random) -> GatherPlan:
    kind = source.random()
    item_size = source.choice(tuple(CARRIERS))
    shared, wrap = source.random() < 0.4, source.random() < 0.7
    if kind < 0.0002:  # stores past the caches
        rows, width = source.randint(8_000, 17_000), source.randint(512, 1100)
        return GatherPlan(1, (1 << 22) // width + rows % 99, (source.randint(1, 300),), width, 1, shared, wrap)
    if kind < 0.01:  # data for which memory is asked ahead
        slice_items = source.randint(1, 40)
        rows = (1 << 18) // (slice_items * item_size) + source.randint(1, 999)
        return GatherPlan(source.randint(1, 2), source.randint(1, 600), (rows,), slice_items, item_size, shared, wrap)
    if kind < 0.04:  # blocks
        dims = tuple(source.randint(1, 6) for _ in range(source.randint(1, 2)))
        return GatherPlan(
            source.randint(1, 5), source.randint(1, 600), dims, source.randint(1, 9), item_size, shared, wrap
        )
    dims = tuple(source.randint(1, 5) for _ in range(source.randint(1, 5)))
    if kind > 0.97:  # deep tuples
        dims = tuple(source.randint(1, 2) for _ in range(source.randint(6, 9)))
    batches, tuples, slice_items = source.randint(1, 6), source.randint(1, 9), source.randint(1, 20)
    match source.randrange(30):
        case 0:
            batches = 0
        case 1:
            tuples = 0
        case 2:
            slice_items = 0
        case 3:
            dims = (*dims[1:], 0)
        case 4:
            batches, dims = source.randint(1, 600), dims[:2]
        case 5:  # axes whose product overflows where nothing is read
            dims, slice_items = tuple(source.randint(1, 2**62) for _ in dims), 0
    return GatherPlan(batches, tuples, dims, slice_items, item_size, shared, wrap)


def random_elements_plan(source: random.Random) -> GatherElementsPlan:
    """Plans of GatherElements that reach to the very last item of data; most of them small.

    Now and then there is a zero, rows of more entries than a block or blocks of many rows, as many axes as there can
    be, or more data than the caches hold. Strides are any, so that places overlap, where those of a tensor do not.
    """
    kind = source.random()
    item_size = source.choice(tuple(CARRIERS))
    sizes = [source.randint(1, 5) for _ in range(source.randint(1, 4))]
    axis_size, axis_stride = source.randint(1, 9), source.randint(0, 20)
    if kind < 0.005:  # data for which memory is asked ahead
        axis_stride = source.randint(1, 20)
        axis_size = (1 << 21) // (axis_stride * item_size) + source.randint(1, 999)
        sizes[-1] = source.randint(1, 600)
    elif kind < 0.04:  # blocks
        sizes = [source.randint(1, 600), source.randint(1, 5)]
        source.shuffle(sizes)
    elif kind > 0.97:  # many axes
        sizes = [2] * source.randint(1, 9) + [1] * source.randint(5, 55)
        source.shuffle(sizes)
    strides = [source.choice((0, 1, source.randint(0, 30))) for _ in sizes]
    data_items = 1 + (axis_size - 1) * axis_stride
    data_items += sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    match source.randrange(30):
        case 0:  # no entries, of which nothing is read, however much the product of the others
            sizes = [source.randint(1, 2**62) for _ in sizes]
            sizes[source.randrange(len(sizes))] = 0
            strides = [source.randint(0, 2**62) for _ in sizes]
            axis_size, axis_stride = source.randint(1, 2**62), source.randint(0, 2**62)
        case 1:  # nothing to pick from: every entry is bad
            axis_size, data_items = 0, source.choice((0, data_items))
        case 2:  # data behind the last place
            data_items += source.randint(1, 9)
    wrap = source.random() < 0.7
    return GatherElementsPlan(tuple(sizes), tuple(strides), axis_size, axis_stride, data_items, item_size, wrap)


_REDUCED = {1: "uint8", 2: "uint16", 4: "uint32", 8: "uint64"}


def _reduction(item_size: int, source: random.Random) -> tuple[str, Reduction]:
    """A type of that size, and what is done with it: integers that are added now and then, or any items replaced."""
    if item_size in _REDUCED and source.random() < 0.5:
        return _REDUCED[item_size], "add"
    return _REDUCED.get(item_size, "complex128"), "none"


def random_scatter_plan(source: random.Random) -> ScatterNDPlan:
    """As `random_plan`, without batches."""
    plan = random_plan(source)
    dtype, reduction = _reduction(plan.item_size, source)
    return ScatterNDPlan(plan.tuples, plan.dims, plan.slice_items, plan.item_size, plan.wrap, dtype, reduction)


def random_scatter_elements_plan(source: random.Random) -> ScatterElementsPlan:
    """As `random_elements_plan`."""
    plan = random_elements_plan(source)
    dtype, reduction = _reduction(plan.item_size, source)
    return ScatterElementsPlan(
        plan.sizes, plan.strides, plan.axis_size, plan.axis_stride, plan.data_items, plan.item_size, plan.wrap, dtype,
        reduction,
    )  # fmt: skip
