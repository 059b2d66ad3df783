"""GatherElements on every kernel of the CPU, against loops over coordinates and NumPy's take_along_axis."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import product
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from app.kernels import Kernel
from app.operators.dialects import GATHER_ELEMENTS
from app.operators.gather_elements import GatherElementsPlan, plan_gather_elements
from app.tensors.dtypes import DTYPES
from app.tensors.gather_call import Call
from app.tensors.tensor import Tensor
from tests.conftest import samples
from tests.for_each import for_each
from tests.kernels.cpu_kernels import every_kernel, kernel
from tests.kernels.reference import CARRIERS

__all__ = ["every_kernel", "kernel"]

CARRIED = {1: "uint8", 2: "uint16", 4: "uint32", 8: "uint64", 16: "complex128"}


def plan_of(
    shape: tuple[int, ...], index_shape: tuple[int, ...], axis: int, item_size: int, wrap: bool = True
) -> GatherElementsPlan:
    nothing = np.zeros(0, np.int64)
    data, indices = Tensor(DTYPES[CARRIED[item_size]], shape, nothing), Tensor(DTYPES["int64"], index_shape, nothing)
    call = Call("gather_elements", data, indices, (axis,), "onnx-13")
    plan, _, _ = plan_gather_elements(GATHER_ELEMENTS["onnx-13"], call, data)
    return plan if wrap else replace(plan, wrap=False)


def filled(items: int, item_size: int, source: random.Random) -> NDArray[Any]:
    return np.frombuffer(source.randbytes(items * item_size), CARRIERS[item_size])


def looped(data: NDArray[Any], indices: NDArray[np.int64], axis: int) -> NDArray[Any]:
    """Coordinate by coordinate, without a flat offset."""
    out = np.empty(indices.shape, data.dtype)
    for place in product(*map(range, indices.shape)):
        out[place] = data[(*place[:axis], indices[place], *place[axis + 1 :])]
    return out


def run(
    kernel: Kernel, plan: GatherElementsPlan, data: NDArray[Any], indices: NDArray[Any], threads: int = 1
) -> tuple[int, NDArray[Any]]:
    out = np.zeros(plan.output_items, CARRIERS[plan.item_size])
    return kernel.run(plan, data, indices, out, threads), out


@st.composite
def cases(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], int, int, random.Random]:
    shape = tuple(draw(st.lists(st.sampled_from((1, 2, 3, 4, 5, 0)), min_size=1, max_size=5)))
    axis = draw(st.integers(0, len(shape) - 1))
    index_shape = tuple(
        draw(st.integers(0, 7)) if at == axis else draw(st.sampled_from((size, size, size // 2)))
        for at, size in enumerate(shape)
    )
    return shape, index_shape, axis, draw(st.sampled_from(sorted(CARRIERS))), draw(st.randoms(use_true_random=False))


@settings(max_examples=samples(400), deadline=None)
@given(cases(), st.booleans())
def test_each_entry_picks_the_item_at_its_own_place(
    every_kernel: list[Kernel],
    case: tuple[tuple[int, ...], tuple[int, ...], int, int, random.Random],
    wrap: bool,
) -> None:
    shape, index_shape, axis, item_size, source = case
    size = shape[axis]
    plan = plan_of(shape, index_shape, axis, item_size, wrap)
    data = filled(prod(shape), item_size, source)
    flat = [source.randrange(-size if wrap else 0, size) if size else 0 for _ in range(prod(index_shape))]
    indices = np.array(flat, np.int64)
    for each in every_kernel:
        first, out = run(each, plan, data, indices)
        if indices.size and not size:
            assert first == 0
            continue
        assert first == -1
        assert (
            out.reshape(index_shape).tobytes()
            == looped(data.reshape(shape), indices.reshape(index_shape), axis).tobytes()
        )
        if not size:
            continue
        near = data.reshape(shape)[tuple(slice(None if at == axis else n) for at, n in enumerate(index_shape))]
        positive = indices.reshape(index_shape) % size
        assert out.reshape(index_shape).tobytes() == np.take_along_axis(near, positive, axis).tobytes()


@for_each("item_size", CARRIERS)
@for_each(
    ("shape", "index_shape", "axis"),
    [
        ((300, 400), (300, 700), 1),
        ((300, 400), (1100, 350), 0),
        ((30, 40, 50), (29, 60, 41), 1),
        ((1 << 20,), (70_000,), 0),
        ((2, 1 << 19), (2, 40_000), 1),
        ((7, 3, 5, 2, 3, 4), (7, 2, 5, 9, 2, 3), 3),
    ],
)
def test_many_blocks_and_any_number_of_threads_give_the_same_bits(
    kernel: Kernel, shape: tuple[int, ...], index_shape: tuple[int, ...], axis: int, item_size: int
) -> None:
    source, numbers = random.Random(item_size), np.random.default_rng(item_size)
    plan = plan_of(shape, index_shape, axis, item_size)
    data = filled(prod(shape), item_size, source)
    indices = numbers.integers(-shape[axis], shape[axis], prod(index_shape))
    near = data.reshape(shape)[tuple(slice(None if at == axis else n) for at, n in enumerate(index_shape))]
    positive = indices.reshape(index_shape) % shape[axis]
    expected = np.take_along_axis(near, positive, axis).tobytes()
    for threads in (1, 2, 3, 7) if kernel.splits else (1,):
        first, out = run(kernel, plan, data, indices, threads)
        assert (first, out.tobytes() == expected) == (-1, True), threads
    bad = source.sample(range(indices.size), 3)
    indices[bad] = (shape[axis], -shape[axis] - 1, 2**62)
    for threads in (1, 2, 3, 7) if kernel.splits else (1,):
        assert run(kernel, plan, data, indices, threads)[0] == min(bad)


def test_an_entry_whose_product_with_the_stride_wraps_is_bad(kernel: Kernel) -> None:
    plan = plan_of((4, 4), (1, 4), 0, 4)
    data = np.arange(16, dtype=np.uint32)
    for entry in (2**62, 2**61, -(2**62), 2**63 - 1, -(2**63)):
        assert run(kernel, plan, data, np.array([0, 1, entry, 2]))[0] == 2


PLAN = plan_of((3, 4), (2, 4), 0, 4)
GOOD = (np.zeros(12, np.uint32), np.zeros(8, np.int64), np.zeros(8, np.uint32))


def _read_only() -> NDArray[Any]:
    made = np.zeros(8, np.uint32)
    made.flags.writeable = False
    return made


WRONG: dict[str, tuple[int, Any]] = {
    "short data": (0, np.zeros(11, np.uint32)),
    "long data": (0, np.zeros(13, np.uint32)),
    "data of two axes": (0, np.zeros((3, 4), np.uint32)),
    "data with gaps": (0, np.zeros(24, np.uint32)[::2]),
    "data of other items": (0, np.zeros(12, np.uint64)),
    "data of no carrier": (0, np.zeros(12, np.float32)),
    "no array": (0, [0] * 12),
    "none": (0, None),
    "short indices": (1, np.zeros(7, np.int64)),
    "long indices": (1, np.zeros(9, np.int64)),
    "indices of floats": (1, np.zeros(8)),
    "big-endian indices": (1, np.zeros(8, ">i8")),
    "short output": (2, np.zeros(7, np.uint32)),
    "long output": (2, np.zeros(9, np.uint32)),
    "output that is read-only": (2, _read_only()),
}


@for_each("name", WRONG)
def test_other_arrays_are_refused_before_they_are_touched(kernel: Kernel, name: str) -> None:
    number, wrong = WRONG[name]
    arrays: list[Any] = [*GOOD]
    arrays[number] = wrong
    with pytest.raises(TypeError):
        kernel.run(PLAN, *arrays)


@for_each(
    "change",
    [
        {"axis_size": 4},
        {"axis_stride": 5},
        {"strides": (0, 2)},
        {"strides": (1, 1)},
        {"strides": (2**62, 1)},
        {"axis_size": 2**62, "axis_stride": 2**62},
        {"axis_size": 2**63 - 1, "axis_stride": 1},
        {"sizes": (8,), "strides": (2,)},
        {"sizes": (-2, -4)},
        {"sizes": (2**33, 2**31)},
        {"strides": (-1, 1)},
        {"axis_size": -3},
        {"axis_stride": -4},
        {"data_items": 11},
        {"item_size": 8},
    ],
)
def test_a_plan_that_reaches_outside_its_arrays_is_refused(kernel: Kernel, change: dict[str, Any]) -> None:
    with pytest.raises((TypeError, OverflowError)):
        kernel.run(replace(PLAN, **change), *GOOD)


def test_huge_sizes_of_a_plan_without_entries_are_no_reason_to_read(kernel: Kernel) -> None:
    plan = GatherElementsPlan((0, 2**40), (2**40, 1), 2**20, 2**40, 0, 4, True)
    nothing = np.zeros(0, np.uint32)
    assert kernel.run(plan, nothing, np.zeros(0, np.int64), nothing) == -1


def test_a_plan_that_no_kernel_knows_is_refused(kernel: Kernel) -> None:
    with pytest.raises(TypeError, match="no function for a"):
        kernel.run(object(), *GOOD)  # type: ignore[arg-type]
