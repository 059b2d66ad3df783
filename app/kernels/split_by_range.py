"""Tuples of indices by the range of rows that has them: what each shard of a table in row ranges is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.compiled_later import CompiledLater
from app.kernels import plain_split_by_range
from app.kernels.plain_split_by_range import FITS, OUT_OF_BOUNDS

split_by_range: Final = CompiledLater(plain_split_by_range.split_by_range)


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

    `stops` is read-only. Raises IndexError where a component is out of bounds: outside [-size, size - 1], without
    `wrap` [0, size - 1].
    """
    components, sizes = indices.view(), np.array(dims, np.int64)
    components.flags.writeable = sizes.flags.writeable = False  # a function is compiled for one type of array
    order = np.empty(components.size // len(dims), np.int64)
    moved = np.empty(components.size, np.int64)
    ends = np.empty(stops.size, np.int64)
    found = split_by_range.run(components, sizes, wrap, stops, order, moved, ends)
    if found == OUT_OF_BOUNDS:
        raise IndexError("a component is out of bounds")
    if found != FITS:
        raise TypeError("the indices are not as the sizes say")
    ranges, bounds, begin = [], [0], 0
    for number, end in enumerate(ends.tolist()):
        if end > begin:
            ranges.append(number)
            bounds.append(end)
            begin = end
    return Parts(ranges, bounds, order, moved)
