"""Tuples of indices by the range of rows that has them: what each shard of a table in row ranges is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Parts(NamedTuple):
    """Tuples by the range that has their first component as a row."""

    ranges: list[int]
    """The numbers of the ranges that have a tuple, ascending."""
    bounds: list[int]
    """Where in `order` the tuples of each of them begin, and the end of the last."""
    order: NDArray[np.int64]
    """The numbers of the tuples, those of one range after those of another, ascending within each."""
    moved: NDArray[np.int64]
    """The flat tuples in that order, the first component of each counted from the start of its range."""


def split(indices: NDArray[np.int64], dims: Sequence[int], wrap: bool, stops: NDArray[np.int64]) -> Parts:
    """Flat `indices`, tuples with a component for each size of `dims`, by ranges of axis 0 that end at `stops`.

    `stops` is read-only. Raises IndexError if a component is out of bounds: outside [-size, size - 1], without
    `wrap` [0, size - 1].
    """
    tuples, sizes = indices.reshape(-1, len(dims)), np.array(dims, np.int64)
    if len(tuples) == 0:
        return Parts([], [0], np.empty(0, np.int64), np.empty(0, np.int64))
    lowest, highest = tuples.min(axis=0), tuples.max(axis=0)
    if (highest >= sizes).any() or (lowest < (-sizes if wrap else 0)).any():
        raise IndexError("a component is out of bounds")
    rows = tuples[:, 0]
    if lowest[0] < 0:
        rows = np.where(rows < 0, rows + sizes[0], rows)
    numbers = np.searchsorted(stops, rows, "right").astype(np.uint16)  # 16 bits are sorted by counting
    order = np.argsort(numbers, kind="stable")
    counts = np.bincount(numbers, minlength=stops.size)
    starts = stops - np.diff(stops, prepend=0)
    moved = tuples[order]
    moved[:, 0] = (rows - starts[numbers])[order]
    ranges = np.flatnonzero(counts)
    return Parts(ranges.tolist(), [0, *np.cumsum(counts[ranges]).tolist()], order, moved.reshape(-1))
