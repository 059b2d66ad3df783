"""The table of element types: the name of each type in each format, and the array dtype that holds its items.

`numpy` is the dtype of that array. Strings, which would be objects in NumPy, are held as `PackedStrings`. Kernels see
`carrier` instead, a dtype of the same size, and are therefore compiled for five item sizes instead of for every type.
For strings, a kernel gathers the 8-byte offset of each string.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import ml_dtypes
import numpy as np

Kind = Literal["bool", "int", "uint", "float", "complex", "string"]


@dataclass(frozen=True, slots=True, eq=False)
class DType:
    """One element type. `item_size` is in bytes (0 for string).

    If a format does not have the type, the name in that format is None. `npy` is the code in npy files, without the
    byte order. `arithmetic` says whether items can be added and compared. Scatter reductions require this. Pooled
    lookups and gradients require a float type for which it is true.
    """

    name: str
    kind: Kind
    item_size: int
    numpy: np.dtype[Any]
    carrier: np.dtype[Any]
    oip: str | None
    safetensors: str | None
    npy: str | None
    arithmetic: bool
    low: int = 0
    high: int = 0

    def __repr__(self) -> str:
        return f"DType({self.name})"


def _row(
    name: str,
    kind: Kind,
    numpy: Any,
    oip: str | None,
    safetensors: str | None,
    *,
    arithmetic: bool = True,
) -> DType:
    dtype = np.dtype(numpy)
    size = 0 if kind == "string" else dtype.itemsize
    carrier = np.dtype({0: "u8", 1: "u1", 2: "u2", 4: "u4", 8: "u8", 16: "c16"}[size])
    low = high = 0
    if kind in ("int", "uint"):
        info = np.iinfo(dtype)
        low, high = int(info.min), int(info.max)
    npy = dtype.str[1:] if dtype.isbuiltin == 1 and kind != "string" else None  # ml_dtypes types have no npy codes
    arithmetic = arithmetic and kind in ("int", "uint", "float")
    return DType(name, kind, size, dtype, carrier, oip, safetensors, npy, arithmetic, low, high)


DTYPES: Final[Mapping[str, DType]] = {
    row.name: row
    for row in (
        _row("bool", "bool", "?", "BOOL", "BOOL"),
        _row("int8", "int", "i1", "INT8", "I8"),
        _row("int16", "int", "<i2", "INT16", "I16"),
        _row("int32", "int", "<i4", "INT32", "I32"),
        _row("int64", "int", "<i8", "INT64", "I64"),
        _row("uint8", "uint", "u1", "UINT8", "U8"),
        _row("uint16", "uint", "<u2", "UINT16", "U16"),
        _row("uint32", "uint", "<u4", "UINT32", "U32"),
        _row("uint64", "uint", "<u8", "UINT64", "U64"),
        _row("float8_e4m3fn", "float", ml_dtypes.float8_e4m3fn, None, "F8_E4M3", arithmetic=False),
        _row("float8_e5m2", "float", ml_dtypes.float8_e5m2, None, "F8_E5M2", arithmetic=False),
        _row("float8_e8m0fnu", "float", ml_dtypes.float8_e8m0fnu, None, "F8_E8M0", arithmetic=False),
        _row("float16", "float", "<f2", "FP16", "F16"),
        _row("bfloat16", "float", ml_dtypes.bfloat16, "BF16", "BF16"),
        _row("float32", "float", "<f4", "FP32", "F32"),
        _row("float64", "float", "<f8", "FP64", "F64"),
        _row("complex64", "complex", "<c8", None, "C64"),
        _row("complex128", "complex", "<c16", None, None),
        _row("string", "string", object, "BYTES", None),
    )
}
BY_OIP: Final[Mapping[str, DType]] = {row.oip: row for row in DTYPES.values() if row.oip}
BY_SAFETENSORS: Final[Mapping[str, DType]] = {row.safetensors: row for row in DTYPES.values() if row.safetensors}
INTEGERS: Final[tuple[str, ...]] = tuple(row.name for row in DTYPES.values() if row.kind in ("int", "uint"))
