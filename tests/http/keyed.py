"""Safetensors files whose tensors come in a given order, as tables with keys need it."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

DTYPES = {"int64": "I64", "uint64": "U64", "int32": "I32", "float32": "F32", "uint8": "U8", "float64": "F64"}


def body(**tensors: NDArray[Any]) -> bytes:
    """A safetensors file whose tensors come in this order; `__` stands for a point."""
    described, place = {}, 0
    for tensor, array in tensors.items():
        end = place + array.nbytes
        described[tensor.replace("__", ".")] = {
            "dtype": DTYPES[array.dtype.name], "shape": array.shape, "data_offsets": [place, end],
        }  # fmt: skip
        place = end
    head = json.dumps(described).encode()
    return struct.pack("<Q", len(head)) + head + b"".join(array.tobytes() for array in tensors.values())


def of_texts(texts: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Keys that are strings, as the two tensors of an upload."""
    raw = [text.encode() for text in texts]
    offsets = np.cumsum([0, *map(len, raw)], dtype=np.int64)
    return {"keys__offsets": offsets, "keys__bytes": np.frombuffer(b"".join(raw), np.uint8)}
