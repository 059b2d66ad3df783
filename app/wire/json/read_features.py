"""The arrays of a lookup, of which there may be thousands: those that are alike but for their items are read at once.

To read one array takes two microseconds, as long as a JSON library needs for three small features. Arrays are alike
whose types, shapes and nesting are the same; put into one list, they are one array of one dimension more. Where that is
refused, the place says at which of them, and that one alone is read by itself for the error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final, NamedTuple

import numpy as np
import orjson
import pybase64
from numpy.typing import NDArray

from app.tensors.buffer_type import Buffer
from app.tensors.dtypes import DTYPES, DType
from app.tensors.lookup_call import ARRAYS, Feature
from app.tensors.string_tensor import PackedStrings
from app.tensors.tensor import Form, Tensor
from app.wire.json.codec_constants import ESCAPED, QUOTED
from app.wire.json.find_arrays import ArrayPlace
from app.wire.json.read_alike_values import AlikeValues, read_alike, read_alike_bytes
from app.wire.json.read_base64 import Packed
from app.wire.json.read_tensor import GivenTensor, WrongTensors, given_array, unsupported_dtype
from app.wire.json.read_values import Values, pointers
from app.wire.little_endian_items import Charge
from app.wire.request_schemas.lookup_request import check_arrays_given

_MOST_BYTES: Final = 1 << 8
"""Of an array that is read with others: beside what a JSON library takes for a longer one, a call is little."""
_PLAIN: Final = 2
"""Members of a feature that is not pooled: the name of its tensor, and indices."""
_MOST_POINTERS: Final = 1 << 10
_BETWEEN: Final = b";"
_EMPTY: Final = b"!"
_SPACE: Final = b" \t\r\n"
_NOT_OF_OUTLINE: Final = bytes(set(range(256)) - set(b"[]{}," + _BETWEEN + _EMPTY))
_STRINGS: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)
_OUTLINING: Final = 3
"""Bytes that a byte takes where outlines are made: texts, one behind the other, and what becomes of them."""
_ANY_BYTES: Final = frozenset(name for name, dtype in DTYPES.items() if dtype.kind not in ("string", "bool"))
_FEATURE: Final = len(ARRAYS)
"""The place of a feature itself behind those of its arrays."""
_Key = tuple[str, tuple[int, ...] | None, int, bytes]
_Pointers = tuple[str, Form, str, str]


class _Alike(NamedTuple):
    """Arrays that are alike: the features that have them, and their texts."""

    positions: list[int]
    texts: list[memoryview]


class _Packed(NamedTuple):
    """Arrays in base64 that are alike: the features that have them, and their bytes."""

    positions: list[int]
    raws: list[bytes]


@dataclass(slots=True)
class _Column:
    """The arrays of one name, by the numbers of their features.

    Those that are `alike` go by dtype, shape, brackets at the beginning, and where there is no shape the outline; those
    in base64 (`packed`) by dtype, shape and size; `single` are read one by one.
    """

    name: str
    alike: dict[_Key, _Alike] = field(default_factory=dict)
    packed: dict[tuple[str, tuple[int, ...], int], _Packed] = field(default_factory=dict)
    single: dict[int, GivenTensor] = field(default_factory=dict)

    def at(self, position: int) -> str:
        """Where the array of a feature is, without the slash at the beginning."""
        return f"features/{position}/{self.name}"

    def unknown_dtypes(self) -> Iterator[tuple[int, str]]:
        """The features whose array has the name of no type, and the name: of those that are alike the first one."""
        yield from ((position, dtype) for position, (_, dtype) in self.single.items() if dtype is not None)
        yield from ((same.positions[0], dtype) for (dtype, *_), same in self.alike.items() if dtype not in DTYPES)


class FeatureArrays:
    """The arrays of all features, found and not yet read. `members` counts the members of the features' objects."""

    def __init__(
        self,
        features: Sequence[dict[str, Any]],
        body: Buffer,
        view: NDArray[np.uint8],
        places: Sequence[ArrayPlace],
        charge: Charge | None,
    ) -> None:
        """Raises invalid_field, at the first feature with arrays that `given_array` or `check_arrays_given` refuse."""
        self._features = features
        self._body = body
        self._view = view
        self._places = places
        self._charge = charge
        self._others: list[tuple[int, int]] = []
        """What is to be looked at by itself: a feature, and one of its arrays or `_FEATURE`."""
        self.members = sum(map(len, features))
        pooled = self.members > _PLAIN * len(features)
        self._columns = [_Column(name) for name in ARRAYS[: None if pooled else 1]]
        for number, column in enumerate(self._columns):
            self._find(number, column)
        if pooled:
            self._find_pooled()
        for position, number in sorted(self._others):
            self._find_other(position, number)

    def _find(self, number: int, column: _Column) -> None:
        name, alike, packed, others = column.name, column.alike, column.packed, self._others
        places, text = self._places, memoryview(self._body)
        without_shape: list[tuple[int, str, ArrayPlace]] = []
        members = 0
        for position, feature in enumerate(self._features):
            fields = feature.get(name)
            if fields is None:
                continue
            members += len(fields)
            array = fields.get("values")
            if array is None or "base64" in fields:
                raw = _decoded(fields, text, places)
                if raw is None:
                    others.append((position, number))
                else:
                    sources = packed.setdefault((fields["dtype"], fields["shape"], len(raw)), _Packed([], []))
                    sources.positions.append(position)
                    sources.raws.append(raw)
                continue
            first, end, depth = place = places[array]
            if end - first > _MOST_BYTES or (depth <= 0 and text[first] in b"n{"):
                others.append((position, number))
            elif "shape" in fields:
                key = fields["dtype"], fields["shape"], depth, b""
                same = alike.get(key)
                if same is None:
                    alike[key] = same = _Alike([], [])
                same[0].append(position)
                same[1].append(text[first:end])
            else:
                without_shape.append((position, fields["dtype"], place))
        self.members += members
        if without_shape:
            texts = [text[first:end] for _, _, (first, end, _) in without_shape]
            if self._charge is not None:
                self._charge(_OUTLINING * (sum(map(len, texts)) + len(texts)))
            for (position, dtype, (_, _, depth)), one, outline in zip(
                without_shape, texts, _outlines(texts), strict=True
            ):
                same = alike.setdefault((dtype, None, depth, outline), _Alike([], []))
                same.positions.append(position)
                same.texts.append(one)

    def _find_pooled(self) -> None:
        """Finds the features whose arrays may not be those that their pooling asks for; the same ones are right."""
        checked: set[tuple[str, ...]] = set()
        for position, feature in enumerate(self._features):
            if len(feature) > _PLAIN:
                given = (feature.get("pooling", "none"), *feature)
                if given not in checked:
                    checked.add(given)
                    self._others.append((position, _FEATURE))

    def _find_other(self, position: int, number: int) -> None:
        """An array that is long, in base64 or wrong, or a feature and which arrays it has. Raises invalid_field."""
        feature = self._features[position]
        if number == _FEATURE:
            check_arrays_given(
                feature.get("pooling", "none"), tuple(feature), lambda name: f"/features/{position}/{name}"
            )
            return
        column = self._columns[number]
        fields = feature[column.name]
        column.single[position] = given_array(
            column.at(position),
            fields["dtype"],
            fields.get("shape"),
            fields.get("values"),
            fields.get("base64"),
            self._body,
            self._view,
            self._places,
            self._charge,
        )

    def read(self) -> list[Feature]:
        """The features. Raises unsupported_dtype for the first name that is no type, WrongTensors, and what charging
        raises.
        """
        unknown = [
            (position, number, dtype)
            for number, column in enumerate(self._columns)
            for position, dtype in column.unknown_dtypes()
        ]
        if unknown:
            position, number, dtype = min(unknown)
            raise unsupported_dtype(self._columns[number].at(position), dtype)
        wrong: dict[tuple[int, int], Values | Packed] = {}
        read = []
        for number, column in enumerate(self._columns):
            tensors, refused = self._read(column)
            read.append(tensors)
            wrong |= {(position, number): source for position, source in refused.items()}
        if wrong:
            raise WrongTensors([wrong[place] for place in sorted(wrong)])
        features = self._features
        if len(read) == 1:
            return [
                Feature(feature["tensor"], indices, None, None, "none", f"/features/{position}")
                for position, (feature, indices) in enumerate(zip(features, read[0], strict=True))
            ]
        return [
            Feature(feature["tensor"], indices, offsets, weights, feature.get("pooling", "none"), f"/features/{number}")
            for number, (feature, indices, offsets, weights) in enumerate(zip(features, *read, strict=True))
        ]

    def _read(self, column: _Column) -> tuple[list[Any], dict[int, Values | Packed]]:
        """The tensors of a column, None where a feature has none, and those with which something is wrong."""
        tensors: list[Any] = [None] * len(self._features)
        wrong: dict[int, Values | Packed] = {}
        single: dict[int, Values | Packed] = {position: source for position, (source, _) in column.single.items()}
        for (dtype, shape, *_), (positions, texts) in column.alike.items():
            kind = DTYPES[dtype]
            found = read_alike(self._values(column, positions[0], kind, shape), texts, self._charge)
            if isinstance(found, AlikeValues):
                _store(tensors, positions, _tensors(column, positions, kind, found))
                continue
            source = self._values(column, positions[found], kind, shape)
            if source.read(self._charge) is None:
                wrong[positions[found]] = source
            else:  # they are not alike
                single |= {position: self._values(column, position, kind, shape) for position in positions}
        for (dtype, given_shape, _), (positions, raws) in column.packed.items():
            kind = DTYPES[dtype]
            arrays = read_alike_bytes(kind, given_shape, raws, self._charge)
            if arrays is None:
                single[positions[0]] = Packed(column.at(positions[0]), kind, given_shape, raws[0])
            else:
                _store(tensors, positions, _tensors_in_base64(column, positions, kind, given_shape, arrays))
        for position, one in single.items():
            tensors[position] = one.read(self._charge)
            if tensors[position] is None:
                wrong[position] = one
        return tensors, wrong

    def _values(self, column: _Column, position: int, dtype: DType, shape: tuple[int, ...] | None) -> Values:
        first, end, depth = self._places[self._features[position][column.name]["values"]]
        return Values(self._view, column.at(position), dtype, shape, first, end, max(depth, 0))


