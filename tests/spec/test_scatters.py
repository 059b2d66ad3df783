"""The rules of ScatterND and ScatterElements on shapes, types and axis, and the plans that follow from them."""

from __future__ import annotations

import numpy as np
import pytest

from app.errors import GatherError
from app.operators.dialects import SCATTER_ELEMENTS, SCATTERND
from app.operators.scatter_plan import ScatterElementsPlan, ScatterNDPlan
from app.operators.scatters import plan_scatter_elements, plan_scatternd
from app.operators.shape_rules import check_limits
from app.tensors.dtypes import DTYPES
from app.tensors.gather_call import Call
from app.tensors.operator_signature import Reduction
from app.tensors.shape_limits import Limits
from app.tensors.tensor import Tensor

LIMITS = Limits(elements=10**6, output_bytes=10**6, rank=8)
Shape = tuple[int, ...]


def tensor(role: str, shape: Shape, dtype: str) -> Tensor:
    return Tensor(
        DTYPES[dtype],
        shape,
        np.zeros(0, np.float32),
        f"/{role}/values",
        shape_pointer=f"/{role}/shape",
        dtype_pointer=f"/{role}/dtype",
    )


def nd(
    shape: Shape, index_shape: Shape, updates_shape: Shape, *, dtype: str = "float32", updates: str | None = None,
    reduction: Reduction = "none", dialect: str = "onnx-18", limits: Limits = LIMITS,
) -> tuple[ScatterNDPlan, Shape, int]:  # fmt: skip
    data, indices = tensor("data", shape, dtype), tensor("indices", index_shape, "int64")
    call = Call("gathernd", data, indices, (0,), dialect, reduction=reduction)
    further = {"updates": tensor("updates", updates_shape, updates or dtype)}
    planned = plan_scatternd(SCATTERND[dialect], call, data, further)
    check_limits({"data": data, "indices": indices, **further}, planned[1], data.dtype, limits)
    return planned


def elements(
    shape: Shape, index_shape: Shape, updates_shape: Shape | None = None, axis: int = 0, *, dtype: str = "float32",
    updates: str | None = None, reduction: Reduction = "none", limits: Limits = LIMITS,
) -> tuple[ScatterElementsPlan, Shape, int]:  # fmt: skip
    data, indices = tensor("data", shape, dtype), tensor("indices", index_shape, "int64")
    call = Call("gather", data, indices, (axis,), "onnx-18", reduction=reduction)
    further = {"updates": tensor("updates", index_shape if updates_shape is None else updates_shape, updates or dtype)}
    planned = plan_scatter_elements(SCATTER_ELEMENTS["onnx-18"], call, data, further)
    check_limits({"data": data, "indices": indices, **further}, planned[1], data.dtype, limits)
    return planned


def test_limits_hold_for_updates_and_output_too() -> None:
    with pytest.raises(GatherError) as caught:
        nd((1000, 300), (1, 1), (1, 300))
    assert (caught.value.code, caught.value.places[0].pointer) == ("output_too_large", "/data/shape")
    few = Limits(elements=100, output_bytes=10**6, rank=8)
    with pytest.raises(GatherError) as caught:
        nd((10, 10), (20, 1), (20, 10), limits=few)
    assert (caught.value.code, caught.value.places[0].pointer) == ("limit_exceeded", "/updates/shape")
    with pytest.raises(GatherError) as caught:
        elements((2,), (101,), limits=few)
    assert (caught.value.code, caught.value.places[0].pointer) == ("limit_exceeded", "/indices/shape")
