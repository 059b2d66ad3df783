"""Splitting tuples of indices by ranges of rows, in compiled code; see `plain_split_by_range` for what it does."""

from __future__ import annotations

from app.kernels.plain_split_by_range import FITS, OUT_OF_BOUNDS
from app.llvm_intrinsics import Address, Integers, address_of, entry, inner, int64, load_u64, store_u64, ult


@entry
def split_by_range(
    components: Integers,
    sizes: Integers,
    wrap: bool,
    stops: Integers,
    order: Integers,
    moved: Integers,
    ends: Integers,
) -> int:
    """See `app.kernels.plain_split_by_range.split_by_range`."""
    depth, ranges = sizes.size, stops.size
    if depth == 0 or components.size % depth != 0 or moved.size != components.size or ends.size != ranges:
        return -1
    count = components.size // depth
    source, axes, borders = address_of(components), address_of(sizes), address_of(stops)
    places, target, bounds = address_of(order), address_of(moved), address_of(ends)
    rows = load_u64(axes)
    last = int64(0)
    if ranges > 0:
        last = load_u64(borders + 8 * (ranges - 1))
    if order.size != count or last != rows:
        return -1
    for number in range(ranges):
        store_u64(bounds + 8 * number, int64(0))
    if not _are_valid(source, axes, depth, count, wrap):
        return OUT_OF_BOUNDS
    step = 8 * depth
    # How many tuples each range has, then where its first one goes, which moves on to the end of its last one.
    for place in range(count):
        row = load_u64(source + step * place)
        number = _range_of(row + rows if row < 0 else row, borders, ranges)
        store_u64(bounds + 8 * number, load_u64(bounds + 8 * number) + 1)
    begin = int64(0)
    for number in range(ranges):
        held = load_u64(bounds + 8 * number)
        store_u64(bounds + 8 * number, begin)
        begin += held
    for place in range(count):
        row = load_u64(source)
        row = row + rows if row < 0 else row
        number = _range_of(row, borders, ranges)
        at = load_u64(bounds + 8 * number)
        store_u64(bounds + 8 * number, at + 1)
        store_u64(places + 8 * at, place)
        start = int64(0)
        if number > 0:
            start = load_u64(borders + 8 * (number - 1))
        store_u64(target + step * at, row - start)
        for j in range(1, depth):
            store_u64(target + step * at + 8 * j, load_u64(source + 8 * j))
        source += step
    return FITS


@inner
def _are_valid(source: Address, axes: Address, depth: int, count: int, wrap: bool) -> bool:
    """Whether no component is out of bounds."""
    for _ in range(count):
        for j in range(depth):
            size = load_u64(axes + 8 * j)
            value = load_u64(source)
            if wrap and value < 0:
                value += size
            if not ult(value, size):
                return False
            source += 8
    return True


@inner
def _range_of(row: int, borders: Address, ranges: int) -> int:
    """The first range that ends behind a row, which one does."""
    low, high = int64(0), ranges - 1
    while low < high:
        middle = (low + high) >> 1
        if load_u64(borders + 8 * middle) > row:
            high = middle
        else:
            low = middle + 1
    return low