def _tensors(column: _Column, positions: Sequence[int], dtype: DType, found: AlikeValues) -> list[Tensor]:
    shape, form, arrays, octets = found
    if form == "flat" and positions[-1] < _MOST_POINTERS:
        known = _flat_pointers(column.name)
        if dtype.item_size:
            return [
                Tensor(dtype, shape, array, *known[position]) for position, array in zip(positions, arrays, strict=True)
            ]
    given = [pointers(column.at(position), form) for position in positions]
    if dtype.item_size:
        return [Tensor(dtype, shape, array, *one) for array, one in zip(arrays, given, strict=True)]
    return [PackedStrings(dtype, shape, array, *one, octets=octets) for array, one in zip(arrays, given, strict=True)]


def _tensors_in_base64(
    column: _Column, positions: Sequence[int], dtype: DType, shape: tuple[int, ...], arrays: list[NDArray[Any]]
) -> list[Tensor]:
    return [
        Tensor(dtype, shape, array, f"/{at}/base64", "whole", f"/{at}/shape", f"/{at}/dtype")
        for at, array in zip(map(column.at, positions), arrays, strict=True)
    ]


@cache
def _flat_pointers(name: str) -> list[_Pointers]:
    """The pointers of the arrays of this name whose values are flat, by their features."""
    return [pointers.__wrapped__(f"features/{number}/{name}", "flat") for number in range(_MOST_POINTERS)]


