"""Lookups in plain NumPy: the sibling of `numba_cpu.lookup_kernel`, and what runs until that is compiled.

The rows of a bag are added one after the other, for many bags at a time: first the first row of each, then the second
of each that has one. Rows of a long bag are added by a running sum. So sums go in index order, as the plan asks for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from app.kernels.check_lookup import BAD_OFFSETS, FeatureArrays, check_lookup_arrays, rows_of
from app.operators.lookup import FeaturePlan
from app.tensors.dtypes import DTYPES

_BLOCK_ITEMS: Final = 1 << 17
"""Items of rows that are held at a time: a MiB of float64."""
_LONG_BAG: Final = 128
"""Rows, from which on a bag is added by itself."""


def lookup(plans: Sequence[FeaturePlan], arrays: Sequence[FeatureArrays], threads: int = 1) -> int:
    """See `app.kernels.Kernel.lookup`."""
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


def _rows(plan: FeaturePlan, given: FeatureArrays, indices: NDArray[Any]) -> NDArray[Any]:
    """The rows of the table at `indices`, as carriers."""
    table = given.table.reshape(plan.rows, plan.row_items)
    if given.fill is None:
        found: NDArray[Any] = table[indices]
        return found
    filled = indices == plan.rows
    rows = np.empty((len(indices), plan.row_items), given.table.dtype)
    rows[filled] = given.fill
    rows[~filled] = table[indices[~filled]]
    return rows


def _copy_rows(plan: FeaturePlan, given: FeatureArrays) -> None:
    target = rows_of(plan, given.out)
    step = max(1, _BLOCK_ITEMS // max(plan.group * plan.row_items, 1))
    for start in range(0, len(target), step):
        block = target[start : start + step]
        indices = given.indices[start * plan.group : (start + len(block)) * plan.group]
        block[:] = _rows(plan, given, indices).reshape(block.shape)


def _pool(plan: FeaturePlan, given: FeatureArrays) -> None:
    """Pool the bags of a feature into its columns of the output."""
    assert given.offsets is not None
    dtype = DTYPES[plan.dtype].numpy
    wide = np.dtype(np.float64 if plan.dtype == "float64" else np.float32)
    weights = None if given.weights is None else given.weights.view(dtype).astype(wide)
    target = rows_of(plan, given.out).view(dtype) if plan.row_items else None
    if target is None:
        return
    starts = given.offsets.astype(np.int64)
    sizes = np.diff(starts, append=plan.indices)

    def rows(at: NDArray[np.int64]) -> NDArray[Any]:
        found: NDArray[Any] = _rows(plan, given, given.indices[at]).view(dtype).astype(wide)
        if weights is not None:
            found *= weights[at, np.newaxis]
        return found

    step = max(1, _BLOCK_ITEMS // plan.row_items)
    for first in range(0, plan.bags, step):
        bags = slice(first, min(first + step, plan.bags))
        sums = np.zeros((bags.stop - first, plan.row_items), wide)
        short = np.where(sizes[bags] < _LONG_BAG, sizes[bags], 0)
        for place in range(int(short.max(initial=0))):
            there = short > place
            found = rows(starts[bags][there] + place)
            if plan.pooling != "max":
                sums[there] += found
            else:
                sums[there] = found if place == 0 else _larger(sums[there], found)
        for bag in np.flatnonzero(sizes[bags] >= _LONG_BAG):
            start = int(starts[first + bag])
            sums[bag] = _long_bag(plan, rows, start, start + int(sizes[first + bag]), wide)
        if plan.pooling == "mean":
            counts = sizes[bags].astype(wide)
            sums[counts > 0] /= counts[counts > 0, np.newaxis]
        target[bags] = sums.astype(dtype)


def _larger(first: NDArray[Any], second: NDArray[Any]) -> NDArray[Any]:
    """The larger one item by item, the first where both are equal or it is NaN."""
    return np.where((first >= second) | np.isnan(first), first, second)


def _long_bag(
    plan: FeaturePlan, rows: Callable[[NDArray[np.int64]], NDArray[Any]], start: int, end: int, wide: np.dtype[Any]
) -> NDArray[Any]:
    total = rows(np.arange(start, start + 1))[0] if plan.pooling == "max" else np.zeros(plan.row_items, wide)
    for block in _blocks(start, end, max(1, _BLOCK_ITEMS // plan.row_items)):
        found = rows(block)
        if plan.pooling == "max":
            for row in found:
                total = _larger(total, row)
        else:
            total = np.cumsum(np.vstack((total, found)), axis=0, dtype=wide)[-1]
    return total


def _blocks(start: int, end: int, step: int) -> Iterator[NDArray[np.int64]]:
    for first in range(start, end, step):
        yield np.arange(first, min(first + step, end))
