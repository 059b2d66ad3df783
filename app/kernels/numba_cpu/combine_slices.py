"""What a scatter does with the slices of a block: each update replaces its target, or is reduced into it.

The loops are written in LLVM's instructions, one for each reduction and type, behind one switch: so they share one
function, and Numba has nothing to infer of them. Numbers of 16 bits are added and multiplied in float32 and rounded
half to even at each step. Minimum and maximum compare floats by their bits, as integers: a NaN wins, the first one that
comes, and -0 is less than 0, as IEEE 754-2019 has it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

import numba.core.cgutils
from llvmlite import ir
from numba import types

from app.kernels.numba_cpu.memory_intrinsics import item_pointer
from app.llvm_intrinsics import Address, Builder, inlined, inner, intrinsic
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
_ITEM_COPIES: Final = 4
"""Of these, the copies of single items of 1, 2, 4 and 8 bytes."""


def _choose(builder: Builder, condition: Any, one: Any, other: Any) -> Any:
    """`one` where the condition holds, else `other`, without a branch: what updates hold cannot be predicted."""
    found = builder.select(condition, one, other)
    found.set_metadata("unpredictable", builder.module.add_metadata([]))
    return found


def _float_of_half(builder: Builder, bits: Any) -> Any:
    """The float32 of a float16: shifted into place its exponent is 112 too small, which a product mends."""
    wide = builder.zext(bits, _INT32)
    rest = builder.shl(builder.and_(wide, _INT32(0x7FFF)), _INT32(13))
    scaled = builder.fmul(builder.bitcast(rest, _FLOAT), _FLOAT(2.0**112))
    special = builder.or_(rest, _INT32(0x7F800000))  # infinity and NaN
    found = _choose(
        builder, builder.icmp_unsigned(">=", rest, _INT32(0x7C00 << 13)), special, builder.bitcast(scaled, _INT32)
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
    found = _choose(builder, builder.icmp_unsigned("<", size, _INT32(0x38800000)), subnormal, normal)
    found = _choose(builder, builder.icmp_unsigned(">=", size, _INT32(0x47800000)), _INT32(0x7C00), found)
    found = _choose(builder, builder.icmp_unsigned(">", size, _INT32(0x7F800000)), _INT32(0x7E00), found)
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
    found = _choose(builder, is_nan, builder.or_(bits, _INT32(0x400000)), rounded)
    return builder.trunc(builder.lshr(found, _INT32(16)), _INT16)


def _in_float32(reduction: str, widen: Callable[[Builder, Any], Any], narrow: Callable[[Builder, Any], Any]) -> Combine:
    def combine(builder: Builder, old: Any, new: Any) -> Any:
        operation = builder.fadd if reduction == "add" else builder.fmul
        return narrow(builder, operation(widen(builder, old), widen(builder, new)))

    return combine


def _lesser_or_greater(reduction: str, bits: int, signed: bool) -> Combine:
    def combine(builder: Builder, old: Any, new: Any) -> Any:
        compare = builder.icmp_signed if signed else builder.icmp_unsigned
        return _choose(builder, compare("<" if reduction == "min" else ">", new, old), new, old)

    return combine


def _lesser_or_greater_float(reduction: str, bits: int, infinity: int) -> Combine:
    kind = ir.IntType(bits)
    most = (1 << (bits - 1)) - 1
    sign, foremost = ("<", -most - 1) if reduction == "min" else (">", most)

    def ordered(builder: Builder, value: Any) -> Any:
        """An integer in the order of the numbers; of a NaN one that comes before them all."""
        size = builder.and_(value, kind(most))
        is_nan = builder.icmp_unsigned(">", size, kind(infinity))
        order = builder.xor(value, builder.and_(builder.ashr(value, kind(bits - 1)), kind(most)))
        return _choose(builder, is_nan, kind(foremost), order)

    def combine(builder: Builder, old: Any, new: Any) -> Any:
        return _choose(builder, builder.icmp_signed(sign, ordered(builder, new), ordered(builder, old)), new, old)

    return combine


def _lesser_or_greater_number(reduction: str, kind: Any) -> Combine:
    def combine(builder: Builder, old: Any, new: Any) -> Any:
        sign = "<" if reduction == "min" else ">="  # of zeros a new one, which is +0, is the greater
        floats = builder.bitcast(new, kind), builder.bitcast(old, kind)
        return builder.bitcast(_choose(builder, builder.fcmp_ordered(sign, *floats), *floats), new.type)

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


class _Reduction(NamedTuple):
    """The type that items have in a loop, and what is done with two of them."""

    kind: Any
    combine: Combine
    compare: Combine | None = None
    """In place of `combine` for updates of which none is a NaN or -0: the processor's own comparison of floats."""


def _reduction_of(reduction: str, dtype: str) -> _Reduction:
    row = DTYPES[dtype]
    bits, integers = 8 * row.item_size, row.kind != "float"
    kind = ir.IntType(bits) if integers else (_FLOAT if bits == 32 else ir.DoubleType())
    if reduction in ("min", "max"):
        if integers:
            return _Reduction(kind, _lesser_or_greater(reduction, bits, row.kind == "int"))
        compare = None if dtype in _NARROW else _lesser_or_greater_number(reduction, kind)
        return _Reduction(ir.IntType(bits), _lesser_or_greater_float(reduction, bits, _INFINITY[dtype]), compare)
    if dtype in _NARROW:
        return _Reduction(_INT16, _in_float32(reduction, *_NARROW[dtype]))
    name = _OPERATIONS["int" if integers else "float", reduction]
    return _Reduction(kind, lambda builder, old, new: getattr(builder, name)(old, new))


