"""Answers as JSON: flat values that read back as the same bits, non-finite ones as strings."""

from __future__ import annotations

from functools import lru_cache
from itertools import chain
from typing import Any, Final, Literal

import numpy as np
import orjson
import pybase64
from numpy.typing import NDArray

from app.tensors.call import Answer
from app.tensors.tensor import Tensor
from app.wire.packed import pack_items
from app.wire.shortest import ROOM, WIDEST, write_singles

_NUMPY: Final = orjson.OPT_SERIALIZE_NUMPY
_JOINED: Final = 1 << 16
_BYTE: Final = np.dtype(np.uint8)


def write_answer(answer: Answer, encoding: Literal["values", "base64"]) -> bytes | list[bytes | memoryview]:
    """The body of `answer`, in pieces where it is large."""
    output = answer.output
    head, tail = _around(output.dtype.name, output.shape, encoding, answer.dialect, answer.device, answer.data_etag)
    if encoding == "base64":
        values: bytes | memoryview = b'"' + pybase64.b64encode(pack_items(output.dtype, output.array)) + b'"'
    else:
        values = values_text(output)
    pieces = [head, values, tail]
    return pieces if len(values) > _JOINED else b"".join(pieces)


@lru_cache(maxsize=1024)
def _around(
    dtype: str, shape: tuple[int, ...], encoding: str, dialect: str, device: str, etag: str | None
) -> tuple[bytes, bytes]:
    """What stands before and behind the items: the same for all answers of one shape."""
    head = f'{{"output":{{"dtype":"{dtype}","shape":[{",".join(map(str, shape))}],"{encoding}":'
    tail = f'}},"dialect":"{dialect}","device":"{device}"'
    tail += "}" if etag is None else f',"data_etag":{orjson.dumps(etag).decode()}}}'
    return head.encode(), tail.encode()


def likely_size(tensor: Tensor, encoding: Literal["values", "base64"] = "values") -> int:
    """About how many bytes the text of the items will have: to plan with, before it is made."""
    dtype, count = tensor.dtype, tensor.array.size
    if dtype.kind == "string":
        return 4 * count + sum(map(len, tensor.array))
    if encoding == "base64":
        return tensor.array.nbytes // 3 * 4
    if dtype.kind in ("int", "uint") and count:
        array = tensor.array
        return count * (1 + max(len(str(int(array.min()))), len(str(int(array.max())))))
    return count * (3 + 2 * dtype.item_size)


def values_text(tensor: Tensor) -> bytes | memoryview:
    """The items in a flat list."""
    dtype, array = tensor.dtype, tensor.array
    if dtype.kind == "string":
        return orjson.dumps(array.tolist())
    if dtype.kind == "float" and dtype.item_size <= 4:
        return _singles(array if dtype.item_size == 4 else array.astype(np.float32), False)
    if dtype.name == "complex64":
        return _singles(array, True)
    if dtype.kind == "complex":
        array = array.view(np.float64).reshape(-1, 2)
    text = orjson.dumps(array, option=_NUMPY)
    return text if array.dtype.kind != "f" else _named(text, array.reshape(-1))


def _singles(array: NDArray[Any], pairs: bool) -> bytes | memoryview:
    """A list of float32, or of pairs of them."""
    items = array.view(_BYTE)
    items.flags.writeable = False  # one type of array: a function is compiled for one
    text = np.empty(items.size // 4 * WIDEST + ROOM, _BYTE)
    size: int = write_singles(items, pairs, text)
    return text.data[:size] if size > _JOINED else text[:size].tobytes()


def _named(text: bytes, array: NDArray[np.float64]) -> bytes:
    """The list `text` of the floats in `array`, with their names for the nulls that stand for non-finite ones."""
    finite = np.isfinite(array)
    if finite.all():
        return text
    odd = array[~finite]
    names = [b'"NaN"' if np.isnan(value) else b'"Infinity"' if value > 0 else b'"-Infinity"' for value in odd]
    parts = text.split(b"null")
    return b"".join(chain.from_iterable(zip(parts, names, strict=False))) + parts[-1]
