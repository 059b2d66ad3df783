"""One tensor out of the span of a JSON body that holds its values: flat or nested, of any type.

`read_elements` reads the values straight into the tensor's memory. Where it refuses something, the
nesting alone is looked at again, since it comes before the values.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.errors import GatherError, Place
from app.json_text import lossless_json, nesting_hint, value_hint
from app.json_text.constants import KINDS, MAX_DEPTH, OPEN, SKIP, strings_room
from app.json_text.read_elements import MEMORY_OF_TEXT, read_elements
from app.memory.budget import UNCOUNTED, Memory
from app.tensors.dtypes import DType
from app.tensors.little_endian_items import bounded_product, items_text
from app.tensors.string_tensor import PackedStrings
from app.tensors.tensor import Form, Tensor, coordinates

_FEW: Final = 8
_SHORT: Final = 1 << 10
"""Bytes of text up to which a copy is counted in faster than an array of comparisons."""
_FLAT: Final[Form] = "flat"
_BYTE: Final = np.dtype(np.uint8)
_START: Final = np.dtype(np.int64)
_NO_INTS: Final[NDArray[np.int64]] = np.empty(0, np.int64)
NO_BYTES: Final[NDArray[np.uint8]] = np.empty(0, np.uint8)
_NO_DIMS_YET: Final = np.full(2 * MAX_DEPTH + 2, -1)
_STRING_START: Final = re.compile(rb'"(?:[^"\\]|\\u.{4}|\\[^u]){0,400}', re.DOTALL)
_PLAIN_START: Final = re.compile(rb"[^\s,\[\]{}]{0,1000}")
_BARE_NAMES: Final = (b"NaN", b"Infinity", b"-Infinity")
_STEP: Final = 1 << 20


class Nesting(NamedTuple):
    """What `read` is to hold the lists to; `parts` is how many elements there are, or may be where no shape is given.

    An element of `read` is an item, or one of the two parts of a complex item.
    """

    form: Form
    leaf: int
    inner: int
    dims: NDArray[np.int64]
    parts: int


@dataclass(slots=True)
class Values:
    """The values of the tensor `name` as the request has them: bytes [first, end) of `view`, opening `depth` lists.

    `bare` floats may be NaN and infinities without quotes. `wrong` is the element that `read` stopped at, and its
    place: the first that is wrong, unless it is the nesting that is. `outline` is what `explain_nesting` found.
    """

    view: NDArray[np.uint8]
    name: str
    dtype: DType
    shape: tuple[int, ...] | None
    first: int
    end: int
    depth: int
    bare: bool = False
    memory: Memory = UNCOUNTED
    wrong: tuple[int, int] | None = None
    outline: tuple[tuple[int, ...], Form] | None = field(init=False, repr=False, compare=False)

    def read(self) -> Tensor | None:
        """The tensor, or None where something is wrong with it: then see the other two.

        Charges what it takes before it takes it. Raises what charging raises.
        """
        dtype, shape, first, end = self.dtype, self.shape, self.first, self.end
        if self.depth == 1 and dtype.kind != "complex":  # as most are: without a Nesting
            form, leaf, dims = _FLAT, 1, _NO_INTS
            if shape is None:
                inner, parts = -1, (end - first) // 2 + 1
            else:
                inner = parts = bounded_product(shape, end - first)
                if 2 * parts > end - first:
                    return None
        else:
            nesting = nesting_of(self)
            if nesting is None:
                return None
            form, leaf, inner, dims, parts = nesting
        if shape is None:
            parts = min(parts, self._commas() + 1)
        room = parts * width(dtype) if dtype.item_size else strings_room(parts, end - first)
        self.memory.charge(room + reading_memory(end - first))
        raw = np.empty(room, _BYTE)
        fine, place, element, used, leaf, inner = read_elements.run(
            self.view, first, end, KINDS[dtype.name], leaf, inner, parts, dims, raw, self.bare
        )
        if not fine:
            self.wrong = element, place
            return None
        if shape is None:
            shape = _found_shape(dtype, leaf, inner, dims)
            if shape is None:
                return None
            form = "flat" if len(shape) == 1 else "nested"
            if dtype.item_size:
                raw = raw[: prod(shape) * dtype.item_size]
        if dtype.item_size:
            return Tensor(dtype, shape, raw.view(dtype.numpy), *pointers(self.name, form))
        starts = raw[: _START.itemsize * element].view(_START)
        octets = raw[_START.itemsize * parts :][:used]
        return PackedStrings(dtype, shape, starts, *pointers(self.name, form), octets=octets)

    def _commas(self) -> int:
        """The commas of the span: one less than the elements, or more. No second array is as long."""
        if self.end - self.first <= _SHORT:
            return self.view[self.first : self.end].tobytes().count(b",")
        places = range(self.first, self.end, _STEP)
        return sum(int(np.count_nonzero(self.view[at : min(at + _STEP, self.end)] == ord(","))) for at in places)

    def explain_nesting(self) -> None:
        """Raises element_count_mismatch where the lists are not nested as the shape says, whatever they hold."""
        self.outline = outline_of(self)
        if self.outline is not None:
            return
        if self.shape is None:
            detail = "the lists are not nested evenly"
            if self.dtype.kind == "complex":
                detail += " down to pairs [re, im]"
        else:
            detail = (
                f"the values are neither a flat list of {items_text(self.shape)} nor lists nested as the shape says"
            )
            if self.dtype.kind == "complex":
                detail += ", each item a pair [re, im]"
        pointer = f"/{self.name}/values"
        lists = bytes(self.view[self.first : nesting_hint.looked_at(self.first, self.end)])
        hint = nesting_hint.hint(lists, self.name, self.shape, self.dtype.kind == "complex", self.depth, pointer)
        if hint is None and self.shape is not None and self.depth == 1 and self.dtype.item_size:
            hint = nesting_hint.hint_for_flat_list(self.name, self.shape, self._commas() + 1)
        raise GatherError("element_count_mismatch", f"{self.name}: {detail}", pointer=pointer, hint=hint)

    def explain_value(self) -> None:
        """Raises value_not_representable at the first element that the type cannot hold; the nesting is right."""
        if self.wrong is None:
            return
        assert self.outline is not None, "explain_nesting comes first"
        shape, form = self.outline
        dtype, name = self.dtype, self.name
        part, place = self.wrong
        leaf_value = self._leaf(place)
        item, side = divmod(part, 2) if dtype.kind == "complex" else (part, None)
        position = coordinates(item, shape)
        pointer = Tensor(dtype, shape, NO_BYTES, f"/{name}/values", form).locate(item)
        if side is not None:
            pointer += f"/{side}"
        value = lossless_json.shown(leaf_value)
        what = "an object or null" if value is None else repr(value) if isinstance(value, str) else str(value)
        detail = f"{name}{list(position)} is {what}, which {dtype.name} cannot hold"
        hint = value_hint.hint(dtype, leaf_value, pointer, name)
        raise GatherError("value_not_representable", detail, places=[Place(pointer, position, value)], hint=hint)

    def _leaf(self, place: int) -> object:
        """The JSON value at `place`, whose grammar has been checked; None for an object and for what is bare.

        Of a very long one the beginning, as text: more is not shown.
        """
        first = int(self.view[place])
        if first == ord("{"):
            return None
        match = (_STRING_START if first == ord('"') else _PLAIN_START).match(self.view.data, place)
        assert match is not None, "the body has been checked"
        start = match[0]
        if first == ord('"'):
            return lossless_json.loads((start + b'"').decode(errors="ignore"))
        if start in _BARE_NAMES:
            return None
        return start.decode() if len(start) == 1000 else lossless_json.loads(start.decode())


class FlatList(NamedTuple):
    """The values of a tensor in one flat list, of which all is worked out but where they stand: see `flat_list`."""

    dtype: DType
    shape: tuple[int, ...]
    items: int
    room: int
    kind: int
    pointers: tuple[str, Form, str, str]

    def read(self, view: NDArray[np.uint8], first: int, end: int) -> Tensor | None:
        """The tensor whose values are the list in bytes [first, end) of `view`, or None where something is wrong.

        The caller has charged `room` bytes, and what reading takes (see `reading_memory`).
        """
        dtype, shape, items, room, kind, pointers = self
        raw = np.empty(room, _BYTE)
        if not read_elements.run(view, first, end, kind, 1, items, items, _NO_INTS, raw, False)[0]:
            return None
        return Tensor(dtype, shape, raw.view(dtype.numpy), *pointers)


def flat_list(name: str, dtype: DType, shape: tuple[int, ...] | None) -> FlatList | None:
    """How the tensor `name` is read where its values are one flat list of numbers; None where they cannot be."""
    if shape is None or len(shape) > _FEW or not dtype.item_size or dtype.kind == "complex":
        return None
    items = prod(shape)
    return FlatList(dtype, shape, items, items * dtype.item_size, KINDS[dtype.name], pointers(name, _FLAT))


@lru_cache(maxsize=1 << 12)  # a lookup has three arrays for each feature
def pointers(name: str, form: Form) -> tuple[str, Form, str, str]:
    """The last fields of a Tensor."""
    return f"/{name}/values", form, f"/{name}/shape", f"/{name}/dtype"


def reading_memory(span: int) -> int:
    """Bytes that `read_elements` takes beside its output, for so many bytes of text."""
    return MEMORY_OF_TEXT * span if read_elements.run is read_elements.plain else 0


def width(dtype: DType) -> int:
    """Bytes of an element: of an item, or of one part of a complex item."""
    return dtype.item_size >> (dtype.kind == "complex")


def nesting_of(values: Values) -> Nesting | None:
    """What the lists have to be, or None where there are too few or too many of them at the very beginning."""
    shape, depth = values.shape, values.depth
    pair = values.dtype.kind == "complex"
    room = (values.end - values.first) // 2 + 1
    if shape is None:
        return Nesting("flat", OPEN, -1, _NO_DIMS_YET.copy(), room)
    count = bounded_product(shape, room + 1)
    if count > room:
        return None
    if depth == 1 + pair and count:
        return Nesting("flat", 2, 2, np.array((count, 0)), 2 * count) if pair else _flat(count)
    if count:
        sizes = (*shape, 2) if pair else shape
    elif depth == 1:
        return _flat(0)
    else:
        sizes = shape[: shape.index(0) + 1]
    if depth != len(sizes) or any(size > room for size in sizes):
        return None
    outer = sizes[:-1]
    return Nesting("nested", depth, sizes[-1] if sizes else 1, np.array(outer + outer, np.int64), count << pair)


def _flat(count: int) -> Nesting:
    return Nesting("flat", 1, count, _NO_INTS, count)


def _found_shape(dtype: DType, leaf: int, inner: int, dims: NDArray[np.int64]) -> tuple[int, ...] | None:
    """The shape that the lists made; None for complex items that are no pairs."""
    if leaf == 1:
        shape: tuple[int, ...] = (inner,)
    else:
        shape = (*dims[: leaf - 1].tolist(), inner) if leaf else ()
    if dtype.kind != "complex" or 0 in shape:
        return shape
    return shape[:-1] if shape and shape[-1] == 2 else None


def outline_of(values: Values) -> tuple[tuple[int, ...], Form] | None:
    """Shape and form of the elements, whatever these are; None where the lists are not as they should be."""
    nesting = nesting_of(values)
    if nesting is None:
        return None
    form, leaf, inner, dims, parts = nesting
    fine, _, _, _, leaf, inner = read_elements.run(
        values.view, values.first, values.end, SKIP, leaf, inner, parts, dims, NO_BYTES, False
    )
    shape = values.shape
    if not fine:
        return None
    if shape is None:
        shape = _found_shape(values.dtype, leaf, inner, dims)
        if shape is None:
            return None
        form = "flat" if len(shape) == 1 else "nested"
    return shape, form
