"""The rules of GatherElements on shapes, types and axis, and the plans that follow from them."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace
from itertools import product
from math import prod
from random import Random

import numpy as np
import pytest

from app.operators.dialects import GATHER_ELEMENTS
from app.operators.gather_elements import GatherElementsPlan, plan_gather_elements
from app.operators.shape_rules import check_limits
from app.tensors.dtypes import DTYPES
from app.tensors.gather_call import Call
from app.tensors.shape_limits import Limits
from app.tensors.tensor import Tensor

ONNX_13 = GATHER_ELEMENTS["onnx-13"]
LIMITS = Limits(elements=10**6, output_bytes=10**6)


def tensor(*shape: int, dtype: str = "float32", role: str = "data") -> Tensor:
    return Tensor(
        DTYPES[dtype],
        shape,
        np.zeros(0, np.float32),
        f"/{role}/values",
        shape_pointer=f"/{role}/shape",
        dtype_pointer=f"/{role}/dtype",
    )


def planned(
    shape: tuple[int, ...], index_shape: tuple[int, ...], axis: int = 0, limits: Limits = LIMITS
) -> tuple[GatherElementsPlan, tuple[int, ...], int]:
    data, indices = tensor(*shape), tensor(*index_shape, dtype="int64", role="indices")
    found = plan_gather_elements(ONNX_13, Call("gather_elements", data, indices, (axis,), "onnx-13"), data)
    check_limits({"data": data, "indices": indices}, found[1], data.dtype, limits)
    return found


def test_axes_that_follow_one_another_in_data_become_one() -> None:
    plan, _, _ = planned((4, 5, 6, 7), (4, 9, 6, 7), 1)
    assert (plan.sizes, plan.strides, plan.axis_size, plan.axis_stride) == ((4, 9, 42), (210, 0, 1), 5, 42)
    assert (plan.data_items, plan.index_items, plan.output_bytes) == (840, 1512, 6048)
    plan, _, _ = planned((4, 5, 6, 7), (4, 5, 6, 3), 3)
    assert (plan.sizes, plan.strides) == ((120, 3), (7, 0))
    plan, _, _ = planned((4, 5, 6, 7), (3, 4, 5, 7), 2)
    assert (plan.sizes, plan.strides) == ((3, 4, 5, 7), (210, 42, 0, 1))
    plan, _, _ = planned((1, 1), (1, 1), 1)
    assert (plan.sizes, plan.strides) == ((1,), (0,))


def test_plans_are_equal_by_what_they_say_and_one_with_other_sizes_counts_its_own_entries() -> None:
    plan, _, _ = planned((4, 5), (4, 9), 1)
    again, _, _ = planned((4, 5), (4, 9), 1)
    assert plan == again
    assert hash(plan) == hash(again)
    other = replace(plan, sizes=(2, 9))
    assert other != plan
    assert [each.index_items for each in (plan, other)] == [36, 18]
    assert [each.output_items for each in (plan, other)] == [36, 18]
    assert [each.tuples for each in (plan, other)] == [36, 18]
    with pytest.raises(FrozenInstanceError):
        plan.index_items = 1  # type: ignore[misc]


def test_the_places_of_a_plan_are_those_of_the_coordinates() -> None:
    source = Random(11)
    for _ in range(300):
        shape = tuple(source.randint(1, 4) for _ in range(source.randint(1, 5)))
        axis = source.randrange(len(shape))
        index_shape = tuple(source.randint(1, 6 if at == axis else size) for at, size in enumerate(shape))
        plan, _, _ = planned(shape, index_shape, axis)
        numbers = np.arange(prod(shape)).reshape(shape)
        entry = source.randrange(shape[axis])
        made = [
            sum(p * stride for p, stride in zip(place, plan.strides, strict=True)) + entry * plan.axis_stride
            for place in product(*map(range, plan.sizes))
        ]
        expected = [
            int(numbers[(*place[:axis], entry, *place[axis + 1 :])]) for place in product(*map(range, index_shape))
        ]
        assert made == expected, (shape, index_shape, axis)
