"""Items of an input in the fields of `InferTensorContents`: protobuf's repeated fields to packed items."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from app.errors import GatherError, Place, invalid_field
from app.tensors.buffer_type import Buffer
from app.tensors.dtypes import DType
from app.tensors.tensor import coordinates
from app.wire.little_endian_items import Charge, bounded_product, items_text
from app.wire.v2_request_json import Input

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
"""The field that has the items of a datatype."""
_WIDE: Final = {"int_contents": np.dtype(np.int32), "uint_contents": np.dtype(np.uint32)}
"""What the items of a field are, if it has those of several datatypes."""
_PORTION: Final = 1 << 14
"""Items that are read at a time: about a millisecond, in which nothing else runs."""
_ITEM_BYTES: Final = 24
"""Bytes that an item takes while it is read: itself twice, and as an object of the portion."""


def field_of(one: Input, contents: Any) -> str:
    """The field that has the items of an input, "" for a datatype that has none. Raises invalid_field if another field
    has items.
    """
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
    return wanted


def check_count(one: Input, field: str, count: int) -> None:
    """Raises element_count_mismatch if the shape asks for another number of items."""
    if bounded_product(one.shape, count + 1) != count:
        raise GatherError(
            "element_count_mismatch",
            f"{one.name}: {count} items are given and {items_text(one.shape)} are asked for by the shape",
            pointer=f"{one.pointer}/contents/{field}",
            hint=f"Send {items_text(one.shape)} in {field}, or make the shape fit the {count} that came.",
        )


def pack(one: Input, field: str, contents: Any, charge: Charge | None) -> Buffer:
    """The items of an input as packed bytes. Raises value_not_representable, and what charging raises."""
    assert one.dtype is not None
    values = getattr(contents, field)
    if charge is not None and len(values) > _PORTION:
        charge(_ITEM_BYTES * len(values) + contents.ByteSize())
    if field == "bytes_contents":
        frames = bytearray()
        for at in range(0, len(values), _PORTION):
            frames += b"".join(
                [piece for text in values[at : at + _PORTION] for piece in (len(text).to_bytes(4, "little"), text)]
            )
        return frames
    items = np.empty(len(values), _WIDE.get(field, one.dtype.numpy))
    for at in range(0, len(values), _PORTION):
        some = values[at : at + _PORTION]
        items[at : at + len(some)] = np.fromiter(some, items.dtype, len(some))
    if items.dtype != one.dtype.numpy:
        _check_range(one, field, one.dtype, items)
        items = items.astype(one.dtype.numpy)
    return items.view(np.uint8).data


def _check_range(one: Input, field: str, dtype: DType, items: NDArray[Any]) -> None:
    wrong = (items < dtype.low) | (items > dtype.high)
    if wrong.any():
        item = int(wrong.argmax())
        pointer = f"{one.pointer}/contents/{field}/{item}"
        raise GatherError(
            "value_not_representable",
            f"{one.name}: {items[item]} is no {one.datatype}, which goes from {dtype.low} to {dtype.high}",
            places=[Place(pointer, coordinates(item, one.shape), int(items[item]))],
            hint=f"Send a whole number from {dtype.low} to {dtype.high} at {pointer}.",
        )
