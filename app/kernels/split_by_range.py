"""Split tuples of indices by row range: find what to request from each shard of a table that is split into ranges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Parts(NamedTuple):
    """Tuples grouped by the row range that holds their first component."""

    ranges: list[int]
    """The indices of the ranges with at least one tuple, in ascending order."""
    bounds: list[int]
    """Offsets in `order` at which the tuples of each of `ranges` begin, and the end of the last range."""
    order: NDArray[np.int64]
    """The indices of the tuples, sorted by range and in ascending order within each range."""
    moved: NDArray[np.int64]
    """The flat tuples in the order of `order`. The first component of each counts from the start of its range."""


def split(indices: NDArray[np.int64], dims: Sequence[int], wrap: bool, stops: NDArray[np.int64]) -> Parts:
    """Split flat `indices` by the ranges of axis 0 that end at `stops`. Tuples have one component for each of `dims`.

    `stops` may be read-only. Raises IndexError if a component is out of bounds: outside [-size, size - 1] with `wrap`,
    or outside [0, size - 1] without it.
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
    numbers = np.searchsorted(stops, rows, "right").astype(np.uint16)  # NumPy uses a radix sort for 16 bits
    order = np.argsort(numbers, kind="stable")
    counts = np.bincount(numbers, minlength=stops.size)
    starts = stops - np.diff(stops, prepend=0)
    moved = tuples[order]
    moved[:, 0] = (rows - starts[numbers])[order]
    ranges = np.flatnonzero(counts)
    return Parts(ranges.tolist(), [0, *np.cumsum(counts[ranges]).tolist()], order, moved.reshape(-1))
