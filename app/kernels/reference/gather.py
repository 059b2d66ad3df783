"""Gather and GatherElements in NumPy: check all components, then copy the slices in blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.kernels.check_arrays import check_arrays, check_elements_arrays, check_fill
from app.kernels.reference.indices import BLOCK_COMPONENTS, element_offsets, first_bad, is_bad, rows_of
from app.operators.gather_elements import GatherElementsPlan
from app.operators.gather_plan import GatherPlan


def gather(
    plan: GatherPlan,
    data: NDArray[Any],
    indices: NDArray[Any],
    out: NDArray[Any],
    fill: NDArray[Any] | None = None,
    replaced: NDArray[np.int64] | None = None,
) -> int:
    """See `app.kernels.Kernel.run`."""
    check_arrays(plan, data, indices, out)
    components = indices.reshape(-1, plan.depth)
    step = max(1, BLOCK_COMPONENTS // plan.depth)
    if fill is None and replaced is None:
        first = first_bad(plan, components, step)
        if first >= 0:
            return first
    else:
        check_fill(plan, fill, replaced)
        assert replaced is not None
        blocks = range(0, len(components), step)
        replaced[0] = sum(int(is_bad(plan, components[start : start + step]).sum()) for start in blocks)
    if not out.size:
        return -1
    target = out.reshape(-1, plan.slice_items)
    for start in range(0, len(target), step):
        block = target[start : start + step]
        batches, places = np.divmod(np.arange(start, start + len(block), dtype=np.int64), plan.tuples)
        sets = batches // plan.batches_per_set if plan.batches_per_set else 0
        tuples = components[sets * plan.tuples + places]
        if fill is not None:
            filled = is_bad(plan, tuples).any(axis=1)
            block[filled] = fill
            if not filled.all():
                block[~filled] = _slices(plan, data, batches[~filled], tuples[~filled])
        else:
            block[:] = _slices(plan, data, batches, tuples)
    return -1


def _slices(plan: GatherPlan, data: NDArray[Any], batches: NDArray[np.int64], tuples: NDArray[Any]) -> NDArray[Any]:
    """Return the slices that the tuples of these batches select. All components must be valid."""
    found: NDArray[Any] = data.reshape(plan.batches, -1, plan.slice_items)[batches, rows_of(plan.dims, tuples)]
    return found


def gather_elements(plan: GatherElementsPlan, data: NDArray[Any], indices: NDArray[Any], out: NDArray[Any]) -> int:
    """See `app.kernels.Kernel.run`."""
    check_elements_arrays(plan, data, indices, out)
    first = first_bad(plan, indices.reshape(-1, 1), BLOCK_COMPONENTS)
    if first >= 0:
        return first
    for start in range(0, len(out), BLOCK_COMPONENTS):
        out[start : start + BLOCK_COMPONENTS] = data[element_offsets(plan, indices, start)]
    return -1
