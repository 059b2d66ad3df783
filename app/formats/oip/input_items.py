"""The items of an input: in the JSON of an infer request, or packed, behind the JSON or in a message of gRPC."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.errors import GatherError, Place, invalid_field
from app.formats.oip.infer_document import Input
from app.json_text import lossless_json
from app.json_text.read_values import Values, outline_of, reading_memory
from app.memory.budget import Memory
from app.requests.request import ArraySource, GivenArray
from app.tensors.buffer_type import Buffer
from app.tensors.dtypes import BY_OIP, DTYPES, DType
from app.tensors.little_endian_items import PackedItemError, PackedSizeError, check_packed, packed_size_hint, unpack
from app.tensors.near_dtype import hint_for_dtype, holds_positions, near_dtype
from app.tensors.tensor import Tensor, coordinates

_DATATYPES: Final = ", ".join(BY_OIP)
_DTYPE_IN_HINT: Final = re.compile(r"dtype '(\w+)'")


def given_array(one: Input, source: ArraySource, wrong: GatherError | None = None) -> GivenArray:
    """The items of an input, with the error to raise once all else is right: `wrong`, or that its datatype is none of
    the protocol's.
    """
    return GivenArray(source, wrong or (_no_datatype(one) if one.dtype is None else None))


def dtype_of(one: Input) -> DType:
    """The type of an input whose datatype the protocol has."""
    assert one.dtype is not None
    return one.dtype


@lru_cache(1 << 12)  # a lookup has three inputs for each feature
def pointers_of(number: int) -> tuple[str, str, str, str]:
    """Of an input: where it is, its items in the JSON, its shape and its datatype."""
    at = f"/inputs/{number}"
    return at, f"{at}/data", f"{at}/shape", f"{at}/datatype"


class JsonItems:
    """The items of an input in bytes [first, end) of the JSON, in so many lists; see `ArraySource`."""

    __slots__ = ("memory", "one", "span", "values", "view")

    def __init__(self, one: Input, view: NDArray[np.uint8], first: int, end: int, depth: int, memory: Memory) -> None:
        self.one = one
        self.view = view
        self.memory = memory
        self.span = first, end, depth
        self.values: Values | None = None

    def read(self) -> Tensor | None:
        """See `ArraySource`. Without a shape the lists give it, and each item of a flat list is a row."""
        one, (first, end, depth) = self.one, self.span
        values = Values(self.view, one.name, dtype_of(one), one.shape, first, end, depth, True, self.memory)
        if one.shape is None:
            self.memory.charge(reading_memory(end - first))
            outline = outline_of(values)
            if outline is None:
                return None
            shape = outline[0] if len(outline[0]) != 1 else (*outline[0], 1)
            values = Values(self.view, one.name, dtype_of(one), shape, first, end, depth, True, self.memory)
        self.values = values
        tensor = values.read()
        if tensor is not None:
            _, tensor.pointer, tensor.shape_pointer, tensor.dtype_pointer = pointers_of(one.number)
        return tensor

    def explain_nesting(self) -> None:
        """See `ArraySource`."""
        if self.values is None:
            at = f"{self.one.pointer}/data"
            raise GatherError(
                "element_count_mismatch",
                f"{self.one.name}: the lists are not nested evenly",
                pointer=at,
                hint=f"Nest the lists at {at} evenly: one list of indices for each item that is gathered.",
            )
        with _placed(self.one):
            self.values.explain_nesting()

    def explain_value(self) -> None:
        """See `ArraySource`."""
        assert self.values is not None
        with _placed(self.one):
            self.values.explain_value()


class PackedItems:
    """The items of an input as packed bytes; see `ArraySource`."""

    __slots__ = ("memory", "one", "raw", "wrong")

    def __init__(self, one: Input, raw: Buffer, memory: Memory) -> None:
        """Raises invalid_field if the input has no shape."""
        if one.shape is None:
            at = f"{one.pointer}/shape"
            detail = f"{one.name} needs a shape, since its items follow the JSON"
            raise invalid_field(at, detail, f"Add 'shape' at {at}, such as [2, 1] for two rows.")
        self.one = one
        self.raw = raw
        self.memory = memory
        self.wrong: PackedItemError | None = None

    def read(self) -> Tensor | None:
        """See `ArraySource`."""
        pointer, _, shape_pointer, dtype_pointer = pointers_of(self.one.number)
        try:
            return unpack(dtype_of(self.one), self._shape, self.raw, self.memory, pointer, shape_pointer, dtype_pointer)
        except PackedSizeError:
            return None
        except PackedItemError as error:
            self.wrong = error
            return None

    def explain_nesting(self) -> None:
        """See `ArraySource`."""
        one, dtype = self.one, dtype_of(self.one)
        try:
            check_packed(dtype, self._shape, self.raw)
        except PackedSizeError as error:
            hint = packed_size_hint(dtype, self._shape, len(self.raw))
            detail = f"{one.name}: {error}"
            raise GatherError("element_count_mismatch", detail, pointer=one.pointer, hint=hint) from None

    def explain_value(self) -> None:
        """See `ArraySource`."""
        if self.wrong is not None:
            raise wrong_item(self.one, self.wrong, self.one.pointer)

    @property
    def _shape(self) -> tuple[int, ...]:
        assert self.one.shape is not None
        return self.one.shape


def wrong_item(one: Input, error: PackedItemError, pointer: str) -> GatherError:
    """The error for a packed item that its type cannot hold."""
    place = Place(pointer, coordinates(error.item, one.shape or ()), error.value)
    return GatherError("value_not_representable", f"{one.name}: {error}", places=[place], hint=error.hint)


def _no_datatype(one: Input) -> GatherError:
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


def _datatype(dtype: re.Match[str]) -> str:
    return f"datatype '{DTYPES[dtype[1]].oip}'"


@contextmanager
def _placed(one: Input) -> Iterator[None]:
    """Errors that point to the native format's `/NAME/values` point to where this input has its items."""
    try:
        yield
    except GatherError as error:
        prefix, pointer = f"/{one.name}/values", f"{one.pointer}/data"
        places = [replace(place, pointer=pointer + place.pointer[len(prefix) :]) for place in error.places]
        hint = error.hint and _DTYPE_IN_HINT.sub(_datatype, error.hint.replace(prefix, pointer))
        raise GatherError(error.code, error.detail, places=places, total=error.total, hint=hint) from None
