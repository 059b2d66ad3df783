"""Writes tensors as JSON: flat values that read back as the same bits, with non-finite values as strings.

Long text is written in blocks. Each block is charged with its maximum size before it is written, and with its actual
size afterwards. So only the text is held in memory, for any number of items.
"""

from __future__ import annotations

from functools import cache
from itertools import chain
from typing import Any, Final

import numpy as np
import orjson
import pybase64
from numpy.typing import NDArray

from app.json_text.constants import TEXT_ROOM, WIDEST
from app.json_text.write_elements import write_singles, write_strings
from app.memory.budget import UNCOUNTED, Memory
from app.tensors.buffer_type import Buffer
from app.tensors.dtypes import DType
from app.tensors.gather_call import Encoding
from app.tensors.little_endian_items import packed_bytes
from app.tensors.string_frames import ROOM
from app.tensors.string_tensor import PackedStrings
from app.tensors.tensor import Tensor

_NUMPY: Final = orjson.OPT_SERIALIZE_NUMPY
_JOINED: Final = 1 << 16
_LONG: Final = 1 << 16
_BLOCK: Final = 1 << 16
_DOUBLE: Final = 26
"""Maximum number of bytes in the text of a float64, including its comma."""
_BYTE: Final = np.dtype(np.uint8)
_NOWHERE: Final[NDArray[np.uint8]] = np.empty(0, _BYTE)


def is_long(tensor: Tensor) -> bool:
    """Return True if writing the items takes too long for the event loop."""
    if isinstance(tensor, PackedStrings):
        return tensor.on_disk or tensor.nbytes > _LONG
    return tensor.array.nbytes > _LONG


def tensor_text(tensor: Tensor, encoding: Encoding, memory: Memory = UNCOUNTED) -> list[Buffer]:
    """Write a tensor as an object with dtype, shape and items. Charges `memory`; may raise any error of charging."""
    sizes = ",".join(map(str, tensor.shape))
    head = f'{{"dtype":"{tensor.dtype.name}","shape":[{sizes}],"{encoding}":'.encode()
    return [head, *items_text(tensor, encoding, memory), b"}"]


def items_text(tensor: Tensor, encoding: Encoding, memory: Memory = UNCOUNTED) -> list[Buffer]:
    """Write the items of a tensor as a list or as a base64 string."""
    return _base64(tensor, memory) if encoding == "base64" else values_text(tensor, memory)


def _base64(output: Tensor, memory: Memory) -> list[Buffer]:
    """Write the packed items as a base64 string."""
    packed = packed_bytes(output, memory)
    memory.charge(-(-len(packed) // 3) * 4)
    text = pybase64.b64encode(packed)
    if not output.dtype.item_size:
        memory.adjust(len(packed), 0)
    return [b'"', text, b'"']


def values_text(tensor: Tensor, memory: Memory = UNCOUNTED) -> list[Buffer]:
    """Write the items as a flat list, in pieces. Charges `memory`; may raise any error of charging."""
    if isinstance(tensor, PackedStrings):
        return [_strings(tensor, memory)]
    dtype, array = tensor.dtype, tensor.array
    if array.size <= _BLOCK:
        return [_numbers(dtype, array, memory)]
    pieces: list[Buffer] = []
    for start in range(0, array.size, _BLOCK):
        pieces += (b"," if start else b"[", memoryview(_numbers(dtype, array[start : start + _BLOCK], memory))[1:-1])
    pieces.append(b"]")
    return pieces


def _strings(strings: PackedStrings, memory: Memory) -> memoryview:
    """Write strings as a list, which is charged before it is allocated. Raises tensor_damaged."""
    size = strings.checked(write_strings.run(strings.octets, strings.array, _NOWHERE))
    memory.charge(size + ROOM)
    text = np.empty(size + ROOM, _BYTE)
    strings.checked(write_strings.run(strings.octets, strings.array, text))
    return text.data[:size]


@cache
def most_text(dtype: DType) -> int:
    """Return the maximum number of bytes of text for a numeric item, including its comma and its share of the
    brackets.
    """
    if dtype.kind in ("int", "uint"):
        return 3 + max(len(str(dtype.low)), len(str(dtype.high)))
    if dtype.kind == "bool":
        return 8
    each = WIDEST if dtype.item_size <= 4 or dtype.name == "complex64" else _DOUBLE
    return 2 * each + 4 if dtype.kind == "complex" else each + 2


def _numbers(dtype: DType, array: NDArray[Any], memory: Memory) -> bytes | memoryview:
    """Write one block of items as a list, and charge `memory`."""
    most = array.size * most_text(dtype) + TEXT_ROOM
    memory.charge(most)
    text: bytes | memoryview
    if dtype.kind == "float" and dtype.item_size <= 4:
        text = _singles(array if dtype.item_size == 4 else array.astype(np.float32), False)
    elif dtype.name == "complex64":
        text = _singles(array, True)
    else:
        if dtype.kind == "complex":
            array = array.view(np.float64).reshape(-1, 2)
        text = orjson.dumps(array, option=_NUMPY)
        if array.dtype.kind == "f":
            text = _name_non_finite(text, array.reshape(-1))
    memory.adjust(most, len(text))
    return text


def _singles(array: NDArray[Any], pairs: bool) -> bytes | memoryview:
    """Write float32 items, or pairs of them, as a list."""
    items = array.view(_BYTE)
    items.flags.writeable = False  # the function is compiled for read-only arrays
    text = np.empty(items.size // 4 * WIDEST + TEXT_ROOM, _BYTE)
    text.resize(write_singles.run(items, pairs, text), refcheck=False)
    return text.data if text.size > _JOINED else text.tobytes()


def _name_non_finite(text: bytes, array: NDArray[np.float64]) -> bytes:
    """Replace the nulls in `text`, which lists the floats in `array`, with the names of the non-finite values."""
    finite = np.isfinite(array)
    if finite.all():
        return text
    odd = array[~finite]
    names = [b'"NaN"' if np.isnan(value) else b'"Infinity"' if value > 0 else b'"-Infinity"' for value in odd]
    parts = text.split(b"null")
    return b"".join(chain.from_iterable(zip(parts, names, strict=False))) + parts[-1]
