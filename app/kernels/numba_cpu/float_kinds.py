"""The float types that kernels compute with: their items, their conversions, and a switch over the types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
from llvmlite import ir
from numba import types

from app.compilation.decorators import inlined, inner
from app.compilation.intrinsics import intrinsic
from app.kernels.numba_cpu.half_floats import bfloat16_of_float, float_of_bfloat16, float_of_half, half_of_float

F = TypeVar("F", bound=Callable[..., Any])
FLOAT16, BFLOAT16, FLOAT32, FLOAT64 = 16, 17, 18, 19
"""Kinds of float items. The kind of integers is their size in bytes."""


class FloatKind(NamedTuple):
    """A float type. Sums of its items are float32, or float64 for float64 items."""

    name: str
    kind: int
    item: Any
    """NumPy type of an item in memory; uint16 for 16-bit floats."""
    sum: Any
    """NumPy type of a sum."""
    widen: Callable[[Any], Any]
    """Convert an item to a sum."""
    narrow: Callable[[Any], Any]
    """Convert a sum to an item, rounded half to even."""
    bits: Callable[[Any], int]
    """Return the bits of a sum as an integer."""


@inlined
def _identity(value: Any) -> Any:
    return value


_bits_32: Final = intrinsic(
    types.int32, (types.float32,), lambda builder, value: builder.bitcast(value, ir.IntType(32))
)
_bits_64: Final = intrinsic(
    types.int64, (types.float64,), lambda builder, value: builder.bitcast(value, ir.IntType(64))
)


def _half(name: str, kind: int, widen: Callable[..., Any], narrow: Callable[..., Any]) -> FloatKind:
    to_float = intrinsic(types.float32, (types.uint16,), widen)
    of_float = intrinsic(types.uint16, (types.float32,), narrow)
    return FloatKind(name, kind, np.uint16, np.float32, to_float, of_float, _bits_32)


FLOATS: Final = (
    _half("float16", FLOAT16, float_of_half, half_of_float),
    _half("bfloat16", BFLOAT16, float_of_bfloat16, bfloat16_of_float),
    FloatKind("float32", FLOAT32, np.float32, np.float32, _identity, _identity, _bits_32),
    FloatKind("float64", FLOAT64, np.float64, np.float64, _identity, _identity, _bits_64),
)
KINDS: Final = {each.name: each.kind for each in FLOATS}


def by_float_kind(make: Callable[[FloatKind], F]) -> Callable[..., Any]:
    """Build a compiled function (kind, *arguments) that calls the function built for that kind.

    `make` returns one function for each float type. All of them take the same arguments.
    """
    of_float16, of_bfloat16, of_float32, of_float64 = map(make, FLOATS)

    @inner
    def call(kind: int, *arguments: Any) -> Any:
        if kind == FLOAT32:
            return of_float32(*arguments)
        if kind == FLOAT64:
            return of_float64(*arguments)
        if kind == FLOAT16:
            return of_float16(*arguments)
        return of_bfloat16(*arguments)

    return call
