"""The rules of the gradients of the gathers, their order, and the plans that follow from them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from app.errors import Code, GatherError
from app.operators.backward_rules import Backward, check_backward_dtypes, check_coefficient
from app.operators.dialects import GATHER, GATHERND
from app.operators.gather_backward import plan_gather_backward
from app.operators.gathernd_backward import plan_gathernd_backward
from app.tensors.dtypes import DTYPES
from app.tensors.shape_limits import Limits
from app.tensors.tensor import Tensor

LIMITS = Limits(elements=10**6, output_bytes=10**5)
Shape = tuple[int, ...]


def tensor(shape: Shape, role: str, dtype: str = "float32") -> Tensor:
    return Tensor(DTYPES[dtype], shape, np.empty(0), shape_pointer=f"/{role}/shape", dtype_pointer=f"/{role}/dtype")


def gathernd(
    data: Shape, indices: Shape, grad_output: Shape, batch_dims: int = 0, dialect: str = "onnx-13", **options: Any
) -> Backward:
    return plan_gathernd_backward(
        GATHERND[dialect],
        tensor(data, "data"),
        tensor(indices, "indices", "int64"),
        tensor(grad_output, "grad_output"),
        batch_dims,
        "/batch_dims",
        LIMITS,
        **options,
    )


def gather(data: Shape, indices: Shape, grad_output: Shape, axis: int = 0, **options: Any) -> Backward:
    return plan_gather_backward(
        GATHER["onnx-13"],
        tensor(data, "data"),
        tensor(indices, "indices", "int64"),
        tensor(grad_output, "grad_output"),
        axis,
        "/axis",
        LIMITS,
        **options,
    )


def test_the_plan_is_that_of_the_gather() -> None:
    planned = gathernd((2, 5, 7), (2, 9, 1), (2, 9, 7), 1)
    plan = planned.plan
    assert (plan.batches, plan.tuples, plan.dims, plan.slice_items) == (2, 9, (5,), 7)
    assert (plan.data_items, plan.output_items, plan.index_tuples, plan.rows) == (126, 70, 18, 10)
    assert planned.shapes == ((2, 5, 7), (7,), (1,))
    assert planned.first_axis == 1
    planned = gather((2, 5, 7), (3, 2), (2, 3, 2, 7), -2)
    plan = planned.plan
    assert (plan.batches, plan.tuples, plan.dims, plan.index_tuples, plan.rows) == (2, 6, (5,), 6, 10)
    assert planned.first_axis == 1


def test_a_sparse_gradient_is_counted_by_the_distinct_tuples_that_there_can_be() -> None:
    plan = gathernd((10**5, 4), (6, 1), (6, 4), sparse=True).plan
    assert (plan.rows, plan.output_items, plan.output_bytes) == (6, 24, 96 + 6 * 16)
    plan = gathernd((3, 2, 4), (90, 2), (90, 4), sparse=True).plan
    assert (plan.rows, plan.output_bytes) == (6, 96 + 6 * 24)
    planned = gather((8, 4), (5, 5), (5, 5, 4), -2, sparse=True)
    assert (planned.plan.rows, planned.shapes) == (8, ((8, 4), (4,), ()))


def refused(code: Code, pointer: str, planner: Any, *arguments: Any, **options: Any) -> GatherError:
    with pytest.raises(GatherError) as caught:
        planner(*arguments, **options)
    assert (caught.value.code, caught.value.places[0].pointer) == (code, pointer)
    return caught.value


def test_the_rules_in_their_order() -> None:
    wrong = (9, 9)  # of grad_output, which comes after the rules of the gather
    refused("rank_too_small", "/data/shape", gathernd, (), (2, 1), wrong)
    refused("rank_too_small", "/indices/shape", gathernd, (3,), (), wrong)
    refused("batch_dims_out_of_range", "/batch_dims", gathernd, (3,), (2, 1), wrong, 1)
    refused("batch_dims_out_of_range", "/batch_dims", gathernd, (3, 2), (3, 1), wrong, 2**70)
    refused("batch_dims_out_of_range", "/batch_dims", gathernd, (3, 2), (3, 1), wrong, 1, "onnx-11")
    refused("batch_shape_mismatch", "/indices/shape", gathernd, (2, 3), (4, 1), wrong, 1)
    refused("index_depth_out_of_range", "/indices/shape", gathernd, (2, 3), (4, 0), wrong)
    refused("axis_out_of_range", "/axis", gather, (2, 3), (4,), wrong, 2)
    refused("axis_out_of_range", "/axis", gather, (2, 3), (4,), wrong, -(2**63), sparse=True)
    # then its shape, and the limits last
    huge = (10**9, 10**9)
    error = refused("updates_shape_mismatch", "/grad_output/shape", gathernd, huge, (2, 1), wrong)
    assert error.hint == "Send the sizes of the gather's data at /data/shape: grad_output is of another gather."
    error = refused("updates_shape_mismatch", "/grad_output/shape", gathernd, (3, 5), (2, 1), wrong)
    assert error.hint == "Send grad_output of shape [2, 5]."
    assert error.rule is not None
    assert error.rule.clause is None
    refused("limit_exceeded", "/data/shape", gathernd, (10**7,), (2, 1), (2,))
    error = refused("output_too_large", "/data/shape", gathernd, (30_000,), (2, 1), (2,))
    assert "'sparse'" in (error.hint or "")
    assert gathernd((30_000,), (2, 1), (2,), sparse=True).plan.rows == 2
    refused("output_too_large", "/data/shape", gathernd, (30_000,), (25_000, 1), (25_000,), sparse=True)


def test_sparse_needs_the_first_axes() -> None:
    error = refused("invalid_field", "/sparse", gathernd, (2, 3), (2, 1, 1), (2, 1), 1, sparse=True)
    assert error.hint == "Leave out 'sparse', or send batch_dims 0."
    refused("invalid_field", "/sparse", gather, (2, 3), (4,), (2, 4), 1, sparse=True)
    refused(
        "invalid_field", "/query/sparse", gather, (2, 3), (4,), (2, 4), -1, sparse=True, sparse_pointer="/query/sparse"
    )
    assert gather((2, 3), (4,), (4, 3), -2, sparse=True).first_axis == 0


@pytest.mark.parametrize(
    ("resident", "indices", "grad_output", "dialect", "pointer"),
    [
        (None, "int64", "float32", "onnx-13", None),
        (None, "int64", "bfloat16", "onnx-13", None),
        ("float16", "int64", "float16", "onnx-11", None),
        (None, "uint8", "float64", "openvino-8", None),
        (None, "int64", "int32", "onnx-13", "/grad_output/dtype"),
        (None, "int64", "complex64", "onnx-13", "/grad_output/dtype"),
        (None, "int64", "string", "onnx-13", "/grad_output/dtype"),
        (None, "int64", "bfloat16", "onnx-12", "/grad_output/dtype"),
        (None, "int32", "int32", "onnx-13", "/indices/dtype"),
        ("float64", "int64", "float32", "onnx-13", "/grad_output/dtype"),
        ("int8", "float32", "bool", "onnx-13", "/data/dtype"),
        ("bfloat16", "int64", "bfloat16", "onnx-11", "/data/dtype"),
        ("float32", "int32", "float64", "onnx-13", "/indices/dtype"),
    ],
)
def test_types_of_the_tensor_then_of_indices_then_of_grad_output(
    resident: str | None, indices: str, grad_output: str, dialect: str, pointer: str | None
) -> None:
    given = (
        GATHERND[dialect],
        None if resident is None else tensor((3,), "data", resident),
        tensor((2, 1), "indices", indices),
        tensor((2,), "grad_output", grad_output),
    )
    if pointer is None:
        check_backward_dtypes(*given)
    else:
        assert refused("unsupported_dtype", pointer, check_backward_dtypes, *given).rule is not None


def test_the_coefficient_has_to_be_finite_in_the_type_of_the_sum() -> None:
    for dtype in ("float16", "bfloat16", "float32"):
        check_coefficient(-3.4028234e38, DTYPES[dtype], "/lda_coeff")
        check_coefficient(1e-300, DTYPES[dtype], "/lda_coeff")
        refused("value_not_representable", "/lda_coeff", check_coefficient, 1e39, DTYPES[dtype], "/lda_coeff")
    check_coefficient(1e300, DTYPES["float64"], "/lda_coeff")
