"""The rules on types and shapes, by clause; the whole through HTTP is tests/http's."""

from __future__ import annotations

import numpy as np
import pytest

from app.errors import GatherError
from app.operators.dialects import GATHER, GATHERND
from app.operators.gather import plan_gather
from app.operators.gather_plan import GatherPlan
from app.operators.gathernd import plan_gathernd
from app.operators.index_out_of_bounds import index_error
from app.operators.registry import OPERATORS
from app.operators.shape_rules import check_dtypes, check_limits
from app.tensors.dtypes import DTYPES
from app.tensors.shape_limits import NUMPY_BYTES, Limits
from app.tensors.tensor import Tensor

LIMITS = Limits()


def tensor(*shape: int, dtype: str = "float32", name: str = "data") -> Tensor:
    """A tensor with a shape and no items: the rules on shapes look at nothing else."""
    row = DTYPES[dtype]
    return Tensor(row, shape, np.empty(0, row.numpy), f"/{name}/values", "flat", f"/{name}/shape", f"/{name}/dtype")


def indices(*shape: int, dtype: str = "int64") -> Tensor:
    return tensor(*shape, dtype=dtype, name="indices")


def gathernd(
    data: Tensor, index: Tensor, batch_dims: int = 0, dialect: str = "onnx-13", limits: Limits = LIMITS
) -> tuple[GatherPlan, tuple[int, ...], int]:
    planned = plan_gathernd(GATHERND[dialect], data, index, batch_dims, "/batch_dims")
    check_limits({"data": data, "indices": index}, planned[1], data.dtype, limits)
    return planned


def refused(
    code: str, data: Tensor, index: Tensor, batch_dims: int = 0, dialect: str = "onnx-13", limits: Limits = LIMITS
) -> GatherError:
    with pytest.raises(GatherError) as caught:
        gathernd(data, index, batch_dims, dialect, limits)
    assert caught.value.code == code
    return caught.value


@pytest.mark.parametrize(
    ("data", "index", "batch_dims", "output"),
    [
        ((2, 2), (2, 2), 0, (2,)),
        ((2, 2), (2, 1), 0, (2, 2)),
        ((2, 2, 2), (2, 1, 2), 0, (2, 1, 2)),
        ((2, 2, 2), (2, 1), 1, (2, 2)),
        ((1000, 256, 10, 15), (25, 125, 3), 0, (25, 125, 15)),
        ((30, 2, 100, 35), (30, 2, 3, 1), 2, (30, 2, 3, 35)),
        ((1, 64, 64, 320), (1, 64, 64, 1, 1), 3, (1, 64, 64, 1)),
        ((0, 3), (0, 1), 1, (0,)),
        ((2, 3, 0), (2, 1), 0, (2, 3, 0)),
    ],
)
def test_output_shape_is_indices_without_their_last_then_the_rest_of_data(
    data: tuple[int, ...], index: tuple[int, ...], batch_dims: int, output: tuple[int, ...]
) -> None:
    plan, shape, first_axis = gathernd(tensor(*data), indices(*index), batch_dims)
    assert shape == output
    assert first_axis == batch_dims
    assert plan.output_items == int(np.prod(output))
    assert plan.index_items == int(np.prod(index))
    assert plan.data_items == int(np.prod(data))
    assert not plan.broadcast_indices


@pytest.mark.parametrize(
    ("data", "index", "axis", "output"),
    [
        ((5, 7), (), 0, (7,)),
        ((5, 7, 3), (), 1, (5, 3)),
        ((5, 7), (2, 3), 0, (2, 3, 7)),
        ((5, 7), (2, 3), 1, (5, 2, 3)),
        ((5, 7), (2, 3), -1, (5, 2, 3)),
        ((5, 0), (0,), 1, (5, 0)),
    ],
)
def test_gather_comes_down_to_the_same_plan(
    data: tuple[int, ...], index: tuple[int, ...], axis: int, output: tuple[int, ...]
) -> None:
    plan, shape, first_axis = plan_gather(GATHER["onnx-13"], tensor(*data), indices(*index), axis, "/axis")
    assert shape == output
    assert first_axis == axis % len(data)
    assert plan.broadcast_indices
    assert plan.depth == 1
    assert plan.output_items == int(np.prod(output))


GATHER_8 = GATHER["openvino-8"]


