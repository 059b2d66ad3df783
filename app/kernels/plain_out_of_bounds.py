"""Replacing indices that are out of bounds, in NumPy; `compiled_out_of_bounds` does the same."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

CLIP, WRAP, FILL = range(3)
_ROWS_PER_BLOCK: Final = 1 << 14
"""Tuples that are looked at together, which bounds the memory that it takes."""


def replace_components(
    components: NDArray[np.int64],
    sizes: NDArray[np.int64],
    wrap: bool,
    mode: int,
    valid: NDArray[np.int64],
    filled: NDArray[np.uint8],
) -> int:
    """Write the flat `components`, tuples with one for each of `sizes`, to `valid`; return how many were out of bounds.

    With `wrap` one in [-size, -1] counts from the end first. Under FILL the bytes of `filled` say of each tuple whether
    one of its components was out of bounds. On an axis of size 0 none is valid: under CLIP and WRAP they stay and do
    not count. -1 where the arrays do not fit each other.
    """
    depth = sizes.size
    if depth == 0 or components.size % depth or valid.size != components.size:
        return -1
    rows, found = components.reshape(-1, depth), valid.reshape(-1, depth)
    if mode == FILL and filled.size != len(rows):
        return -1
    count = 0
    for start in range(0, len(rows), _ROWS_PER_BLOCK):
        block = slice(start, start + _ROWS_PER_BLOCK)
        wrong = np.zeros(len(rows[block]), np.bool_)
        for j, size in enumerate(sizes.tolist()):
            values = rows[block, j].copy()
            if wrap:
                values[(values < 0) & (values >= -size)] += size
            outside = (values < 0) | (values >= size)
            if size == 0:
                found[block, j] = 0 if mode == FILL else values
                outside &= mode == FILL
            else:
                found[block, j] = values % size if mode == WRAP else values.clip(0, size - 1)
            count += int(np.count_nonzero(outside))
            wrong |= outside
        if mode == FILL:
            filled[block] = wrong
    return count
