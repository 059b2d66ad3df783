"""The gradient of a gather in plain NumPy: each slice is added to the row that its tuple selects (see
`BackwardPlan`).
"""

from __future__ import annotations

from typing import Any, Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from app.kernels.backward_arrays import check_backward_arrays, sets_of
from app.kernels.reference.indices import BLOCK_COMPONENTS, first_bad, rows_of
from app.operators.backward_plan import SCRATCH_HEAD, BackwardPlan

_BLOCK_ITEMS: Final = 1 << 18
"""Number of items that are added or rounded at a time. Temporary memory is one or two MiB."""
_TYPES: Final[dict[str, tuple[np.dtype[Any], np.dtype[Any]]]] = {
    "float16": (np.dtype(np.float16), np.dtype(np.float32)),
    "bfloat16": (np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32)),
    "float32": (np.dtype(np.float32), np.dtype(np.float32)),
    "float64": (np.dtype(np.float64), np.dtype(np.float64)),
}
"""For each float type, the type of its items and of its sums."""


def run(
    plan: BackwardPlan,
    data: NDArray[Any],
    indices: NDArray[Any],
    out: NDArray[Any],
    scratch: NDArray[np.int64] | None = None,
    places: NDArray[np.int64] | None = None,
    count: NDArray[np.int64] | None = None,
) -> int:
    """See `app.kernels.Kernel.run`. `data` is grad_output; `out` is grad_data, or grad_values for a sparse plan.

    `scratch` is working memory of plan.scratch_items. For each slice of `out`, a sparse plan writes the position of
    that slice in grad_data to `places`, and it adds the number of slices to `count`. The rest of `out` is undefined.
    """
    check_backward_arrays(plan, data, indices, out, scratch, places, count)
    assert scratch is not None
    if plan.gather.batches_per_set > 1:
        for first, part, read, chosen, written in sets_of(plan, data, indices, out):
            bad = run(part, read, chosen, written, scratch)
            if bad >= 0:
                return first + bad
        return -1
    components, tuples = indices.reshape(-1, plan.depth), plan.index_tuples
    step = max(1, BLOCK_COMPONENTS // plan.depth)
    bad = first_bad(plan, components, step)
    if bad >= 0:
        return bad
    free = scratch[SCRATCH_HEAD:]
    rows, free = free[:tuples], free[tuples:]
    for start in range(0, tuples, step):
        rows[start : start + step] = rows_of(plan.dims, components[start : start + step])
    batches, batch_rows = plan.batches, plan.batch_rows
    if places is not None and count is not None:
        named, rows = np.unique(rows, return_inverse=True)
        places[: len(named)] = named
        count += len(named)
        free, batches, batch_rows = free[2 * tuples :], 1, len(named)
    if not plan.slice_items or not batches * batch_rows:
        return -1
    item, sum_type = _TYPES[plan.float_type]
    shape = batches, batch_rows, plan.slice_items
    result = out.view(item)[: batches * batch_rows * plan.slice_items].reshape(shape)
    sums = result if item == sum_type else free.view(sum_type)[: result.size].reshape(shape)
    sums.fill(0)
    slices = data.view(item).reshape(batches, plan.tuples, plan.slice_items)
    for batch in range(batches):
        own = rows if plan.broadcast_indices else rows[batch * plan.tuples : (batch + 1) * plan.tuples]
        _add(sums[batch], own, slices[batch])
    _finish(result.reshape(-1), sums.reshape(-1), plan.coefficient)
    return -1


def _add(sums: NDArray[Any], rows: NDArray[np.int64], slices: NDArray[Any]) -> None:
    """Add each slice to the sums of its row, in order."""
    width = slices.shape[1]
    step = max(1, _BLOCK_ITEMS // width)
    with np.errstate(all="ignore"):
        for start in range(0, len(rows), step):
            for left in range(0, width, _BLOCK_ITEMS):
                columns = slice(left, left + _BLOCK_ITEMS)
                # `np.add.at` is unbuffered, so the slices are added in order.
                added = slices[start : start + step, columns].astype(sums.dtype)
                np.add.at(sums[:, columns], rows[start : start + step], added)


def _finish(result: NDArray[Any], sums: NDArray[Any], coefficient: float) -> None:
    """Write the sums times the coefficient, rounded to the result's type. All NaNs become the same NaN."""
    factor = sums.dtype.type(coefficient)
    with np.errstate(all="ignore"):
        for start in range(0, result.size, _BLOCK_ITEMS):
            block = sums[start : start + _BLOCK_ITEMS] * factor
            rounded = block.astype(result.dtype)
            rounded[np.isnan(block)] = result.dtype.type("nan")
            result[start : start + _BLOCK_ITEMS] = rounded
