"""Keys of rows as the service takes them: arrays of int64, uint64 or strings, and the tensors of an upload."""

from __future__ import annotations

import os
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ._array_bytes import EncodedTensor, encode
from ._arrays_of_others import as_array, has_no_type

KEYS: Final = "keys"
KEY_TENSORS: Final = ((KEYS,), ("keys.offsets", "keys.bytes"))
"""The tensors that give an upload its keys, of integers and of strings."""
_TYPES: Final = "keys are integers or strings"


def key_array(keys: Any) -> NDArray[Any]:
    """Keys as an array of int64, of uint64 or of strings; narrower integers become int64.

    Raises TypeError for other types, such as float64, which pandas makes of integers beside missing ones.
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
    """The tensors of the keys of a request: `keys`, or of strings in a `binary` body the two that an upload has.

    A binary body takes strings of one dimension alone: of others `keys` is a tensor that it has no type for.
    """
    array = key_array(keys)
    if binary and array.ndim == 1 and array.dtype.kind not in "iu":
        return key_tensors(array)
    return {KEYS: encode(array)}


def as_key_type(keys: Any, dtype: str) -> NDArray[Any] | None:
    """A list of keys, which has no type of its own, as keys of the type `dtype`; None if it is of another one."""
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
    """The tensors by which an upload gives each row its key: `keys`, of strings `keys.offsets` and `keys.bytes`.

    `keys` may be the path of an npy file. Raises TypeError for keys of another type, ValueError for another rank.
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
