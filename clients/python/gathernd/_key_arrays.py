"""Converts keys to the service's forms: arrays of int64, uint64 or strings, and the key tensors of an upload."""

from __future__ import annotations

import os
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ._array_bytes import EncodedTensor, encode
from ._arrays_of_others import as_array, has_no_type

KEYS: Final = "keys"
KEY_TENSORS: Final = ((KEYS,), ("keys.offsets", "keys.bytes"))
"""Names of an upload's key tensors, for integer keys and for string keys."""
_TYPES: Final = "keys are integers or strings"


def key_array(keys: Any) -> NDArray[Any]:
    """Convert keys to an array of int64, uint64 or strings; narrower integers become int64.

    Raises TypeError for other types, such as float64, to which pandas converts integers with missing values.
    """
    array = as_array(keys)
    if array.dtype.kind in "UOT":
        return array
    if not array.size and has_no_type(keys):
        return array.astype(np.int64)  # an empty list has no type of its own
    if array.dtype.kind not in "iu":
        raise TypeError(f"{_TYPES}, not {array.dtype}")
    return array if array.dtype == np.uint64 else array.astype(np.int64, copy=False)


def request_keys(keys: Any, *, binary: bool = True) -> dict[str, EncodedTensor]:
    """Return the key tensors of a request: `keys`, or `keys.offsets` and `keys.bytes` for strings in a `binary` body.

    A binary body can contain only strings of rank 1. For other ranks, `keys` is a string tensor, which must be sent as
    JSON.
    """
    array = key_array(keys)
    if binary and array.ndim == 1 and array.dtype.kind not in "iu":
        return key_tensors(array)
    return {KEYS: encode(array)}


def as_key_type(keys: Any, dtype: str) -> NDArray[Any] | None:
    """Convert a list of keys, which has no type of its own, to `dtype`. Returns None if `dtype` cannot hold them."""
    array = as_array(keys)
    if dtype == "string":
        return None if array.size else np.empty(array.shape, object)
    if array.dtype.kind not in "iu" and array.size:
        return None
    bounds = np.iinfo(dtype)
    if array.size and not int(bounds.min) <= int(array.min()) <= int(array.max()) <= int(bounds.max):
        return None
    return array.astype(dtype)


def key_tensors(keys: Any) -> dict[str, EncodedTensor]:
    """Return the key tensors of an upload: `keys` for integers, `keys.offsets` and `keys.bytes` for strings.

    `keys` may be the path of an npy file. Raises TypeError if the keys have another type, and ValueError if their rank
    is not 1.
    """
    if isinstance(keys, str | os.PathLike):
        keys = np.load(keys, mmap_mode="r", allow_pickle=False)
    array = key_array(keys)
    if array.ndim != 1:
        raise ValueError(f"keys of rows have one dimension, not the shape {list(array.shape)}")
    if array.dtype.kind in "iu":
        return {KEYS: encode(array)}
    utf8: list[bytes] = []
    for text in array.tolist():
        if not isinstance(text, str):
            raise TypeError(f"{_TYPES}, and all of one type; these hold a {type(text).__name__}")
        utf8.append(text.encode())
    offsets = np.cumsum([0, *map(len, utf8)], dtype=np.int64)
    return {"keys.offsets": encode(offsets), "keys.bytes": encode(np.frombuffer(b"".join(utf8), np.uint8))}
