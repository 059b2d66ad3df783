"""Check a gradient's arrays against its plan, before their memory is touched (see `check_arrays`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from app.kernels.check_arrays import check_data, check_indices_and_output, check_int64, check_sets
from app.operators.backward_plan import FLOAT_TYPES, BackwardPlan
from app.tensors.dtypes import DTYPES


def check_backward_arrays(
    plan: BackwardPlan,
    grad_output: object,
    indices: object,
    out: object,
    scratch: object,
    places: object = None,
    count: object = None,
) -> None:
    """Check that all arrays match the plan and have exactly its sizes. Raises TypeError if not.

    `scratch` is int64 with at least plan.scratch_items items. Only sparse plans use `places` (int64, plan.rows items)
    and `count` (one int64).
    """
    if plan.float_type not in FLOAT_TYPES or plan.item_size != DTYPES[plan.float_type].item_size:
        raise TypeError(f"the plan is for {plan.float_type} of {plan.item_size} bytes")
    if plan.sparse and (plan.batches != 1 and not (plan.batches == 0 == plan.index_tuples)):
        raise TypeError("a sparse gradient has one batch")
    check_sets(plan.gather)
    check_data(plan, grad_output)
    check_indices_and_output(plan, indices, out)
    size = check_int64(scratch, "scratch", None).size
    if size < plan.scratch_items:
        raise TypeError(f"scratch has {size} items and the plan asks for {plan.scratch_items}")
    if plan.sparse:
        check_int64(places, "places", plan.rows)
        check_int64(count, "count", 1)
    elif places is not None or count is not None:
        raise TypeError("places and count are for sparse gradients")


def sets_of(
    plan: BackwardPlan, data: NDArray[Any], indices: NDArray[Any], out: NDArray[Any]
) -> Iterator[tuple[int, BackwardPlan, NDArray[Any], NDArray[Any], NDArray[Any]]]:
    """Split a gradient into sets of batches that share tuples.

    Yields the first component, plan and arrays of each set.
    """
    gather = plan.gather
    part = replace(plan, gather=replace(gather, batches=gather.batches_per_set, broadcast_indices=True))
    for number in range(gather.batches // gather.batches_per_set):
        first, read, written = number * part.index_items, number * part.data_items, number * part.output_items
        yield (
            first,
            part,
            data[read : read + part.data_items],
            indices[first : first + part.index_items],
            out[written : written + part.output_items],
        )
