"""Float items by address, for compiled kernels: read as float32 or float64, and rounded back, half to even.

float16 and bfloat16 are converted by arithmetic on integers, which every processor has and which works on several items
at a time. A NaN is written as the positive quiet one without further bits, whatever it was.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from llvmlite import ir
from numba import types

from app.llvm_intrinsics import Address, Builder, intrinsic

_SHORT: Final = ir.IntType(16)
_WORD: Final = ir.IntType(32)
_LONG: Final = ir.IntType(64)
_FLOAT: Final = ir.FloatType()
_DOUBLE: Final = ir.DoubleType()
_NAN_32: Final = 0x7FC00000
_NAN_64: Final = 0x7FF8 << 48

Load = Callable[[Address, int], float]
Store = Callable[[Address, int, float], None]


def _place(builder: Builder, base: Any, index: Any, kind: Any) -> Any:
    return builder.gep(builder.inttoptr(base, kind.as_pointer()), [index], inbounds=True, source_etype=kind)


def _load(builder: Builder, base: Any, index: Any, kind: Any) -> Any:
    return builder.load(_place(builder, base, index, kind), align=1, typ=kind)


def _load_f32(builder: Builder, base: Any, index: Any) -> Any:
    return _load(builder, base, index, _FLOAT)


def _load_f64(builder: Builder, base: Any, index: Any) -> Any:
    return _load(builder, base, index, _DOUBLE)


def _load_bf16(builder: Builder, base: Any, index: Any) -> Any:
    bits = builder.zext(_load(builder, base, index, _SHORT), _WORD)
    return builder.bitcast(builder.shl(bits, _WORD(16)), _FLOAT)


def _load_f16(builder: Builder, base: Any, index: Any) -> Any:
    bits = builder.zext(_load(builder, base, index, _SHORT), _WORD)
    # The bits as those of a float32 whose exponent is too small by 112; the product is exact.
    small = builder.bitcast(builder.shl(builder.and_(bits, _WORD(0x7FFF)), _WORD(13)), _FLOAT)
    scaled = builder.bitcast(builder.fmul(small, ir.Constant(_FLOAT, 2.0**112)), _WORD)
    no_number = builder.icmp_unsigned(">=", builder.and_(bits, _WORD(0x7FFF)), _WORD(0x7C00))
    scaled = builder.or_(scaled, builder.select(no_number, _WORD(0x7F800000), _WORD(0)))
    sign = builder.shl(builder.and_(bits, _WORD(0x8000)), _WORD(16))
    return builder.bitcast(builder.or_(scaled, sign), _FLOAT)


def _store_f32(builder: Builder, base: Any, index: Any, value: Any) -> None:
    bits = builder.select(builder.fcmp_unordered("uno", value, value), _WORD(_NAN_32), builder.bitcast(value, _WORD))
    builder.store(bits, _place(builder, base, index, _WORD), align=1)


def _store_f64(builder: Builder, base: Any, index: Any, value: Any) -> None:
    bits = builder.select(builder.fcmp_unordered("uno", value, value), _LONG(_NAN_64), builder.bitcast(value, _LONG))
    builder.store(bits, _place(builder, base, index, _LONG), align=1)


def _store_bf16(builder: Builder, base: Any, index: Any, value: Any) -> None:
    bits = builder.bitcast(value, _WORD)
    odd = builder.and_(builder.lshr(bits, _WORD(16)), _WORD(1))
    rounded = builder.lshr(builder.add(builder.add(bits, _WORD(0x7FFF)), odd), _WORD(16))
    rounded = builder.select(builder.fcmp_unordered("uno", value, value), _WORD(_NAN_32 >> 16), rounded)
    builder.store(builder.trunc(rounded, _SHORT), _place(builder, base, index, _SHORT), align=1)


def _store_f16(builder: Builder, base: Any, index: Any, value: Any) -> None:
    bits = builder.bitcast(value, _WORD)
    sign = builder.and_(bits, _WORD(0x80000000))
    size = builder.xor(bits, sign)
    # Where the result has no exponent of its own, adding 0.5 leaves its bits at the end of the float32.
    shifted = builder.fadd(builder.bitcast(size, _FLOAT), ir.Constant(_FLOAT, 0.5))
    small = builder.sub(builder.bitcast(shifted, _WORD), _WORD(126 << 23))
    odd = builder.and_(builder.lshr(size, _WORD(13)), _WORD(1))
    usual = builder.lshr(builder.add(builder.add(size, _WORD((-(112 << 23) + 0xFFF) & 0xFFFFFFFF)), odd), _WORD(13))
    half = builder.select(builder.icmp_unsigned("<", size, _WORD(113 << 23)), small, usual)
    half = builder.select(builder.icmp_unsigned(">=", size, _WORD(143 << 23)), _WORD(0x7C00), half)
    half = builder.or_(half, builder.lshr(sign, _WORD(16)))
    half = builder.select(builder.fcmp_unordered("uno", value, value), _WORD(0x7E00), half)
    builder.store(builder.trunc(half, _SHORT), _place(builder, base, index, _SHORT), align=1)


def _store(kind: Any) -> Callable[..., None]:
    def build(builder: Builder, base: Any, index: Any, value: Any) -> None:
        builder.store(value, _place(builder, base, index, kind), align=1)

    return build


def _loader(result: Any, build: Callable[..., Any]) -> Load:
    load: Load = intrinsic(result, (types.int64, types.int64), build)
    return load


def _storer(value: Any, build: Callable[..., None]) -> Store:
    store: Store = intrinsic(types.none, (types.int64, types.int64, value), build)
    return store


load_f32: Final = _loader(types.float32, _load_f32)
load_f64: Final = _loader(types.float64, _load_f64)
load_bf16: Final = _loader(types.float32, _load_bf16)
load_f16: Final = _loader(types.float32, _load_f16)
"""Item `index` of those at an address, which need not be aligned."""
store_sum_32: Final = _storer(types.float32, _store(_FLOAT))
store_sum_64: Final = _storer(types.float64, _store(_DOUBLE))
"""Write item `index` as it is."""
store_f32: Final = _storer(types.float32, _store_f32)
store_f64: Final = _storer(types.float64, _store_f64)
store_bf16: Final = _storer(types.float32, _store_bf16)
store_f16: Final = _storer(types.float32, _store_f16)
"""Write item `index`, rounded to its type."""
