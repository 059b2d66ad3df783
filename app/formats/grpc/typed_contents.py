"""Items of an input in the fields of `InferTensorContents`: protobuf's repeated fields to packed items."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from app.errors import GatherError, Place, invalid_field
from app.formats.oip.infer_document import Input
from app.formats.oip.input_items import dtype_of, pointers_of, wrong_item
from app.memory.budget import Memory
from app.tensors.buffer_type import Buffer
from app.tensors.dtypes import DType
from app.tensors.little_endian_items import PackedItemError, bounded_product, items_text, unpack
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
"""The field that has the items of a datatype."""
_WIDE: Final = {"int_contents": np.dtype(np.int32), "uint_contents": np.dtype(np.uint32)}
"""What the items of a field are, if it has those of several datatypes."""
_PORTION: Final = 1 << 14
"""Items that are read at a time: about a millisecond, in which nothing else runs."""
_ITEM_BYTES: Final = 24
"""Bytes that an item takes while it is read: itself twice, and as an object of the portion."""


class TypedItems:
    """The items of an input in a field of its contents; see `ArraySource`."""

    __slots__ = ("contents", "count", "field", "memory", "one", "wrong")

    def __init__(self, one: Input, contents: Any, memory: Memory) -> None:
        self.one = one
        self.contents = contents
        self.memory = memory
        self.field = FIELD_OF.get(one.datatype, "")
        self.count = len(getattr(contents, self.field)) if self.field else 0
        self.wrong: GatherError | None = None

    def read(self) -> Tensor | None:
        """See `ArraySource`."""
        one = self.one
        shape = one.shape or ()
        if bounded_product(shape, self.count + 1) != self.count:
            return None
        pointer, _, shape_pointer, dtype_pointer = pointers_of(one.number)
        if self.field:
            pointer = f"{pointer}/contents/{self.field}"
        try:
            items = self._pack()
            tensor = unpack(dtype_of(one), shape, items, self.memory, pointer, shape_pointer, dtype_pointer)
        except PackedItemError as error:
            self.wrong = wrong_item(one, error, pointer)
            return None
        except GatherError as error:
            if error.code != "value_not_representable":
                raise
            self.wrong = error
            return None
        tensor.form = "flat" if self.field else "whole"
        return tensor

    def explain_nesting(self) -> None:
        """See `ArraySource`."""
        one, field, count = self.one, self.field, self.count
        asked = items_text(one.shape or ())
        if bounded_product(one.shape or (), count + 1) != count:
            raise GatherError(
                "element_count_mismatch",
                f"{one.name}: {count} items are given and {asked} are asked for by the shape",
                pointer=f"{one.pointer}/contents/{field}" if field else one.pointer,
                hint=f"Send {asked} in {field or 'raw_input_contents'}, or make the shape fit the {count} that came.",
            )

    def explain_value(self) -> None:
        """See `ArraySource`."""
        if self.wrong is not None:
            raise self.wrong

    def _pack(self) -> Buffer:
        """The items as packed bytes. Raises value_not_representable, and what charging raises."""
        if not self.field:
            return b""
        one, field = self.one, self.field
        values = getattr(self.contents, field)
        if len(values) > _PORTION:
            self.memory.charge(_ITEM_BYTES * len(values) + self.contents.ByteSize())
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


def wrong_field(one: Input, contents: Any) -> GatherError | None:
    """The error for items in another field than that of the datatype."""
    wanted = FIELD_OF.get(one.datatype, "")
    for field, _ in contents.ListFields():
        if field.name == wanted:
            continue
        pointer = f"{one.pointer}/contents/{field.name}"
        if not wanted:
            return invalid_field(
                pointer,
                f"items of {one.datatype} have no field in contents",
                f"Send the items of {one.datatype} in raw_input_contents, and with them those of all inputs.",
            )
        return invalid_field(pointer, f"items of {one.datatype} stand in {wanted}", f"Send the items in {wanted}.")
    return None


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
