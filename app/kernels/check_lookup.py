"""The arrays of a lookup, and a check of these arrays against the plan before a kernel touches their memory.

`numba_cpu` performs the same check in compiled code, and calls this one only for its error message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.kernels.check_arrays import check_array, check_carriers
from app.operators.lookup_plan import POOLED_DTYPES, FeaturePlan
from app.tensors.dtypes import DTYPES

BAD_OFFSETS: Final = 1 << 62
"""Added to the index of a feature whose offsets are invalid, whether its indices are valid or not."""


class FeatureArrays(NamedTuple):
    """The arrays of a feature, each 1-D and contiguous. `table`, `weights`, `fill` and `out` hold carriers.

    If `fill` is given, an index equal to the number of rows selects `fill` as the row. `out` is the whole output; the
    feature writes only its own columns.
    """

    table: NDArray[Any]
    indices: NDArray[Any]
    offsets: NDArray[Any] | None
    weights: NDArray[Any] | None
    fill: NDArray[Any] | None
    out: NDArray[Any]


def check_lookup_arrays(plans: Sequence[FeaturePlan], arrays: Sequence[FeatureArrays]) -> None:
    """Check that the arrays of each feature match its plan. Raises TypeError if they do not."""
    if len(plans) != len(arrays):
        raise TypeError(f"{len(plans)} features are planned and the arrays of {len(arrays)} are given")
    for plan, given in zip(plans, arrays, strict=True):
        _check_plan(plan)
        check_carriers(given.table, "table", plan.rows * plan.row_items, plan.item_size)
        kind = _check_indices("indices", given.indices, plan.indices)
        if plan.pooling == "none":
            if given.offsets is not None:
                raise TypeError("offsets without pooling")
        elif _check_indices("offsets", given.offsets, plan.bags) != kind:
            raise TypeError("the offsets are not of the indices' type")
        if plan.weighted != (given.weights is not None):
            raise TypeError("weights are given and not planned, or planned and not given")
        if given.weights is not None:
            check_carriers(given.weights, "weights", plan.indices, plan.item_size)
        if given.fill is not None:
            check_carriers(given.fill, "fill", plan.row_items, plan.item_size)
        if not check_carriers(given.out, "out", None, plan.item_size).flags.writeable:
            raise TypeError("the output is read-only")
        rows = plan.output_rows
        last = (rows - 1) * plan.stride + plan.column + plan.group * plan.row_bytes
        if rows and last > given.out.nbytes:
            raise TypeError(f"the output has {given.out.nbytes} bytes and the plan writes up to byte {last}")


def _check_plan(plan: FeaturePlan) -> None:
    sizes = plan.rows, plan.row_items, plan.indices, plan.bags, plan.stride, plan.column
    if min(sizes) < 0 or plan.group < 1 or plan.item_size not in (1, 2, 4, 8, 16):
        raise TypeError("the plan has a size that no array can have")
    if plan.stride % plan.item_size or plan.column % plan.item_size or plan.stride < plan.group * plan.row_bytes:
        raise TypeError("the plan's rows of the output overlap or begin within an item")
    if plan.pooling == "none":
        if plan.weighted or plan.indices % plan.group:
            raise TypeError("the plan does not fill the rows of the output, or has weights without pooling")
    elif plan.dtype not in POOLED_DTYPES or DTYPES[plan.dtype].item_size != plan.item_size or plan.group != 1:
        raise TypeError(f"rows of {plan.dtype} are not pooled")
    elif plan.weighted and plan.pooling != "sum":
        raise TypeError("weights are for sums")


def _check_indices(role: str, array: object, items: int) -> str:
    """Check an array of indices or offsets. Returns the name of its type."""
    found = check_array(array, role, items)
    if found.dtype not in (np.int32, np.int64) or not found.flags.aligned:
        raise TypeError(f"{role} of type {found.dtype}: they must be int32 or int64, aligned")
    return str(found.dtype)


def rows_of(plan: FeaturePlan, out: NDArray[Any]) -> NDArray[Any]:
    """Return the output rows of a feature as a view, [output rows, group * row_items]."""
    shape = plan.output_rows, plan.group * plan.row_items
    if 0 in shape:
        return np.empty(shape, out.dtype)
    start = plan.column // plan.item_size
    return np.lib.stride_tricks.as_strided(out[start:], shape, (plan.stride, plan.item_size))


def rows_read(plan: FeaturePlan, given: FeatureArrays, indices: NDArray[Any]) -> NDArray[Any]:
    """Return the rows at `indices`, which must all be valid, as carriers [indices, row_items]."""
    table = given.table.reshape(plan.rows, plan.row_items)
    if given.fill is None:
        found: NDArray[Any] = table[indices]
        return found
    filled = indices == plan.rows
    rows = np.empty((len(indices), plan.row_items), given.table.dtype)
    rows[filled] = given.fill
    rows[~filled] = table[indices[~filled]]
    return rows
