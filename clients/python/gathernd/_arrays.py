"""Between what callers hold (arrays, lists, anything with `__array__` or DLPack) and the bytes of a tensor.

The table has each element type under its three names: of the service, of NumPy and of the safetensors format.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from struct import pack, unpack_from
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from .errors import UnexpectedAnswer

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class Kind:
    """An element type: `numpy` is None for bfloat16, which only ml_dtypes has, and for string."""

    name: str
    numpy: np.dtype[Any] | None
    safetensors: str | None


def _kind(name: str, safetensors: str | None) -> Kind:
    known = name not in ("bfloat16", "string")
    return Kind(name, np.dtype(name).newbyteorder("<") if known else None, safetensors)


KINDS: Final[Mapping[str, Kind]] = {
    kind.name: kind
    for kind in (
        _kind("bool", "BOOL"),
        _kind("int8", "I8"),
        _kind("int16", "I16"),
        _kind("int32", "I32"),
        _kind("int64", "I64"),
        _kind("uint8", "U8"),
        _kind("uint16", "U16"),
        _kind("uint32", "U32"),
        _kind("uint64", "U64"),
        _kind("float16", "F16"),
        _kind("bfloat16", "BF16"),
        _kind("float32", "F32"),
        _kind("float64", "F64"),
        _kind("complex64", "C64"),
        _kind("complex128", None),
        _kind("string", None),
    )
}
BY_SAFETENSORS: Final[Mapping[str, Kind]] = {kind.safetensors: kind for kind in KINDS.values() if kind.safetensors}


@dataclass(frozen=True, slots=True)
class Packed:
    """A tensor ready to be sent: its items as row-major little-endian bytes."""

    kind: Kind
    shape: tuple[int, ...]
    raw: Buffer


def as_array(value: Any) -> NDArray[Any]:
    """`value` as a NumPy array, sharing its memory where it can be shared."""
    if isinstance(value, np.ndarray):
        return value
    if not hasattr(value, "__array__") and hasattr(value, "__dlpack__"):
        shared: NDArray[Any] = np.from_dlpack(value)
        return shared
    return np.asarray(value)


def as_indices(value: Any, widen: bool) -> NDArray[Any]:
    """`value` as an array of indices; `widen` makes narrower integers int64, which ONNX asks for."""
    array = as_array(value)
    if not array.size and array.dtype.kind == "f" and not hasattr(value, "dtype"):
        array = array.astype(np.int64)  # an empty list has no type of its own
    if widen and array.dtype.kind in "iu" and array.dtype != np.int64 and np.can_cast(array.dtype, np.int64, "safe"):
        return array.astype(np.int64)
    return array


def packed(array: NDArray[Any]) -> Packed:
    """The bytes of `array`, its own memory where that is contiguous and little endian.

    Raises TypeError for a dtype that the service does not have.
    """
    if array.dtype.kind in "UOT":
        return Packed(KINDS["string"], array.shape, _pack_strings(array))
    kind = KINDS.get(array.dtype.name)
    if kind is None or kind.name == "string":
        raise TypeError(f"the service has no element type for arrays of dtype {array.dtype}")
    if array.dtype.byteorder == ">" or (array.dtype.byteorder == "=" and not _LITTLE):
        array = array.astype(array.dtype.newbyteorder("<"))
    flat = np.asarray(array, order="C").reshape(-1)
    return Packed(kind, array.shape, flat.view(np.uint8).data)


def unpacked(kind: Kind, shape: Sequence[int], raw: Buffer) -> NDArray[Any]:
    """The array of a tensor's bytes, sharing their memory (strings are an object array). Raises UnexpectedAnswer."""
    dtype = _numpy(kind)
    if dtype is None:
        return _unpack_strings(shape, raw)
    if math.prod(shape) * dtype.itemsize != len(raw):
        raise UnexpectedAnswer(f"{len(raw)} bytes came for {kind.name} of shape {list(shape)}", 200)
    items: NDArray[Any] = np.frombuffer(raw, dtype) if len(raw) else np.empty(0, dtype)
    return items.reshape(shape)


_LITTLE: Final = np.dtype("<i4") == np.dtype("i4")


def _numpy(kind: Kind) -> np.dtype[Any] | None:
    if kind.name == "bfloat16":
        try:
            import ml_dtypes  # noqa: PLC0415  (optional: only those who meet the type need it)
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError("bfloat16 needs the package ml_dtypes") from error
        found: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return found
    return kind.numpy


def _pack_strings(array: NDArray[Any]) -> bytes:
    parts: list[bytes] = []
    for text in array.reshape(-1).tolist():
        if not isinstance(text, str):
            raise TypeError(f"an array of objects must hold str only; it holds {type(text).__name__}")
        octets = text.encode()
        parts += (pack("<I", len(octets)), octets)
    return b"".join(parts)


def _unpack_strings(shape: Sequence[int], raw: Buffer) -> NDArray[Any]:
    texts: list[str] = []
    place, size = 0, len(raw)
    while place + 4 <= size:
        start = place + 4
        place = start + int(unpack_from("<I", raw, place)[0])
        texts.append(str(raw[start:place], "utf-8"))
    if place != size or len(texts) != math.prod(shape):
        raise UnexpectedAnswer(f"{len(texts)} strings came for the shape {list(shape)}", 200)
    items = np.empty(len(texts), object)
    items[:] = texts
    return items.reshape(shape)
