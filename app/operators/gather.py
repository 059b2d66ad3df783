"""Gather: the rules on its axis and ranks, and how it comes down to GatherND's plan.

Gather along axis a picks, in each of the prod(data.shape[:a]) batches, the same slices: it is GatherND with
batch_dims = a and tuples of length 1, where every batch uses the one set of indices
(`GatherPlan.broadcast_indices`). Since the output is data.shape[:a] + indices.shape + data.shape[a+1:], the flat order
of the output is GatherND's too.
"""

from __future__ import annotations

from math import prod

from app.operators.dialects import Dialect
from app.operators.gather_plan import GatherPlan
from app.operators.shape_rules import check_axis, check_limits, check_rank
from app.tensors.shape_limits import Limits
from app.tensors.tensor import Tensor


def plan_gather(
    dialect: Dialect, data: Tensor, indices: Tensor, axis: int, pointer: str, limits: Limits
) -> tuple[GatherPlan, tuple[int, ...], int]:
    """Check rank and axis; return the plan, the output shape and the axis counted from the front.

    Raises rank_too_small, axis_out_of_range, limit_exceeded or output_too_large, in this order.
    """
    output_shape, axis = check_shapes(dialect, data, indices, axis, pointer)
    check_limits(data, indices, output_shape, limits)
    return make_plan(dialect, data, indices, axis), output_shape, axis


def check_shapes(
    dialect: Dialect, data: Tensor, indices: Tensor, axis: int, pointer: str
) -> tuple[tuple[int, ...], int]:
    """The output's shape, and the axis counted from the front. Raises rank_too_small or axis_out_of_range."""
    check_rank(dialect, "data", data)
    axis = check_axis(dialect, data, axis, pointer)
    return data.shape[:axis] + indices.shape + data.shape[axis + 1 :], axis


def make_plan(dialect: Dialect, data: Tensor, indices: Tensor, axis: int) -> GatherPlan:
    """The plan for shapes that have been checked; `axis` counts from the front."""
    shape = data.shape
    return GatherPlan(
        batches=prod(shape[:axis]),
        tuples=prod(indices.shape),
        dims=shape[axis : axis + 1],
        slice_items=prod(shape[axis + 1 :]),
        item_size=data.dtype.carrier.itemsize,
        broadcast_indices=True,
        wrap=dialect.wrap,
    )
