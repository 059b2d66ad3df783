"""The scatters in plain NumPy: copy data, then apply the updates in order.

Updates are applied in blocks, so temporary memory is a few MiB. Float16 and bfloat16 items are added and multiplied in
float32 and rounded at each step, as in NumPy and ml_dtypes. Minimum and maximum follow IEEE 754-2019: the first NaN
wins, and -0 is less than 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from app.kernels.check_arrays import check_scatter_arrays
from app.kernels.reference.indices import BLOCK_COMPONENTS, element_offsets, first_bad, rows_of
from app.operators.scatter_plan import ScatterElementsPlan, ScatterNDPlan
from app.tensors.dtypes import DTYPES

_UFUNCS: Final[dict[str, Any]] = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}


def scatter_nd(
    plan: ScatterNDPlan, data: NDArray[Any], indices: NDArray[Any], out: NDArray[Any], updates: NDArray[Any]
) -> int:
    """See `app.kernels.Kernel.run`."""
    check_scatter_arrays(plan, data, indices, out, updates)
    tuples = indices.reshape(-1, plan.depth)
    step = max(1, BLOCK_COMPONENTS // max(plan.depth, plan.slice_items, 1))
    first = first_bad(plan, tuples, step)
    if first >= 0 or not out.size:
        return first
    np.copyto(out, data)
    width = plan.slice_items
    if plan.reduction == "none":
        targets, values = out.reshape(-1, width), updates.reshape(-1, width)
        for start in range(0, plan.tuples, step):
            # NumPy keeps the last of several values for a row.
            targets[rows_of(plan.dims, tuples[start : start + step])] = values[start : start + step]
        return -1
    reduced = _ReducedItems(plan.reduction, plan.dtype, out)
    for start in range(0, plan.tuples, step):
        rows = rows_of(plan.dims, tuples[start : start + step])
        for first_item, last_item in _split_columns(width):
            items = (rows * width)[:, None] + np.arange(first_item, last_item, dtype=np.int64)
            block = updates[start * width : (start + len(rows)) * width].reshape(-1, width)
            reduced.apply(items.reshape(-1), block[:, first_item:last_item].reshape(-1))
    reduced.finish()
    return -1


def scatter_elements(
    plan: ScatterElementsPlan, data: NDArray[Any], indices: NDArray[Any], out: NDArray[Any], updates: NDArray[Any]
) -> int:
    """See `app.kernels.Kernel.run`."""
    check_scatter_arrays(plan, data, indices, out, updates)
    first = first_bad(plan, indices.reshape(-1, 1), BLOCK_COMPONENTS)
    if first >= 0:
        return first
    np.copyto(out, data)
    reduced = None if plan.reduction == "none" else _ReducedItems(plan.reduction, plan.dtype, out)
    for start in range(0, len(indices), BLOCK_COMPONENTS):
        items, values = element_offsets(plan, indices, start), updates[start : start + BLOCK_COMPONENTS]
        if reduced is None:
            out[items] = values
        else:
            reduced.apply(items, values)
    if reduced is not None:
        reduced.finish()
    return -1


def _split_columns(width: int) -> Iterator[tuple[int, int]]:
    for start in range(0, width, BLOCK_COMPONENTS):
        yield start, min(start + BLOCK_COMPONENTS, width)


class _ReducedItems:
    """The items of an output into which updates are reduced. The output is valid after `finish`."""

    def __init__(self, reduction: str, dtype: str, out: NDArray[Any]) -> None:
        row = DTYPES[dtype]
        self._ufunc = _UFUNCS[reduction]
        self._items = out.view(row.numpy)
        self._nans: NDArray[np.bool_] | None = None
        if row.kind == "float" and reduction in ("min", "max"):
            self._bits = out.view(np.dtype(f"i{row.item_size}"))
            self._infinity = int(np.array(np.inf, row.numpy).view(self._bits.dtype))
            self._nans = self._is_nan(self._bits)
            self._swap()

    def apply(self, items: NDArray[np.int64], updates: NDArray[Any]) -> None:
        """Reduce each update, in order, into the item at the same position of `items`."""
        if self._nans is None:
            with np.errstate(all="ignore"):
                self._ufunc.at(self._items, items, updates.view(self._items.dtype))
            return
        bits = updates.view(self._bits.dtype)
        new = self._is_nan(bits) & ~self._nans[items]
        # This is done in reverse, because NumPy keeps the last of several values for an item.
        self._bits[items[new][::-1]] = bits[new][::-1]
        self._nans[items[new]] = True
        numbers = ~self._nans[items]
        self._ufunc.at(self._bits, items[numbers], self._ordered(bits[numbers]))

    def finish(self) -> None:
        """Write the final items to the output."""
        if self._nans is not None:
            self._swap()

    def _is_nan(self, bits: NDArray[Any]) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = (bits & np.iinfo(bits.dtype).max) > self._infinity
        return found

    def _swap(self) -> None:
        """Map floats, by their bits, to integers that sort in the same order, or map them back. NaNs are unchanged."""
        assert self._nans is not None
        for start in range(0, self._bits.size, BLOCK_COMPONENTS):
            block, nans = (array[start : start + BLOCK_COMPONENTS] for array in (self._bits, self._nans))
            np.copyto(block, self._ordered(block), where=~nans)

    @staticmethod
    def _ordered(bits: NDArray[Any]) -> NDArray[Any]:
        """Map float bits to integers that sort in the same order as the floats, and back."""
        found: NDArray[Any] = bits ^ ((bits >> (8 * bits.itemsize - 1)) & np.iinfo(bits.dtype).max)
        return found
