"""Reads the body of an infer request over REST (JSON, and any items that follow it) into a call.

The JSON describes the inputs. The items of an input are either in its `data` or after the JSON, in the order of the
inputs, with the size in its `binary_data_size` parameter. Items never become Python objects, and items after the JSON
are not copied if they are aligned. Before any error is returned, the JSON is checked against the whole grammar. NaN and
infinities may be unquoted, as many libraries write them: as float items they are numbers, and everywhere else they are
null.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import orjson

from app.errors import GatherError, invalid_field
from app.formats.body_formats import LONG_BINARY, LONG_HEADER, LONG_JSON, LONG_LOOKUP
from app.formats.oip.infer_document import (
    Arrays,
    AskedInference,
    InferDocument,
    Input,
    Model,
    malformed,
    raw_document,
    read_document,
    read_items,
)
from app.formats.oip.input_items import json_items, packed_items
from app.json_text import grammar
from app.json_text.constants import INPUT_DEPTH
from app.json_text.envelope import (
    MAX_BYTES,
    MAX_FEATURE_BYTES,
    MOST_ARRAYS,
    OBJECT_BYTES,
    PLACE_BYTES,
    count_members,
    cut_arrays,
    parse_envelope,
)
from app.json_text.find_arrays import ArrayPlace, FoundArrays, find_arrays
from app.memory.budget import REFUSED_UNREAD, UNCOUNTED, Memory
from app.requests.envelope_cache import LONGEST, envelopes, has_plain_shape
from app.requests.request import ReadArray
from app.tensors.buffer_type import Buffer
from app.tensors.little_endian_items import view_of
from app.tensors.lookup_call import ARRAYS
from app.tensors.shape_limits import Limits

_LEAST_DATA: Final = 8
"""Size in bytes of the shortest `data` member."""
_ITEMS: Final = "the items of the inputs"
_NO_LIST: Final = b"{n"
_SIZE: Final = rb"(?:0|[1-9][0-9]{0,17})"
_SPACE: Final = rb"[ \t\n\r]*+"
_VARIABLE: Final = re.compile(
    rb'("(?:shape"S:S\[|binary_data_size"S:|id"S:S"))'
    rb'(?:(?<=\[)S(?:N(?:S,SN)*+)?(?=S\])|(?<=:)SN(?=S[,}])|(?<=")[^"\\\x00-\x1f]*+(?="))'
    .replace(b"S", _SPACE).replace(b"N", _SIZE)
)  # fmt: skip
"""Matches the parts that vary between a caller's requests, each after its name: shape sizes, sizes in bytes, and the
id.
"""
_check_framing: Final = partial(grammar.check_framing, bare=True)
_REMEMBERED: Final = 1 << 10
"""Maximum size of a JSON text without items that is cached as a whole."""


InferBody = tuple[Buffer, int | None]
"""A body, and the number of bytes of JSON at its start (None if the whole body is JSON)."""


def is_long(message: InferBody, model: Model) -> bool:
    """Return True if reading the body takes too long for the event loop."""
    body, json_size = message
    long_text = LONG_LOOKUP if model.is_lookup else LONG_JSON
    if json_size is None:
        return len(body) > long_text
    return json_size > min(long_text, LONG_HEADER) or len(body) > LONG_BINARY


def read_body(message: InferBody, model: Model, limits: Limits, memory: Memory = UNCOUNTED) -> AskedInference:
    """Read an infer request.

    A JSON size of 0 means that the whole body consists of the items of a model's only input. Errors have this
    precedence: malformed_request; invalid_field and not_implemented; unsupported_dtype; element_count_mismatch;
    value_not_representable; limit_exceeded. `memory` is charged before it is allocated.
    """
    body, json_size = message
    if json_size == 0:
        return _read_raw(body, model, limits, memory)
    whole = memoryview(body)
    if json_size is None:
        text, behind = whole, whole[:0]
    elif json_size > len(body):
        raise malformed(f"the JSON is {json_size} bytes long as declared; the body has {len(body)} bytes")
    else:
        text, behind = whole[:json_size], whole[json_size:]
    try:
        return _read(text, behind, model, limits, memory)
    except GatherError as error:
        if error.code not in REFUSED_UNREAD and not isinstance(error, grammar.FramingFault):
            _check_framing(text, memory)
        raise


def _read(text: memoryview, behind: memoryview, model: Model, limits: Limits, memory: Memory) -> AskedInference:
    whole = bytes(text) if behind and len(text) <= _REMEMBERED else b""
    validated = envelopes.get((model.route, whole)) if whole else None
    if validated is not None:
        document: InferDocument = validated.ready
        return read_items(document, _arrays(document, _Items(text, (), behind, memory)), model, limits)
    found, most = _find_arrays(text, model, limits, memory)
    if not found.closed:
        raise malformed("the JSON of the request is not JSON: quotes or brackets do not close")
    envelope = cut_arrays(text, found.places, found.arrays, _ITEMS, memory, most)
    items = _Items(text, found.places, behind, memory)
    key = b"".join(_VARIABLE.split(envelope)) if len(envelope) <= LONGEST else b""
    validated = envelopes.get((model.route, key)) if key else None
    renewed = None if validated is None else _reuse_with_sizes(validated.ready, envelope)
    if renewed is not None:
        return read_items(renewed, _arrays(renewed, items), model, limits)
    parsed = parse_envelope(envelope, text, _check_framing, memory, most)
    document, arrays = read_document(parsed, model, items.find, limits, memory)
    if items.count != found.arrays or count_members(parsed) != found.members:
        # A key is repeated, or an ignored member has items. Nothing else checks the grammar of such items.
        _check_framing(text, memory)
    elif key:
        validated = replace(document.validated, ready=document)
        if all(map(_is_plain, parsed["inputs"])):
            envelopes.keep(model.route, key, validated)
        if whole and all(one.size is not None for one in document.inputs):
            envelopes.keep(model.route, whole, validated)
    items.check_end()
    return read_items(document, arrays, model, limits)


def _arrays(document: InferDocument, items: _Items) -> Arrays:
    """Return the readers of the inputs' items for a cached document."""
    found = {one.name: items.find(one) for one in document.inputs}
    items.check_end()
    return found


