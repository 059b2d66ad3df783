"""The record for one feature of a lookup, and functions with which compiled code finds its bags and rows."""

from __future__ import annotations

from typing import Final

from app.compilation.decorators import inlined
from app.compilation.intrinsics import Address, load_u32, prefetch
from app.kernels.numba_cpu.memory_intrinsics import LINE, load_item
from app.kernels.numba_cpu.thresholds import LOOKUP_BYTES_AHEAD, ROWS_AHEAD
from app.kernels.numba_cpu.typed_memory import record_of

NONE, SUM, MEAN, MAX = range(4)
POOLINGS: Final = {"none": NONE, "sum": SUM, "mean": MEAN, "max": MAX}


class Feature:
    """A feature. `lookup_kernel.run` sets the first GIVEN fields, and `_lookup` sets the others."""

    table_object: Address
    """Address of the array object, or 0 if there is none. The same holds for the next five fields."""
    indices_object: Address
    offsets_object: Address
    weights_object: Address
    fill_object: Address
    out_object: Address
    rows: int
    row_items: int
    item_size: int
    item_kind: int
    """One of `float_kinds.KINDS`; 0 for other types."""
    pooling: int
    """One of POOLINGS."""
    count: int
    """Number of indices."""
    bags: int
    group: int
    stride: int
    column: int

    table: Address
    """Address of the first item, or 0 if there is none. The same holds for the next five fields."""
    indices: Address
    offsets: Address
    weights: Address
    fill: Address
    out: Address
    index_bytes: int
    """Bytes per index and per offset: 4 or 8."""
    row_bytes: int
    ahead: int
    """Number of rows by which a prefetch precedes the read."""
    unit: int
    """Work for one row or one bag, in cache lines."""
    begin: int
    """The feature's range in the work of all features, [begin, end)."""
    end: int


GIVEN: Final = 16
"""Number of fields that `lookup_kernel.run` sets."""
feature_at: Final = record_of(Feature)


@inlined
def load_index(indices: Address, index_bytes: int, at: int) -> int:
    """Return the index at position `at` of the array at `indices`, with 4 or 8 bytes per index."""
    if index_bytes == 8:
        return load_item(indices, at)
    value = load_u32(indices + 4 * at)
    return value - ((value >> 31) << 32)


@inlined
def rows_ahead(row_bytes: int) -> int:
    """Return the prefetch distance, in rows, for rows of `row_bytes` bytes."""
    return max(1, min(ROWS_AHEAD, LOOKUP_BYTES_AHEAD // max(row_bytes, 1)))


@inlined
def row_of(feature_address: Address, at: int) -> Address:
    """Return the address of the row selected by the index at position `at`."""
    feature = feature_at(feature_address)
    index = load_index(feature.indices, feature.index_bytes, at)
    return feature.fill if index == feature.rows else feature.table + index * feature.row_bytes


@inlined
def prefetch_row(feature_address: Address, at: int) -> None:
    """Prefetch the row selected by the index at position `at`."""
    row = row_of(feature_address, at)
    for place in range(0, min(feature_at(feature_address).row_bytes, LOOKUP_BYTES_AHEAD), LINE):
        prefetch(row + place)


@inlined
def start_of_bag(feature_address: Address, bag: int) -> int:
    """Return the offset of a bag's first index. If `bag` is the number of bags, returns the end of the last bag."""
    feature = feature_at(feature_address)
    if bag >= feature.bags:
        return feature.count
    return load_index(feature.offsets, feature.index_bytes, bag)
