"""Reads a tensor from the span of a JSON body that holds its values, flat or nested, of any type.

`read_elements` reads the values directly into the tensor's memory. If it reports a fault, the nesting is checked again
separately, because nesting errors take precedence over value errors.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.errors import LONG_TEXT, GatherError, Place
from app.json_text import lossless_json, nesting_hint, value_hint
from app.json_text.constants import KINDS, MAX_DEPTH, OPEN, SKIP, strings_room
from app.json_text.read_elements import MEMORY_OF_TEXT, read_elements
from app.memory.budget import UNCOUNTED, Memory
from app.tensors.dtypes import DTYPES, DType
from app.tensors.little_endian_items import bounded_product, items_text
from app.tensors.string_tensor import PackedStrings
from app.tensors.tensor import Form, Tensor, coordinates

_SHORT: Final = 1 << 10
"""Up to this many bytes of text, counting in a copy is faster than comparing an array."""
_BYTE: Final = np.dtype(np.uint8)
_START: Final = np.dtype(np.int64)
_NO_INTS: Final[NDArray[np.int64]] = np.empty(0, np.int64)
_NO_BYTES: Final[NDArray[np.uint8]] = np.empty(0, np.uint8)
_NO_DIMS_YET: Final = np.full(2 * MAX_DEPTH + 2, -1)
_STRING_START: Final = re.compile(rb'"(?:[^"\\]|\\u.{4}|\\[^u]){0,400}', re.DOTALL)
_PLAIN_START: Final = re.compile(rb"[^\s,\[\]{}]{0,1000}")
_STEP: Final = 1 << 20
_MOST: Final = 1 << 60
"""More items than any body can hold."""
_FEW: Final = 8
"""Maximum number of dimensions of a cached shape."""


class Nesting(NamedTuple):
    """The required nesting of the lists. `parts` is the number of elements, or their maximum if no shape is given.

    An element of `read_elements` is an item, or one of the two parts of a complex item.
    """

    form: Form
    leaf: int
    inner: int
    dims: NDArray[np.int64]
    parts: int


class Span(NamedTuple):
    """The values of a tensor in a body: bytes [first, end) of `view`, which open `depth` lists."""

    view: NDArray[np.uint8]
    first: int
    end: int
    depth: int

    def commas(self) -> int:
        """Count the commas in the span, without allocating an array of its length.

        There is at most one more element than commas.
        """
        if self.end - self.first <= _SHORT:
            return self.view[self.first : self.end].tobytes().count(b",")
        places = range(self.first, self.end, _STEP)
        return sum(int(np.count_nonzero(self.view[at : min(at + _STEP, self.end)] == ord(","))) for at in places)

    def offset(self, place: int) -> int | None:
        """Return the offset in the body for an error, or None for a short body."""
        return place if len(self.view) > LONG_TEXT else None


@dataclass(slots=True, eq=False)
class Values:
    """Reads the values of the tensor `name` from any body.

    `pointers` are the pointers of the values, the shape and the type. An input of the inference `protocol` may have NaN
    and infinities without quotes. If such an input has no shape, each item of a flat list is a row. `items` is the
    number of items in a flat list of numbers, or -1 if the values cannot be such a list.
    """

    name: str
    dtype: DType
    shape: tuple[int, ...] | None
    pointers: tuple[str, str, str]
    protocol: bool = False
    items: int = field(init=False)
    kind: int = field(init=False)

    def __post_init__(self) -> None:
        is_number = self.dtype.item_size and self.dtype.kind != "complex"
        self.items = bounded_product(self.shape, _MOST) if self.shape is not None and is_number else -1
        self.kind = KINDS[self.dtype.name]

    def read(self, view: NDArray[np.uint8], first: int, end: int, depth: int, memory: Memory = UNCOUNTED) -> Tensor:
        """Read the tensor whose values are bytes [first, end) of `view`, which begin with `depth` opening brackets.

        `memory` is charged before memory is allocated. Raises element_count_mismatch if the nesting does not match the
        shape (this error takes precedence), value_not_representable at the first element that the type cannot hold, and
        any error of charging.
        """
        dtype, shape, items = self.dtype, self.shape, self.items
        pointer, shape_pointer, dtype_pointer = self.pointers
        if depth == 1 and 0 <= 2 * items <= end - first:  # the common case, which needs no `Nesting`
            room = items * dtype.item_size
            memory.charge(room + reading_memory(end - first))
            raw = np.empty(room, _BYTE)
            fine, place, element, _, _, _ = read_elements.run(
                view, first, end, self.kind, 1, items, items, _NO_INTS, raw, self.protocol
            )
            if not fine:
                raise self._refusal(Span(view, first, end, depth), element, place)
            return Tensor(dtype, shape, raw.view(dtype.numpy), pointer, "flat", shape_pointer, dtype_pointer)  # type: ignore[arg-type]
        span = Span(view, first, end, depth)
        nesting = self._nesting(span)
        if nesting is None:
            raise self._wrong_nesting(span, first)
        form, leaf, inner, dims, parts = nesting
        if shape is None:
            parts = min(parts, span.commas() + 1)
        room = parts * _width(dtype) if dtype.item_size else strings_room(parts, end - first)
        memory.charge(room + reading_memory(end - first))
        raw = np.empty(room, _BYTE)
        fine, place, element, used, leaf, inner = read_elements.run(
            view, first, end, self.kind, leaf, inner, parts, dims, raw, self.protocol
        )
        if not fine:
            raise self._refusal(span, element, place)
        if shape is None:
            found = self._shape_and_form(leaf, inner, dims)
            if found is None:
                raise self._wrong_nesting(span, first)
            shape, form = found
            if dtype.item_size:
                raw = raw[: prod(shape) * dtype.item_size]
        if dtype.item_size:
            return Tensor(dtype, shape, raw.view(dtype.numpy), pointer, form, shape_pointer, dtype_pointer)
        starts = raw[: _START.itemsize * element].view(_START)
        octets = raw[_START.itemsize * parts :][:used]
        return PackedStrings(dtype, shape, starts, pointer, form, shape_pointer, dtype_pointer, octets=octets)

    def _shape_and_form(self, leaf: int, inner: int, dims: NDArray[np.int64]) -> tuple[tuple[int, ...], Form] | None:
        """Return the shape and form found in the lists, or None if complex items are not pairs."""
        shape: tuple[int, ...] = (*dims[: leaf - 1].tolist(), inner) if leaf else ()
        if self.dtype.kind == "complex" and 0 not in shape:
            if not shape or shape[-1] != 2:
                return None
            shape = shape[:-1]
        if len(shape) != 1:
            return shape, "nested"
        return (*shape, 1) if self.protocol else shape, "flat"

    def _nesting(self, span: Span) -> Nesting | None:
        """Return the expected nesting, or None if the values begin with too few or too many brackets."""
        shape, depth = self.shape, span.depth
        pair = self.dtype.kind == "complex"
        room = (span.end - span.first) // 2 + 1
        if shape is None:
            if depth == 1 and not pair:
                return Nesting("flat", 1, -1, _NO_INTS, room)
            return Nesting("flat", OPEN, -1, _NO_DIMS_YET.copy(), room)
        count = bounded_product(shape, room + 1)
        if count > room:
            return None
        if depth == 1 and (not pair or not count):
            return Nesting("flat", 1, count, _NO_INTS, count)
        if depth == 2 and pair and count:
            return Nesting("flat", 2, 2, np.array((count, 0)), 2 * count)
        sizes = (*shape, 2) if pair and count else shape if count else shape[: shape.index(0) + 1]
        if depth != len(sizes) or any(size > room for size in sizes):
            return None
        outer = sizes[:-1]
        return Nesting("nested", depth, sizes[-1] if sizes else 1, np.array(outer + outer, np.int64), count << pair)

    def _refusal(self, span: Span, element: int, place: int) -> GatherError:
        """Return the error for values whose nesting, or whose `element` at `place`, is invalid."""
        nesting = self._nesting(span)
        assert nesting is not None, "the elements have been read"
        form, leaf, inner, dims, parts = nesting
        fine, stopped, _, _, leaf, inner = read_elements.run(
            span.view, span.first, span.end, SKIP, leaf, inner, parts, dims, _NO_BYTES, False
        )
        if not fine:
            return self._wrong_nesting(span, stopped)
        found = self._shape_and_form(leaf, inner, dims) if self.shape is None else (self.shape, form)
        if found is None:
            return self._wrong_nesting(span, span.first)
        return self._wrong_value(span, element, place, *found)

    def _wrong_nesting(self, span: Span, place: int) -> GatherError:
        """Return the error for lists whose nesting does not match the shape, detected at `place`."""
        name, shape, is_complex = self.name, self.shape, self.dtype.kind == "complex"
        pointer = self.pointers[0]
        hint: str | None
        if shape is None:
            detail = "the lists are not nested evenly"
            if is_complex:
                detail += " down to pairs [re, im]"
        else:
            detail = f"the values are neither a flat list of {items_text(shape)} nor lists nested like the shape"
            if is_complex:
                detail += ", each item a pair [re, im]"
        if shape is None and self.protocol:
            hint = f"Nest the lists at {pointer} evenly: one list of indices for each item that is gathered."
        else:
            lists = bytes(span.view[span.first : nesting_hint.end_of_sample(span.first, span.end)])
            hint = nesting_hint.hint(lists, name, shape, is_complex, span.depth, pointer)
        if hint is None and shape is not None and span.depth == 1 and self.dtype.item_size:
            hint = nesting_hint.hint_for_flat_list(name, shape, span.commas() + 1)
        where = Place(pointer, offset=span.offset(place))
        return GatherError("element_count_mismatch", f"{name}: {detail}", places=[where], hint=hint)

    def _wrong_value(self, span: Span, element: int, place: int, shape: tuple[int, ...], form: Form) -> GatherError:
        """Return the error for an element, at `place`, that the type cannot hold."""
        dtype, name = self.dtype, self.name
        leaf_value = _leaf(span.view, place)
        item, side = divmod(element, 2) if dtype.kind == "complex" else (element, None)
        position = coordinates(item, shape)
        pointer = Tensor(dtype, shape, _NO_BYTES, self.pointers[0], form).locate(item)
        if side is not None:
            pointer += f"/{side}"
        value = lossless_json.shown(leaf_value)
        what = "an object or null" if value is None else repr(value) if isinstance(value, str) else str(value)
        detail = f"{name}{list(position)} is {what}, which {dtype.name} cannot hold"
        hint = value_hint.hint(dtype, leaf_value, pointer, name, self.protocol)
        where = Place(pointer, position, value, offset=span.offset(place))
        return GatherError("value_not_representable", detail, places=[where], hint=hint)


def _leaf(view: NDArray[np.uint8], place: int) -> object:
    """Return the JSON value at `place`; None for an object and for invalid JSON.

    For a very long value, returns its beginning as text.
    """
    first = int(view[place])
    if first == ord("{"):
        return None
    match = (_STRING_START if first == ord('"') else _PLAIN_START).match(view.data, place)
    start = b"" if match is None else match[0]
    try:
        if first == ord('"'):
            return lossless_json.loads((start + b'"').decode(errors="ignore"))
        return start.decode() if len(start) == 1000 else lossless_json.loads(start.decode())
    except ValueError:  # invalid JSON (the body will be refused), or an unquoted NaN or infinity
        return None


def values_of(name: str, dtype: DType, shape: tuple[int, ...] | None) -> Values:
    """Return the reader of a tensor in a JSON body. The result is cached, because a lookup has many similar tensors."""
    if shape is not None and len(shape) > _FEW:
        return Values(name, dtype, shape, _pointers(name))
    return _remembered_values(name, dtype.name, shape)


@lru_cache(maxsize=1 << 12)
def _remembered_values(name: str, dtype: str, shape: tuple[int, ...] | None) -> Values:
    return Values(name, DTYPES[dtype], shape, _pointers(name))


def _pointers(name: str) -> tuple[str, str, str]:
    return f"/{name}/values", f"/{name}/shape", f"/{name}/dtype"


def reading_memory(span: int) -> int:
    """Return the bytes that `read_elements` needs in addition to its output, for `span` bytes of text."""
    return MEMORY_OF_TEXT * span if read_elements.run is read_elements.plain else 0


def _width(dtype: DType) -> int:
    """Return the size in bytes of an element: an item, or one part of a complex item."""
    return dtype.item_size >> (dtype.kind == "complex")
