"""Reads the items of an input from `InferTensorContents`: converts protobuf's repeated fields to packed items."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from app.errors import GatherError, Place, invalid_field
from app.formats.oip.infer_document import Input
from app.formats.oip.input_items import dtype_of, pointers_of
from app.memory.budget import Memory
from app.requests.request import ReadArray
from app.tensors.buffer_type import Buffer
from app.tensors.dtypes import DType
from app.tensors.little_endian_items import bounded_product, items_text, unpack
from app.tensors.tensor import Tensor, coordinates

FIELD_OF: Final = {
    "BOOL": "bool_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    "INT64": "int64_contents",
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
"""The field that holds the items of each datatype."""
_WIDE: Final = {"int_contents": np.dtype(np.int32), "uint_contents": np.dtype(np.uint32)}
"""The type of a field's items, for fields that hold several datatypes."""
_PORTION: Final = 1 << 14
"""Number of items to read at a time, in about a millisecond, during which nothing else runs."""
_ITEM_BYTES: Final = 24
"""Bytes of memory per item while it is read: two copies and an object."""


def typed_items(one: Input, contents: Any, memory: Memory) -> ReadArray:
    """Return the reader of an input's items, which are in the field that its datatype requires."""
    field = FIELD_OF.get(one.datatype, "")
    shape = one.shape or ()

    def read() -> Tensor:
        _check_field(one, contents)
        dtype = dtype_of(one)
        count = len(getattr(contents, field)) if field else 0
        pointer, _, shape_pointer, dtype_pointer = pointers_of(one.number)
        if field:
            pointer = f"{pointer}/contents/{field}"
        if bounded_product(shape, count + 1) != count:
            asked = items_text(shape)
            raise GatherError(
                "element_count_mismatch",
                f"{one.name}: {count} items are given, but the shape requires {asked}",
                pointer=pointer,
                hint=f"Send {asked} in {field or 'raw_input_contents'}, or make the shape fit the {count} that came.",
            )
        items = _pack(one, field, contents, memory) if field else b""
        tensor = unpack(dtype, shape, items, memory, one.name, (pointer, shape_pointer, dtype_pointer))
        tensor.form = "flat" if field else "whole"
        return tensor

    return read, ()


def _pack(one: Input, field: str, contents: Any, memory: Memory) -> Buffer:
    """Convert the items to packed bytes. Raises value_not_representable, and any error of charging."""
    values = getattr(contents, field)
    if len(values) > _PORTION:
        memory.charge(_ITEM_BYTES * len(values) + contents.ByteSize())
    if field == "bytes_contents":
        frames = bytearray()
        for at in range(0, len(values), _PORTION):
            frames += b"".join(
                [piece for text in values[at : at + _PORTION] for piece in (len(text).to_bytes(4, "little"), text)]
            )
        return frames
    dtype = dtype_of(one)
    items = np.empty(len(values), _WIDE.get(field, dtype.numpy))
    for at in range(0, len(values), _PORTION):
        some = values[at : at + _PORTION]
        items[at : at + len(some)] = np.fromiter(some, items.dtype, len(some))
    if items.dtype != dtype.numpy:
        _check_range(one, field, dtype, items)
        items = items.astype(dtype.numpy)
    return items.view(np.uint8).data


def _check_field(one: Input, contents: Any) -> None:
    """Raise invalid_field for items in a field of another datatype."""
    wanted = FIELD_OF.get(one.datatype, "")
    for field, _ in contents.ListFields():
        if field.name == wanted:
            continue
        pointer = f"{one.pointer}/contents/{field.name}"
        if not wanted:
            raise invalid_field(
                pointer,
                f"items of {one.datatype} have no field in contents",
                f"Send the items of {one.datatype} in raw_input_contents, and with them those of all inputs.",
            )
        raise invalid_field(pointer, f"items of {one.datatype} stand in {wanted}", f"Send the items in {wanted}.")


def _check_range(one: Input, field: str, dtype: DType, items: NDArray[Any]) -> None:
    wrong = (items < dtype.low) | (items > dtype.high)
    if wrong.any():
        item = int(wrong.argmax())
        pointer = f"{one.pointer}/contents/{field}/{item}"
        raise GatherError(
            "value_not_representable",
            f"{one.name}: {items[item]} is no {one.datatype}, which goes from {dtype.low} to {dtype.high}",
            places=[Place(pointer, coordinates(item, one.shape or ()), int(items[item]))],
            hint=f"Send a whole number from {dtype.low} to {dtype.high} at {pointer}.",
        )
