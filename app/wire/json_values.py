"""One tensor out of the span of a JSON body that holds its values: flat or nested, of any type.

The usual case is one pass of `json_numbers` straight into the tensor's memory. What that pass refuses or leaves
open is looked at again here, as slowly as it takes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from math import isinf, prod
from typing import Any, Final, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from app.errors import GatherError, Place
from app.tensors.dtypes import DType
from app.tensors.strings import wider_by
from app.tensors.tensor import Form, Tensor, coordinates
from app.wire import json_exact
from app.wire.json_numbers import KINDS, OPEN, SKIP, read_elements
from app.wire.json_scan import MAX_DEPTH
from app.wire.packed import STRING_BYTES, Charge, bounded_product, items_text

_FEW: Final = 8
_STEP: Final = 1 << 20
_FLAT: Final[Form] = "flat"
_BYTE: Final = np.dtype(np.uint8)
_NO_INTS: Final[NDArray[np.int64]] = np.empty(0, np.int64)
_NO_BYTES: Final[NDArray[np.uint8]] = np.empty(0, np.uint8)
_STRING: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_PLAIN: Final = re.compile(rb"[^\s,\[\]{}]*")
_NONFINITE: Final = ("NaN", "Infinity", "-Infinity")


class _Nesting(NamedTuple):
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
    """The values of the tensor `name` as the request has them: bytes [first, end) of `view`, opening `depth` lists."""

    view: NDArray[np.uint8]
    name: str
    dtype: DType
    shape: tuple[int, ...] | None
    first: int
    end: int
    depth: int

    def read(self, charge: Charge | None = None) -> Tensor | None:
        """The tensor, or None where something is wrong with it: then see the other two.

        `charge` is told what it will take, in bytes, before it takes it. Raises what that raises.
        """
        dtype, shape, first, end = self.dtype, self.shape, self.first, self.end
        if shape is not None and self.depth == 1 and dtype.kind != "complex":  # as most are: without a _Nesting
            count = prod(shape) if len(shape) <= _FEW else bounded_product(shape, end - first)
            if 2 * count > end - first:
                return None
            form, leaf, inner, dims, parts = _FLAT, 1, count, _NO_INTS, count
            if charge is not None:
                charge(self._cost(count))
            raw = np.empty(count * dtype.item_size, _BYTE)
        else:
            nesting = _nesting(self)
            if nesting is None:
                return None
            form, leaf, inner, dims, parts = nesting
            if charge is not None:
                charge(self._cost(parts))
            raw = np.empty(parts * _width(dtype), _BYTE)
        fine, _, _, waiting, leaf, inner = read_elements(
            self.view, first, end, KINDS[dtype.name], leaf, inner, parts, dims, raw, _NO_INTS
        )
        if not fine or (waiting and _settle(self, raw, waiting) is not None):
            return None
        if shape is None:
            shape = _found_shape(dtype, leaf, inner, dims)
            if shape is None:
                return None
            raw = raw[: prod(shape) * dtype.item_size]
            form = "flat" if len(shape) == 1 else "nested"
        array = raw.view(dtype.numpy) if dtype.item_size else _strings(self, leaf)
        if array is None:
            return None
        return Tensor(dtype, shape, array, *_pointers(self.name, form))

    def _cost(self, parts: int) -> int:
        """Bytes that so many elements take; where no shape says how many, their commas do."""
        span = self.view[self.first : self.end]
        if self.shape is None:
            parts = min(parts, _commas(span) + 1)
        if self.dtype.kind == "string":
            wider = wider_by(span)
            if wider < 3 * span.size and _has_escapes(span):
                wider = 3 * span.size
            return parts * STRING_BYTES + span.size + wider
        return parts * _width(self.dtype)

    def explain_nesting(self) -> None:
        """Raises element_count_mismatch where the lists are not nested as the shape says, whatever they hold."""
        if _outline(self) is not None:
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
        raise GatherError("element_count_mismatch", f"{self.name}: {detail}", pointer=f"/{self.name}/values")

    def explain_value(self) -> None:
        """Raises value_not_representable at the first element that the type cannot hold; the nesting is right."""
        outline = _outline(self)
        assert outline is not None, "explain_nesting comes first"
        shape, form, leaf = outline
        dtype, name = self.dtype, self.name
        found = _first_bad_string(self, leaf) if dtype.kind == "string" else _first_bad_number(self)
        if found is None:
            return
        part, leaf_value = found
        item, side = divmod(part, 2) if dtype.kind == "complex" else (part, None)
        position = coordinates(item, shape)
        pointer = Tensor(dtype, shape, _NO_BYTES, f"/{name}/values", form).locate(item)
        if side is not None:
            pointer += f"/{side}"
        value = json_exact.shown(leaf_value)
        what = "an object or null" if value is None else repr(value) if isinstance(value, str) else str(value)
        detail = f"{name}{list(position)} is {what}, which {dtype.name} cannot hold"
        raise GatherError("value_not_representable", detail, places=[Place(pointer, position, value)])


def _commas(span: NDArray[np.uint8]) -> int:
    return sum(int(np.count_nonzero(span[at : at + _STEP] == ord(","))) for at in range(0, span.size, _STEP))


def _has_escapes(span: NDArray[np.uint8]) -> bool:
    """Whether there is an escape that may stand for any character, such as \\u00e9."""
    return any(b"\\u" in span[at : at + _STEP + 1].tobytes() for at in range(0, span.size, _STEP))


@lru_cache(maxsize=16)
def _pointers(name: str, form: Form) -> tuple[str, Form, str, str]:
    """The last fields of a Tensor."""
    return f"/{name}/values", form, f"/{name}/shape", f"/{name}/dtype"


def _width(dtype: DType) -> int:
    """Bytes of an element: of an item, or of one part of a complex item."""
    return dtype.item_size >> (dtype.kind == "complex")


def _nesting(values: Values) -> _Nesting | None:
    """What the lists have to be, or None where there are too few or too many of them at the very beginning."""
    shape, depth = values.shape, values.depth
    pair = values.dtype.kind == "complex"
    room = (values.end - values.first) // 2 + 1
    if shape is None:
        return _Nesting("flat", OPEN, -1, np.full(2 * MAX_DEPTH + 2, -1), room)
    count = bounded_product(shape, room + 1)
    if count > room:
        return None
    if depth == 1 + pair and count:
        return _Nesting("flat", 2, 2, np.array((count, 0)), 2 * count) if pair else _flat(count)
    if count:
        sizes = (*shape, 2) if pair else shape
    elif depth == 1:
        return _flat(0)
    else:
        sizes = shape[: shape.index(0) + 1]
    if depth != len(sizes) or any(size > room for size in sizes):
        return None
    outer = sizes[:-1]
    return _Nesting("nested", depth, sizes[-1] if sizes else 1, np.array(outer + outer, np.int64), count << pair)


def _flat(count: int) -> _Nesting:
    return _Nesting("flat", 1, count, _NO_INTS, count)


def _found_shape(dtype: DType, leaf: int, inner: int, dims: NDArray[np.int64]) -> tuple[int, ...] | None:
    """The shape that the lists made; None for complex items that are no pairs."""
    shape = (*dims[: leaf - 1].tolist(), inner) if leaf else ()
    if dtype.kind != "complex" or 0 in shape:
        return shape
    return shape[:-1] if shape and shape[-1] == 2 else None


def _outline(values: Values) -> tuple[tuple[int, ...], Form, int] | None:
    """Shape, form and depth of the elements, whatever these are; None where the lists are not as they should be."""
    nesting = _nesting(values)
    if nesting is None:
        return None
    form, leaf, inner, dims, parts = nesting
    fine, _, _, _, leaf, inner = read_elements(
        values.view, values.first, values.end, SKIP, leaf, inner, parts, dims, _NO_BYTES, _NO_INTS
    )
    shape = values.shape
    if not fine:
        return None
    if shape is None:
        shape = _found_shape(values.dtype, leaf, inner, dims)
        if shape is None:
            return None
        form = "flat" if len(shape) == 1 else "nested"
    return shape, form, leaf


def _strings(values: Values, leaf: int) -> NDArray[Any] | None:
    """The strings, whose nesting is right; None where one is no string, or has a lone surrogate."""
    try:
        texts = _level(orjson.loads(values.view.data[values.first : values.end]), leaf)
    except orjson.JSONDecodeError:
        return None
    if any(type(text) is not str for text in texts):
        return None
    array: NDArray[Any] = np.empty(len(texts), object)
    array[:] = texts
    return array


def _level(texts: Any, leaf: int) -> list[Any]:
    if leaf == 0:
        return [texts]
    for _ in range(leaf - 1):
        texts = list(chain.from_iterable(texts))
    return texts  # type: ignore[no-any-return]


def _first_bad_string(values: Values, leaf: int) -> tuple[int, object] | None:
    texts = json_exact.loads(str(values.view.data[values.first : values.end], "utf-8"))
    for item, text in enumerate(_level(texts, leaf)):
        if type(text) is not str or json_exact.printable(text) != text:
            return item, text
    return None


def _first_bad_number(values: Values) -> tuple[int, object] | None:
    nesting = _nesting(values)
    assert nesting is not None
    _, leaf, inner, dims, parts = nesting
    raw = np.empty(parts * _width(values.dtype), _BYTE)
    kind = KINDS[values.dtype.name]
    fine, place, part, waiting, _, _ = read_elements(
        values.view, values.first, values.end, kind, leaf, inner, parts, dims, raw, _NO_INTS
    )
    settled = _settle(values, raw, waiting) if waiting else None
    if settled is not None:
        part, place = settled
    elif fine:
        return None
    first = int(values.view[place])
    if first == ord("{"):
        return part, None
    match = (_STRING if first == ord('"') else _PLAIN).match(values.view.data, place)
    assert match is not None, "the body has been checked"
    return part, json_exact.loads(match[0].decode())


def _settle(values: Values, raw: NDArray[np.uint8], waiting: int) -> tuple[int, int] | None:
    """Put the elements that the reader left open into `raw`: (number, place) of the first that does not fit, or None.

    Each is written anew as the float64 that it is, which the reader can read: numbers of very many digits just beside
    the middle between two floats, and non-finite ones with escapes in their names.
    """
    view = values.view
    nesting = _nesting(values)
    assert nesting is not None
    _, leaf, inner, dims, parts = nesting
    kind = KINDS[values.dtype.name]
    pending = np.empty(3 * waiting, np.int64)
    read_elements(view, values.first, values.end, kind, leaf, inner, parts, dims, raw, pending)
    rows = pending.reshape(waiting, 3)
    anew = b",".join(_written_anew(bytes(view.data[place:stop])) for _, place, stop in rows.tolist())
    text = np.frombuffer(b"[" + anew + b"] ", np.uint8)
    width = _width(values.dtype)
    room = np.empty(waiting * width, _BYTE)
    fine, _, done, _, _, _ = read_elements(text, 0, text.size - 1, kind, 1, waiting, waiting, _NO_INTS, room, _NO_INTS)
    item = np.dtype(f"u{width}")
    raw.view(item)[rows[:done, 0]] = room.view(item)[:done]
    return None if fine else (int(rows[done, 0]), int(rows[done, 1]))


def _written_anew(token: bytes) -> bytes:
    if token.startswith(b'"'):
        try:
            text = json_exact.loads(token.decode())
        except ValueError:
            return b"null"  # refused like any wrong value, and then found to be no JSON
        return f'"{text}"'.encode() if text in _NONFINITE else b"null"
    number = float(token)
    return b"1e999" if isinf(number) else repr(number).encode()
