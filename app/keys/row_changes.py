"""Assign rows to new keys, and move rows when keys are removed, so that rows stay dense."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from app.keys.key_column import KeyColumn
from app.keys.key_index import build, new_seed


def number_new_keys(wanted: KeyColumn, rows: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Replace each -1 in `rows`, the result of `find` for `wanted`, with the row that the missing key will get.

    New keys get rows `count`, `count` + 1, ... in the order in which they first occur in `wanted`; repeated keys share
    a row. Returns the indices of these first occurrences in ascending order, to be appended to the column with
    `wanted.take`.
    """
    missing = np.flatnonzero(rows < 0)
    keys = wanted.take(missing)
    index, _ = build(keys, new_seed())
    first = index.find(keys, keys)
    is_first = first == np.arange(len(keys))
    rows[missing] = count + (np.cumsum(is_first) - 1)[first]
    places: NDArray[np.int64] = missing[is_first]
    return places


def fill_gaps(count: int, removed: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the source and target rows of the moves that close the gaps when `removed` rows leave a table of `count`
    rows.

    The remaining rows beyond the new end move into the gaps before it. Both arrays are ascending. Raises ValueError if
    a removed row is repeated or is not in the table.
    """
    if len(removed) and not 0 <= removed.min() <= removed.max() < count:
        raise ValueError(f"removed rows are not within a table of {count}")
    gone = np.unique(removed)
    if len(gone) != len(removed):
        raise ValueError("a row is removed twice")
    end = count - len(gone)
    stays = np.ones(len(gone), np.bool_)  # for the rows beyond the new end
    stays[gone[gone >= end] - end] = False
    return end + np.flatnonzero(stays), gone[gone < end]
