"""The gradient of a gather of rows, added to zeros where they belong as they come: each thread adds some columns, or
where tuples are few, what belongs to some rows.

To sort tuples and to read their slices in that order takes longer, unless slices are long. What a thread adds is in
the order of the tuples, in float32 or float64, which are the types of the sums: so the bits are those of sorted tuples.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from app.kernels.numba_cpu.backward_job import (
    COLUMN_BLOCKS,
    COUNT,
    GRADIENT,
    HAS_NAN,
    ITEM_SIZE,
    LOW_BITS,
    PAIRS,
    RESULT,
    WIDTH,
)
from app.kernels.numba_cpu.float_items import Load, Store, load_f32, load_f64, store_sum_32, store_sum_64
from app.kernels.numba_cpu.memory_intrinsics import LINE, load_item, prefetch_to_write, store_item
from app.llvm_intrinsics import Address, inlined, inner

_AHEAD: Final = 16
"""So many rows of the result are asked for before they are added to."""
IN_OWN_CACHE: Final = 1 << 19
"""Bytes of the largest result that is in a core's own cache: its rows need not be asked for."""


def _adder(load: Load, store: Store) -> Callable[[Address, Address, int], int]:
    """A loop that adds `count` items to sums, and says whether one is a NaN then."""

    @inlined
    def loop(sums: Address, source: Address, count: int) -> int:
        odd = 0
        for at in range(count):
            total = load(sums, at) + load(source, at)
            store(sums, at, total)
            odd |= total != total  # noqa: PLR0124  (a NaN is not equal to itself)
        return odd

    return loop


_add_f32 = _adder(load_f32, store_sum_32)
_add_f64 = _adder(load_f64, store_sum_64)


@inner
def add_unsorted_rows(parameters: Address, row: int, end_row: int, part: int) -> None:
    """Add to rows [row, end_row) of the result a part of the columns of what belongs there. Where there are several
    parts, each has whole cache lines of the result: two threads that write into one line take it from each other, and
    rows that are named often may take thrice the time.
    """
    width, size, count = load_item(parameters, WIDTH), load_item(parameters, ITEM_SIZE), load_item(parameters, COUNT)
    parts, step = load_item(parameters, COLUMN_BLOCKS), width * size
    begin, end = 0, width
    if parts > 1:
        lines, items = step // LINE, LINE // size
        begin, end = lines * part // parts * items, lines * (part + 1) // parts * items
    gradient, result = load_item(parameters, GRADIENT) + begin * size, load_item(parameters, RESULT) + begin * size
    pairs, low, columns = load_item(parameters, PAIRS), load_item(parameters, LOW_BITS), end - begin
    odd = 0
    asks = (end_row - row) * step > IN_OWN_CACHE
    for at in range(count):
        if asks and at % _AHEAD == 0:
            for other in range(at + _AHEAD, min(at + 2 * _AHEAD, count)):
                place = load_item(pairs, other) >> low
                if row <= place < end_row:
                    for line in range(0, columns * size, LINE):
                        prefetch_to_write(result + place * step + line)
        place = load_item(pairs, at) >> low
        if row <= place < end_row:
            target, source = result + place * step, gradient + at * step
            if size == 4:
                odd |= _add_f32(target, source, columns)
            else:
                odd |= _add_f64(target, source, columns)
    if odd != 0:
        store_item(parameters, HAS_NAN, 1)
