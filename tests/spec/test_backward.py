"""The rules of the gradients of the gathers, their order, and the plans that follow from them."""

from __future__ import annotations

from typing import Any

import numpy as np

from app.operators.backward import Backward, plan_gather_backward, plan_gathernd_backward
from app.operators.dialects import GATHER, GATHERND
from app.tensors.backward_call import BackwardCall
from app.tensors.dtypes import DTYPES
from app.tensors.operator_signature import BackwardName
from app.tensors.shape_limits import Limits
from app.tensors.tensor import Tensor

LIMITS = Limits(elements=10**6, output_bytes=10**5)
Shape = tuple[int, ...]


def tensor(shape: Shape, role: str, dtype: str = "float32") -> Tensor:
    return Tensor(DTYPES[dtype], shape, np.empty(0), shape_pointer=f"/{role}/shape", dtype_pointer=f"/{role}/dtype")


def asked(name: BackwardName, indices: Shape, grad_output: Shape, parameter: int, **options: Any) -> BackwardCall:
    rows, grad = tensor(indices, "indices", "int64"), tensor(grad_output, "grad_output")
    return BackwardCall(name, rows, grad, (), (parameter,), 1.0, options.pop("sparse", False), "onnx-13", **options)


def gathernd(
    data: Shape, indices: Shape, grad_output: Shape, batch_dims: int = 0, dialect: str = "onnx-13", **options: Any
) -> Backward:
    call = asked("gathernd_backward", indices, grad_output, batch_dims, **options)
    return plan_gathernd_backward(GATHERND[dialect], call, tensor(data, "data"), LIMITS)


def gather(data: Shape, indices: Shape, grad_output: Shape, axis: int = 0, **options: Any) -> Backward:
    call = asked("gather_backward", indices, grad_output, axis, **options)
    return plan_gather_backward(GATHER["onnx-13"], call, tensor(data, "data"), LIMITS)


def test_a_sparse_gradient_is_counted_by_the_distinct_tuples_that_there_can_be() -> None:
    plan = gathernd((10**5, 4), (6, 1), (6, 4), sparse=True).plan
    assert (plan.rows, plan.output_items, plan.output_bytes) == (6, 24, 96 + 6 * 16)
    plan = gathernd((3, 2, 4), (90, 2), (90, 4), sparse=True).plan
    assert (plan.rows, plan.output_bytes) == (6, 96 + 6 * 24)
    planned = gather((8, 4), (5, 5), (5, 5, 4), -2, sparse=True)
    assert (planned.plan.rows, planned.shapes) == (8, ((8, 4), (4,), ()))
