"""Where the entries of GatherElements and ScatterElements belong: row by row, without a division, and checked."""

from __future__ import annotations

from app.kernels.numba_cpu.memory_intrinsics import load_item, store_item
from app.kernels.numba_cpu.ndarray_abi import checked_product
from app.llvm_intrinsics import Address, inner


@inner
def is_inside(axes: Address, depth: int, axis_size: int, axis_stride: int, items: int) -> bool:
    """Whether all places that the plan can make are among `items` items of data."""
    last = checked_product(axis_size - 1, axis_stride)
    for axis in range(depth):
        if last < 0 or last >= items:
            return False
        step = checked_product(load_item(axes, axis) - 1, load_item(axes, depth + axis))
        if step < 0 or step >= items:
            return False
        last += step  # both below `items`: their sum overflows at most into the sign
    return 0 <= last < items


@inner
def next_row(axes: Address, places: Address, depth: int) -> int:
    """Count on along the axes before the last one: items of data from the row that ends to the next."""
    moved = 0
    axis = depth - 2
    while axis >= 0:
        place, step = load_item(places, axis) + 1, load_item(axes, depth + axis)
        moved += step
        if place < load_item(axes, axis):
            store_item(places, axis, place)
            return moved
        moved -= place * step
        store_item(places, axis, 0)
        axis -= 1
    return moved


@inner
def write_entry_places(
    target: Address,
    origin: int,
    row_step: int,
    entries: Address,
    count: int,
    axis_size: int,
    wrapped: int,
    axis_step: int,
) -> int:
    """Write the places of the items of `count` entries of a row: their sign, negative if one is out of bounds.

    A place is an address or the number of an item, as `origin` and the steps are.
    """
    if row_step == 0 and axis_step == 1:
        return write_numbers(target, origin, entries, count, axis_size, wrapped)
    signs = 0
    for t in range(count):
        entry = load_item(entries, t)
        entry += (entry >> 63) & wrapped
        signs |= entry | (axis_size - 1 - entry)
        store_item(target, t, origin + t * row_step + entry * axis_step)
    return signs


@inner
def write_numbers(target: Address, origin: int, entries: Address, count: int, size: int, wrapped: int) -> int:
    """Write the numbers, counted from `origin`, of the items that entries name along an axis whose items follow one
    another: the entries' sign, negative if one is out of bounds.

    A loop of its own, for processors with vectors of 256 bits have no product of integers of 64.
    """
    signs = 0
    for t in range(count):
        entry = load_item(entries, t)
        entry += (entry >> 63) & wrapped
        signs |= entry | (size - 1 - entry)
        store_item(target, t, origin + entry)
    return signs


@inner
def enter_row(axes: Address, places: Address, depth: int, row: int, step: int) -> int:
    """Write the place of row number `row` along each axis but the last: how far its first item lies behind the first of
    all items, each of which is `step` behind the one before.
    """
    offset = 0
    for back in range(depth - 1):
        axis = depth - 2 - back
        size = load_item(axes, axis)
        place = row % size
        row //= size
        store_item(places, axis, place)
        offset += place * load_item(axes, depth + axis) * step
    return offset


@inner
def write_rows_places(
    target: Address,
    origin: int,
    column: int,
    axes: Address,
    places: Address,
    depth: int,
    step: int,
    entries: Address,
    count: int,
    axis_size: int,
    wrapped: int,
    axis_step: int,
) -> tuple[int, int, int]:
    """`write_entry_places` for entries from `column` of a row on, which go on in the rows behind it.

    Gives the sign, and where the entry behind them lies: the origin of its row, and its column.
    """
    row, row_step = load_item(axes, depth - 1), load_item(axes, 2 * depth - 1) * step
    signs = 0
    filled = 0
    while filled < count:
        stretch = min(row - column, count - filled)
        signs |= write_entry_places(
            target + 8 * filled,
            origin + column * row_step,
            row_step,
            entries + 8 * filled,
            stretch,
            axis_size,
            wrapped,
            axis_step,
        )
        filled += stretch
        column += stretch
        if column == row:
            column = 0
            origin += next_row(axes, places, depth) * step
    return signs, origin, column


@inner
def first_bad_entry(entries: Address, count: int, axis_size: int, wrapped: int) -> int:
    """The first of so many entries that is out of bounds, or -1."""
    for t in range(count):
        entry = load_item(entries, t)
        if entry >= axis_size or entry < -wrapped:
            return t
    return -1
