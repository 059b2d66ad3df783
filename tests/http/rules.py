"""What each dialect takes, and what each type holds: stated once more, from the texts and from nothing in `app`."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite, prod
from typing import Any

from tests.http.forms import COMPLEX, FLOAT8, INTEGERS, TYPES

_NO_BFLOAT16 = frozenset(TYPES) - {"bfloat16"}
_OPENVINO = frozenset(TYPES) - set(COMPLEX) | set(FLOAT8)
# path and dialect: types of data, types of indices, whether negative indices count from the end
DIALECTS: dict[tuple[str, str], tuple[frozenset[str], frozenset[str], bool]] = {
    ("/gathernd", "onnx-13"): (frozenset(TYPES), frozenset({"int64"}), True),
    ("/gathernd", "onnx-12"): (_NO_BFLOAT16, frozenset({"int64"}), True),
    ("/gathernd", "onnx-11"): (_NO_BFLOAT16, frozenset({"int64"}), True),
    ("/gathernd", "openvino-8"): (_OPENVINO, frozenset(INTEGERS), False),
    ("/gather", "onnx-13"): (frozenset(TYPES), frozenset({"int32", "int64"}), True),
    ("/gather", "onnx-11"): (_NO_BFLOAT16, frozenset({"int32", "int64"}), True),
    ("/gather", "onnx-1"): (_NO_BFLOAT16, frozenset({"int32", "int64"}), False),
    ("/gather", "openvino-8"): (_OPENVINO, frozenset(INTEGERS), True),
    ("/gather_elements", "onnx-13"): (frozenset(TYPES), frozenset({"int32", "int64"}), True),
    ("/gather_elements", "onnx-11"): (_NO_BFLOAT16, frozenset({"int32", "int64"}), True),
    ("/gather_elements", "openvino-6"): (_OPENVINO, frozenset({"int32", "int64"}), False),
}
NEEDS_AXIS = (("/gather", "openvino-8"), ("/gather_elements", "openvino-6"))
"""The dialects whose axis has no default."""


# The least magnitude that rounds to infinity: half an ulp above the largest number.
_INFINITE = {
    "float8_e4m3fn": 464.0000000000001,
    "float8_e5m2": 61440.0,
    "float8_e8m0fnu": 1.5000000000000002 * 2.0**127,
    "float16": 65520.0,
    "bfloat16": 2.0**128 - 2.0**119,
    "float32": 2.0**128 - 2.0**103,
    "float64": float("inf"),
    "complex64": 2.0**128 - 2.0**103,
    "complex128": float("inf"),
}


def representable(dtype: str, value: Any) -> bool:
    """Whether a JSON value, as Python reads it, is one of this type."""
    if dtype == "bool":
        return isinstance(value, bool)
    if dtype == "string":
        return isinstance(value, str) and not any(0xD800 <= ord(sign) < 0xE000 for sign in value)
    if dtype in INTEGERS:
        if type(value) not in (int, float) or not isfinite(value) or value != int(value):
            return False
        bits = int(dtype.strip("uint"))
        low, high = (0, 2**bits) if dtype.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1))
        return bool(low <= value < high)
    if dtype in COMPLEX:
        return isinstance(value, list) and len(value) == 2 and all(_float(dtype, part) for part in value)
    return _float(dtype, value)


def _float(dtype: str, value: Any) -> bool:
    if value in ("NaN", "Infinity", "-Infinity"):
        return value == "NaN" or dtype not in ("float8_e4m3fn", "float8_e8m0fnu")
    if dtype == "float8_e8m0fnu" and type(value) in (int, float) and value < 0:
        return False
    return type(value) in (int, float) and abs(value) < _INFINITE[dtype]


def position(item: int, shape: Sequence[int]) -> list[int]:
    """The coordinates of an item by its number: the one of its kind among all of the shape."""
    return [item // prod(shape[axis + 1 :]) % size for axis, size in enumerate(shape)]


def zero(dtype: str) -> Any:
    """A value of this type."""
    return {"bool": False, "string": "", "complex64": [0, 0], "complex128": [0, 0]}.get(dtype, 0)
