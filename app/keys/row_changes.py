"""Which rows keys that are added get, and which rows move when keys are removed: rows stay dense."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from app.keys.key_column import KeyColumn
from app.keys.key_index import build, new_seed


def number_new_keys(wanted: KeyColumn, rows: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Replace each -1 in `rows`, which `find` wrote for `wanted`, by the row that the missing key will have.

    New keys get rows `count`, `count` + 1, ... by their first places in `wanted`, a repeated one the same row. Returns
    these first places, ascending: `wanted.take` of them is what is appended to the column.
    """
    missing = np.flatnonzero(rows < 0)
    keys = wanted.take(missing)
    index, _ = build(keys, new_seed())
    first = np.empty(len(keys), np.int64)
    index.find(keys, keys, first)
    is_first = first == np.arange(len(keys))
    rows[missing] = count + (np.cumsum(is_first) - 1)[first]
    places: NDArray[np.int64] = missing[is_first]
    return places


def fill_gaps(count: int, removed: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return which rows move where when the distinct rows `removed` leave a table of `count`: sources and targets.

    The rows behind the new end that stay move into the gaps before it, both ascending. Raises ValueError if a row is
    repeated, or is not one of the table.
    """
    if len(removed) and not 0 <= removed.min() <= removed.max() < count:
        raise ValueError(f"removed rows are not within a table of {count}")
    gone = np.unique(removed)
    if len(gone) != len(removed):
        raise ValueError("a row is removed twice")
    end = count - len(gone)
    stays = np.ones(len(gone), np.bool_)  # of the rows behind the new end
    stays[gone[gone >= end] - end] = False
    return end + np.flatnonzero(stays), gone[gone < end]
