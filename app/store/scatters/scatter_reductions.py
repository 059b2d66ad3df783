"""Compute the new values of rows changed by a scatter, either by replacement or by reduction (add, mul, min or max)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from app.store.scatters.log_frames import Record
from app.tensors.operator_signature import Reduction

_UFUNCS: Final[dict[Reduction, Any]] = {
    "add": np.add,
    "mul": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
}


def new_rows(
    items: Callable[[], NDArray[Any]],
    rows: NDArray[np.int64],
    updates: NDArray[Any],
    width: int,
    reduction: Reduction,
    unapplied: Sequence[Record] = (),
    present: int | None = None,
) -> tuple[NDArray[np.uint64], NDArray[np.uint8]]:
    """Return the rows that a scatter changes, sorted and without duplicates, and the bytes of their new values.

    `items` returns all items of the content as a flat array; `width` is the number of items in a row. `unapplied` holds
    earlier records that have not been applied yet; for a reduction, their rows must have the same width. Rows numbered
    `present` and higher are new and start as zeros.

    Several updates of one row are processed in order: without a reduction, the last one takes effect; otherwise, each
    is reduced into the row. Each intermediate result is rounded to the dtype as in NumPy; integers wrap around. Minimum
    and maximum follow IEEE 754-2019: NaN wins, and -0 is less than 0.
    """
    if not len(rows) or not width:
        return np.empty(0, np.uint64), np.empty((0, 0), np.uint8)
    values = updates.reshape(len(rows), width)
    if reduction == "none":
        unique, last = np.unique(rows[::-1], return_index=True)
        new = values[len(rows) - 1 - last]
    else:
        unique, place = np.unique(rows, return_inverse=True)
        new = items().reshape(-1, width)[unique]
        if present is not None:
            new[unique >= present] = 0
        for record in unapplied:
            _overlay(new, unique, record)
        compares_floats = reduction in ("min", "max") and new.dtype.kind not in "iu"
        with np.errstate(all="ignore"):
            zeros = _winning_zeros(new, reduction) if compares_floats else None
            if len(unique) == len(rows):
                ordered = np.empty_like(new)
                ordered[place] = values
                new = _UFUNCS[reduction](new, ordered)
                del ordered
            else:
                _UFUNCS[reduction].at(new, place, values)
            if zeros is not None:
                _set_signs_of_zeros(new, zeros, place, values, reduction)
    octets: NDArray[np.uint8] = np.ascontiguousarray(new).view(np.uint8).reshape(len(unique), -1)
    return unique.astype(np.uint64), octets


def _winning_zeros(values: NDArray[Any], reduction: Reduction) -> NDArray[np.bool_]:
    """Return a mask of the zeros that take precedence over a zero of the opposite sign."""
    found: NDArray[np.bool_] = np.signbit(values)
    if reduction == "max":
        np.logical_not(found, out=found)
    found &= values == 0
    return found


def _set_signs_of_zeros(
    new: NDArray[Any], zeros: NDArray[np.bool_], place: NDArray[np.intp], values: NDArray[Any], reduction: Reduction
) -> None:
    """Set the signs of the zeros in `new`, an array of minima or maxima, because NumPy may pick either sign.

    `zeros` is the mask of winning zeros among the old values, and is overwritten. `values` holds the updates, and
    `place` holds the row of `new` that each update applies to.
    """
    is_zero = new == 0
    if is_zero.any():
        np.logical_or.at(zeros, place, _winning_zeros(values, reduction))
        new[is_zero] = np.where(zeros[is_zero] == (reduction == "min"), -0.0, 0.0)


def _overlay(new: NDArray[Any], rows: NDArray[np.int64], record: Record) -> None:
    """Copy the values of `record` to `new`, in which row i is row `rows[i]` of the content. Both are sorted by row."""
    if len(record.rows):
        place = np.searchsorted(record.rows, rows.astype(np.uint64)).clip(max=len(record.rows) - 1)
        hit = record.rows[place] == rows.astype(np.uint64)
        new[hit] = record.values[place[hit]].view(new.dtype)
