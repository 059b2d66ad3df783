"""Plan the gradients of gathers: check the gather's own rules, then types, grad_output, limits and `lda_coeff`.

The specifications of the gathers do not define gradients. The rules here are our own, so they have no clause numbers.
"""

from __future__ import annotations

from math import isinf, prod
from typing import NamedTuple, cast

import numpy as np

from app.errors import GatherError, Place, Rule, invalid_field
from app.operators.backward_plan import FLOAT_TYPES, BackwardPlan, FloatType
from app.operators.dialects import Dialect
from app.operators.gather_plan import GatherPlan
from app.operators.gathers import plan_gather, plan_gathernd
from app.operators.shape_rules import check_index_dtype, check_shape_limits
from app.operators.specification_clauses import BACKWARD
from app.tensors.backward_call import BackwardCall
from app.tensors.dtypes import DType
from app.tensors.shape_limits import Limits
from app.tensors.tensor import Tensor


class BackwardShapes(NamedTuple):
    """Shapes of the outputs: grad_data, one slice of it, and one entry of grad_indices."""

    data: tuple[int, ...]
    slice: tuple[int, ...]
    entry: tuple[int, ...]


class Backward(NamedTuple):
    """A planned gradient. `first_axis` is the axis of data to which the first component of an index tuple belongs."""

    plan: BackwardPlan
    shapes: BackwardShapes
    first_axis: int


def plan_gathernd_backward(dialect: Dialect, call: BackwardCall, data: Tensor, limits: Limits) -> Backward:
    """Plan the gradient of a GatherND. `data` has grad_output's type; its items are not read.

    Raises invalid_field if a `sparse` gradient has batches, and then the errors of `plan_gathernd`,
    updates_shape_mismatch, limit_exceeded or output_too_large, in this order.
    """
    (batch_dims,) = call.parameters
    _check_sparse(call, batch_dims, "batch_dims")
    gather, output_shape, _ = plan_gathernd(dialect, call, data)
    return _plan(dialect, call, data, limits, gather, output_shape, batch_dims, call.indices.shape[-1:])


def plan_gather_backward(dialect: Dialect, call: BackwardCall, data: Tensor, limits: Limits) -> Backward:
    """Plan the gradient of a Gather. `data` has grad_output's type; its items are not read.

    Raises the errors of `plan_gather`, then invalid_field if a `sparse` gradient is along an axis other than 0, and
    then updates_shape_mismatch, limit_exceeded or output_too_large, in this order.
    """
    gather, output_shape, axis = plan_gather(dialect, call, data)
    _check_sparse(call, axis, "axis")
    return _plan(dialect, call, data, limits, gather, output_shape, axis, ())


def _plan(
    dialect: Dialect,
    call: BackwardCall,
    data: Tensor,
    limits: Limits,
    gather: GatherPlan,
    output_shape: tuple[int, ...],
    first_axis: int,
    entry: tuple[int, ...],
) -> Backward:
    _check_grad_output_shape(dialect, data, call.grad_output, output_shape, limits)
    plan = BackwardPlan(gather, cast(FloatType, data.dtype.name), call.sparse, call.lda_coeff)
    _check_limits(data, call.indices, call.grad_output, plan, limits)
    slice_shape = data.shape[first_axis + gather.depth :]
    return Backward(plan, BackwardShapes(data.shape, slice_shape, entry), first_axis)


def check_backward_dtypes(dialect: Dialect, resident: Tensor | None, indices: Tensor, grad_output: Tensor) -> None:
    """Check the types of the resident tensor (if it supplies the shape), of indices, and of grad_output, in this order.

    The tensor and grad_output must have the same type, which must be a float type of the dialect. Raises
    unsupported_dtype.
    """
    if resident is not None:
        sizes = ",".join(map(str, resident.shape)) if resident.dtype_pointer.startswith("/query") else None
        shape = list(resident.shape) if sizes is None else sizes
        _check_float(dialect, resident, "the tensor", f"Send 'data_shape' {shape} in place of 'tensor'.")
    check_index_dtype(dialect, indices)
    _check_float(dialect, grad_output, "grad_output", "Convert grad_output to float32, for data of that type.")
    if resident is not None and resident.dtype is not grad_output.dtype:
        raise GatherError(
            "unsupported_dtype",
            f"grad_output is of type {grad_output.dtype.name}, but the tensor is of type {resident.dtype.name}",
            pointer=grad_output.dtype_pointer,
            rule=_rule(dialect, "data_dtype"),
            hint=f"Convert grad_output to {resident.dtype.name}.",
        )


