"""Index arithmetic in NumPy: find components that are out of bounds, and the items that valid components select."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from app.kernels.check_arrays import as_int64
from app.operators.gather_elements import GatherElementsPlan
from app.operators.gather_plan import Plan
from app.operators.scatter_plan import ScatterElementsPlan

BLOCK_COMPONENTS: Final = 1 << 16
"""Number of components per block: half a MiB of int64, and the same amount for each temporary array."""


def is_bad(plan: Plan, tuples: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which components of `tuples` [count, depth] are out of bounds."""
    components, sizes = as_int64(tuples), np.array(plan.dims, np.int64)
    found: NDArray[np.bool_] = (components < (-sizes if plan.wrap else 0)) | (components >= sizes)
    return found


def first_bad(plan: Plan, components: NDArray[Any], step: int) -> int:
    """Return the first component out of bounds, or -1.

    `components` [tuples, depth] is checked `step` tuples at a time.
    """
    for start in range(0, len(components), step):
        bad = is_bad(plan, components[start : start + step])
        if bad.any():
            return start * plan.depth + int(bad.argmax())
    return -1


def element_offsets(
    plan: GatherElementsPlan | ScatterElementsPlan, indices: NDArray[Any], start: int
) -> NDArray[np.int64]:
    """Return the item of data that each entry selects, for the block that starts at entry `start`."""
    entries = as_int64(indices[start : start + BLOCK_COMPONENTS])
    places = np.arange(start, start + len(entries), dtype=np.int64)
    offsets: NDArray[np.int64] = np.where(entries < 0, entries + plan.axis_size, entries) * plan.axis_stride
    for size, stride in zip(reversed(plan.sizes), reversed(plan.strides), strict=True):
        offsets += places % size * stride
        places //= size
    return offsets


def rows_of(dims: tuple[int, ...], tuples: NDArray[Any]) -> NDArray[np.int64]:
    """Return the row that each tuple selects when the axes `dims` are flattened into one.

    All components must be valid.
    """
    components = as_int64(tuples)
    rows = np.zeros(len(components), np.int64)
    for axis, size in enumerate(dims):
        column = components[:, axis]
        rows *= size
        rows += np.where(column < 0, column + size, column)
    return rows