@pytest.mark.parametrize(
    ("data", "index", "axis", "batch_dims", "output", "sets", "per_set"),
    [
        ((2, 5), (2, 3), 1, 1, (2, 3), 2, 1),
        ((2, 5), (2, 3), -1, -1, (2, 3), 2, 1),
        ((2, 1, 5, 4), (2, 3), 2, 1, (2, 1, 3, 4), 2, 1),
        ((2, 7, 5, 4), (2, 3), 2, 1, (2, 7, 3, 4), 2, 7),
        ((2, 3, 7, 5), (2, 3, 1, 6), 3, 2, (2, 3, 7, 1, 6), 6, 7),
        ((2, 3, 7, 5), (2, 3), 3, 2, (2, 3, 7), 6, 7),
        ((1, 7, 5), (1, 3), 2, 1, (1, 7, 3), 1, 0),
        ((4, 7, 5), (3,), 2, -1, (4, 7, 3), 1, 0),
        ((4, 7, 5), (), 2, 0, (4, 7), 1, 0),
        ((2, 64, 128), (2, 32, 21), 1, 1, (2, 32, 21, 128), 2, 1),
        ((2, 0, 5), (2, 3), 2, 1, (2, 0, 3), 1, 0),
        ((2, 7, 5, 0), (2, 3), 2, 1, (2, 7, 3, 0), 1, 0),
        ((0, 7, 5), (0, 3), 2, 1, (0, 7, 3), 1, 0),
    ],
)
def test_gather_8_has_a_set_of_indices_for_so_many_batches(
    data: tuple[int, ...],
    index: tuple[int, ...],
    axis: int,
    batch_dims: int,
    output: tuple[int, ...],
    sets: int,
    per_set: int,
) -> None:
    plan, shape, first_axis = plan_gather(GATHER_8, tensor(*data), indices(*index), axis, "/axis", batch_dims)
    assert shape == output
    assert first_axis == axis % len(data)
    assert plan.index_items == int(np.prod(index))
    assert plan.data_items == int(np.prod(data))
    assert plan.output_items == int(np.prod(output))
    assert plan.broadcast_indices == (sets == 1)
    assert plan.batches_per_set == per_set
    assert plan.broadcast_indices or plan.batches == sets * per_set


@pytest.mark.parametrize(
    ("index", "axis", "batch_dims", "code"),
    [
        ((2, 3), 1, 2, "batch_dims_out_of_range"),
        ((2, 3), 2, 3, "batch_dims_out_of_range"),
        ((2, 3), 2, -3, "batch_dims_out_of_range"),
        ((2, 3), 9, 10**30, "batch_dims_out_of_range"),
        ((2, 3), 9, 1, "axis_out_of_range"),
        ((3, 3), 9, 1, "axis_out_of_range"),
        ((3, 3), 2, 1, "batch_shape_mismatch"),
        ((1, 3), 2, 1, "batch_shape_mismatch"),
        ((3, 3), 0, -1, "batch_dims_out_of_range"),
    ],
)
def test_batch_dims_of_gather_8(index: tuple[int, ...], axis: int, batch_dims: int, code: str) -> None:
    with pytest.raises(GatherError) as caught:
        plan_gather(GATHER_8, tensor(2, 4, 5), indices(*index), axis, "/query/axis", batch_dims)
    assert caught.value.code == code
    assert caught.value.rule == GATHER_8.rules[code]
    if code.startswith("batch_dims"):
        assert caught.value.places[0].pointer == "/query/batch_dims"


@pytest.mark.parametrize(("data", "index"), [((), (1,)), ((1,), ())])
def test_rank_zero_is_too_small(data: tuple[int, ...], index: tuple[int, ...]) -> None:
    error = refused("rank_too_small", tensor(*data), indices(*index))
    assert error.rule is not None
    assert error.rule.clause == "1"


@pytest.mark.parametrize("batch_dims", [-1, 2, 2**63, -(2**63), 10**30])
def test_batch_dims_is_below_both_ranks(batch_dims: int) -> None:
    error = refused("batch_dims_out_of_range", tensor(2, 2, 2), indices(2, 1), batch_dims)
    assert error.places[0].pointer == "/batch_dims"
    assert error.places[0].value == batch_dims
    assert error.rule is not None
    assert error.rule.clause == "3"


@pytest.mark.parametrize("batch_dims", [1, -1])
def test_opset_11_has_no_batch_dims(batch_dims: int) -> None:
    error = refused("batch_dims_out_of_range", tensor(2, 2, 2), indices(2, 1), batch_dims, "onnx-11")
    assert error.rule is not None
    assert error.rule.clause is None


@pytest.mark.parametrize(("data", "index"), [((2, 3), (4, 1)), ((1, 3), (3, 1)), ((3, 3), (1, 1))])
def test_batch_dims_that_divide_or_broadcast_are_refused(data: tuple[int, ...], index: tuple[int, ...]) -> None:
    error = refused("batch_shape_mismatch", tensor(*data), indices(*index), 1)
    assert error.rule is not None
    assert error.rule.clause == "2"


