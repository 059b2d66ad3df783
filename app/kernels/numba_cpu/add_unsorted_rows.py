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
"""Bytes of the largest result that is in a core's own cache: its rows need not be asked for, and to look for NaNs in it
afterwards takes less than to look at every sum: 300,000 rows of 64 into 100 took 2.9 ms and not 3.9."""


def _adder(load: Load, store: Store) -> Callable[[Address, Address, int], None]:
    """A loop that adds `count` items to sums."""

    @inlined
    def loop(sums: Address, source: Address, count: int) -> None:
        for at in range(count):
            store(sums, at, load(sums, at) + load(source, at))

    return loop


def _checked_adder(load: Load, store: Store) -> Callable[[Address, Address, int], int]:
    """The same, which also says whether one of the sums is a NaN then."""

    @inlined
    def loop(sums: Address, source: Address, count: int) -> int:
        odd = 0
        for at in range(count):
            total = load(sums, at) + load(source, at)
            store(sums, at, total)
            odd |= total != total  # noqa: PLR0124  (a NaN is not equal to itself)
        return odd

    return loop


def _nan_finder(load: Load) -> Callable[[Address, int], int]:
    """A loop that says whether one of `count` items is a NaN."""

    @inlined
    def loop(items: Address, count: int) -> int:
        odd = 0
        for at in range(count):
            item = load(items, at)
            odd |= item != item  # noqa: PLR0124
        return odd

    return loop


_add_f32 = _adder(load_f32, store_sum_32)
_add_f64 = _adder(load_f64, store_sum_64)
_add_checked_f32 = _checked_adder(load_f32, store_sum_32)
_add_checked_f64 = _checked_adder(load_f64, store_sum_64)
_find_nan_f32 = _nan_finder(load_f32)
_find_nan_f64 = _nan_finder(load_f64)


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
    odd, whole = 0, (end_row - row) * step
    in_own_cache = whole <= IN_OWN_CACHE
    checks = not in_own_cache or parts > 1 or count * step < whole
    for at in range(count):
        if not in_own_cache and at % _AHEAD == 0:
            for other in range(at + _AHEAD, min(at + 2 * _AHEAD, count)):
                place = load_item(pairs, other) >> low
                if row <= place < end_row:
                    for line in range(0, columns * size, LINE):
                        prefetch_to_write(result + place * step + line)
        place = load_item(pairs, at) >> low
        if row <= place < end_row:
            target, source = result + place * step, gradient + at * step
            if size == 4 and checks:
                odd |= _add_checked_f32(target, source, columns)
            elif size == 4:
                _add_f32(target, source, columns)
            elif checks:
                odd |= _add_checked_f64(target, source, columns)
            else:
                _add_f64(target, source, columns)
    if not checks:
        first, items = result + row * step, whole // size
        odd = _find_nan_f32(first, items) if size == 4 else _find_nan_f64(first, items)
    if odd != 0:
        store_item(parameters, HAS_NAN, 1)
