"""Encodes NumPy arrays as the bytes of a tensor, and decodes them.

`ELEMENT_TYPES` lists the element types with their names in the service, in NumPy and in the safetensors format.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from struct import pack, unpack_from
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from .errors import UnexpectedAnswer

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class ElementType:
    """A row of the table of element types.

    `numpy` is None for string and for the types of ml_dtypes, which is imported only when needed. `safetensors` is None
    if that format does not have the type. `itemsize` is in bytes, and 0 for string.
    """

    name: str
    numpy: np.dtype[Any] | None
    safetensors: str | None
    itemsize: int


def _element_type(name: str, safetensors: str | None, itemsize: int | None = None) -> ElementType:
    """Build a row of the table; `itemsize` is required if NumPy does not have the type."""
    if itemsize is not None:
        return ElementType(name, None, safetensors, itemsize)
    dtype = np.dtype(name).newbyteorder("<")
    return ElementType(name, dtype, safetensors, dtype.itemsize)


ELEMENT_TYPES: Final[Mapping[str, ElementType]] = {
    row.name: row
    for row in (
        _element_type("bool", "BOOL"),
        _element_type("int8", "I8"),
        _element_type("int16", "I16"),
        _element_type("int32", "I32"),
        _element_type("int64", "I64"),
        _element_type("uint8", "U8"),
        _element_type("uint16", "U16"),
        _element_type("uint32", "U32"),
        _element_type("uint64", "U64"),
        _element_type("float8_e4m3fn", "F8_E4M3", 1),
        _element_type("float8_e5m2", "F8_E5M2", 1),
        _element_type("float8_e8m0fnu", "F8_E8M0", 1),
        _element_type("float16", "F16"),
        _element_type("bfloat16", "BF16", 2),
        _element_type("float32", "F32"),
        _element_type("float64", "F64"),
        _element_type("complex64", "C64"),
        _element_type("complex128", None),
        _element_type("string", None, 0),
    )
}
ELEMENT_TYPE_OF_SAFETENSORS: Final[Mapping[str, ElementType]] = {
    row.safetensors: row for row in ELEMENT_TYPES.values() if row.safetensors
}
_OF_DTYPE: Final = {row.numpy: row for row in ELEMENT_TYPES.values() if row.numpy is not None}


@dataclass(slots=True, eq=False)
class EncodedTensor:
    """A tensor ready to send: `raw` holds its items in row-major order, little endian.

    A string is encoded as its length in bytes (uint32) and its UTF-8.
    """

    element_type: ElementType
    shape: tuple[int, ...]
    raw: Buffer


class StreamedBytes:
    """A body of `size` bytes that is generated while it is sent: each iteration calls `make` and yields its buffers.

    An iteration may raise any error of `make`, and raises ValueError if `make` yields more or fewer bytes.
    """

    def __init__(self, size: int, make: Callable[[], Iterator[Buffer]]) -> None:
        self._size = size
        self._make = make

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Buffer]:
        left = self._size
        for buffer in self._make():
            left -= len(buffer)
            if left < 0:
                break
            yield buffer
        if left:
            raise ValueError("the file was changed while it was sent")


@dataclass(slots=True, eq=False)
class StreamedTensor:
    """A tensor whose items are generated while they are sent."""

    element_type: ElementType
    shape: tuple[int, ...]
    raw: StreamedBytes


def encode(array: NDArray[Any]) -> EncodedTensor:
    """Encode `array`. Shares its memory if it is contiguous and little endian, else copies it.

    Raises TypeError if the service does not have the dtype or if the array has masked items.
    """
    if isinstance(array, np.ma.MaskedArray) and np.ma.is_masked(array):
        raise TypeError("the service has no masked items: filled() gives the array a value for each")
    if array.dtype.kind in "UOT":
        return EncodedTensor(ELEMENT_TYPES["string"], array.shape, _encode_strings(array))
    element_type = _OF_DTYPE.get(array.dtype) or ELEMENT_TYPES.get(array.dtype.name)
    if element_type is None or element_type.name == "string":
        more = "; view('uint8') keeps its bytes" if array.dtype.itemsize == 1 else ""
        raise TypeError(f"the service has no element type for arrays of dtype {array.dtype}{more}")
    if array.dtype.byteorder == ">" or (array.dtype.byteorder == "=" and not _LITTLE):
        array = array.astype(array.dtype.newbyteorder("<"))
    flat = np.asarray(array, order="C").reshape(-1)
    return EncodedTensor(element_type, array.shape, flat.view(np.uint8).data)


def decode(element_type: ElementType, shape: Sequence[int], raw: Buffer) -> NDArray[Any]:
    """Decode `raw` to an array that shares its memory; strings become an object array.

    Raises UnexpectedAnswer if the number of bytes does not match the shape, and ModuleNotFoundError if the type needs
    ml_dtypes and it is not installed.
    """
    dtype = numpy_dtype(element_type)
    if dtype is None:
        return _decode_strings(shape, raw)
    check_size(element_type, shape, raw)
    items: NDArray[Any] = np.frombuffer(raw, dtype) if len(raw) else np.empty(0, dtype)
    return items.reshape(shape)


def check_size(element_type: ElementType, shape: Sequence[int], raw: Buffer) -> None:
    """Raise UnexpectedAnswer if the number of bytes does not match the shape. Strings are not checked."""
    if math.prod(shape) * element_type.itemsize != len(raw):
        raise UnexpectedAnswer(f"{len(raw)} bytes came for {element_type.name} of shape {list(shape)}", 200)


_LITTLE: Final = np.dtype("<i4") == np.dtype("i4")


def numpy_dtype(element_type: ElementType) -> np.dtype[Any] | None:
    """Return the NumPy dtype, or None for string. Raises ModuleNotFoundError if ml_dtypes is needed and missing."""
    if element_type.numpy is not None or not element_type.itemsize:
        return element_type.numpy
    try:
        import ml_dtypes  # noqa: PLC0415  (optional: only those who meet such a type need it)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"{element_type.name} needs the package ml_dtypes") from error
    found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, element_type.name))
    return found


def _encode_strings(array: NDArray[Any]) -> bytes:
    encoded: list[bytes] = []
    for text in array.reshape(-1).tolist():
        if not isinstance(text, str):
            raise TypeError(f"an array of objects must hold str only; it holds {type(text).__name__}")
        utf8 = text.encode()
        encoded += (pack("<I", len(utf8)), utf8)
    return b"".join(encoded)


def _decode_strings(shape: Sequence[int], raw: Buffer) -> NDArray[Any]:
    texts: list[str] = []
    offset, size = 0, len(raw)
    while offset + 4 <= size:
        start = offset + 4
        offset = start + int(unpack_from("<I", raw, offset)[0])
        texts.append(str(raw[start:offset], "utf-8"))
    if offset != size or len(texts) != math.prod(shape):
        raise UnexpectedAnswer(f"{len(texts)} strings came for the shape {list(shape)}", 200)
    items = np.empty(len(texts), object)
    items[:] = texts
    return items.reshape(shape)