@pytest.mark.parametrize("depth", [0, 3])
@pytest.mark.parametrize(
    ("dialect", "clause"), [("onnx-13", "4"), ("onnx-12", "4"), ("onnx-11", "2"), ("openvino-8", None)]
)
def test_depth_is_one_to_rank(depth: int, dialect: str, clause: str | None) -> None:
    error = refused("index_depth_out_of_range", tensor(2, 2), indices(1, depth), 0, dialect)
    assert error.rule is not None
    assert error.rule.clause == clause


@pytest.mark.parametrize(
    ("data", "index", "limits", "limit"),
    [
        ((1,) * 33, (1, 1), LIMITS, "rank"),
        ((1,), (1,) * 33, LIMITS, "rank"),
        ((1,) * 20, (1,) * 20, LIMITS, "rank"),
        ((2**40, 2**40, 0), (0, 1), LIMITS, "bytes"),
        ((9,), (1, 1), Limits(dimension=8), "dimension"),
        ((9, 9), (1, 1), Limits(elements=80), "elements"),
        ((2**63, 0), (0, 1), LIMITS, "dimension"),
    ],
)
def test_limits_are_named(data: tuple[int, ...], index: tuple[int, ...], limits: Limits, limit: str) -> None:
    error = refused("limit_exceeded", tensor(*data), indices(*index), limits=limits)
    assert error.facts["limit"] == limit


def test_an_output_far_larger_than_the_request_is_refused_from_its_shape() -> None:
    error = refused("output_too_large", tensor(2, 10**6), indices(10**6, 1))
    assert error.facts["maximum"] == LIMITS.output_bytes


def test_an_output_whose_product_overflows_64_bits_is_refused() -> None:
    refused("output_too_large", tensor(1, 2**31), indices(2**31, 2, 1), limits=Limits(elements=NUMPY_BYTES))


@pytest.mark.parametrize("operator", OPERATORS)
def test_every_dialect_takes_exactly_its_types(operator: str) -> None:
    for dialect in OPERATORS[operator].dialects.values():
        for name in DTYPES:
            for index_name in DTYPES:
                data, index = tensor(2, dtype=name), indices(1, 1, dtype=index_name)
                if name in dialect.data_dtypes and index_name in dialect.index_dtypes:
                    check_dtypes(dialect, data, index)
                    continue
                with pytest.raises(GatherError) as caught:
                    check_dtypes(dialect, data, index)
                assert caught.value.code == "unsupported_dtype"
                wrong = "data" if name not in dialect.data_dtypes else "indices"
                assert caught.value.places[0].pointer == f"/{wrong}/dtype"


def test_the_types_of_the_dialects_are_those_of_the_texts() -> None:
    assert len(GATHERND["onnx-13"].data_dtypes) == 16
    assert GATHERND["onnx-13"].data_dtypes - GATHERND["onnx-12"].data_dtypes == {"bfloat16"}
    assert GATHERND["onnx-13"].data_dtypes - GATHERND["openvino-8"].data_dtypes == {"complex64", "complex128"}
    assert len(GATHERND["openvino-8"].index_dtypes) == 8
    assert GATHER["onnx-13"].data_dtypes - GATHER["onnx-1"].data_dtypes == {"bfloat16"}


def test_all_bad_components_are_counted_and_ten_reported_in_row_major_order() -> None:
    index = indices(20, 2)
    index.array = np.zeros(40, np.int64)
    index.array[3::2] = 9
    error = index_error(GATHERND["onnx-13"], (2, 2), index, 0, 2)
    assert error.total == 19
    assert [place.position for place in error.places] == [(row, 1) for row in range(1, 11)]
    assert {place.axis for place in error.places} == {1}


@pytest.mark.parametrize(
    ("dtype", "value"), [("uint64", 2**64 - 1), ("int64", -(2**63)), ("int8", -128), ("uint8", 255)]
)
def test_extreme_indices_are_reported_exactly(dtype: str, value: int) -> None:
    index = indices(1, 1, dtype=dtype)
    index.array = np.array([value], DTYPES[dtype].numpy)
    place = index_error(GATHERND["openvino-8"], (2,), index, 0, 1).places[0]
    assert place.value == value
    assert place.allowed == (0, 1)


def test_on_an_axis_of_size_zero_nothing_is_allowed() -> None:
    index = indices(1, 1)
    index.array = np.zeros(1, np.int64)
    place = index_error(GATHERND["onnx-13"], (0,), index, 0, 1).places[0]
    assert place.size == 0
    assert place.allowed is None
