"""Reads an input's items from the JSON of an infer request, or, if they are packed, from after the JSON or a gRPC
message.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.errors import GatherError, invalid_field
from app.formats.oip.infer_document import Input
from app.json_text import lossless_json
from app.json_text.read_values import Values
from app.memory.budget import Memory
from app.requests.request import ReadArray
from app.tensors.buffer_type import Buffer
from app.tensors.by_key import KEYS
from app.tensors.dtypes import BY_OIP, DTYPES, DType
from app.tensors.little_endian_items import unpack
from app.tensors.near_dtype import hint_for_dtype, holds_positions, near_dtype
from app.tensors.tensor import Tensor

_DATATYPES: Final = ", ".join(BY_OIP)


def dtype_of(one: Input) -> DType:
    """Return the element type of an input. Raises unsupported_dtype for an unknown datatype."""
    if one.dtype is None:
        raise _unknown_datatype(one)
    return one.dtype


@lru_cache(1 << 12)  # a lookup has up to three inputs per feature
def pointers_of(number: int) -> tuple[str, str, str, str]:
    """Return the JSON pointers of an input, its `data`, its shape and its datatype."""
    at = f"/inputs/{number}"
    return at, f"{at}/data", f"{at}/shape", f"{at}/datatype"


def json_items(one: Input, view: NDArray[np.uint8], first: int, end: int, depth: int, memory: Memory) -> ReadArray:
    """Return the reader of an input's items in bytes [first, end) of the JSON, with `depth` opening brackets."""

    return _read_json, (one, view, first, end, depth, memory)


def packed_items(one: Input, raw: Buffer, memory: Memory) -> ReadArray:
    """Return the reader of an input's items in packed bytes. Raises invalid_field if the input has no shape."""
    shape = one.shape
    if shape is None:
        at = f"{one.pointer}/shape"
        detail = f"{one.name} needs a shape, since its items follow the JSON"
        raise invalid_field(at, detail, f"Add 'shape' at {at}, such as [2, 1] for two rows.")

    return _read_packed, (one, shape, raw, memory)


def _read_json(one: Input, view: NDArray[np.uint8], first: int, end: int, depth: int, memory: Memory) -> Tensor:
    # In a flat list without a shape, each item is a row of indices or a single key.
    values = Values(one.name, dtype_of(one), one.shape, pointers_of(one.number)[1:], one.name != KEYS)
    return values.read(view, first, end, depth, memory)


def _read_packed(one: Input, shape: tuple[int, ...], raw: Buffer, memory: Memory) -> Tensor:
    pointer, _, shape_pointer, dtype_pointer = pointers_of(one.number)
    return unpack(dtype_of(one), shape, raw, memory, one.name, (pointer, shape_pointer, dtype_pointer))


def _unknown_datatype(one: Input) -> GatherError:
    shown = str(lossless_json.shown(one.datatype))
    return GatherError(
        "unsupported_dtype",
        f"{shown!a} is not a datatype of the inference protocol, which has {_DATATYPES}; POST /gathernd takes complex "
        "types",
        pointer=f"{one.pointer}/datatype",
        hint=_hint_for_datatype(shown, one.name),
    )


def _hint_for_datatype(given: str, of: str) -> str:
    near = near_dtype(given)
    if near is not None and DTYPES[near].oip is None and not holds_positions(of):
        return f"Send {near} to POST /gathernd, since the inference protocol has no such type."
    return hint_for_dtype(given, {name: row.oip for name, row in DTYPES.items() if row.oip is not None}, of)
