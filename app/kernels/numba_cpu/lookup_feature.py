"""A feature of a lookup as compiled code knows it, and where its bags and rows are."""

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
    """A feature: its plan and arrays as `lookup` writes them, and what `_lookup` finds of these."""

    table_object: Address
    """Of the object of an array, as the next five; 0 for none."""
    indices_object: Address
    offsets_object: Address
    weights_object: Address
    fill_object: Address
    out_object: Address
    rows: int
    row_items: int
    item_size: int
    item_kind: int
    """One of `float_kinds.KINDS`, 0 for items of other types."""
    pooling: int
    """One of POOLINGS."""
    count: int
    """Indices."""
    bags: int
    group: int
    stride: int
    column: int

    table: Address
    """Of the first item, as the next five; 0 for none."""
    indices: Address
    offsets: Address
    weights: Address
    fill: Address
    out: Address
    index_bytes: int
    """4 or 8; offsets have as many."""
    row_bytes: int
    ahead: int
    """How many rows before it is read a row is asked for."""
    unit: int
    """The work of a row: lines that it lies on, as of a bag."""
    begin: int
    """Where the work of the feature begins and ends among that of all features."""
    end: int


GIVEN: Final = 16
"""Fields that `lookup` writes."""
feature_at: Final = record_of(Feature)


@inlined
def load_index(indices: Address, index_bytes: int, at: int) -> int:
    """Index number `at` of those at an address, of 4 or 8 bytes."""
    if index_bytes == 8:
        return load_item(indices, at)
    value = load_u32(indices + 4 * at)
    return value - ((value >> 31) << 32)


@inlined
def rows_ahead(row_bytes: int) -> int:
    """How many rows ahead rows of so many bytes are asked for."""
    return max(1, min(ROWS_AHEAD, LOOKUP_BYTES_AHEAD // max(row_bytes, 1)))


@inlined
def row_of(feature_address: Address, at: int) -> Address:
    """The address of the row of index number `at`."""
    feature = feature_at(feature_address)
    index = load_index(feature.indices, feature.index_bytes, at)
    return feature.fill if index == feature.rows else feature.table + index * feature.row_bytes


@inlined
def ask_for_row(feature_address: Address, at: int) -> None:
    """Have the row of index number `at` fetched into a cache."""
    row = row_of(feature_address, at)
    for place in range(0, min(feature_at(feature_address).row_bytes, LOOKUP_BYTES_AHEAD), LINE):
        prefetch(row + place)


@inlined
def start_of_bag(feature_address: Address, bag: int) -> int:
    """Where a bag begins, or for the one behind the last where that ends."""
    feature = feature_at(feature_address)
    if bag >= feature.bags:
        return feature.count
    return load_index(feature.offsets, feature.index_bytes, bag)