def _is_plain(given: Any) -> bool:
    """Return True if `_reuse_with_sizes` can read the sizes of an input."""
    size = (given.get("parameters") or {}).get("binary_data_size")
    return has_plain_shape(given) and (size is None or (type(size) is int and size < 1 << 63))


def _reuse_with_sizes(known: InferDocument, envelope: bytes) -> InferDocument | None:
    """Copy a cached document with another request's id, shapes and sizes. Returns None if the id is not Unicode."""
    try:
        given = orjson.loads(envelope)
    except orjson.JSONDecodeError:
        return None
    inputs = []
    for one, now in zip(known.inputs, given["inputs"], strict=True):
        shape, size = one.shape, one.size
        if shape is not None:
            shape = tuple(now["shape"])
        if size is not None:
            size = now["parameters"]["binary_data_size"]
        inputs.append(Input(one.number, one.name, one.datatype, one.dtype, shape, size, one.data))
    return replace(known, inputs=tuple(inputs), identifier=given.get("id"))


def _find_arrays(text: Buffer, model: Model, limits: Limits, memory: Memory) -> tuple[FoundArrays, int]:
    """Find the arrays in the JSON. Returns the arrays and the maximum size of the rest. Raises limit_exceeded."""
    if not model.is_lookup:
        found = find_arrays(view_of(text), INPUT_DEPTH, MOST_ARRAYS)
        if found.closed and found.arrays > MOST_ARRAYS:
            raise GatherError(
                "limit_exceeded",
                f"{found.arrays} objects of the request have a member data; the limit is {MOST_ARRAYS}",
                pointer="/inputs",
                facts={"limit": "data_members", "maximum": MOST_ARRAYS},
            )
        return found, MAX_BYTES
    most = min(len(ARRAYS) * limits.features, len(text) // _LEAST_DATA) + 1
    memory.charge(PLACE_BYTES * most + OBJECT_BYTES * min(len(text), MAX_FEATURE_BYTES * limits.features))
    return find_arrays(view_of(text), INPUT_DEPTH, most), MAX_FEATURE_BYTES * limits.features


def _read_raw(body: Buffer, model: Model, limits: Limits, memory: Memory) -> AskedInference:
    """Read a body without JSON."""
    parsed = raw_document(model)
    count, rest = divmod(len(body), 8)
    if rest:
        detail = f"{len(body)} bytes are not a whole number of int64"
        raise GatherError("element_count_mismatch", detail, pointer="/inputs/0")

    def items(one: Input) -> ReadArray:
        return packed_items(replace(one, shape=(count, 1)), body, memory)

    return read_items(*read_document(parsed, model, items, limits, memory), model, limits)


class _Items:
    """Finds the items of the inputs, in the JSON or after it. Call `find` for each input, in order."""

    __slots__ = ("_behind", "_memory", "_place", "_places", "_text", "_view", "count")

    def __init__(self, text: Buffer, places: Sequence[ArrayPlace], behind: memoryview, memory: Memory) -> None:
        self._text = text
        self._places = places
        self._behind = behind
        self._memory = memory
        self._place = 0
        self._view = view_of(text) if places else None
        self.count = 0  # number of `data` members used so far

    def find(self, one: Input) -> ReadArray:
        """Return the reader of an input's items. Raises invalid_field."""
        first = end = depth = 0
        if one.data is not None:
            self.count += 1
            first, end, depth = self._places[one.data]
            if depth <= 0 and self._text[first] in _NO_LIST:
                if self._text[first] == _NO_LIST[0]:
                    at = f"{one.pointer}/data"
                    raise invalid_field(at, "data must be a list", f"Write a list at {at}, such as [0].")
                end = 0  # null
        if (one.size is None) == (end == 0):
            raise invalid_field(
                one.pointer,
                "an input has its items in data, or parameters/binary_data_size says how many bytes",
                "Send the items in data, or as bytes after the JSON with binary_data_size, but not both.",
            )
        if one.size is None:
            assert self._view is not None
            return json_items(one, self._view, first, end, max(0, depth), self._memory)
        place = self._place
        self._place = place + one.size
        return packed_items(one, self._behind[place : self._place], self._memory)

    def check_end(self) -> None:
        """Raise malformed_request unless the inputs use exactly the bytes that follow the JSON."""
        if self._place != len(self._behind):
            wanted = str(self._place) if self._place < 2**63 else "more than 2^63"
            raise malformed(f"{len(self._behind)} bytes follow the JSON of the request, which requires {wanted}")
