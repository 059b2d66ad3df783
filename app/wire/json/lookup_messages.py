"""The JSON of `POST /lookup`: a body to a `LookupCall`, a `LookupAnswer` to its body.

It is read as the body of a gather is (`gather_messages`), by the same functions; there may be thousands of arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import orjson

from app.errors import GatherError
from app.tensors.buffer_type import Buffer
from app.tensors.gather_call import Encoding
from app.tensors.lookup_call import ARRAYS, LookupAnswer, LookupCall
from app.tensors.shape_limits import Limits
from app.wire.json.body_without_arrays import count_members, read_envelope
from app.wire.json.find_arrays import FoundArrays, find_features
from app.wire.json.query_of_json_request import read_explain
from app.wire.json.read_features import FeatureArrays
from app.wire.json.read_fill_value import read_fill_value
from app.wire.json.read_tensor import (
    WrongTensors,
    check_framing,
    raise_first_fault,
)
from app.wire.json.write_values import tensor_text
from app.wire.little_endian_items import Charge, Memory, view_of
from app.wire.request_schemas.lookup_request import LookupRequest, valid_lookup

MAX_FEATURE_BYTES: Final = 1 << 9
"""Bytes that a feature may take beside its arrays, on average; a name has at most 128, its other members 250."""
_LEAST_ARRAY: Final = 10
"""Bytes of the shortest member that holds an array."""
OBJECT_BYTES: Final = 32
"""Bytes that a byte beside the arrays takes as Python objects: a feature of 60 bytes is eight of them."""
PLACE_BYTES: Final = 24 + 176
"""Bytes that the place of an array takes: three words, and a list of three integers."""


def read_lookup(
    body: Buffer, query: bytes, limits: Limits, charge: Charge | None = None
) -> tuple[LookupCall, Encoding]:
    """The lookup that a body and the query of its URL ask for, and how its answer is to be written.

    What is wrong is refused in this order, each for all features before the next: malformed_request; invalid_field, and
    limit_exceeded for too many features; unsupported_dtype, for a name that is no type; element_count_mismatch;
    value_not_representable. `charge` is told what reading takes, in bytes, before it does; what it raises is raised.
    """
    try:
        found = _read_body(body, limits, charge)
    except GatherError as error:
        if query and error.code != "malformed_request":
            read_explain(query, LookupRequest)
        raise
    if query:
        found[0].explain = read_explain(query, LookupRequest)
    return found


def _read_body(body: Buffer, limits: Limits, charge: Charge | None) -> tuple[LookupCall, Encoding]:
    try:
        return _read_lookup(body, limits, charge)
    except (GatherError, WrongTensors) as error:
        raise_first_fault(error, body, charge)
        raise


def _read_lookup(body: Buffer, limits: Limits, charge: Charge | None) -> tuple[LookupCall, Encoding]:
    view = view_of(body)
    most = min(2 * len(ARRAYS) * limits.features, len(body) // _LEAST_ARRAY + 1)
    if charge is not None:
        charge(PLACE_BYTES * most)
    found = find_features(view, most)
    if not found.closed:
        raise GatherError("malformed_request", "the body is not JSON: quotes or brackets do not close")
    document = _read_document(body, found, limits, charge)

    def arrays_of(features: Sequence[dict[str, Any]]) -> FeatureArrays:
        return FeatureArrays(features, body, view, found.places, charge)

    fields = valid_lookup(document, limits.features, arrays_of)
    arrays = arrays_of(fields.features)
    fill_value = None
    if "fill_value" in document:
        fill_value = read_fill_value(fields.fill_value, fields.out_of_bounds, "/fill_value")
    others = {name: value for name, value in document.items() if name != "features"}
    if 1 + count_members(others) + arrays.members != found.members:
        check_framing(body, charge)  # a key is given twice
    call = LookupCall(arrays.read(), fields.concat, fields.out_of_bounds, fill_value)
    return call, fields.output_encoding


def _read_document(body: Buffer, found: FoundArrays, limits: Limits, charge: Charge | None) -> Any:
    """All but the arrays, charged. Raises malformed_request and limit_exceeded."""
    kept = found.places[: found.arrays]
    size = len(body) - sum(end - first for first, end, _ in kept)
    if charge is not None:
        charge(OBJECT_BYTES * min(size, MAX_FEATURE_BYTES * limits.features))
    document = read_envelope(
        body, found, "the values of the tensors", check_framing, charge, MAX_FEATURE_BYTES * limits.features
    )
    if found.arrays > len(kept):
        check_framing(body, charge)  # else there are more than any features may have
    return document


def write_lookup(answer: LookupAnswer, encoding: Encoding, memory: Memory | None = None) -> list[Buffer]:
    """The body of `answer`, in pieces; `memory` is charged with it. Raises what charging raises."""
    pieces: list[Buffer] = [b'{"output":' if answer.joined else b'{"outputs":[']
    for number, output in enumerate(answer.outputs):
        if number:
            pieces.append(b",")
        pieces += tensor_text(output, encoding, memory)
    pieces.append(b"," if answer.joined else b"],")
    pieces.append(answer_fields(answer)[1:])
    return pieces


def answer_fields(answer: LookupAnswer) -> bytes:
    """What an answer says beside its outputs, a JSON object."""
    features = [
        {"tensor": tensor, "data_etag": etag, "version": version}
        for tensor, etag, version in zip(answer.tensors, answer.etags, answer.versions, strict=True)
    ]
    replaced = {} if answer.replaced is None else {"replaced": answer.replaced}
    return orjson.dumps({"features": features, **replaced})
