"""The forms in which a tensor travels in JSON, written once more for the tests and from nothing in `app.json_text`."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Sequence
from math import isnan, prod
from struct import pack, unpack
from typing import Any

import ml_dtypes
import numpy as np

FLOATS = {"float16": "<f2", "bfloat16": "bfloat16", "float32": "<f4", "float64": "<f8"}
FLOAT8 = ("float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu")
COMPLEX = {"complex64": "<f4", "complex128": "<f8"}
INTEGERS = {f"{sign}int{bits}": f"<{sign or 'i'}{bits // 8}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
TYPES = ("bool", *INTEGERS, *FLOATS, *COMPLEX, "string")
_NONFINITE = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


def tensor(dtype: str, shape: Sequence[int], values: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "values": values}


def int64(shape: Sequence[int], values: Any) -> dict[str, Any]:
    return tensor("int64", shape, values)


def nested(given: dict[str, Any]) -> dict[str, Any]:
    """`given` with its flat values nested as its shape says."""
    return {**given, "values": _nest(list(given["values"]), given["shape"])}


def _nest(values: list[Any], shape: Sequence[int]) -> Any:
    if not shape:
        return values[0]
    step = prod(shape[1:])
    return [_nest(values[place * step : (place + 1) * step], shape[1:]) for place in range(shape[0])]


def packed(given: dict[str, Any]) -> dict[str, Any]:
    """`given` as base64."""
    text = b64encode(octets(given["dtype"], given["values"])).decode()
    return {"dtype": given["dtype"], "shape": given["shape"], "base64": text}


def _number(value: Any) -> Any:
    return _NONFINITE[value] if isinstance(value, str) else value


def octets(dtype: str, values: Sequence[Any]) -> bytes:
    """Row-major little-endian bytes; strings in the BYTES framing."""
    if dtype == "string":
        return b"".join(pack("<I", len(text.encode())) + text.encode() for text in values)
    if dtype == "bool":
        return bytes(values)
    if dtype in COMPLEX:
        return np.array([_number(part) for pair in values for part in pair], COMPLEX[dtype]).tobytes()
    if dtype in INTEGERS:
        return np.array(values, INTEGERS[dtype]).tobytes()
    numbers = np.array([_number(value) for value in values], np.float64)
    if dtype == "float8_e8m0fnu":  # ml_dtypes makes NaN of 0, and rounds a half up
        part, power = np.frexp(np.maximum(numbers, 2.0**-127))  # part * 2**power, with a part of 0.5 or more
        up = (part > 0.75) | ((part == 0.75) & (power % 2 == 1))
        numbers = np.where(np.isfinite(numbers), np.ldexp(1.0, power - 1 + up), numbers)
    with np.errstate(all="ignore"):
        return numbers.astype(_kind(dtype)).tobytes()


def _kind(dtype: str) -> Any:
    return getattr(ml_dtypes, dtype) if dtype in ("bfloat16", *FLOAT8) else FLOATS[dtype]


def unpacked(dtype: str, raw: bytes) -> list[Any]:
    """The items of packed bytes, as JSON values would give them."""
    if dtype == "string":
        texts, place = [], 0
        while place < len(raw):
            (size,) = unpack("<I", raw[place : place + 4])
            texts.append(raw[place + 4 : place + 4 + size].decode())
            place += 4 + size
        return texts
    if dtype == "bool":
        return [octet == 1 for octet in raw]
    if dtype in COMPLEX:
        parts = np.frombuffer(raw, COMPLEX[dtype]).tolist()
        return [list(pair) for pair in zip(parts[::2], parts[1::2], strict=True)]
    if dtype in INTEGERS:
        values: list[Any] = np.frombuffer(raw, INTEGERS[dtype]).tolist()
        return values
    return np.frombuffer(raw, _kind(dtype)).astype(np.float64).tolist()  # type: ignore[no-any-return]


def items(output: dict[str, Any]) -> list[Any]:
    """The values of an answer's tensor, whichever form it has."""
    if "base64" in output:
        return unpacked(output["dtype"], b64decode(output["base64"]))
    return list(output["values"])


def same(dtype: str, one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Whether two lists of values are the same items of `dtype`, bit by bit but for the payload of a NaN."""
    if len(one) != len(other):
        return False
    if dtype in ("bool", "string"):
        return all(type(a) is type(b) and a == b for a, b in zip(one, other, strict=True))
    if dtype in INTEGERS:
        return all(type(a) is int and type(b) is int and a == b for a, b in zip(one, other, strict=True))
    if dtype in COMPLEX:
        part = "float32" if dtype == "complex64" else "float64"
        return same(part, [x for pair in one for x in pair], [x for pair in other for x in pair])
    for a, b in zip(one, other, strict=True):
        first, second = _number(a), _number(b)
        if isnan(first) != isnan(second):
            return False
        if not isnan(first) and octets(dtype, [first]) != octets(dtype, [second]):
            return False
    return True
