"""Pool bags of rows (sum, mean or maximum) without copying the rows.

Rows are added one by one in float32 (float64 for float64 items), and each product is rounded before it is added. The
sums for a block of columns stay in registers while the rows are added.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from app.compilation.decorators import inner
from app.compilation.intrinsics import Address, prefetch
from app.kernels.numba_cpu.float_kinds import FloatKind, by_float_kind
from app.kernels.numba_cpu.lookup_feature import (
    MAX,
    MEAN,
    feature_at,
    load_index,
    prefetch_row,
    start_of_bag,
)
from app.kernels.numba_cpu.memory_intrinsics import LINE
from app.kernels.numba_cpu.vectors import vector_functions

_LANES: Final = (64, 16, 4, 1)
"""Numbers of columns per block. The widest block uses 8 of the 16 registers of AVX2."""

PoolBlock = Callable[[Address, Address, int, int, int, int], None]
Pool = Callable[[Address, Address, int, int, int], None]


def _block_pooler(number: FloatKind, lanes: int) -> PoolBlock:
    """Build a function that pools `lanes` columns, starting at `column` (see `_pooler`)."""
    zeros, load, load_one, add_product, larger, divide, store = vector_functions(number.name, lanes)
    wide, item_size = number.sum, np.dtype(number.item).itemsize
    block_bytes = lanes * item_size

    @inner
    def pool_block(feature_address: Address, target: Address, begin: int, end: int, last: int, column: int) -> None:
        feature = feature_at(feature_address)
        offset = column * item_size
        indices, index_bytes, rows, row_bytes = feature.indices, feature.index_bytes, feature.rows, feature.row_bytes
        table, fill = feature.table + offset, feature.fill + offset
        weights, largest, ahead = feature.weights, feature.pooling == MAX, feature.ahead
        sums = zeros()
        for at in range(begin, end):
            later = load_index(indices, index_bytes, min(at + ahead, last))
            later = fill if later == rows else table + later * row_bytes
            for place in range(0, block_bytes, LINE):
                prefetch(later + place)
            prefetch(later + block_bytes - 1)
            row = load_index(indices, index_bytes, at)
            items = load(fill if row == rows else table + row * row_bytes)
            if not largest:
                sums = add_product(sums, items, load_one(weights + item_size * at) if weights != 0 else wide(1.0))
            elif at > begin:
                sums = larger(sums, items)
            else:
                sums = items
        if feature.pooling == MEAN and begin < end:
            sums = divide(sums, wide(end - begin))
        store(target + offset, sums)

    return pool_block


def _pooler(number: FloatKind) -> Pool:
    """Build a function that pools the rows of indices [begin, end) of a feature into the row at `target`.

    The function prefetches rows, up to the row of the index at position `last`. A block that would extend past the last
    column is moved back, so some columns are computed twice.
    """
    block_64, block_16, block_4, block_1 = (_block_pooler(number, lanes) for lanes in _LANES)

    @inner
    def pool(feature_address: Address, target: Address, begin: int, end: int, last: int) -> None:
        items = feature_at(feature_address).row_items
        column = 0
        while column < items:
            if items >= 64:
                block_64(feature_address, target, begin, end, last, min(column, items - 64))
                column += 64
            elif items >= 16:
                block_16(feature_address, target, begin, end, last, min(column, items - 16))
                column += 16
            elif items >= 4:
                block_4(feature_address, target, begin, end, last, min(column, items - 4))
                column += 4
            else:
                block_1(feature_address, target, begin, end, last, column)
                column += 1

    return pool


_pool: Final = by_float_kind(_pooler)


@inner
def pool_bags(feature_address: Address, first: int, end: int) -> None:
    """Pool the bags [first, end) of a feature into their output rows."""
    feature = feature_at(feature_address)
    target = feature.out + first * feature.stride
    begin = start_of_bag(feature_address, first)
    last = max(start_of_bag(feature_address, end) - 1, begin)
    for at in range(begin, min(begin + feature.ahead, last)):
        prefetch_row(feature_address, at)
    for bag in range(first, end):
        stop = start_of_bag(feature_address, bag + 1)
        _pool(feature.item_kind, feature_address, target, begin, stop, last)
        target += feature.stride
        begin = stop
