"""GatherND: the rules on its shapes, its plan and its output shape.

With r = rank(data), q = rank(indices), k = indices.shape[-1] and b = batch_dims, output.shape = indices.shape[:-1] +
data.shape[b+k:].
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from app.errors import GatherError, Place
from app.operators.dialects import Dialect
from app.operators.gather_plan import GatherPlan
from app.operators.shape_rules import NO_TENSORS, check_rank, shorten
from app.tensors.backward_call import BackwardCall
from app.tensors.gather_call import Call
from app.tensors.tensor import Tensor


def plan_gathernd(
    dialect: Dialect, call: Call | BackwardCall, data: Tensor, further: Mapping[str, Tensor] = NO_TENSORS
) -> tuple[GatherPlan, tuple[int, ...], int]:
    """Check the shapes. Returns the plan, the output shape, and the data axis of the first index component (b).

    Raises rank_too_small, batch_dims_out_of_range, batch_shape_mismatch or index_depth_out_of_range, in this order.
    """
    indices, (batch_dims,) = call.indices, call.parameters
    check_rank(dialect, "data", data)
    check_rank(dialect, "indices", indices)
    check_batch_dims(dialect, data, indices, batch_dims, call.pointer("batch_dims"))
    check_batch_shape(dialect, data, indices, batch_dims)
    check_depth(dialect, data, indices, batch_dims)
    shape, index_shape = data.shape, indices.shape
    inner = batch_dims + index_shape[-1]
    plan = GatherPlan(
        batches=prod(shape[:batch_dims]),
        tuples=prod(index_shape[batch_dims:-1]),
        dims=shape[batch_dims:inner],
        slice_items=prod(shape[inner:]),
        item_size=data.dtype.carrier.itemsize,
        broadcast_indices=False,
        wrap=dialect.wrap,
    )
    return plan, index_shape[:-1] + shape[inner:], batch_dims


def check_batch_dims(dialect: Dialect, data: Tensor, indices: Tensor, batch_dims: int, pointer: str) -> None:
    """Check clause 3, 0 <= b < min(q, r). GatherND-11 has no batch_dims: b = 0. Raises batch_dims_out_of_range."""
    limit = min(len(data.shape), len(indices.shape)) if dialect.has_batch_dims else 1
    if not 0 <= batch_dims < limit:
        reason = (
            f"is outside [0, {limit - 1}], as data has rank {len(data.shape)} and indices rank {len(indices.shape)}"
            if dialect.has_batch_dims
            else f"is not 0, and {dialect.name} has no batch_dims"
        )
        raise GatherError(
            "batch_dims_out_of_range",
            f"batch_dims = {shorten(batch_dims)} {reason}",
            places=[Place(pointer, value=batch_dims, allowed=(0, limit - 1))],
            rule=dialect.rules["batch_dims_out_of_range"],
            hint=None if dialect.has_batch_dims else f"Leave out 'batch_dims', which {dialect.name} does not have.",
        )


def check_batch_shape(dialect: Dialect, data: Tensor, indices: Tensor, batch_dims: int) -> None:
    """Check clause 2, data.shape[:b] == indices.shape[:b], without broadcasting. Raises batch_shape_mismatch."""
    for axis in range(batch_dims):
        if data.shape[axis] != indices.shape[axis]:
            raise GatherError(
                "batch_shape_mismatch",
                f"batch axis {axis} has size {data.shape[axis]} in data and {indices.shape[axis]} in indices",
                places=[Place(indices.shape_pointer, value=indices.shape[axis], axis=axis, size=data.shape[axis])],
                rule=dialect.rules["batch_shape_mismatch"],
            )


def check_depth(dialect: Dialect, data: Tensor, indices: Tensor, batch_dims: int) -> None:
    """Check clause 4 (2 in GatherND-11), 1 <= k <= r - b. Raises index_depth_out_of_range."""
    depth, most = indices.shape[-1], len(data.shape) - batch_dims
    if not 1 <= depth <= most:
        raise GatherError(
            "index_depth_out_of_range",
            f"index tuples have length {depth}, outside [1, {most}]",
            places=[Place(indices.shape_pointer, value=depth, allowed=(1, most))],
            rule=dialect.rules["index_depth_out_of_range"],
        )
