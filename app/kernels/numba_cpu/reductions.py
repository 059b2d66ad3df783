"""What becomes of an item and an update in a scatter's reduction, as LLVM's instructions, for each element type.

Floats of 16 bits are added and multiplied in float32 and rounded half to even at each step. Minimum and maximum
compare floats by their bits, as integers: a NaN wins, the first one that comes, and -0 is less than 0, as IEEE 754-2019
has it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import numba.core.cgutils
import numpy as np
from llvmlite import ir

from app.kernels.numba_cpu.half_floats import (
    bfloat16_of_float,
    choose,
    constant,
    float_of_bfloat16,
    float_of_half,
    half_of_float,
    like,
)
from app.kernels.numba_cpu.memory_intrinsics import LINE
from app.llvm_intrinsics import Builder
from app.tensors.dtypes import DTYPES
from app.tensors.operator_signature import REDUCTIONS

_cgutils: Any = numba.core.cgutils
_INT64: Final = ir.IntType(64)
_INT16: Final = ir.IntType(16)
_BIT: Final = ir.IntType(1)
_FLOAT: Final = ir.FloatType()
Combine = Callable[[Builder, Any, Any], Any]
"""The instructions for what becomes of a target's item and an update's."""

COPIES: Final = (1, 2, 4, 8, 16, 32, 64)
"""Bytes of slices that are copied by one load and one store: the codes 0 to 6. Code 7 copies slices of any width."""
COPY_ROWS: Final = len(COPIES)
ITEM_COPIES: Final = 4
"""Of these, the copies of single items of 1, 2, 4 and 8 bytes."""


def _in_float32(reduction: str, widen: Callable[[Builder, Any], Any], narrow: Callable[[Builder, Any], Any]) -> Combine:
    def combine(builder: Builder, old: Any, new: Any) -> Any:
        operation = builder.fadd if reduction == "add" else builder.fmul
        return narrow(builder, operation(widen(builder, old), widen(builder, new)))

    return combine


def _lesser_or_greater(reduction: str, bits: int, signed: bool) -> Combine:
    def combine(builder: Builder, old: Any, new: Any) -> Any:
        compare = builder.icmp_signed if signed else builder.icmp_unsigned
        return choose(builder, compare("<" if reduction == "min" else ">", new, old), new, old)

    return combine


def _lesser_or_greater_float(reduction: str, bits: int, infinity: int) -> Combine:
    most = (1 << (bits - 1)) - 1
    sign, foremost = ("<", -most - 1) if reduction == "min" else (">", most)

    def ordered(builder: Builder, value: Any) -> Any:
        """An integer in the order of the numbers; of a NaN one that comes before them all."""
        all_but_sign = constant(value.type, most)
        size = builder.and_(value, all_but_sign)
        is_nan = builder.icmp_unsigned(">", size, constant(value.type, infinity))
        negative = builder.ashr(value, constant(value.type, bits - 1))
        order = builder.xor(value, builder.and_(negative, all_but_sign))
        return choose(builder, is_nan, constant(value.type, foremost), order)

    def combine(builder: Builder, old: Any, new: Any) -> Any:
        return choose(builder, builder.icmp_signed(sign, ordered(builder, new), ordered(builder, old)), new, old)

    return combine


def _lesser_or_greater_number(reduction: str, kind: Any) -> Combine:
    def combine(builder: Builder, old: Any, new: Any) -> Any:
        sign = "<" if reduction == "min" else ">="  # of zeros a new one, which is +0, is the greater
        floats = builder.bitcast(new, like(kind, new)), builder.bitcast(old, like(kind, old))
        return builder.bitcast(choose(builder, builder.fcmp_ordered(sign, *floats), *floats), new.type)

    return combine


_INFINITY: Final = {
    name: int(np.array(np.inf, row.numpy).view(f"u{row.item_size}"))
    for name, row in DTYPES.items()
    if row.kind == "float" and row.arithmetic
}
_NARROW: Final = {
    "float16": (float_of_half, half_of_float),
    "bfloat16": (float_of_bfloat16, bfloat16_of_float),
}
_OPERATIONS: Final = {
    ("int", "add"): "add",
    ("int", "mul"): "mul",
    ("float", "add"): "fadd",
    ("float", "mul"): "fmul",
}


class Reduction(NamedTuple):
    """The type that items have in a loop, and what is done with two of them."""

    kind: Any
    combine: Combine
    compare: Combine | None = None
    """In place of `combine` for updates of which none is a NaN or -0: the processor's own comparison of floats."""
    infinity: int | None = None
    """Its bits, where a sum or a product of these numbers may be a NaN."""

    def is_nan(self, builder: Builder, value: Any) -> Any:
        """Whether a result is one whose bits may be those of either operand."""
        if self.infinity is None:
            return _BIT(0)
        if not isinstance(self.kind, ir.IntType):
            return builder.fcmp_unordered("uno", value, value)
        size = builder.and_(value, self.kind((1 << (self.kind.width - 1)) - 1))
        return builder.icmp_unsigned(">", size, self.kind(self.infinity))


