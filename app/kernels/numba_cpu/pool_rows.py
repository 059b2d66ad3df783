"""Rows of a table added up, or the largest of their items, without a copy of the rows: loops in LLVM's own vectors.

`pool_columns(name, largest)` makes the loop for one type. It goes over the columns in blocks: the sums of a block stay
in registers while one row after the other is added, and are rounded to the type and stored once. A block that reaches
beyond the last column is moved back, and works some of its columns out again.

Items are added one row after the other, in float32 (float64 for float64), each product rounded before it is added:
LLVM fuses nothing that is not marked for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numba.core.cgutils
from llvmlite import ir
from numba import types

from app.kernels.numba_cpu.half_floats import bfloat16_of_float, float_of_bfloat16, float_of_half, half_of_float
from app.kernels.numba_cpu.memory_intrinsics import LINE
from app.llvm_intrinsics import Address, Builder, intrinsic, spliced

PoolColumns = Callable[
    [Address, Address, int, Address, int, int, int, int, int, Address, Address, int, int, bool], None
]
"""(target, table, items, indices, index bytes, begin, end, last, row bytes, weights, fill, rows, ahead, mean)"""

_cgutils: Any = numba.core.cgutils
_BIT: Final = ir.IntType(1)
_SHORT: Final = ir.IntType(16)
_INT: Final = ir.IntType(32)
_LONG: Final = ir.IntType(64)
_SINGLE: Final = ir.FloatType()
_DOUBLE: Final = ir.DoubleType()
_ITEM_BYTES: Final = {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2}
_LANES: Final = (64, 16, 4, 1)
"""Columns of the blocks: the widest of them keep 8 of the 16 registers of AVX2 busy."""


def _splat(kind: Any, value: int | float) -> Any:
    element = kind.element
    return ir.Constant(kind, [ir.Constant(element, value)] * kind.count)


class _Type:
    """How items of a type become those that are added, and back, `lanes` of them at a time."""

    def __init__(self, name: str, lanes: int) -> None:
        self.name = name
        self.wide = _DOUBLE if name == "float64" else _SINGLE
        self.vector = ir.VectorType(self.wide, lanes)
        self.stored = self.vector if name in ("float32", "float64") else ir.VectorType(_SHORT, lanes)
        self.item_bytes = _ITEM_BYTES[name]

    def load(self, builder: Builder, address: Any) -> Any:
        """The items at an address, which need not be aligned."""
        found = builder.load(builder.inttoptr(address, self.stored.as_pointer()), align=1, typ=self.stored)
        if self.name == "bfloat16":
            return float_of_bfloat16(builder, found)
        return float_of_half(builder, found) if self.name == "float16" else found

    def store(self, builder: Builder, address: Any, value: Any) -> None:
        """Store items at an address, rounded to the type, half to even."""
        if self.name == "bfloat16":
            value = bfloat16_of_float(builder, value)
        elif self.name == "float16":
            value = half_of_float(builder, value)
        builder.store(value, builder.inttoptr(address, self.stored.as_pointer()), align=1)


def _load_index(builder: Builder, indices: Any, size: Any, at: Any) -> Any:
    """The index at a place, of 4 or 8 bytes: of 4, the upper half is what the sign says."""
    is_long = builder.icmp_signed("==", size, _LONG(8))
    place = builder.add(indices, builder.mul(at, size))
    upper = builder.add(place, builder.select(is_long, _LONG(4), _LONG(0)))
    low = builder.load(builder.inttoptr(place, _INT.as_pointer()), align=4, typ=_INT)
    high = builder.load(builder.inttoptr(upper, _INT.as_pointer()), align=4, typ=_INT)
    high = builder.select(is_long, high, builder.ashr(low, _INT(31)))
    return builder.or_(builder.shl(builder.zext(high, _LONG), _LONG(32)), builder.zext(low, _LONG))


load_index: Final[Callable[[Address, int, int], int]] = intrinsic(types.int64, (types.int64,) * 3, _load_index)
"""(indices, bytes of one, place)"""


def _prefetch(builder: Builder, address: Any, size: int) -> None:
    kind = ir.FunctionType(ir.VoidType(), [ir.IntType(8).as_pointer(), _INT, _INT, _INT])
    function = _cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    places = sorted({*range(0, size, LINE), size - 1})
    for place in places:
        pointer = builder.inttoptr(builder.add(address, _LONG(place)), ir.IntType(8).as_pointer())
        builder.call(function, [pointer, _INT(0), _INT(2), _INT(1)])


def _pool_block(name: str, lanes: int, largest: bool) -> Any:
    """An intrinsic that pools `lanes` columns of the rows of one bag, those at `table` and behind it.

    With `weights` 0 each row counts once; `fill` is the row of the index `rows`, 0 where there is none.
    """
    kind = _Type(name, lanes)

    def build(
        builder: Builder,
        target: Any,
        table: Any,
        indices: Any,
        size: Any,
        begin: Any,
        end: Any,
        last: Any,
        row_bytes: Any,
        weights: Any,
        fill: Any,
        rows: Any,
        ahead: Any,
        mean: Any,
    ) -> None:
        total = _cgutils.alloca_once(builder, kind.vector)
        builder.store(_splat(kind.vector, 0.0), total)
        one = _Type(name, 1)
        has_weights = builder.icmp_signed("!=", weights, _LONG(0))

        def row_of(at: Any) -> Any:
            index = _load_index(builder, indices, size, at)
            inside = builder.add(table, builder.mul(index, row_bytes))
            return builder.select(builder.icmp_signed("==", index, rows), fill, inside)

        if largest:
            with builder.if_then(builder.icmp_signed("<", begin, end)):
                builder.store(kind.load(builder, row_of(begin)), total)
        with _cgutils.for_range_slice(builder, begin, end, _LONG(1), intp=_LONG) as (at, _):
            later = builder.add(at, ahead)
            later = builder.select(builder.icmp_signed("<", later, last), later, last)
            _prefetch(builder, row_of(later), lanes * kind.item_bytes)
            row = kind.load(builder, row_of(at))
            so_far = builder.load(total, typ=kind.vector)
            if largest:
                keep = builder.fcmp_ordered(">=", so_far, row)
                keep = builder.or_(keep, builder.fcmp_unordered("uno", so_far, so_far))
                builder.store(builder.select(keep, so_far, row), total)
            else:
                place = builder.add(weights, builder.mul(at, _LONG(kind.item_bytes)))
                weight = _cgutils.alloca_once(builder, one.vector)
                builder.store(_splat(one.vector, 1.0), weight)
                with builder.if_then(has_weights):
                    builder.store(one.load(builder, place), weight)
                single = builder.load(weight, typ=one.vector)
                spread = builder.shuffle_vector(
                    single, ir.Constant(one.vector, ir.Undefined), ir.Constant(ir.VectorType(_INT, lanes), [0] * lanes)
                )
                builder.store(builder.fadd(so_far, builder.fmul(row, spread)), total)
        with builder.if_then(builder.and_(mean, builder.icmp_signed("<", begin, end))):
            count = builder.sitofp(builder.sub(end, begin), kind.wide)
            spread = ir.Constant(kind.vector, ir.Undefined)
            for lane in range(lanes):
                spread = builder.insert_element(spread, count, _INT(lane))
            builder.store(builder.fdiv(builder.load(total, typ=kind.vector), spread), total)
        kind.store(builder, target, builder.load(total, typ=kind.vector))

    return intrinsic(types.none, (*(types.int64,) * 12, types.boolean), build)


def pool_columns(name: str, largest: bool) -> PoolColumns:
    """The loop over the columns of a bag for the type `name`: their sums or means, or their largest items."""
    item = _ITEM_BYTES[name]
    block_64, block_16, block_4, block_1 = (_pool_block(name, lanes, largest) for lanes in _LANES)

    @spliced
    def pool(
        target: Address,
        table: Address,
        items: int,
        indices: Address,
        size: int,
        begin: int,
        end: int,
        last: int,
        row_bytes: int,
        weights: Address,
        fill: Address,
        rows: int,
        ahead: int,
        mean: bool,
    ) -> None:
        first = 0
        while first < items:
            if items >= 64:
                at = item * min(first, items - 64)
                block_64(
                    target + at,
                    table + at,
                    indices,
                    size,
                    begin,
                    end,
                    last,
                    row_bytes,
                    weights,
                    fill + at,
                    rows,
                    ahead,
                    mean,
                )
                first += 64
            elif items >= 16:
                at = item * min(first, items - 16)
                block_16(
                    target + at,
                    table + at,
                    indices,
                    size,
                    begin,
                    end,
                    last,
                    row_bytes,
                    weights,
                    fill + at,
                    rows,
                    ahead,
                    mean,
                )
                first += 16
            elif items >= 4:
                at = item * min(first, items - 4)
                block_4(
                    target + at,
                    table + at,
                    indices,
                    size,
                    begin,
                    end,
                    last,
                    row_bytes,
                    weights,
                    fill + at,
                    rows,
                    ahead,
                    mean,
                )
                first += 4
            else:
                at = item * first
                block_1(
                    target + at,
                    table + at,
                    indices,
                    size,
                    begin,
                    end,
                    last,
                    row_bytes,
                    weights,
                    fill + at,
                    rows,
                    ahead,
                    mean,
                )
                first += 1

    return pool
