"""Reads a JSON body into the call of an operator, a gradient, a lookup or a scatter into a resident tensor.

The arrays are found and cut out (`find_arrays`), a JSON library reads the rest, and the items are read directly into
arrays once everything else is valid. Before any error is returned, the body is checked against the whole grammar, so
that invalid JSON is always refused as malformed_request.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, NoReturn

import numpy as np
import orjson
from numpy.typing import NDArray

from app.errors import GatherError, invalid_field
from app.formats.fields_in_query import read_query
from app.json_text import lossless_json
from app.json_text.constants import ESCAPED, FEATURE_DEPTH, QUOTED
from app.json_text.envelope import (
    MAX_BYTES,
    MAX_FEATURE_BYTES,
    OBJECT_BYTES,
    PLACE_BYTES,
    count_members,
    cut_arrays,
    parse_envelope,
)
from app.json_text.find_arrays import ArrayPlace, FoundArrays, find_arrays, scan_tensors
from app.json_text.grammar import FramingFault, check_framing
from app.json_text.read_base64 import base64_bytes
from app.json_text.read_values import Values, values_of
from app.memory.budget import REFUSED_UNREAD, UNCOUNTED, Memory
from app.requests.envelope_cache import LONGEST, Validated, envelopes, has_plain_shape
from app.requests.read_call import finish_validation, make_call, read_arrays, validate
from app.requests.request import JSON_BODY, ReadArray, Request
from app.requests.schemas.member_types import ABSENT
from app.tensors.buffer_type import Buffer
from app.tensors.dtypes import DTYPES
from app.tensors.gather_call import Encoding
from app.tensors.little_endian_items import unpack, view_of
from app.tensors.lookup_call import ARRAYS
from app.tensors.near_dtype import hint_for_dtype
from app.tensors.operator_signature import Signature
from app.tensors.shape_limits import Limits

_LEAST_ARRAY: Final = 10
"""Size in bytes of the shortest member that holds an array."""
_ITEMS: Final = "the values of the tensors"
_SIZE: Final = rb"(?:0|[1-9][0-9]{0,17})"
_SHAPE: Final = re.compile(rb'("shape": ?\[)(?:%b(?:, ?%b)*+)?(?=\])' % (_SIZE, _SIZE))
"""Matches a shape in the usual notation; the group is the text before the shape's sizes."""


def read_request(
    body: Buffer, query: bytes, row: Signature, limits: Limits, memory: Memory = UNCOUNTED
) -> tuple[Any, Encoding]:
    """Read a body and the query of its URL. Returns the call, and the encoding of its response.

    Errors have this precedence: malformed_request; invalid_field; unsupported_dtype (for an unknown type name);
    element_count_mismatch; value_not_representable. For each of the last three, the first array with that error is
    reported. Charges `memory` for reading. Raises GatherError.
    """
    try:
        call, encoding = _read(body, row, limits, memory)
    except GatherError as refusal:
        # Invalid JSON takes precedence, then a query field that is not allowed, then every other fault.
        if not isinstance(refusal, FramingFault):
            if refusal.code not in REFUSED_UNREAD:
                check_framing(body, memory)
            if query:
                read_query(query, row)
        raise
    if query:
        call.explain = read_query(query, row)
    return call, encoding


def _read(body: Buffer, row: Signature, limits: Limits, memory: Memory) -> tuple[Any, Encoding]:
    view = view_of(body)
    if row.kind == "lookup":
        (closed, members, count, places), most = _find_features(view, limits, memory)
    else:
        closed, members, count, places = scan_tensors.run(view)
        most = MAX_BYTES
    if not closed:
        raise GatherError("malformed_request", "the body is not JSON: quotes or brackets do not close")
    text = cut_arrays(body, places, count, _ITEMS, memory, most)
    known = envelopes.get((row, text)) or _reuse_with_sizes(row, text)
    if known is not None:
        arrays: dict[str, ReadArray] = {}
        for name, one in known.ready:
            reader = one.reader
            if reader is not None and (place := places[one.values])[2] > 0:  # the common case: a list
                arrays[name] = reader.read, (view, *place, memory)
            else:
                arrays[name] = _array_reader(body, view, places, memory, name, one, reader)
        return make_call(row, known, read_arrays(arrays), limits), known.encoding
    document = parse_envelope(text, body, check_framing, memory, most)
    if count > len(places):
        check_framing(body, memory)  # if a key were repeated, the sizes would belong to another array
    request = Request(document, partial(_array_reader, body, view, places, memory), JSON_BODY, memory)
    validated, given = finish_validation(row, request, validate(row, request, limits))
    if count_members(document) != members:
        check_framing(body, memory)
    elif len(text) <= LONGEST:
        _cache_envelope(row, text, validated, document)
    return make_call(row, validated, read_arrays(given), limits), validated.encoding


