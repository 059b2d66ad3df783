"""Records: named fields at an address, by which compiled functions hand each other more than a few numbers.

A class with annotations says what the fields are, an int64 each, or a bool. Compiled code reads and writes them as
attributes (`job.total`), as those of a record of NumPy's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from llvmlite import ir
from numba import from_dtype, types

from app.llvm_intrinsics import Address, Builder, intrinsic

R = TypeVar("R")


def dtype_of(kind: type[Any]) -> np.dtype[Any]:
    """NumPy's type of the record that a class describes, its bases' fields first."""
    annotations: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        annotations |= vars(base).get("__annotations__", {})
    return np.dtype(
        [(name, np.bool_ if text == "bool" else np.int64) for name, text in annotations.items()], align=True
    )


def record_at(kind: type[R]) -> Callable[[Address], R]:
    """An intrinsic for the record that lies at an address, a multiple of 8."""
    record = from_dtype(dtype_of(kind))

    def build(builder: Builder, address: Any) -> Any:
        return builder.inttoptr(address, ir.ArrayType(ir.IntType(8), record.size).as_pointer())

    found: Callable[[Address], R] = intrinsic(record, (types.int64,), build)
    return found
