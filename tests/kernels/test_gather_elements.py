"""GatherElements on every kernel of the CPU, against loops over coordinates and NumPy's take_along_axis."""

from __future__ import annotations

import random
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.kernels import Kernel
from app.operators.dialects import GATHER_ELEMENTS
from app.operators.gather_elements import GatherElementsPlan, plan_gather_elements
from app.tensors.dtypes import DTYPES
from app.tensors.gather_call import Call
from app.tensors.tensor import Tensor
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


def run(
    kernel: Kernel, plan: GatherElementsPlan, data: NDArray[Any], indices: NDArray[Any], threads: int = 1
) -> tuple[int, NDArray[Any]]:
    out = np.zeros(plan.output_items, CARRIERS[plan.item_size])
    return kernel.run(plan, data, indices, out, threads), out


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


def test_huge_sizes_of_a_plan_without_entries_are_no_reason_to_read(kernel: Kernel) -> None:
    plan = GatherElementsPlan((0, 2**40), (2**40, 1), 2**20, 2**40, 0, 4, True)
    nothing = np.zeros(0, np.uint32)
    assert kernel.run(plan, nothing, np.zeros(0, np.int64), nothing) == -1
