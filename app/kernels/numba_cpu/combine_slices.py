"""What a scatter does with the slices of a block: each update replaces its target, or is reduced into it.

The loops are written in LLVM's instructions, one for each reduction and type, behind one switch: so they share one
function, and Numba has nothing to infer of them. Numbers of 16 bits are added and multiplied in float32 and rounded
half to even at each step. Minimum and maximum compare floats by their bits, as integers: a NaN wins, the first one that
comes, and -0 is less than 0, as IEEE 754-2019 has it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numba.core.cgutils
from llvmlite import ir
from numba import types

from app.kernels.numba_cpu.memory_intrinsics import item_pointer
from app.llvm_intrinsics import Address, Builder, inner, intrinsic
from app.tensors.dtypes import DTYPES
from app.tensors.scatter_call import REDUCTIONS

_cgutils: Any = numba.core.cgutils
_INT64: Final = ir.IntType(64)
_INT32: Final = ir.IntType(32)
_INT16: Final = ir.IntType(16)
_BYTE: Final = ir.IntType(8)
_FLOAT: Final = ir.FloatType()
Combine = Callable[[Builder, Any, Any], Any]
"""The instructions for what becomes of a target's item and an update's."""

COPIES: Final = (1, 2, 4, 8, 16, 32, 64)
"""Bytes of slices that are copied by one load and one store: the codes 0 to 6. Code 7 copies slices of any width."""
COPY_ROWS: Final = len(COPIES)


def _float_of_half(builder: Builder, bits: Any) -> Any:
    """The float32 of a float16: shifted into place its exponent is 112 too small, which a product mends."""
    wide = builder.zext(bits, _INT32)
    rest = builder.shl(builder.and_(wide, _INT32(0x7FFF)), _INT32(13))
    scaled = builder.fmul(builder.bitcast(rest, _FLOAT), _FLOAT(2.0**112))
    special = builder.or_(rest, _INT32(0x7F800000))  # infinity and NaN
    found = builder.select(
        builder.icmp_unsigned(">=", rest, _INT32(0x7C00 << 13)), special, builder.bitcast(scaled, _INT32)
    )
    sign = builder.shl(builder.and_(wide, _INT32(0x8000)), _INT32(16))
    return builder.bitcast(builder.or_(found, sign), _FLOAT)


def _half_of_float(builder: Builder, value: Any) -> Any:
    """The float16 nearest to a float32, half to even."""
    bits = builder.bitcast(value, _INT32)
    size = builder.and_(bits, _INT32(0x7FFFFFFF))
    odd = builder.and_(builder.lshr(size, _INT32(13)), _INT32(1))
    rounded = builder.add(builder.add(size, _INT32(0xFFF)), odd)
    normal = builder.lshr(builder.sub(rounded, _INT32(112 << 23)), _INT32(13))
    # To 0.5 a float32 adds whole units of 2**-24, which are those of float16's subnormal numbers.
    shifted = builder.fadd(builder.bitcast(size, _FLOAT), _FLOAT(0.5))
    subnormal = builder.sub(builder.bitcast(shifted, _INT32), _INT32(0x3F000000))
    found = builder.select(builder.icmp_unsigned("<", size, _INT32(0x38800000)), subnormal, normal)
    found = builder.select(builder.icmp_unsigned(">=", size, _INT32(0x47800000)), _INT32(0x7C00), found)
    found = builder.select(builder.icmp_unsigned(">", size, _INT32(0x7F800000)), _INT32(0x7E00), found)
    sign = builder.lshr(builder.and_(bits, _INT32(0x80000000)), _INT32(16))
    return builder.trunc(builder.or_(found, sign), _INT16)


def _float_of_bfloat16(builder: Builder, bits: Any) -> Any:
    return builder.bitcast(builder.shl(builder.zext(bits, _INT32), _INT32(16)), _FLOAT)


def _bfloat16_of_float(builder: Builder, value: Any) -> Any:
    """The bfloat16 nearest to a float32, half to even."""
    bits = builder.bitcast(value, _INT32)
    odd = builder.and_(builder.lshr(bits, _INT32(16)), _INT32(1))
    rounded = builder.add(builder.add(bits, _INT32(0x7FFF)), odd)
    is_nan = builder.icmp_unsigned(">", builder.and_(bits, _INT32(0x7FFFFFFF)), _INT32(0x7F800000))
    found = builder.select(is_nan, builder.or_(bits, _INT32(0x400000)), rounded)
    return builder.trunc(builder.lshr(found, _INT32(16)), _INT16)


def _in_float32(reduction: str, widen: Callable[[Builder, Any], Any], narrow: Callable[[Builder, Any], Any]) -> Combine:
    def combine(builder: Builder, old: Any, new: Any) -> Any:
        operation = builder.fadd if reduction == "add" else builder.fmul
        return narrow(builder, operation(widen(builder, old), widen(builder, new)))

    return combine


def _lesser_or_greater(reduction: str, bits: int, signed: bool) -> Combine:
    def combine(builder: Builder, old: Any, new: Any) -> Any:
        compare = builder.icmp_signed if signed else builder.icmp_unsigned
        return builder.select(compare("<" if reduction == "min" else ">", new, old), new, old)

    return combine


def _lesser_or_greater_float(reduction: str, bits: int, infinity: int) -> Combine:
    kind = ir.IntType(bits)
    size_bits = kind((1 << (bits - 1)) - 1)

    def is_nan(builder: Builder, value: Any) -> Any:
        return builder.icmp_unsigned(">", builder.and_(value, size_bits), kind(infinity))

    def ordered(builder: Builder, value: Any) -> Any:
        """An integer in the order of the numbers."""
        return builder.xor(value, builder.and_(builder.ashr(value, kind(bits - 1)), size_bits))

    def combine(builder: Builder, old: Any, new: Any) -> Any:
        sign = "<" if reduction == "min" else ">"
        wins = builder.icmp_signed(sign, ordered(builder, new), ordered(builder, old))
        found = builder.select(builder.or_(wins, is_nan(builder, new)), new, old)
        return builder.select(is_nan(builder, old), old, found)

    return combine


_INFINITY: Final = {"float16": 0x7C00, "bfloat16": 0x7F80, "float32": 0x7F800000, "float64": 0x7FF0 << 48}
_NARROW: Final = {
    "float16": (_float_of_half, _half_of_float),
    "bfloat16": (_float_of_bfloat16, _bfloat16_of_float),
}
_OPERATIONS: Final = {
    ("int", "add"): "add",
    ("int", "mul"): "mul",
    ("float", "add"): "fadd",
    ("float", "mul"): "fmul",
}


def _loop_of(reduction: str, dtype: str) -> tuple[Any, Combine]:
    """The type that items have in a loop, and what is done with two of them."""
    row = DTYPES[dtype]
    bits, integers = 8 * row.item_size, row.kind != "float"
    if reduction in ("min", "max"):
        if integers:
            return ir.IntType(bits), _lesser_or_greater(reduction, bits, row.kind == "int")
        return ir.IntType(bits), _lesser_or_greater_float(reduction, bits, _INFINITY[dtype])
    if dtype in _NARROW:
        return _INT16, _in_float32(reduction, *_NARROW[dtype])
    name = _OPERATIONS["int" if integers else "float", reduction]
    kind = ir.IntType(bits) if integers else (_FLOAT if bits == 32 else ir.DoubleType())
    return kind, lambda builder, old, new: getattr(builder, name)(old, new)


_REDUCIBLE: Final = tuple(name for name, row in DTYPES.items() if row.kind in ("int", "uint", "float"))
REDUCTION_CODES: Final[Mapping[tuple[str, str, int], int]] = {
    (reduction, dtype, DTYPES[dtype].item_size): COPY_ROWS + 1 + number
    for number, (reduction, dtype) in enumerate(
        (reduction, dtype) for reduction in REDUCTIONS[1:] for dtype in _REDUCIBLE
    )
}
"""The code of a reduction in items of a type, of so many bytes."""


def _for_each_slice(builder: Builder, count: Any, targets: Any, sources: Any, kind: Any, body: Any) -> None:
    with _cgutils.for_range(builder, count, intp=_INT64) as loop:
        target, source = (
            builder.inttoptr(
                builder.load(item_pointer(builder, base, loop.index), align=8, typ=_INT64), kind.as_pointer()
            )
            for base in (targets, sources)
        )
        body(target, source)


def _combine(builder: Builder, code: Any, targets: Any, sources: Any, count: Any, items: Any) -> None:
    end = builder.append_basic_block("combined")
    choice = builder.switch(code, end)

    def case(number: int) -> None:
        block = builder.append_basic_block(f"combine_{number}")
        choice.add_case(_INT64(number), block)
        builder.position_at_end(block)

    for number, width in enumerate(COPIES):
        case(number)
        kind = ir.IntType(8 * width) if width <= 8 else ir.VectorType(_INT64, width // 8)

        def copy(target: Any, source: Any, kind: Any = kind) -> None:
            builder.store(builder.load(source, align=1, typ=kind), target, align=1)

        _for_each_slice(builder, count, targets, sources, kind, copy)
        builder.branch(end)
    case(COPY_ROWS)
    _for_each_slice(
        builder, count, targets, sources, _BYTE,
        lambda target, source: _cgutils.raw_memcpy(builder, target, source, items, _INT64(1)),
    )  # fmt: skip
    builder.branch(end)
    for (reduction, dtype, _), number in REDUCTION_CODES.items():
        case(number)
        kind, combine = _loop_of(reduction, dtype)

        def reduce_item(target: Any, source: Any, kind: Any = kind, combine: Combine = combine) -> None:
            values = (builder.load(place, align=1, typ=kind) for place in (target, source))
            builder.store(combine(builder, *values), target, align=1)

        def reduce(target: Any, source: Any, kind: Any = kind, reduce_item: Any = reduce_item) -> None:
            with _cgutils.for_range(builder, items, intp=_INT64) as loop:
                reduce_item(
                    *(
                        builder.gep(pointer, [loop.index], inbounds=True, source_etype=kind)
                        for pointer in (target, source)
                    )
                )

        # Single items have a loop of their own: 6.2 ns each in the other one, and 1.3 in this (EPYC, float32, add).
        with builder.if_else(builder.icmp_signed("==", items, _INT64(1))) as (single, several):
            with single:
                _for_each_slice(builder, count, targets, sources, kind, reduce_item)
            with several:
                _for_each_slice(builder, count, targets, sources, kind, reduce)
        builder.branch(end)
    builder.position_at_end(end)


_combined: Final[Callable[[int, Address, Address, int, int], None]] = intrinsic(
    types.none, (types.int64,) * 5, _combine
)


@inner
def combine_slices(code: int, targets: Address, sources: Address, count: int, items: int) -> None:
    """Take `count` updates, from the addresses at `sources`, one after the other to the addresses at `targets`.

    A slice is `items` items of the code's type, or bytes where it copies rows. Another code does nothing.
    """
    _combined(code, targets, sources, count, items)
