"""ScatterElements, the inverse of GatherElements: the rules on its shapes, and its plan.

With r = rank(data) = rank(indices) and an axis a of data, updates.shape = indices.shape and output.shape = data.shape.
The update at (..., i, ...) goes to the same position of the output, except that the value of indices replaces the
coordinate on axis a.
"""

from __future__ import annotations

from collections.abc import Mapping

from app.operators.dialects import Dialect
from app.operators.gather_elements import check_axis_and_shapes, places_in_data
from app.operators.scatter_plan import ScatterElementsPlan
from app.operators.shape_rules import check_updates_type, check_wanted_shape
from app.tensors.gather_call import Call
from app.tensors.tensor import Tensor


def plan_scatter_elements(
    dialect: Dialect, call: Call, data: Tensor, further: Mapping[str, Tensor]
) -> tuple[ScatterElementsPlan, tuple[int, ...], int]:
    """Check updates' type, ranks, axis and shapes. Returns the plan, the output shape, and the axis from the front.

    Raises unsupported_dtype, rank_too_small, rank_mismatch, axis_out_of_range, indices_shape_mismatch or
    updates_shape_mismatch, in this order.
    """
    updates = further["updates"]
    check_updates_type(dialect, data.dtype, updates, call)
    axis = check_axis_and_shapes(dialect, call, data)
    check_wanted_shape(dialect, "updates", updates, call.indices.shape)
    places = places_in_data(data.shape, call.indices.shape, axis)
    plan = ScatterElementsPlan(*places, data.dtype.carrier.itemsize, dialect.wrap, data.dtype.name, call.reduction)
    return plan, data.shape, axis