def _find_features(view: NDArray[np.uint8], limits: Limits, memory: Memory) -> tuple[FoundArrays, int]:
    """Find the arrays of a lookup. Returns the arrays and the maximum size of the rest."""
    most = min(2 * len(ARRAYS) * limits.features, len(view) // _LEAST_ARRAY + 1)
    memory.charge(PLACE_BYTES * most)
    found = find_arrays(view, FEATURE_DEPTH, most)
    size = len(view) - sum(end - first for first, end, _ in found.places)
    memory.charge(OBJECT_BYTES * min(size, MAX_FEATURE_BYTES * limits.features))
    return found, MAX_FEATURE_BYTES * limits.features


def _without_sizes(text: bytes) -> bytes:
    """Return the envelope with the sizes removed from its shapes; a leading NUL marks the result."""
    return b"\0" + b"".join(_SHAPE.split(text))


def _reuse_with_sizes(row: Signature, text: bytes) -> Validated | None:
    """Adapt the cached result of an envelope that differs only in the sizes of its shapes.

    Returns None if there is none.
    """
    known = envelopes.get((row, _without_sizes(text))) if len(text) <= LONGEST else None
    if known is None:
        return None
    try:
        now = _array_descriptions(orjson.loads(text))
    except orjson.JSONDecodeError:  # a number that overflows binary64 or a lone surrogate: these need the exact parser
        return None
    known = replace(known, ready=[(name, one.of_shape(name, _shape(now[name]))) for name, one in known.ready])
    envelopes.keep(row, text, known)
    return known


def _shape(described: Mapping[str, Any]) -> Any:
    return tuple(described["shape"]) if "shape" in described else ABSENT


def _cache_envelope(row: Signature, text: bytes, validated: Validated, document: Any) -> None:
    """Cache a validated envelope, with and without the sizes of its shapes."""
    arrays = [
        (name, _ArrayDescription(one.dtype, None, one.values, one.base64).of_shape(name, one.shape))
        for name, one in validated.arrays
    ]
    validated = replace(validated, ready=arrays)
    envelopes.keep(row, text, validated)
    described = _array_descriptions(document)
    if all(has_plain_shape(described[name]) for name, _ in arrays):
        envelopes.keep(row, _without_sizes(text), validated)


def _array_descriptions(document: Any) -> Mapping[str, Any]:
    """Return the objects that describe arrays, by the arrays' names."""
    if "features" not in document:
        found: Mapping[str, Any] = document
        return found
    return {
        f"features/{number}/{name}": feature[name]
        for number, feature in enumerate(document["features"])
        for name in ARRAYS
        if name in feature
    }


@dataclass(frozen=True, slots=True, eq=False)
class _ArrayDescription:
    """The description of an array in a cached envelope; `reader` reads its values."""

    dtype: str
    shape: Any
    values: Any
    base64: Any
    reader: Values | None = None

    def of_shape(self, name: str, shape: Any) -> _ArrayDescription:
        """Return the description of the array `name` with this shape."""
        dtype = DTYPES.get(self.dtype)
        reader = None if dtype is None or self.values is ABSENT else values_of(name, dtype, shape)
        return _ArrayDescription(self.dtype, shape, self.values, self.base64, reader)


def _array_reader(
    body: Buffer,
    view: NDArray[np.uint8],
    places: Sequence[ArrayPlace],
    memory: Memory,
    name: str,
    described: Any,
    reader: Values | None = None,
) -> ReadArray:
    """Return the reader of an array that was cut out of a body, from its validated description.

    `reader` is given if the envelope was cached. Raises invalid_field if the array breaks a rule that the model cannot
    express: exactly one of values and base64 must be given, base64 needs a shape, values must be a list or a single
    value, and base64 must be a string.
    """
    values, base64 = described.values, described.base64
    if values is not ABSENT:
        if base64 is not ABSENT:
            raise invalid_field(f"/{name}", f"{name} has both values and base64", f"Leave out 'base64' of {name}.")
        first, end, depth = places[values]
        if depth <= 0:  # not a list
            depth = 0
            if body[first] in b"n{":
                raise invalid_field(
                    f"/{name}/values",
                    "values must be a list, or one value for a tensor without dimensions",
                    f"Write a list at /{name}/values, such as [0].",
                )
        if reader is None:
            dtype = DTYPES.get(described.dtype)
            if dtype is None:
                return _refuse_dtype, (name, described.dtype)
            reader = values_of(name, dtype, described.shape)
        return reader.read, (view, first, end, depth, memory)
    if base64 is ABSENT:
        hint = f"Add 'values' at /{name}/values, the items in a list."
        raise invalid_field(f"/{name}", f"{name} has neither values nor base64", hint)
    first, end, kind = places[base64]
    if kind not in (QUOTED, ESCAPED):
        raise invalid_field(f"/{name}/base64", "base64 must be a string", f"Write a string at /{name}/base64.")
    shape = described.shape
    if shape is ABSENT:
        raise invalid_field(
            f"/{name}/shape",
            f"{name} needs a shape, since it has base64",
            f"Add 'shape' at /{name}/shape, which base64 does not give.",
        )
    raw = base64_bytes(name, body, view, first, end, kind == ESCAPED, memory)
    pointers = f"/{name}/base64", f"/{name}/shape", f"/{name}/dtype"
    dtype = DTYPES.get(described.dtype)
    if dtype is None:
        return _refuse_dtype, (name, described.dtype)
    return unpack, (dtype, shape, raw, memory, name, pointers)


def _refuse_dtype(name: str, dtype: str) -> NoReturn:
    """Refuse a tensor with an unknown dtype."""
    shown = str(lossless_json.shown(dtype))
    raise GatherError(
        "unsupported_dtype",
        f"{shown!r} is not an element type",
        pointer=f"/{name}/dtype",
        hint=hint_for_dtype(shown, of=name),
    )
