"""The scatters one item at a time, from the texts of ScatterND and ScatterElements: no flat offset, no block.

Numbers are NumPy's scalars of data's own type, which round at each step.
"""

from __future__ import annotations

from itertools import product
from math import copysign
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def combine(reduction: str, old: Any, new: Any) -> Any:
    """What becomes of an item and its update, both NumPy's scalars."""
    if reduction == "none":
        return new
    with np.errstate(all="ignore"):
        if reduction == "add":
            return old + new
        if reduction == "mul":
            return old * new
        old_is_nan, new_is_nan = np.isnan(old), np.isnan(new)  # ml_dtypes warns of a signalling one
    if old_is_nan:
        return old
    if new_is_nan:
        return new
    if old == new == 0:
        less = copysign(1.0, float(new)) < copysign(1.0, float(old))
        greater = copysign(1.0, float(new)) > copysign(1.0, float(old))
    else:
        less, greater = new < old, new > old
    return new if (less if reduction == "min" else greater) else old


def scatter_nd(data: Array, indices: NDArray[np.int64], updates: Array, reduction: str) -> Array:
    """ScatterND; raises IndexError for an index out of bounds."""
    out = data.copy()
    depth = indices.shape[-1]
    for place in product(*map(range, indices.shape[:-1])):
        row = tuple(int(indices[(*place, axis)]) for axis in range(depth))
        for rest in product(*map(range, data.shape[depth:])):
            out[row + rest] = combine(reduction, out[row + rest], updates[place + rest])
    return out


def scatter_elements(data: Array, indices: NDArray[np.int64], updates: Array, axis: int, reduction: str) -> Array:
    """ScatterElements; raises IndexError for an index out of bounds."""
    out = data.copy()
    for place in product(*map(range, indices.shape)):
        target = (*place[:axis], int(indices[place]), *place[axis + 1 :])
        out[target] = combine(reduction, out[target], updates[place])
    return out


def same(found: Array, expected: Array) -> bool:
    """Whether the bits are equal, but for which NaN it is that an operation has made."""
    if found.tobytes() == expected.tobytes():
        return True
    with np.errstate(all="ignore"):
        nans, found_nans = np.isnan(expected), np.isnan(found)
    return bool((found_nans == nans).all()) and found[~nans].tobytes() == expected[~nans].tobytes()
