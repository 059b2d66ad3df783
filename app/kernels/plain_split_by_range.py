"""Splitting tuples of indices by ranges of rows, in NumPy; `compiled_split_by_range` does the same."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

FITS: Final = 0
OUT_OF_BOUNDS: Final = 1
"""What `split_by_range` finds of the components; -1 where the arrays do not fit each other."""


def split_by_range(
    components: NDArray[np.int64],
    sizes: NDArray[np.int64],
    wrap: bool,
    stops: NDArray[np.int64],
    order: NDArray[np.int64],
    moved: NDArray[np.int64],
    ends: NDArray[np.int64],
) -> int:
    """Sort the flat `components`, tuples with one for each of `sizes`, by the range that has their first one as a row.

    Range i ends at `stops[i]`, the last one at `sizes[0]`. With `wrap` a component in [-size, -1] counts from the end.
    `order` gets the numbers of the tuples, in a stable order, `moved` the tuples in that order, the first component
    counted from the start of its range, and `ends` where in `order` the tuples of each range end. The others are
    copied as they are. Where one is out of bounds all three have no meaning.
    """
    depth = sizes.size
    if depth == 0 or components.size % depth or moved.size != components.size or ends.size != stops.size:
        return -1
    count = components.size // depth
    if order.size != count or (stops[-1] if stops.size else 0) != sizes[0]:
        return -1
    ends[:] = 0
    if not count:
        return FITS
    tuples = components.reshape(-1, depth)
    lowest, highest = tuples.min(axis=0).tolist(), tuples.max(axis=0).tolist()
    for size, low, high in zip(sizes.tolist(), lowest, highest, strict=True):
        if high >= size or low < (-size if wrap else 0):
            return OUT_OF_BOUNDS
    rows = tuples[:, 0]
    if lowest[0] < 0:
        rows = np.where(rows < 0, rows + sizes[0], rows)
    numbers = np.searchsorted(stops, rows, "right").astype(np.uint16)  # 16 bits are sorted by counting
    order[:] = np.argsort(numbers, kind="stable")
    target = moved.reshape(-1, depth)
    np.take(tuples, order, axis=0, out=target)
    np.cumsum(np.bincount(numbers, minlength=stops.size), out=ends)
    begin, start = 0, 0
    local = rows[order]
    for end, stop in zip(ends.tolist(), stops.tolist(), strict=True):
        if end > begin:
            target[begin:end, 0] = local[begin:end] - start
            begin = end
        start = stop
    return FITS