def _check_float(dialect: Dialect, tensor: Tensor, role: str, hint: str) -> None:
    allowed = [name for name in FLOAT_TYPES if name in dialect.data_dtypes]
    if tensor.dtype.name not in allowed:
        raise GatherError(
            "unsupported_dtype",
            f"{role} is of type {tensor.dtype.name}; the gradient of {dialect.name} accepts {', '.join(allowed)}",
            pointer=tensor.dtype_pointer,
            rule=_rule(dialect, "data_dtype"),
            hint=hint,
        )


def _check_grad_output_shape(
    dialect: Dialect, data: Tensor, grad_output: Tensor, wanted: tuple[int, ...], limits: Limits
) -> None:
    """Check that grad_output has the shape of the gather's output. Raises updates_shape_mismatch."""
    if grad_output.shape != wanted:
        hint = f"Send grad_output of shape {list(wanted)}."
        if prod(wanted) > limits.elements:  # grad_output cannot have this shape
            hint = f"Send the sizes of the gather's data at {data.shape_pointer}: grad_output is of another gather."
        raise GatherError(
            "updates_shape_mismatch",
            (
                f"grad_output has shape {list(grad_output.shape)}, but must have {list(wanted)}, the shape of the "
                "gather's output"
            ),
            pointer=grad_output.shape_pointer,
            rule=_rule(dialect, "updates_shape_mismatch"),
            hint=hint,
        )


def _check_sparse(call: BackwardCall, first_axis: int, parameter: str) -> None:
    """Check that the indices of a `sparse` gradient belong to the first axes of data. Raises invalid_field."""
    if call.sparse and first_axis != 0:
        raise invalid_field(
            call.pointer("sparse"),
            f"sparse needs {parameter} 0, but it is {first_axis}: only slices along the first axes have indices of "
            "their own",
            f"Leave out 'sparse', or send {parameter} 0.",
        )


def _check_limits(data: Tensor, indices: Tensor, grad_output: Tensor, plan: BackwardPlan, limits: Limits) -> None:
    """Check sizes exactly, from the shapes alone. Raises limit_exceeded or, for the result, output_too_large."""
    check_shape_limits("data", data.shape, data.dtype, limits, data.shape_pointer)
    check_shape_limits("indices", indices.shape, indices.dtype, limits, indices.shape_pointer)
    if plan.output_bytes > limits.output_bytes:
        what = f"grad_data of shape {list(data.shape)} would have"
        hint = None
        if plan.sparse:
            what = f"grad_indices and grad_values of up to {plan.rows} distinct tuples would have up to"
        elif plan.batches == 1 or not plan.broadcast_indices:
            hint = "Request only the distinct slices, with 'sparse' true, or fewer slices at a time."
        raise GatherError(
            "output_too_large",
            f"{what} {plan.output_bytes} bytes; the limit is {limits.output_bytes}",
            pointer=data.shape_pointer,
            facts={"limit": "output_bytes", "maximum": limits.output_bytes},
            hint=hint,
        )
    check_shape_limits("grad_output", grad_output.shape, grad_output.dtype, limits, grad_output.shape_pointer)


def check_coefficient(coefficient: float, dtype: DType, pointer: str) -> None:
    """Check that `lda_coeff` is finite in the type of the sums. Raises value_not_representable."""
    if dtype.name != "float64":
        with np.errstate(over="ignore"):
            coefficient_32 = float(np.float32(coefficient))
        if isinf(coefficient_32):
            raise GatherError(
                "value_not_representable",
                f"lda_coeff = {coefficient} is beyond float32, in which sums of {dtype.name} are multiplied by it",
                places=[Place(pointer, value=coefficient)],
                hint=f"Send a number from -3.4028234e38 to 3.4028234e38 at {pointer}.",
            )


def _rule(dialect: Dialect, key: str) -> Rule:
    return Rule(dialect.name, *BACKWARD[key])
