"""The new values of the rows that a scatter changes: replaced, or reduced by add, mul, min or max."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from app.store.scatters.scatter_log import Record
from app.tensors.scatter_call import Reduction

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
) -> tuple[NDArray[np.uint64], NDArray[np.uint8]]:
    """The rows that a scatter changes, each once and in order, and the bytes of their new values.

    `items` gives all items of the content, flat; `width` is the items of a row. `unapplied` are earlier records that
    are not applied yet; with a reduction, their rows are as wide. Updates of one row count in their order: the last one
    wins, or they are reduced one after the other, each result rounded to the type, as NumPy does it (NaN wins in min
    and max; integers wrap).
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
        for record in unapplied:
            _overlay(new, unique, record)
        with np.errstate(all="ignore"):
            if len(unique) == len(rows):
                ordered = np.empty_like(new)
                ordered[place] = values
                new = _UFUNCS[reduction](new, ordered)
            else:
                _UFUNCS[reduction].at(new, place, values)
    octets: NDArray[np.uint8] = np.ascontiguousarray(new).view(np.uint8).reshape(len(unique), -1)
    return unique.astype(np.uint64), octets


def _overlay(new: NDArray[Any], rows: NDArray[np.int64], record: Record) -> None:
    """Copy the values of `record` into `new`, whose row i is row `rows[i]` of the content. Both are sorted by row."""
    if len(record.rows):
        place = np.searchsorted(record.rows, rows.astype(np.uint64)).clip(max=len(record.rows) - 1)
        hit = record.rows[place] == rows.astype(np.uint64)
        new[hit] = record.values[place[hit]].view(new.dtype)
