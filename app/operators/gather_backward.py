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
from app.operators.gather import plan_gather
from app.tensors.backward_call import BackwardCall
from app.tensors.shape_limits import Limits
from app.tensors.tensor import Tensor


def plan_gather_backward(dialect: Dialect, call: BackwardCall, data: Tensor, limits: Limits) -> Backward:
    """Plan the gradient for `data` of grad_output's type, whose items are not read.

    Raises what `plan_gather` raises but for the limits, invalid_field where a `sparse` gradient is not along
    axis 0, updates_shape_mismatch, limit_exceeded and output_too_large, in this order.
    """
    indices, grad_output = call.indices, call.grad_output
    gather, output_shape, axis = plan_gather(dialect, call, data)
    check_sparse(call.sparse, axis, "axis", call.pointer("sparse"))
    check_grad_output_shape(dialect, data, grad_output, output_shape, limits)
    plan = BackwardPlan(gather, float_type(data.dtype), call.sparse, call.lda_coeff)
    check_backward_limits(data, indices, grad_output, plan, limits)
    return Backward(plan, BackwardShapes(data.shape, data.shape[axis + 1 :], ()), axis)