def reduction_of(reduction: str, dtype: str) -> Reduction:
    """The instructions that combine two items of `dtype` by a scatter's `reduction`: add, mul, min or max."""
    row = DTYPES[dtype]
    bits, integers = 8 * row.item_size, row.kind != "float"
    kind = ir.IntType(bits) if integers else (_FLOAT if bits == 32 else ir.DoubleType())
    if reduction in ("min", "max"):
        if integers:
            return Reduction(kind, _lesser_or_greater(reduction, bits, row.kind == "int"))
        compare = None if dtype in _NARROW else _lesser_or_greater_number(reduction, kind)
        return Reduction(ir.IntType(bits), _lesser_or_greater_float(reduction, bits, _INFINITY[dtype]), compare)
    if dtype in _NARROW:
        return Reduction(_INT16, _in_float32(reduction, *_NARROW[dtype]), infinity=_INFINITY[dtype])
    name = _OPERATIONS["int" if integers else "float", reduction]
    return Reduction(kind, lambda builder, old, new: getattr(builder, name)(old, new), infinity=_INFINITY.get(dtype))


_REDUCIBLE: Final = tuple(name for name, row in DTYPES.items() if row.arithmetic)


def _reduction_codes() -> dict[tuple[str, str, int], int]:
    codes: dict[tuple[str, str, int], int] = {}
    numbers: dict[tuple[str, str], int] = {}
    for reduction in REDUCTIONS[1:]:
        for dtype in _REDUCIBLE:
            # Sums and products of unsigned integers have the bits of those of signed ones: they share the instructions.
            made = dtype if reduction in ("min", "max") else dtype.removeprefix("u")
            number = numbers.setdefault((reduction, made), len(numbers))
            codes[reduction, dtype, DTYPES[dtype].item_size] = COPY_ROWS + 1 + number
    return codes


REDUCTION_CODES: Final[Mapping[tuple[str, str, int], int]] = _reduction_codes()
"""The code of a reduction in items of a type, of so many bytes. Types that share their instructions share a code."""
NARROW_CODES: Final = tuple(code for (_, dtype, _), code in REDUCTION_CODES.items() if dtype in _NARROW)
"""Those of floats of 16 bits, which take several times as long as others."""


def combine_items(builder: Builder, kind: Any, combine: Combine, target: Any, source: Any, lanes: int = 1) -> None:
    """Combine so many items at two pointers, and store them at the first one."""
    read = kind if lanes == 1 else ir.VectorType(kind, lanes)
    values = (builder.load(place, align=1, typ=read) for place in (target, source))
    builder.store(combine(builder, *values), target, align=1)


def choose_combine(
    builder: Builder, reduction: Reduction, updates: Any, count: Any, loop: Callable[[Combine], None]
) -> None:
    """Make `loop` for so many updates: twice where there is a faster comparison for most of them."""
    if reduction.compare is None:
        loop(reduction.combine)
        return
    with builder.if_else(_has_nan_or_negative_zero(builder, updates, count, reduction.kind)) as (found, none):
        with found:
            loop(reduction.combine)
        with none:
            loop(reduction.compare)


def make_cases(builder: Builder, code: Any, cases: Mapping[int, Callable[[], None]]) -> None:
    """A switch over the codes of `cases`, which make the instructions of each; another code does nothing."""
    end = builder.append_basic_block("combined")
    choice = builder.switch(code, end)
    for number, make in cases.items():
        block = builder.append_basic_block(f"combine_{number}")
        choice.add_case(_INT64(number), block)
        builder.position_at_end(block)
        make()
        builder.branch(end)
    builder.position_at_end(end)


def for_each_vector(builder: Builder, count: Any, kind: Any, body: Callable[[Any, int], None]) -> None:
    """Call `body` with the first of so many items and how many, for all of `count`: a cache line of them at a time, and
    what is left in ever shorter vectors.
    """
    size = 8 if isinstance(kind, ir.DoubleType) else 4 if isinstance(kind, ir.FloatType) else kind.width // 8
    lanes = LINE // size
    lines = builder.udiv(count, _INT64(lanes))
    with _cgutils.for_range(builder, lines, intp=_INT64) as loop:
        body(builder.mul(loop.index, _INT64(lanes)), lanes)
    done = builder.mul(lines, _INT64(lanes))
    while lanes > 1:
        lanes //= 2
        has_more = builder.and_(count, _INT64(lanes))
        with builder.if_then(builder.icmp_unsigned("!=", has_more, _INT64(0))):
            body(done, lanes)
        done = builder.add(done, has_more)


def vector_at(builder: Builder, items: Any, index: Any, kind: Any, lanes: int) -> Any:
    """A pointer to so many items from an index on; to an item where it is one."""
    place = builder.gep(items, [index], inbounds=True, source_etype=kind)
    return place if lanes == 1 else builder.bitcast(place, ir.VectorType(kind, lanes).as_pointer())


def _has_nan_or_negative_zero(builder: Builder, updates: Any, count: Any, kind: Any) -> Any:
    """Whether one of so many floats is a NaN or -0, whose bits are integers of `kind`."""
    found = _cgutils.alloca_once_value(builder, _INT64(0))
    infinity = _INFINITY["float32" if kind.width == 32 else "float64"]

    def look(index: Any, lanes: int) -> None:
        read = kind if lanes == 1 else ir.VectorType(kind, lanes)
        bits = builder.load(vector_at(builder, updates, index, kind, lanes), align=1, typ=read)
        size = builder.and_(bits, constant(read, (1 << (kind.width - 1)) - 1))
        is_nan = builder.icmp_unsigned(">", size, constant(read, infinity))
        odd = builder.or_(is_nan, builder.icmp_unsigned("==", bits, constant(read, 1 << (kind.width - 1))))
        mask = builder.zext(odd if lanes == 1 else builder.bitcast(odd, ir.IntType(lanes)), _INT64)
        builder.store(builder.or_(builder.load(found, typ=_INT64), mask), found)

    for_each_vector(builder, count, kind, look)
    return builder.icmp_unsigned("!=", builder.load(found, typ=_INT64), _INT64(0))
