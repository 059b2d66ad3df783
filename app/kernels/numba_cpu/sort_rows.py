"""Find the distinct rows that tuples select, in ascending order, and replace each tuple's row by its position among
them.
"""

from __future__ import annotations

from typing import Final

from app.compilation.decorators import inner
from app.kernels.numba_cpu.typed_memory import Items

DIGIT_BITS: Final = 11
"""Bits per digit of the radix sort: the counts for 2,048 digits stay in the L1 cache."""
DIGITS: Final = 1 << DIGIT_BITS


@inner
def number_distinct_rows(rows: Items, distinct: Items, order: Items, counts: Items, most: int) -> int:
    """Write the distinct values of `rows`, all below `most`, to `distinct` in ascending order.

    Returns how many there are. Each item of `rows` is replaced by the position of its value in `distinct`. `order` must
    have room for twice as many items as `rows`, and `counts` must have room for DIGITS items.
    """
    count = len(rows)
    order = _sorted_by_row(rows, order[:count], order[count:], counts, most)
    found, last = 0, -1
    for at in range(count):
        row = rows[order[at]]
        if row != last:
            distinct[found] = row
            found += 1
            last = row
        rows[order[at]] = found - 1
    return found


@inner
def _sorted_by_row(rows: Items, order: Items, other: Items, counts: Items, most: int) -> Items:
    """Return the indices of all tuples, sorted by row (LSD radix sort), in either `order` or `other`."""
    count = len(rows)
    for t in range(count):
        order[t] = t
    shift = 0
    while shift < 63 and (most - 1) >> shift > 0:
        for digit in range(DIGITS):
            counts[digit] = 0
        for t in range(count):
            counts[(rows[t] >> shift) & (DIGITS - 1)] += 1
        before = 0
        for digit in range(DIGITS):
            here = counts[digit]
            counts[digit] = before
            before += here
        for at in range(count):
            digit = (rows[order[at]] >> shift) & (DIGITS - 1)
            other[counts[digit]] = order[at]
            counts[digit] += 1
        order, other = other, order
        shift += DIGIT_BITS
    return order
