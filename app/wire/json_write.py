"""Answers as JSON: flat values that read back as the same bits, non-finite ones as strings."""

from __future__ import annotations

from itertools import chain
from typing import Final, Literal

import numpy as np
import orjson
import pybase64

from app.tensors.call import Answer
from app.tensors.tensor import Tensor
from app.wire.packed import pack_items

_NUMPY: Final = orjson.OPT_SERIALIZE_NUMPY
_JOINED: Final = 1 << 16


def write_answer(answer: Answer, encoding: Literal["values", "base64"]) -> bytes | list[bytes]:
    """The body of `answer`, in pieces where it is large."""
    output = answer.output
    shape = ",".join(map(str, output.shape))
    head = f'{{"output":{{"dtype":"{output.dtype.name}","shape":[{shape}],"{encoding}":'
    tail = f'}},"dialect":"{answer.dialect}","device":"{answer.device}"'
    tail += "}" if answer.data_etag is None else f',"data_etag":{orjson.dumps(answer.data_etag).decode()}}}'
    if encoding == "base64":
        values = b'"' + pybase64.b64encode(pack_items(output.dtype, output.array)) + b'"'
    else:
        values = values_text(output)
    pieces = [head.encode(), values, tail.encode()]
    return pieces if len(values) > _JOINED else b"".join(pieces)


def values_text(tensor: Tensor) -> bytes:
    """The items in a flat list."""
    dtype, array = tensor.dtype, tensor.array
    if dtype.kind == "string":
        return orjson.dumps(array.tolist())
    if dtype.kind == "complex":
        array = array.view(f"f{dtype.item_size // 2}").reshape(-1, 2)
    elif dtype.item_size == 2 and dtype.kind == "float":
        array = array.astype(np.float32)
    text = orjson.dumps(array, option=_NUMPY)
    if array.dtype.kind != "f":
        return text
    flat = array.reshape(-1)
    odd = flat[~np.isfinite(flat)]
    if not odd.size:
        return text
    names = [b'"NaN"' if np.isnan(value) else b'"Infinity"' if value > 0 else b'"-Infinity"' for value in odd]
    parts = text.split(b"null")
    return b"".join(chain.from_iterable(zip(parts, names, strict=False))) + parts[-1]
