"""The row of a table that each tuple of indices names, checked, for kernels that write there."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from app.compilation.decorators import inner
from app.compilation.intrinsics import Address, stack_words
from app.kernels.numba_cpu.typed_memory import MAX_DEPTH, Items, Sizes, Table, items_at, table_at
from app.kernels.numba_cpu.widen_indices import widen_components

BLOCK: Final = 256
"""Most tuples that are checked at a time."""
int64_items: Final = items_at(np.int64)
_int64_table: Final = table_at(np.int64)
_stack_block: Final = stack_words(BLOCK * MAX_DEPTH)


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


@inner
def write_rows(job: Any, first: int, count: int, rows: Items) -> int:
    """Write to `rows` what the tuples from number `first` on name. Returns the first bad component, or -1.

    A component counts from that of tuple 0 on.
    """
    depth, sizes, block, done = job.depth, job.sizes, _stack_block(), 0
    while done < count:
        tuples = min(BLOCK, count - done)
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
            return begin + _first_bad(components, sizes, job.wrap)  # type: ignore[no-any-return]
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
def _first_bad(components: Table, sizes: Any, wrap: bool) -> int:
    """The first of the components, counted row by row, that is out of bounds; there is one."""
    tuples, depth = components.shape
    for t in range(tuples):
        for axis in range(depth):
            index, size = components[t, axis], sizes[axis]
            if index >= size or index < (-size if wrap else 0):
                return t * depth + axis  # type: ignore[no-any-return]
    return -1
