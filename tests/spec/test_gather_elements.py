"""The rules of GatherElements on shapes, types and axis, and the plans that follow from them."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace
from itertools import product
from math import prod
from random import Random

import numpy as np
import pytest

from app.errors import Code, GatherError
from app.operators.dialects import GATHER_ELEMENTS
from app.operators.gather_elements import GatherElementsPlan, plan_gather_elements
from app.operators.index_out_of_bounds import index_error
from app.operators.shape_rules import check_limits
from app.tensors.dtypes import DTYPES
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
    found = plan_gather_elements(ONNX_13, data, indices, axis, "/axis")
    check_limits({"data": data, "indices": indices}, found[1], data.dtype, limits)
    return found


def refused(
    code: Code, shape: tuple[int, ...], index_shape: tuple[int, ...], axis: int = 0, limits: Limits = LIMITS
) -> GatherError:
    with pytest.raises(GatherError) as caught:
        planned(shape, index_shape, axis, limits)
    assert caught.value.code == code
    assert code in ("limit_exceeded", "output_too_large") or caught.value.rule == ONNX_13.rules[code]
    return caught.value


def test_the_output_has_the_shape_of_the_indices_and_the_axis_counts_from_the_front() -> None:
    assert planned((2, 3), (2, 5), 1)[1:] == ((2, 5), 1)
    assert planned((2, 3, 4), (9, 3, 1), -3)[1:] == ((9, 3, 1), 0)
    assert planned((0, 3), (0, 3), 1)[1:] == ((0, 3), 1)


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


@pytest.mark.parametrize("index_shape", [(), (2,), (2, 1, 1)])
def test_indices_of_another_rank_are_refused(index_shape: tuple[int, ...]) -> None:
    error = refused("rank_mismatch", (2, 3), index_shape)
    (place,) = error.places
    assert (place.pointer, place.value, place.allowed) == ("/indices/shape", len(index_shape), (2, 2))


def test_data_of_rank_0_is_refused_before_the_ranks_are_compared() -> None:
    for index_shape in ((), (1,)):
        assert refused("rank_too_small", (), index_shape).places[0].pointer == "/data/shape"


@pytest.mark.parametrize("axis", [2, -3, 2**63, -(2**63), 10**30, -(10**30)])
def test_an_axis_that_data_has_not_is_refused(axis: int) -> None:
    (place,) = refused("axis_out_of_range", (2, 3), (2, 9), axis).places
    assert (place.pointer, place.value, place.allowed) == ("/axis", axis, (-2, 1))


def test_indices_may_be_larger_than_data_along_the_axis_alone() -> None:
    (place,) = refused("indices_shape_mismatch", (2, 3), (9, 4), 0).places
    assert (place.pointer, place.value, place.axis, place.size) == ("/indices/shape", 4, 1, 3)
    assert refused("indices_shape_mismatch", (2, 3), (3, 3), -1).places[0].axis == 0
    assert refused("indices_shape_mismatch", (0, 3), (1, 3), 1).places[0].allowed == (0, 0)
    planned((2, 3), (9, 2), 0)


def test_indices_have_the_sizes_of_data_in_the_dialect_of_openvino() -> None:
    data = tensor(2, 3)
    for index_shape, axis in (((1, 3), 1), ((2, 2), 0), ((9, 4), -2)):
        with pytest.raises(GatherError) as caught:
            plan_gather_elements(
                GATHER_ELEMENTS["openvino-6"], data, tensor(*index_shape, role="indices"), axis, "/axis"
            )
        size = data.shape[1 - axis % 2]
        (place,) = caught.value.places
        assert (caught.value.code, place.allowed, place.size) == ("indices_shape_mismatch", (size, size), size)
        assert caught.value.hint == (
            f"Make dimension {1 - axis % 2} of indices {size}, the size of data there, or choose another axis."
        )
    plan, shape, _ = plan_gather_elements(GATHER_ELEMENTS["openvino-6"], data, tensor(9, 3, role="indices"), 0, "/axis")
    assert (shape, plan.wrap) == ((9, 3), False)


def test_rules_are_judged_in_their_order() -> None:
    refused("rank_mismatch", (2, 3), (9,), 7)
    refused("axis_out_of_range", (2, 3), (9, 9), 7)
    refused("indices_shape_mismatch", (2, 3), (9, 9), 1, Limits(dimension=8))
    refused("limit_exceeded", (2, 3), (2, 9), 1, Limits(dimension=8))
    refused("output_too_large", (2, 3), (2, 9), 1, Limits(output_bytes=71))
    planned((2, 3), (2, 9), 1, Limits(output_bytes=72))


def test_the_types_are_those_of_the_texts() -> None:
    float8 = {name for name in DTYPES if name.startswith("float8")}
    assert GATHER_ELEMENTS["onnx-13"].data_dtypes == set(DTYPES) - float8
    assert GATHER_ELEMENTS["onnx-11"].data_dtypes == set(DTYPES) - float8 - {"bfloat16"}
    assert GATHER_ELEMENTS["openvino-6"].data_dtypes == set(DTYPES) - {"complex64", "complex128"}
    for dialect in GATHER_ELEMENTS.values():
        assert dialect.index_dtypes == {"int32", "int64"}
        assert all(rule.clause is None for rule in dialect.rules.values())


def test_the_first_ten_bad_entries_are_named_and_all_are_counted() -> None:
    values = np.array([0, 3, -4, 2] * 6, np.int64)
    indices = Tensor(DTYPES["int64"], (4, 6), values, "/indices/values", shape_pointer="/indices/shape")
    error = index_error(ONNX_13, (4, 3), indices, 1, 1)
    assert error.total == 12
    assert [place.position for place in error.places] == [
        divmod(item, 6) for item in range(24) if values[item] in (3, -4)
    ][:10]
    assert {(place.axis, place.size, place.allowed) for place in error.places} == {(1, 3, (-3, 2))}
