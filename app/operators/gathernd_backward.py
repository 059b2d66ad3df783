"""The gradient of GatherND: the gather's rules on shapes, those on grad_output, and the plan that follows from them."""

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
from app.operators.gathernd import plan_gathernd
from app.tensors.backward_call import BackwardCall
from app.tensors.shape_limits import Limits
from app.tensors.tensor import Tensor


def plan_gathernd_backward(dialect: Dialect, call: BackwardCall, data: Tensor, limits: Limits) -> Backward:
    """Plan the gradient for `data` of grad_output's type, whose items are not read.

    Raises invalid_field where a `sparse` gradient has batches, what `plan_gathernd` raises,
    updates_shape_mismatch, limit_exceeded and output_too_large, in this order.
    """
    indices, grad_output, (batch_dims,) = call.indices, call.grad_output, call.parameters
    check_sparse(call.sparse, batch_dims, "batch_dims", call.pointer("sparse"))
    gather, output_shape, _ = plan_gathernd(dialect, call, data)
    check_grad_output_shape(dialect, data, grad_output, output_shape, limits)
    plan = BackwardPlan(gather, float_type(data.dtype), call.sparse, call.lda_coeff)
    check_backward_limits(data, indices, grad_output, plan, limits)
    depth = indices.shape[-1]
    return Backward(plan, BackwardShapes(data.shape, data.shape[batch_dims + depth :], (depth,)), batch_dims)
