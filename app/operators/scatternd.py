"""ScatterND, GatherND's inverse, as ONNX 18 has it: the rules on its shapes, and which slices it writes.

With r = rank(data), k = indices.shape[-1]: updates.shape = indices.shape[:-1] + data.shape[k:]. Where the text leaves
the order open, it is row-major here: of two updates of one slice the later one wins, and reductions take them in turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.errors import GatherError, Place
from app.operators.dialects import SCATTERND
from app.operators.index_out_of_bounds import index_error
from app.operators.shape_rules import check_rank
from app.tensors.dtypes import DType
from app.tensors.scatter_call import ScatterCall
from app.tensors.tensor import Tensor


@dataclass(frozen=True, slots=True)
class ScatterPlan:
    """data is [prod(shape[:k]), slice_items]; update number i goes to row `rows[i]`."""

    rows: NDArray[np.int64]
    slice_items: int


def plan_scatter(dtype: DType, shape: Sequence[int], call: ScatterCall) -> ScatterPlan:
    """Check `call` against a tensor of this type and shape; indices are resolved and all within it.

    Raises unsupported_dtype, rank_too_small, index_depth_out_of_range, updates_shape_mismatch and
    index_out_of_bounds, in this order.
    """
    indices, updates = call.indices, call.updates
    _check_dtypes(dtype, call)
    data = Tensor(dtype, tuple(shape), np.empty(0), shape_pointer="/name")
    check_rank(SCATTERND, "the tensor", data)
    check_rank(SCATTERND, "indices", indices)
    depth = indices.shape[-1]
    if not 1 <= depth <= len(shape):
        raise GatherError(
            "index_depth_out_of_range",
            f"index tuples have length {depth}, outside [1, {len(shape)}]",
            places=[Place(indices.shape_pointer, value=depth, allowed=(1, len(shape)))],
            rule=SCATTERND.rules["index_depth_out_of_range"],
        )
    wanted = (*indices.shape[:-1], *shape[depth:])
    if updates.shape != wanted:
        raise GatherError(
            "updates_shape_mismatch",
            f"updates has shape {list(updates.shape)} and must have {list(wanted)}",
            pointer=updates.shape_pointer,
            rule=SCATTERND.rules["updates_shape_mismatch"],
            hint=f"Send updates of shape {list(wanted)}.",
        )
    return ScatterPlan(_rows(shape, indices, depth), prod(shape[depth:]))


def _check_dtypes(dtype: DType, call: ScatterCall) -> None:
    if call.indices.dtype.name not in SCATTERND.index_dtypes:
        raise GatherError(
            "unsupported_dtype",
            f"ScatterND does not take indices of type {call.indices.dtype.name}; it takes int64",
            pointer=call.indices.dtype_pointer,
            rule=SCATTERND.rules["index_dtype"],
            hint="Convert indices to int64.",
        )
    if call.updates.dtype is not dtype:
        raise GatherError(
            "unsupported_dtype",
            f"updates are of type {call.updates.dtype.name} and the tensor is of type {dtype.name}",
            pointer=call.updates.dtype_pointer,
            rule=SCATTERND.rules["data_dtype"],
            hint=f"Convert updates to {dtype.name}.",
        )
    if call.reduction != "none" and dtype.kind in ("bool", "string", "complex"):
        raise GatherError(
            "unsupported_dtype",
            f"a tensor of type {dtype.name} takes the reduction none only",
            pointer=call.reduction_pointer,
            hint=f"Write 'none' in place of {call.reduction!r}.",
        )


def _rows(shape: Sequence[int], indices: Tensor, depth: int) -> NDArray[np.int64]:
    """The row of each tuple, in row-major order. Raises index_out_of_bounds."""
    tuples: NDArray[Any] = indices.array.reshape(-1, depth)
    rows = np.zeros(len(tuples), np.int64)
    for axis in range(depth):
        size = shape[axis]
        column = tuples[:, axis]
        # Components are judged one by one: a flat offset may be in range where one of them is not.
        if len(column) and (int(column.min()) < -size or int(column.max()) >= size):
            raise index_error(SCATTERND, shape, indices, 0, depth)
        rows *= size
        rows += np.where(column < 0, column + size, column)
    return rows
