"""Vectors of floats as values in compiled code: some items of a row in registers, as float32 or float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeAlias

import numba.extending
from llvmlite import ir
from numba import types

from app.compilation.intrinsics import Address, Builder, intrinsic
from app.kernels.numba_cpu.half_floats import bfloat16_of_float, float_of_bfloat16, float_of_half, half_of_float

Vector: TypeAlias = Any
"""A vector of `lanes` floats: float64 for float64 items, else float32."""

_extending: Any = numba.extending
_INT: Final = ir.IntType(32)
_SHORT: Final = ir.IntType(16)


class _VectorType(types.Type):
    def __init__(self, element: Any, lanes: int) -> None:
        super().__init__(name=f"Vector({element}, {lanes})")
        self.vector = ir.VectorType(element, lanes)


@_extending.register_model(_VectorType)
class _VectorModel(_extending.models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, kind.vector)


class VectorFunctions(NamedTuple):
    """Functions for vectors of items of one type."""

    zeros: Callable[[], Vector]
    load: Callable[[Address], Vector]
    """Load items from an address, which need not be aligned."""
    load_one: Callable[[Address], float]
    """Load one item."""
    add_product: Callable[[Vector, Vector, float], Vector]
    """(sums, items, weight): the product is rounded before it is added."""
    larger: Callable[[Vector, Vector], Vector]
    """Return the larger item of each pair, or the first one if it is a NaN or if both are equal."""
    divide: Callable[[Vector, float], Vector]
    store: Callable[[Address, Vector], None]
    """Round items half to even to their type, and store them at an address."""


def vector_functions(dtype: str, lanes: int) -> VectorFunctions:
    """Build the functions for float16, bfloat16, float32 or float64 items."""
    double = dtype == "float64"
    vector = _VectorType(ir.DoubleType() if double else ir.FloatType(), lanes)
    number = types.float64 if double else types.float32
    stored = vector.vector if dtype in ("float32", "float64") else ir.VectorType(_SHORT, lanes)

    def spread(builder: Builder, value: Any) -> Any:
        one = builder.insert_element(ir.Constant(vector.vector, ir.Undefined), value, _INT(0))
        return builder.shuffle_vector(one, one, ir.Constant(ir.VectorType(_INT, lanes), [0] * lanes))

    def widened(builder: Builder, items: Any) -> Any:
        if dtype == "bfloat16":
            return float_of_bfloat16(builder, items)
        return float_of_half(builder, items) if dtype == "float16" else items

    def load(builder: Builder, address: Any, kind: Any = stored) -> Any:
        return widened(builder, builder.load(builder.inttoptr(address, kind.as_pointer()), align=1, typ=kind))

    def larger(builder: Builder, first: Any, second: Any) -> Any:
        keeps = builder.or_(builder.fcmp_ordered(">=", first, second), builder.fcmp_unordered("uno", first, first))
        return builder.select(keeps, first, second)

    def store(builder: Builder, address: Any, value: Any) -> None:
        if dtype == "bfloat16":
            value = bfloat16_of_float(builder, value)
        elif dtype == "float16":
            value = half_of_float(builder, value)
        builder.store(value, builder.inttoptr(address, stored.as_pointer()), align=1)

    return VectorFunctions(
        intrinsic(vector, (), lambda builder: ir.Constant(vector.vector, None)),
        intrinsic(vector, (types.int64,), load),
        intrinsic(number, (types.int64,), lambda builder, address: load(builder, address, stored.element)),
        intrinsic(
            vector,
            (vector, vector, number),
            lambda builder, sums, items, weight: builder.fadd(sums, builder.fmul(items, spread(builder, weight))),
        ),
        intrinsic(vector, (vector, vector), larger),
        intrinsic(vector, (vector, number), lambda builder, value, by: builder.fdiv(value, spread(builder, by))),
        intrinsic(types.none, (types.int64, vector), store),
    )
