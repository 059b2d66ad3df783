"""GatherND and Gather: their plans and output shapes, and the rules on their shapes.

GatherND: with r = rank(data), q = rank(indices), k = indices.shape[-1] and b = batch_dims, output.shape =
indices.shape[:-1] + data.shape[b+k:].

Gather along axis a picks the same slices in each of the prod(data.shape[:a]) batches. So it is GatherND with batch_dims
= a and tuples of length 1, in which all batches share one set of indices (`GatherPlan.broadcast_indices`). The output
is data.shape[:a] + indices.shape + data.shape[a+1:], so its flat order is the same as GatherND's.

OpenVINO's Gather-8 also has batch_dims b, b <= a. Each of the prod(data.shape[:b]) batches has its own set of indices.
The prod(data.shape[b:a]) GatherND batches within each of these share that set (`GatherPlan.batches_per_set`). The
output is data.shape[:a] + indices.shape[b:] + data.shape[a+1:].
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from app.errors import GatherError, Place
from app.operators.dialects import Dialect
from app.operators.gather_plan import GatherPlan
from app.operators.shape_rules import NO_TENSORS, check_axis, check_rank, shorten
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
            f"is outside [0, {limit - 1}], as data has rank {len(data.shape)} and indices has rank {len(indices.shape)}"
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


def plan_gather(
    dialect: Dialect, call: Call | BackwardCall, data: Tensor, further: Mapping[str, Tensor] = NO_TENSORS
) -> tuple[GatherPlan, tuple[int, ...], int]:
    """Check rank, axis and batch_dims. Returns the plan, the output shape, and the axis counted from the front.

    Raises rank_too_small, batch_dims_out_of_range, axis_out_of_range or batch_shape_mismatch, in this order. Whether
    batch_dims exceeds the axis is checked after the axis itself.
    """
    indices, (axis,), batch_dims, pointer = call.indices, call.parameters, call.batch_dims, call.pointer("axis")
    check_rank(dialect, "data", data)
    if batch_dims:
        axis, batch_dims = check_relative_batch_dims(dialect, data, indices, batch_dims, axis, pointer)
        check_batch_shape(dialect, data, indices, batch_dims)
    axis = check_axis(dialect, data, axis, pointer)
    output_shape = data.shape[:axis] + indices.shape[batch_dims:] + data.shape[axis + 1 :]
    return make_plan(dialect, data, indices, axis, batch_dims), output_shape, axis


def make_plan(dialect: Dialect, data: Tensor, indices: Tensor, axis: int, batch_dims: int = 0) -> GatherPlan:
    """Return the plan for checked shapes. `axis` and `batch_dims` count from the front."""
    shape = data.shape
    batches, sets, slice_items = prod(shape[:axis]), prod(shape[:batch_dims]), prod(shape[axis + 1 :])
    if sets != 1 and not (batches and slice_items):  # nothing is copied, so check each index only once
        batches, sets = 0, 1
    return GatherPlan(
        batches=batches,
        tuples=prod(indices.shape if sets == 1 else indices.shape[batch_dims:]),
        dims=shape[axis : axis + 1],
        slice_items=slice_items,
        item_size=data.dtype.carrier.itemsize,
        broadcast_indices=sets == 1,
        wrap=dialect.wrap,
        batches_per_set=prod(shape[batch_dims:axis]),
    )


def check_relative_batch_dims(
    dialect: Dialect, data: Tensor, indices: Tensor, batch_dims: int, axis: int, axis_pointer: str
) -> tuple[int, int]:
    """Check Gather-8's axis and batch_dims b: -min(r, q) <= b <= min(r, q), and b <= axis.

    Returns both, counted from the front. A negative b counts from the rank of indices. The pointer to batch_dims is
    `axis_pointer` with `axis` replaced by `batch_dims`. Raises batch_dims_out_of_range and axis_out_of_range.
    """
    rank, index_rank = len(data.shape), len(indices.shape)
    least = min(rank, index_rank)
    if not -least <= batch_dims <= least:
        reason = f"is outside [{-least}, {least}], as data has rank {rank} and indices has rank {index_rank}"
        most = min(least, axis % rank if -rank <= axis < rank else least)
        raise _batch_dims_error(dialect, batch_dims, reason, axis_pointer, (-least, least), most)
    axis = check_axis(dialect, data, axis, axis_pointer)
    found = batch_dims + index_rank if batch_dims < 0 else batch_dims
    if found > axis:
        counted = f"is {found} from the front and " if batch_dims < 0 else ""
        most = min(least, axis)
        reason = f"{counted}is more than the axis, {axis}"
        raise _batch_dims_error(dialect, batch_dims, reason, axis_pointer, (0, most), most)
    return axis, found


def _batch_dims_error(
    dialect: Dialect, batch_dims: int, reason: str, axis_pointer: str, allowed: tuple[int, int], most: int
) -> GatherError:
    return GatherError(
        "batch_dims_out_of_range",
        f"batch_dims = {shorten(batch_dims)} {reason}",
        places=[Place(f"{axis_pointer.removesuffix('axis')}batch_dims", value=batch_dims, allowed=allowed)],
        rule=dialect.rules["batch_dims_out_of_range"],
        hint=f"Use a batch_dims from 0 to {most}.",
    )