_REDUCIBLE: Final = tuple(name for name, row in DTYPES.items() if row.kind in ("int", "uint", "float"))
REDUCTION_CODES: Final[Mapping[tuple[str, str, int], int]] = {
    (reduction, dtype, DTYPES[dtype].item_size): COPY_ROWS + 1 + number
    for number, (reduction, dtype) in enumerate(
        (reduction, dtype) for reduction in REDUCTIONS[1:] for dtype in _REDUCIBLE
    )
}
"""The code of a reduction in items of a type, of so many bytes."""
NARROW_CODES: Final = tuple(code for (_, dtype, _), code in REDUCTION_CODES.items() if dtype in _NARROW)
"""Those of floats of 16 bits, which take several times as long as others."""


def _for_each_slice(builder: Builder, count: Any, targets: Any, sources: Any, kind: Any, body: Any) -> None:
    with _cgutils.for_range(builder, count, intp=_INT64) as loop:
        target, source = (
            builder.inttoptr(
                builder.load(item_pointer(builder, base, loop.index), align=8, typ=_INT64), kind.as_pointer()
            )
            for base in (targets, sources)
        )
        body(target, source)


def _for_each_item(builder: Builder, count: Any, targets: Any, updates: Any, kind: Any, body: Any) -> None:
    """The same for single items, whose updates lie one behind the other."""
    first = builder.inttoptr(updates, kind.as_pointer())
    with _cgutils.for_range(builder, count, intp=_INT64) as loop:
        target = builder.load(item_pointer(builder, targets, loop.index), align=8, typ=_INT64)
        update = builder.gep(first, [loop.index], inbounds=True, source_etype=kind)
        body(builder.inttoptr(target, kind.as_pointer()), update)


def _reduce(builder: Builder, reduction: _Reduction, targets: Any, sources: Any, count: Any, items: Any) -> None:
    kind = reduction.kind

    def step(combine: Combine, target: Any, source: Any) -> None:
        values = (builder.load(place, align=1, typ=kind) for place in (target, source))
        builder.store(combine(builder, *values), target, align=1)

    def reduce_items(updates: Any, number: Any, loop: Callable[[Combine], None]) -> None:
        if reduction.compare is None:
            loop(reduction.combine)
            return
        with builder.if_else(_has_nan_or_negative_zero(builder, updates, number, kind)) as (found, none):
            with found:
                loop(reduction.combine)
            with none:
                loop(reduction.compare)

    def reduce_slice(target: Any, source: Any) -> None:
        def loop(combine: Combine) -> None:
            with _cgutils.for_range(builder, items, intp=_INT64) as each:
                places = (
                    builder.gep(pointer, [each.index], inbounds=True, source_etype=kind) for pointer in (target, source)
                )
                step(combine, *places)

        reduce_items(source, items, loop)

    # Single items have a loop of their own: 6.2 ns each in the other one, and 0.6 in this (EPYC, float32, add).
    with builder.if_else(builder.icmp_signed("==", items, _INT64(1))) as (single, several):
        with single:
            reduce_items(
                builder.inttoptr(sources, kind.as_pointer()),
                count,
                lambda combine: _for_each_item(builder, count, targets, sources, kind, partial(step, combine)),
            )
        with several:
            _for_each_slice(builder, count, targets, sources, kind, reduce_slice)


def _has_nan_or_negative_zero(builder: Builder, updates: Any, count: Any, kind: Any) -> Any:
    """Whether one of so many floats is a NaN or -0, whose bits are integers of `kind`."""
    found = _cgutils.alloca_once_value(builder, kind(0))
    infinity = kind(_INFINITY["float32" if kind.width == 32 else "float64"])
    negative_zero = kind(1 << (kind.width - 1))
    with _cgutils.for_range(builder, count, intp=_INT64) as loop:
        bits = builder.load(builder.gep(updates, [loop.index], inbounds=True, source_etype=kind), align=1, typ=kind)
        size = builder.and_(bits, kind((1 << (kind.width - 1)) - 1))
        odd = builder.or_(builder.icmp_unsigned(">", size, infinity), builder.icmp_unsigned("==", bits, negative_zero))
        builder.store(builder.or_(builder.load(found, typ=kind), builder.zext(odd, kind)), found)
    return builder.icmp_unsigned("!=", builder.load(found, typ=kind), kind(0))


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

        loop = _for_each_item if number < _ITEM_COPIES else _for_each_slice
        loop(builder, count, targets, sources, kind, copy)
        builder.branch(end)
    case(COPY_ROWS)
    _for_each_slice(
        builder, count, targets, sources, _BYTE,
        lambda target, source: _cgutils.raw_memcpy(builder, target, source, items, _INT64(1)),
    )  # fmt: skip
    builder.branch(end)
    for (name, dtype, _), number in REDUCTION_CODES.items():
        case(number)
        _reduce(builder, _reduction_of(name, dtype), targets, sources, count, items)
        builder.branch(end)
    builder.position_at_end(end)


_combined: Final[Callable[[int, Address, Address, int, int], None]] = intrinsic(
    types.none, (types.int64,) * 5, _combine
)


@inlined
def are_items(code: int, items: int) -> bool:
    """Whether a code's slices of so many items are single items of at most 8 bytes."""
    return code < _ITEM_COPIES or (code > COPY_ROWS and items == 1)


@inner
def combine_slices(code: int, targets: Address, sources: Address, count: int, items: int) -> None:
    """Take `count` updates one after the other to the addresses at `targets`.

    Their addresses are at `sources`; where they `are_items`, they lie there themselves. A slice is `items` items of the
    code's type, or bytes where it copies rows. Another code does nothing.
    """
    _combined(code, targets, sources, count, items)