def _store(tensors: list[Any], positions: Sequence[int], found: list[Tensor]) -> None:
    if len(found) == len(tensors):
        tensors[:] = found
        return
    for position, tensor in zip(positions, found, strict=True):
        tensors[position] = tensor


def _decoded(fields: dict[str, Any], text: memoryview, places: Sequence[ArrayPlace]) -> bytes | None:
    """The bytes of a short array in base64 whose type has items of a fixed size that may hold any bytes, else None."""
    if "values" in fields or "base64" not in fields or "shape" not in fields:
        return None
    first, end, kind = places[fields["base64"]]
    if kind not in (QUOTED, ESCAPED) or end - first > _MOST_BYTES or fields["dtype"] not in _ANY_BYTES:
        return None
    try:
        if kind == ESCAPED:
            return pybase64.b64decode(orjson.loads(text[first:end]), validate=True)
        return pybase64.b64decode(text[first + 1 : end - 1], validate=True)
    except ValueError:
        return None


def _outlines(texts: Sequence[memoryview]) -> list[bytes]:
    """Brackets and commas of each text, and where there are no items between them: equal for arrays of equal shape, and
    for no others.
    """
    joined = _BETWEEN.join(texts)
    if b'"' in joined:
        joined = _STRINGS.sub(b"0", joined)
    joined = joined.translate(None, _SPACE).replace(b"[]", b"[%b]" % _EMPTY).translate(None, _NOT_OF_OUTLINE)
    found = joined.split(_BETWEEN)
    return found if len(found) == len(texts) else [bytes(text) for text in texts]  # the body is no JSON
