"""Gather: the rules on its axis, batch_dims and ranks, and its reduction to GatherND's plan.

Gather along axis a picks the same slices in each of the prod(data.shape[:a]) batches. So it is GatherND with batch_dims
= a and tuples of length 1, in which all batches share one set of indices (`GatherPlan.broadcast_indices`). The output
is data.shape[:a] + indices.shape + data.shape[a+1:], so its flat order is GatherND's too.

OpenVINO's Gather-8 also has batch_dims b, b <= a. Each of the prod(data.shape[:b]) batches has its own set of indices.
The prod(data.shape[b:a]) GatherND batches within it share that set (`GatherPlan.batches_per_set`). The output is
data.shape[:a] + indices.shape[b:] + data.shape[a+1:].
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from app.errors import GatherError, Place
from app.operators.dialects import Dialect
from app.operators.gather_plan import GatherPlan
from app.operators.gathernd import check_batch_shape
from app.operators.shape_rules import NO_TENSORS, check_axis, check_rank, shorten
from app.tensors.backward_call import BackwardCall
from app.tensors.gather_call import Call
from app.tensors.tensor import Tensor


def plan_gather(
    dialect: Dialect, call: Call | BackwardCall, data: Tensor, further: Mapping[str, Tensor] = NO_TENSORS
) -> tuple[GatherPlan, tuple[int, ...], int]:
    """Check rank, axis and batch_dims. Returns the plan, the output shape, and the axis counted from the front.

    Raises rank_too_small, batch_dims_out_of_range, axis_out_of_range or batch_shape_mismatch, in this order. A
    batch_dims greater than the axis is checked after axis_out_of_range.
    """
    indices, (axis,), batch_dims, pointer = call.indices, call.parameters, call.batch_dims, call.pointer("axis")
    check_rank(dialect, "data", data)
    if batch_dims:
        axis, batch_dims = check_batch_dims(dialect, data, indices, batch_dims, axis, pointer)
        check_batch_shape(dialect, data, indices, batch_dims)
    axis = check_axis(dialect, data, axis, pointer)
    output_shape = data.shape[:axis] + indices.shape[batch_dims:] + data.shape[axis + 1 :]
    return make_plan(dialect, data, indices, axis, batch_dims), output_shape, axis


def make_plan(dialect: Dialect, data: Tensor, indices: Tensor, axis: int, batch_dims: int = 0) -> GatherPlan:
    """Return the plan for checked shapes. `axis` and `batch_dims` count from the front."""
    shape = data.shape
    batches, sets, slice_items = prod(shape[:axis]), prod(shape[:batch_dims]), prod(shape[axis + 1 :])
    if sets != 1 and not (batches and slice_items):  # nothing is copied: check each index only once
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


def check_batch_dims(
    dialect: Dialect, data: Tensor, indices: Tensor, batch_dims: int, axis: int, axis_pointer: str
) -> tuple[int, int]:
    """Check Gather-8's axis and batch_dims b: -min(r, q) <= b <= min(r, q), and b <= axis.

    Returns both, counted from the front. A negative b counts from the rank of indices. The pointer to batch_dims is
    `axis_pointer` with `batch_dims` in place of `axis`. Raises batch_dims_out_of_range and axis_out_of_range.
    """
    rank, index_rank = len(data.shape), len(indices.shape)
    least = min(rank, index_rank)
    if not -least <= batch_dims <= least:
        reason = f"is outside [{-least}, {least}], as data has rank {rank} and indices rank {index_rank}"
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
