"""Scatters: their plans, the slices that they write, and the rules on their shapes.

ScatterND, the inverse of GatherND: with r = rank(data) and k = indices.shape[-1], updates.shape = indices.shape[:-1] +
data.shape[k:]. The specification does not define the order of updates; this implementation uses row-major order. If two
updates target the same slice, the later one wins; reductions apply both in that order.

ScatterElements, the inverse of GatherElements: with r = rank(data) = rank(indices) and an axis a of data, updates.shape
= indices.shape and output.shape = data.shape. The update at (..., i, ...) goes to the same position of the output,
except that the value of indices replaces the coordinate on axis a.

Upserts and removals by key change whole rows of a table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from app.errors import GatherError, Place
from app.operators.dialects import SCATTERND, Dialect
from app.operators.gather_elements import check_axis_and_shapes, places_in_data
from app.operators.gathers import check_depth
from app.operators.index_out_of_bounds import index_error
from app.operators.scatter_plan import ScatterElementsPlan, ScatterNDPlan
from app.operators.shape_rules import (
    check_rank,
    check_updates_type,
    check_wanted_shape,
)
from app.tensors.dtypes import DType
from app.tensors.gather_call import Call
from app.tensors.scatter_call import KeyedCall, ScatterCall
from app.tensors.tensor import Tensor

_INTO_RESIDENT: Final = SCATTERND["onnx-18"]
"""The dialect of scatters into resident tensors."""


def plan_scatternd(
    dialect: Dialect, call: Call, data: Tensor, further: Mapping[str, Tensor]
) -> tuple[ScatterNDPlan, tuple[int, ...], int]:
    """Check the type of updates and all shapes. Returns the plan, the output shape, and the first component's axis, 0.

    Raises unsupported_dtype, rank_too_small, index_depth_out_of_range or updates_shape_mismatch, in this order.
    """
    indices, updates = call.indices, further["updates"]
    check_updates_type(dialect, data.dtype, updates, call)
    check_rank(dialect, "data", data)
    check_rank(dialect, "indices", indices)
    check_depth(dialect, data, indices, 0)
    shape, depth = data.shape, indices.shape[-1]
    check_wanted_shape(dialect, "updates", updates, (*indices.shape[:-1], *shape[depth:]))
    plan = ScatterNDPlan(
        tuples=prod(indices.shape[:-1]),
        dims=shape[:depth],
        slice_items=prod(shape[depth:]),
        item_size=data.dtype.carrier.itemsize,
        wrap=dialect.wrap,
        dtype=data.dtype.name,
        reduction=call.reduction,
    )
    return plan, shape, 0


@dataclass(frozen=True, slots=True)
class ScatterPlan:
    """data is [prod(shape[:k]), slice_items]. Update i goes to row `rows[i]`."""

    rows: NDArray[np.int64]
    slice_items: int


def plan_scatter(dtype: DType, shape: Sequence[int], call: ScatterCall) -> ScatterPlan:
    """Check `call` against a resident tensor of this type and shape, and resolve its indices.

    Raises unsupported_dtype, rank_too_small, index_depth_out_of_range, updates_shape_mismatch and index_out_of_bounds,
    in this order.
    """
    indices, dialect = call.indices, _INTO_RESIDENT
    if indices.dtype.name not in dialect.index_dtypes:
        raise GatherError(
            "unsupported_dtype",
            f"ScatterND does not accept indices of type {indices.dtype.name}; it accepts int64",
            pointer=indices.dtype_pointer,
            rule=dialect.rules["index_dtype"],
            hint="Convert indices to int64.",
        )
    check_updates_type(dialect, dtype, call.updates, call, "the tensor")
    data = Tensor(dtype, tuple(shape), np.empty(0), shape_pointer="/name")
    check_rank(dialect, "the tensor", data)
    check_rank(dialect, "indices", indices)
    check_depth(dialect, data, indices, 0)
    depth = indices.shape[-1]
    check_wanted_shape(dialect, "updates", call.updates, (*indices.shape[:-1], *shape[depth:]))
    return ScatterPlan(_rows(shape, indices, depth), prod(shape[depth:]))


def _rows(shape: Sequence[int], indices: Tensor, depth: int) -> NDArray[np.int64]:
    """Return the row of each tuple, in row-major order. Raises index_out_of_bounds."""
    tuples: NDArray[Any] = indices.array.reshape(-1, depth)
    rows = np.zeros(len(tuples), np.int64)
    for axis in range(depth):
        size = shape[axis]
        column = tuples[:, axis]
        # Check each component: a flat offset may be in range even if a component is not.
        if len(column) and (int(column.min()) < -size or int(column.max()) >= size):
            raise index_error(_INTO_RESIDENT, shape, indices, 0, depth)
        rows *= size
        rows += np.where(column < 0, column + size, column)
    return rows


def plan_scatter_elements(
    dialect: Dialect, call: Call, data: Tensor, further: Mapping[str, Tensor]
) -> tuple[ScatterElementsPlan, tuple[int, ...], int]:
    """Check the type of updates, ranks, axis and shapes.

    Returns the plan, the output shape, and the axis from the front. Raises unsupported_dtype, rank_too_small,
    rank_mismatch, axis_out_of_range, indices_shape_mismatch or updates_shape_mismatch, in this order.
    """
    updates = further["updates"]
    check_updates_type(dialect, data.dtype, updates, call)
    axis = check_axis_and_shapes(dialect, call, data)
    check_wanted_shape(dialect, "updates", updates, call.indices.shape)
    places = places_in_data(data.shape, call.indices.shape, axis)
    plan = ScatterElementsPlan(*places, data.dtype.carrier.itemsize, dialect.wrap, data.dtype.name, call.reduction)
    return plan, data.shape, axis


def row_items(dtype: DType, shape: Sequence[int], call: KeyedCall) -> int:
    """Check `call` against a table of this type and shape. Returns the number of items per row.

    Keys must have one dimension, and updates must have one row per key. The type of the keys is not checked. Raises
    unsupported_dtype, rank_mismatch and updates_shape_mismatch.
    """
    keys, updates, dialect = call.keys, call.updates, SCATTERND["onnx-18"]
    if updates is not None:
        check_updates_type(dialect, dtype, updates, call, "the table")
    rank = len(keys.shape)
    if rank != 1:
        raise GatherError(
            "rank_mismatch",
            f"keys has rank {rank}, but needs rank 1",
            places=[Place(keys.shape_pointer, value=rank, allowed=(1, 1))],
            hint=f"Give the keys one dimension at {keys.shape_pointer}.",
        )
    if updates is not None:
        check_wanted_shape(dialect, "updates", updates, (*keys.shape, *shape[1:]))
    return prod(shape[1:])
