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
    check_rank(dialect, "data", data)
    shape = data.shape
    axis = check_axis(dialect, data, axis, pointer)
    output_shape = shape[:axis] + indices.shape + shape[axis + 1 :]
    check_limits(data, indices, output_shape, limits)
    plan = GatherPlan(
        batches=prod(shape[:axis]),
        tuples=prod(indices.shape),
        dims=shape[axis : axis + 1],
        slice_items=prod(shape[axis + 1 :]),
        item_size=data.dtype.carrier.itemsize,
        broadcast_indices=True,
        wrap=dialect.wrap,
    )
    return plan, output_shape, axis
