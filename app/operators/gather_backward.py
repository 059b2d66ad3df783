"""The gradient of Gather: the gather's rules on shapes, those on grad_output, and the plan that follows from them."""

from __future__ import annotations

from app.operators.backward_plan import BackwardPlan
from app.operators.backward_rules import (
    Backward,
    BackwardShapes,
    check_backward_limits,
    check_grad_output_shape,
    check_sparse,
    float_type,
)
from app.operators.dialects import Dialect
from app.operators.gather import check_batch_dims, check_shapes, make_plan
from app.operators.gathernd import check_batch_shape
from app.operators.shape_rules import check_rank
from app.tensors.backward_call import BackwardCall
from app.tensors.shape_limits import Limits
from app.tensors.tensor import Tensor


def plan_gather_backward(dialect: Dialect, call: BackwardCall, data: Tensor, limits: Limits) -> Backward:
    """Plan the gradient for `data` of grad_output's type, whose items are not read.

    Raises what `gather.plan_gather` raises but for the limits, invalid_field where a `sparse` gradient is not along
    axis 0, updates_shape_mismatch, limit_exceeded and output_too_large, in this order.
    """
    indices, grad_output, batch_dims, (axis,) = call.indices, call.grad_output, call.batch_dims, call.parameters
    pointer = call.pointer("axis")
    if batch_dims:
        check_rank(dialect, "data", data)
        axis, batch_dims = check_batch_dims(dialect, data, indices, batch_dims, axis, pointer)
        check_batch_shape(dialect, data, indices, batch_dims)
    output_shape, axis = check_shapes(dialect, data, indices, axis, pointer, batch_dims)
    check_sparse(call.sparse, axis, "axis", call.pointer("sparse"))
    check_grad_output_shape(dialect, data, grad_output, output_shape, limits)
    gather = make_plan(dialect, data, indices, axis, batch_dims)
    plan = BackwardPlan(gather, float_type(data.dtype), call.sparse, call.lda_coeff)
    check_backward_limits(data, indices, grad_output, plan, limits)
    return Backward(plan, BackwardShapes(data.shape, data.shape[axis + 1 :], ()), axis)
