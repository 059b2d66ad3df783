"""Convert float16 and bfloat16 to float32 and back, rounded half to even, for scalars and vectors.

If the processor has no instructions for a conversion, integer operations produce the same bits. A NaN stays a NaN with
the same sign. As a float16, it becomes the quiet NaN without payload; as a bfloat16, it keeps the upper payload bits.
"""

from __future__ import annotations

import platform
from functools import cache
from typing import Any, Final

import numba.core.registry
from llvmlite import ir

from app.compilation.intrinsics import Builder

_SHORT: Final = ir.IntType(16)
_WORD: Final = ir.IntType(32)
_HALF: Final = ir.HalfType()
_FLOAT: Final = ir.FloatType()
_registry: Any = numba.core.registry


@cache
def has_instructions() -> bool:
    """Return whether the target processor has instructions for float16 conversion.

    These instructions round half to even by default.
    """
    if platform.machine() in ("aarch64", "arm64"):
        return True
    features = _registry.cpu_target.target_context.codegen().magic_tuple()[2].split(",")
    return "+f16c" in features and "+avx" in features


def float_of_half(builder: Builder, bits: Any) -> Any:
    """Convert the bits of a float16 to a float32."""
    if has_instructions():
        return builder.fpext(builder.bitcast(bits, type_like(_HALF, bits)), type_like(_FLOAT, bits))
    return float_of_half_by_integers(builder, bits)


def half_of_float(builder: Builder, value: Any) -> Any:
    """Return the bits of the float16 nearest to a float32."""
    if not has_instructions():
        return half_of_float_by_integers(builder, value)
    short, word = type_like(_SHORT, value), type_like(_WORD, value)
    found = builder.bitcast(builder.fptrunc(value, type_like(_HALF, value)), short)
    upper = builder.trunc(builder.lshr(builder.bitcast(value, word), constant(word, 16)), short)
    sign = builder.and_(upper, constant(short, 0x8000))
    is_nan = builder.fcmp_unordered("uno", value, value)
    return builder.select(is_nan, builder.or_(sign, constant(short, 0x7E00)), found)


def float_of_half_by_integers(builder: Builder, bits: Any) -> Any:
    """Perform `float_of_half` without conversion instructions.

    The bits are shifted into place. The exponent is then too small by 112; a multiplication corrects it.
    """
    word, real = type_like(_WORD, bits), type_like(_FLOAT, bits)
    wide = builder.zext(bits, word)
    size = builder.shl(builder.and_(wide, constant(word, 0x7FFF)), constant(word, 13))
    scaled = builder.bitcast(builder.fmul(builder.bitcast(size, real), constant(real, 2.0**112)), word)
    special = builder.or_(size, constant(word, 0x7F800000))  # infinity and NaN
    found = choose(builder, builder.icmp_unsigned(">=", size, constant(word, 0x7C00 << 13)), special, scaled)
    sign = builder.shl(builder.and_(wide, constant(word, 0x8000)), constant(word, 16))
    return builder.bitcast(builder.or_(found, sign), real)


def half_of_float_by_integers(builder: Builder, value: Any) -> Any:
    """Perform `half_of_float` without conversion instructions."""
    word, real = type_like(_WORD, value), type_like(_FLOAT, value)
    bits = builder.bitcast(value, word)
    size = builder.and_(bits, constant(word, 0x7FFFFFFF))
    # Normal numbers: add half of the part to be dropped before dropping it, and reduce the exponent by 112.
    odd = builder.and_(builder.lshr(size, constant(word, 13)), constant(word, 1))
    rounded = builder.add(builder.add(size, constant(word, (0xFFF - (112 << 23)) % 2**32)), odd)
    normal = builder.lshr(rounded, constant(word, 13))
    # Subnormal numbers: the sum with 0.5 is rounded to units of 2**-24, as float16's subnormal numbers are.
    shifted = builder.fadd(builder.bitcast(size, real), constant(real, 0.5))
    subnormal = builder.sub(builder.bitcast(shifted, word), constant(word, 0x3F000000))
    found = choose(builder, builder.icmp_unsigned("<", size, constant(word, 0x38800000)), subnormal, normal)
    is_large = builder.icmp_unsigned(">=", size, constant(word, 0x47800000))
    found = choose(builder, is_large, constant(word, 0x7C00), found)
    is_nan = builder.icmp_unsigned(">", size, constant(word, 0x7F800000))
    found = choose(builder, is_nan, constant(word, 0x7E00), found)
    sign = builder.lshr(builder.xor(bits, size), constant(word, 16))
    return builder.trunc(builder.or_(found, sign), type_like(_SHORT, value))


def float_of_bfloat16(builder: Builder, bits: Any) -> Any:
    """Convert the bits of a bfloat16, the upper half of a float32, to that float32."""
    word = type_like(_WORD, bits)
    wide = builder.shl(builder.zext(bits, word), constant(word, 16))
    return builder.bitcast(wide, type_like(_FLOAT, bits))


def bfloat16_of_float(builder: Builder, value: Any) -> Any:
    """Return the bits of the bfloat16 nearest to a float32."""
    word = type_like(_WORD, value)
    bits = builder.bitcast(value, word)
    odd = builder.and_(builder.lshr(bits, constant(word, 16)), constant(word, 1))
    rounded = builder.add(builder.add(bits, constant(word, 0x7FFF)), odd)
    is_nan = builder.fcmp_unordered("uno", value, value)
    found = choose(builder, is_nan, builder.or_(bits, constant(word, 0x400000)), rounded)
    return builder.trunc(builder.lshr(found, constant(word, 16)), type_like(_SHORT, value))


def choose(builder: Builder, condition: Any, one: Any, other: Any) -> Any:
    """Return `one` if the condition holds, else `other`. Does not branch, because the data is unpredictable."""
    found = builder.select(condition, one, other)
    found.set_metadata("unpredictable", builder.module.add_metadata([]))
    return found


def type_like(kind: Any, value: Any) -> Any:
    """Return the type `kind`, or a vector of `kind` if `value` is a vector, with the same number of lanes."""
    return ir.VectorType(kind, value.type.count) if isinstance(value.type, ir.VectorType) else kind


def constant(kind: Any, value: int | float) -> Any:
    """Return a constant of a type. For a vector type, every lane has the value."""
    if isinstance(kind, ir.VectorType):
        return ir.Constant(kind, [ir.Constant(kind.element, value)] * kind.count)
    return ir.Constant(kind, value)
