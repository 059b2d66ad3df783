"""Lookups in NumPy. The rows of a bag are added in the order of the indices, as `ufunc.at` does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from app.kernels.check_lookup import BAD_OFFSETS, FeatureArrays, check_lookup_arrays, rows_of, rows_read
from app.operators.lookup_plan import FeaturePlan
from app.tensors.dtypes import DTYPES

_BLOCK_ITEMS: Final = 1 << 17
"""Number of row items that are held at a time: one MiB of float64."""


def lookup(plans: Sequence[FeaturePlan], arrays: Sequence[FeatureArrays], threads: int = 1) -> int:
    """See `app.kernels.CpuKernel.lookup`."""
    check_lookup_arrays(plans, arrays)
    for number, (plan, given) in enumerate(zip(plans, arrays, strict=True)):
        if plan.pooling != "none" and not _are_offsets(given.offsets, plan.indices):
            return number + BAD_OFFSETS
    for number, (plan, given) in enumerate(zip(plans, arrays, strict=True)):
        most = plan.rows + (given.fill is not None)
        if plan.indices and (int(given.indices.min()) < 0 or int(given.indices.max()) >= most):
            return number
    for plan, given in zip(plans, arrays, strict=True):
        if plan.pooling == "none":
            _copy_rows(plan, given)
        else:
            with np.errstate(all="ignore"):
                _pool(plan, given)
    return -1


def _are_offsets(offsets: NDArray[Any] | None, count: int) -> bool:
    assert offsets is not None
    if not offsets.size:
        return count == 0
    return bool(offsets[0] == 0 and offsets[-1] <= count and (offsets[1:] >= offsets[:-1]).all())


def _copy_rows(plan: FeaturePlan, given: FeatureArrays) -> None:
    target = rows_of(plan, given.out)
    step = max(1, _BLOCK_ITEMS // max(plan.group * plan.row_items, 1))
    for start in range(0, len(target), step):
        block = target[start : start + step]
        indices = given.indices[start * plan.group : (start + len(block)) * plan.group]
        block[:] = rows_read(plan, given, indices).reshape(block.shape)


def _pool(plan: FeaturePlan, given: FeatureArrays) -> None:
    """Pool the bags of a feature into its columns of the output, row by row."""
    if not plan.row_items:
        return
    assert given.offsets is not None
    dtype = DTYPES[plan.dtype].numpy
    wide = np.dtype(np.float64 if plan.dtype == "float64" else np.float32)
    target = rows_of(plan, given.out).view(dtype)
    bounds = np.append(given.offsets.astype(np.int64), plan.indices)
    step = max(1, _BLOCK_ITEMS // plan.row_items)
    for first in range(0, plan.bags, step):
        last = min(first + step, plan.bags)
        sums = np.full((last - first, plan.row_items), -np.inf if plan.pooling == "max" else 0, wide)
        for start in range(bounds[first], bounds[last], step):
            at = np.arange(start, min(start + step, bounds[last]))
            rows = rows_read(plan, given, given.indices[at]).view(dtype).astype(wide)
            if given.weights is not None:
                rows *= given.weights.view(dtype)[at, np.newaxis].astype(wide)
            bags = np.searchsorted(bounds[first:last], at, side="right") - 1
            if plan.pooling == "max":
                _keep_largest(sums, bags, rows)
            else:
                np.add.at(sums, bags, rows)
        counts = np.diff(bounds[first : last + 1])
        sums[counts == 0] = 0
        if plan.pooling == "mean":
            sums /= np.maximum(counts, 1).astype(wide)[:, np.newaxis]
        target[first:last] = sums.astype(dtype)


def _keep_largest(largest: NDArray[Any], bags: NDArray[np.int64], rows: NDArray[Any]) -> None:
    """Update the maximum of each bag. If both 0 and -0 occur, the first one is kept, which no ufunc guarantees."""
    before = largest.copy()
    np.maximum.at(largest, bags, rows)
    at, column = np.nonzero((rows == 0) & (largest[bags] == 0))
    # This is done in reverse, because NumPy keeps the last of several values for an item.
    largest[bags[at[::-1]], column[::-1]] = rows[at[::-1], column[::-1]]
    np.copyto(largest, before, where=(before == 0) & (largest == 0))
