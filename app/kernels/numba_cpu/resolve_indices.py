"""Check indices and compute the rows and items that they select. The gather has its own loops; other kernels use these.

A chunk processes the indices in blocks and records the rows or items that each block selects (`write_rows`,
`write_items`). A scatter or a gradient then selects the rows that the chunk owns (`find_own`), and prefetches their
memory some rows ahead (`prefetch_update`).
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from app.compilation.decorators import inlined, inner
from app.compilation.intrinsics import Address, address_of, stack_words, ult
from app.kernels.numba_cpu.memory_intrinsics import load_item, prefetch_bytes
from app.kernels.numba_cpu.thresholds import PREFETCHED_OF_ROW, ROWS_AHEAD
from app.kernels.numba_cpu.typed_memory import MAX_DEPTH, Items, Sizes, items_at, table_at
from app.kernels.numba_cpu.widen_indices import widen_components

BLOCK: Final = 512
"""Maximum number of updates in a block.

In larger blocks, the passes over indices and updates would each wait for memory.
"""
_TUPLES: Final = 256
"""Maximum number of tuples that are checked at a time."""
int64_items: Final = items_at(np.int64)
_int64_table: Final = table_at(np.int64)
_stack_components: Final = stack_words(_TUPLES * MAX_DEPTH)
_stack_entries: Final = stack_words(BLOCK)


class IndexedJob:
    """The fields that determine which rows the tuples of a job select."""

    indices: Address
    index_type: int
    """See `array_header.index_type`."""
    depth: int
    """Number of components per tuple."""
    wrap: bool
    """Whether negative components count from the end."""
    sizes: Sizes
    """Sizes of the indexed axes."""


class IndexedItemsJob(IndexedJob):
    """The fields that determine which items single indices select. Indices are entries of an array of shape `sizes`.

    Entry e at (p0, p1, ...) selects item base + e * axis_stride + p0 * strides[0] + p1 * strides[1] + ... For a gather,
    the strides are in bytes and `base` is the address of data, so the results are addresses instead of item numbers.
    """

    base: int
    axis_size: int
    """Exclusive upper bound on the entries."""
    axis_stride: int
    strides: Sizes
    row_entries: int
    """Number of entries along the last axis."""


@inner
def write_rows(job: Any, first: int, count: int, rows: Items) -> int:
    """Write to `rows` the rows that `count` tuples select, starting at tuple `first`.

    Returns the first invalid component, counted from tuple 0, or -1.
    """
    depth, sizes, block, done = job.depth, job.sizes, _stack_components(), 0
    while done < count:
        tuples = min(_TUPLES, count - done)
        begin = (first + done) * depth
        components = _int64_table(as_int64(job, begin, tuples * depth, block), tuples, depth)
        found = rows[done : done + tuples]
        for t in range(tuples):
            found[t] = 0
        signs = 0
        for axis in range(depth):
            size = sizes[axis]
            wrapped = size if job.wrap else 0
            for t in range(tuples):
                index = components[t, axis]
                index += (index >> 63) & wrapped
                signs |= index | (size - 1 - index)  # negative if it is out of bounds
                found[t] = found[t] * size + index
        if signs < 0:
            return begin + first_bad(address_of(components), tuples, address_of(sizes), depth, job.wrap)  # type: ignore[no-any-return]
        done += tuples
    return -1


@inner
def as_int64(job: Any, first: int, count: int, block: Address) -> Address:
    """Return the address of components [first, first + count) as int64: in place, or copied to `block`."""
    if job.index_type == 8:
        return job.indices + 8 * first  # type: ignore[no-any-return]
    widen_components(job.index_type, job.indices, first, count, block)
    return block


@inner
def first_bad(components: Address, tuples: int, sizes: Address, depth: int, wrap: bool) -> int:
    """Return the first component out of bounds, or -1. Components are int64, for axes whose sizes are at `sizes`."""
    for t in range(tuples):
        for axis in range(depth):
            index, size = load_item(components, t * depth + axis), load_item(sizes, axis)
            if index >= size or index < (-size if wrap else 0):
                return t * depth + axis
    return -1


@inner
def write_items(job: Any, first: int, items: Items) -> int:
    """Write to `items` the items that entries select, starting at entry `first`.

    Returns the first invalid entry, or -1. `job` is an `IndexedItemsJob`.
    """
    entries, done = as_int64(job, first, len(items), _stack_entries()), 0
    row, last = job.row_entries, job.depth - 1
    bounds = job.axis_size, job.axis_size if job.wrap else 0
    while done < len(items):
        count = min(row - (first + done) % row, len(items) - done)
        places = job.axis_stride, _origin(job, first + done), job.strides[last]
        bad = _write_places(int64_items(entries + 8 * done, count), bounds, places, items[done:])
        if bad >= 0:
            return first + done + bad
        done += count
    return -1


@inner
def _write_places(entries: Items, bounds: tuple[int, int], places: tuple[int, int, int], items: Items) -> int:
    """Write the item that each entry of a row selects. Returns the first invalid entry, or -1.

    If entry `t` has the value e, which is less than `size`, it selects item `stride * e + first + t * step`.
    """
    (size, wrapped), (stride, first, step) = bounds, places
    signs = 0
    for t in range(len(entries)):
        entry = entries[t]
        entry += (entry >> 63) & wrapped
        signs |= entry | (size - 1 - entry)  # negative if it is out of bounds
        items[t] = entry * stride + first + t * step
    if signs < 0:
        for t in range(len(entries)):
            if entries[t] >= size or entries[t] < -wrapped:
                return t
    return -1


@inner
def _origin(job: Any, number: int) -> int:
    """Return the item that entry `number` would select if its value were 0.

    No size is 0, because there is at least one entry.
    """
    item: int = job.base
    for back in range(job.depth):
        axis = job.depth - 1 - back
        size = job.sizes[axis]
        item += number % size * job.strides[axis]
        number //= size
    return item


@inner
def find_own(rows: Items, begin: int, end: int, own: Items) -> int:
    """Write to `own`, in order, the positions of those `rows` that are in [begin, end). Returns how many there are.

    `own` must have at least as many items as `rows`. The loop has no branch that depends on a row, because such a
    branch could not be predicted.
    """
    count = 0
    for t in range(len(rows)):
        own[count] = t
        count += ult(rows[t] - begin, end - begin)  # negative numbers are large as unsigned
    return count


@inlined
def prefetch_update(target: Address, target_bytes: int, source: Address, source_bytes: int, row: int, t: int) -> None:
    """Prefetch row `row` at `target` and update `t` at `source`. The sizes are bytes per row."""
    prefetch_bytes(target + row * target_bytes, min(target_bytes, PREFETCHED_OF_ROW))
    prefetch_bytes(source + t * source_bytes, min(source_bytes, PREFETCHED_OF_ROW))


@inner
def prefetch_first(
    target: Address, target_bytes: int, source: Address, source_bytes: int, rows: Items, own: Items
) -> None:
    """Call `prefetch_update` for the first ROWS_AHEAD updates in `own`."""
    for at in range(min(ROWS_AHEAD, len(own))):
        prefetch_update(target, target_bytes, source, source_bytes, rows[own[at]], own[at])
