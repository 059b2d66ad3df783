"""Float items by address, for compiled kernels: read as float32 or float64, and rounded back, half to even.

A NaN is written as the positive quiet one without further bits, whatever it was.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from llvmlite import ir
from numba import types

from app.kernels.numba_cpu.half_floats import bfloat16_of_float, float_of_bfloat16, float_of_half, half_of_float
from app.llvm_intrinsics import Address, Builder, intrinsic

_SHORT: Final = ir.IntType(16)
_WORD: Final = ir.IntType(32)
_LONG: Final = ir.IntType(64)
_FLOAT: Final = ir.FloatType()
_DOUBLE: Final = ir.DoubleType()
_NAN_16: Final = 0x7E00
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
    return float_of_bfloat16(builder, _load(builder, base, index, _SHORT))


def _load_f16(builder: Builder, base: Any, index: Any) -> Any:
    return float_of_half(builder, _load(builder, base, index, _SHORT))


def _store_f32(builder: Builder, base: Any, index: Any, value: Any) -> None:
    bits = builder.select(builder.fcmp_unordered("uno", value, value), _WORD(_NAN_32), builder.bitcast(value, _WORD))
    builder.store(bits, _place(builder, base, index, _WORD), align=1)


def _store_f64(builder: Builder, base: Any, index: Any, value: Any) -> None:
    bits = builder.select(builder.fcmp_unordered("uno", value, value), _LONG(_NAN_64), builder.bitcast(value, _LONG))
    builder.store(bits, _place(builder, base, index, _LONG), align=1)


def _store_bf16(builder: Builder, base: Any, index: Any, value: Any) -> None:
    is_nan = builder.fcmp_unordered("uno", value, value)
    bits = builder.select(is_nan, _SHORT(_NAN_32 >> 16), bfloat16_of_float(builder, value))
    builder.store(bits, _place(builder, base, index, _SHORT), align=1)


def _store_f16(builder: Builder, base: Any, index: Any, value: Any) -> None:
    is_nan = builder.fcmp_unordered("uno", value, value)
    bits = builder.select(is_nan, _SHORT(_NAN_16), half_of_float(builder, value))
    builder.store(bits, _place(builder, base, index, _SHORT), align=1)


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
