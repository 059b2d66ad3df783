"""The rows and items that indices name, checked: for all kernels but the gather's, which has loops of its own.

A chunk goes over the indices in blocks and writes down which rows or items a block names (`write_rows`, `write_items`).
A scatter or a gradient then finds those that are the chunk's own (`find_own`), and asks for their memory some rows
ahead (`prefetch_update`).
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
"""Most updates of a block: of more, the indices and then the updates would each wait for memory."""
_TUPLES: Final = 256
"""Most tuples that are checked at a time."""
int64_items: Final = items_at(np.int64)
_int64_table: Final = table_at(np.int64)
_stack_components: Final = stack_words(_TUPLES * MAX_DEPTH)
_stack_entries: Final = stack_words(BLOCK)


class IndexedJob:
    """The fields that say which rows the tuples of a job name."""

    indices: Address
    index_type: int
    """See `array_header.index_type`."""
    depth: int
    """Components of a tuple."""
    wrap: bool
    """Negative components count from the end."""
    sizes: Sizes
    """Of the indexed axes."""


class IndexedItemsJob(IndexedJob):
    """The fields that say which items single indices name, entries of an array with the axes `sizes`.

    Entry e at (p0, p1, ...) names item base + e * axis_stride + p0 * strides[0] + p1 * strides[1] + ... A gather, whose
    strides are in bytes and whose `base` is the address of data, has addresses in place of items.
    """

    base: int
    axis_size: int
    """Entries are less."""
    axis_stride: int
    strides: Sizes
    row_entries: int
    """Entries along the last axis."""


@inner
def write_rows(job: Any, first: int, count: int, rows: Items) -> int:
    """Write to `rows` what the tuples from number `first` on name. Returns the first bad component, or -1.

    A component counts from that of tuple 0 on.
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
    """Where components [first, first + count) of the job's indices are as int64: in their place, or in `block`."""
    if job.index_type == 8:
        return job.indices + 8 * first  # type: ignore[no-any-return]
    widen_components(job.index_type, job.indices, first, count, block)
    return block


@inner
def first_bad(components: Address, tuples: int, sizes: Address, depth: int, wrap: bool) -> int:
    """The first of the components of tuples, int64 for axes of these sizes, that is out of bounds, or -1."""
    for t in range(tuples):
        for axis in range(depth):
            index, size = load_item(components, t * depth + axis), load_item(sizes, axis)
            if index >= size or index < (-size if wrap else 0):
                return t * depth + axis
    return -1


@inner
def write_items(job: Any, first: int, items: Items) -> int:
    """Write to `items` what the entries from number `first` on name. Returns the first bad entry, or -1.

    `job` is an `IndexedItemsJob`.
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
    """Write the item that each entry of a row names: the first bad entry, or -1.

    Entry `t`, a number e below `size`, names item `stride * e + first + t * step`.
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
    """The item that entry `number` would name if its value were 0: the part of the sum that its place makes.

    No size is 0 here, since there is an entry.
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
    """Write to `own` which of `rows` are in [begin, end), in their order. Returns how many there are.

    `own` has room for as many numbers as there are rows. No branch depends on a row: none would be foreseen.
    """
    count = 0
    for t in range(len(rows)):
        own[count] = t
        count += ult(rows[t] - begin, end - begin)  # a negative one is large, unsigned
    return count


@inlined
def prefetch_update(target: Address, target_bytes: int, source: Address, source_bytes: int, row: int, t: int) -> None:
    """Ask for row `row` of those at `target` and for update `t` of those at `source`, rows of so many bytes."""
    prefetch_bytes(target + row * target_bytes, min(target_bytes, PREFETCHED_OF_ROW))
    prefetch_bytes(source + t * source_bytes, min(source_bytes, PREFETCHED_OF_ROW))


@inner
def prefetch_first(
    target: Address, target_bytes: int, source: Address, source_bytes: int, rows: Items, own: Items
) -> None:
    """`prefetch_update` for the first ROWS_AHEAD updates of `own`."""
    for at in range(min(ROWS_AHEAD, len(own))):
        prefetch_update(target, target_bytes, source, source_bytes, rows[own[at]], own[at])
