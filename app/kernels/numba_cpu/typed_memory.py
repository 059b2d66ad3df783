"""Typed views of memory at an address, for compiled code: a record with named fields, or an array of items."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final, TypeVar

import numba
import numba.core.cgutils
import numba.np.arrayobj
import numpy as np
from llvmlite import ir
from numba import types
from numpy.typing import NDArray

from app.compilation.intrinsics import Address, Builder, intrinsic, with_arguments

R = TypeVar("R")
MAX_DEPTH: Final = 64
"""Maximum number of components in a tuple: the axis limit of NumPy arrays (NPY_MAXDIMS in NumPy 2)."""
KEPT_PLANS: Final = 1024
"""Number of plans of each type whose fields are cached as an array for compiled code."""
Sizes = NDArray[np.int64]
"""A record field with MAX_DEPTH numbers, one per axis."""
Items = NDArray[Any]
"""A contiguous 1-D array."""
Table = NDArray[Any]
"""A contiguous array [rows, columns]."""

_arrays: Any = numba.np.arrayobj
_cgutils: Any = numba.core.cgutils
_from_dtype: Any = numba.from_dtype
_INT64: Final = ir.IntType(64)
_FIELD_TYPES: Final[dict[str, tuple[Any, ...]]] = {
    "bool": (np.bool_,),
    "float": (np.float64,),
    "Sizes": (np.int64, MAX_DEPTH),
}
"""NumPy types of the annotations in a record class. All other annotations mean int64."""


def dtype_of(kind: type[Any]) -> np.dtype[Any]:
    """Return the NumPy dtype of the record described by a class's annotations, base classes first.

    The annotations may be `bool`, `float` (float64) or `Sizes`; all others mean int64.
    """
    annotations: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        annotations |= vars(base).get("__annotations__", {})
    return np.dtype([(name, *_FIELD_TYPES.get(text, (np.int64,))) for name, text in annotations.items()], align=True)


@lru_cache(maxsize=KEPT_PLANS)
def int64_array(numbers: tuple[int, ...]) -> NDArray[np.int64]:
    """Return the numbers as an array for compiled code. The array must not be changed.

    Raises OverflowError if a number does not fit.
    """
    return np.array(numbers, np.int64)


def record_as_int64(kind: type[Any], values: Mapping[str, Any]) -> NDArray[np.int64]:
    """Build a record of a class as an int64 array, which NumPy copies twenty times as fast as a record.

    Missing fields are 0. For a field with several numbers, the first few are enough. Raises TypeError if a number does
    not fit.
    """
    record = np.zeros(1, dtype_of(kind))
    try:
        for name, value in values.items():
            if isinstance(value, tuple):
                record[name][0, : len(value)] = value
            else:
                record[name] = value
    except OverflowError as error:
        raise TypeError("the plan has a size that no array can have") from error
    return record.view(np.int64)


def record_of(kind: type[R], *, offset: int = 0) -> Callable[[Address], R]:
    """Build a compiled function that returns the record of a class at an address plus `offset` bytes.

    Compiled code accesses its fields as `record.name`.
    """
    dtype = dtype_of(kind)

    def build(builder: Builder, address: Any) -> Any:
        place = builder.add(address, _INT64(offset))
        return builder.inttoptr(place, ir.ArrayType(ir.IntType(8), dtype.itemsize).as_pointer())

    made: Callable[[Address], R] = intrinsic(_from_dtype(dtype), (types.int64,), build)
    return made


def items_at(dtype: Any) -> Callable[[Address, int], Items]:
    """Build a compiled function (address, count) that returns a 1-D array.

    Items need no alignment. Nothing is checked.
    """
    made: Callable[[Address, int], Items] = _array_at(dtype, 1)
    return made


def table_at(dtype: Any) -> Callable[[Address, int, int], Table]:
    """Build a compiled function (address, rows, columns) that returns a 2-D array. Nothing is checked."""
    made: Callable[[Address, int, int], Table] = _array_at(dtype, 2)
    return made


def _array_at(dtype: Any, axes: int) -> Any:
    kind: Any = types.Array(_from_dtype(np.dtype(dtype)), axes, "C", aligned=False)
    item_bytes = np.dtype(dtype).itemsize

    def function(typing_context: Any, *given: Any) -> Any:
        def generate(context: Any, builder: Builder, signature: Any, values: Any) -> Any:
            address, *shape = values
            strides = [_INT64(item_bytes)]
            for size in reversed(shape[1:]):
                strides.insert(0, builder.mul(size, strides[0]))
            made = _arrays.make_array(kind)(context, builder)
            _arrays.populate_array(
                made,
                data=builder.inttoptr(address, context.get_data_type(kind.dtype).as_pointer()),
                shape=_cgutils.pack_array(builder, shape),
                strides=_cgutils.pack_array(builder, strides),
                itemsize=_INT64(item_bytes),
                meminfo=None,
            )
            return made._getvalue()

        return kind(*(types.int64,) * (1 + axes)), generate

    return with_arguments(function, 1 + axes)
