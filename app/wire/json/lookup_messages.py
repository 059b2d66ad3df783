"""The JSON of `POST /lookup`: a body to a `LookupCall`, a `LookupAnswer` to its body.

It is read as the body of a gather is (`gather_messages`), by the same functions; there may be thousands of arrays.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import orjson
from numpy.typing import NDArray

from app.errors import GatherError
from app.tensors.buffer_type import Buffer
from app.tensors.gather_call import Encoding
from app.tensors.lookup_call import ARRAYS, Feature, LookupAnswer, LookupCall
from app.tensors.shape_limits import Limits
from app.tensors.tensor import Tensor
from app.wire.json.body_without_arrays import count_members, read_envelope
from app.wire.json.find_arrays import FoundArrays, find_features
from app.wire.json.query_of_json_request import read_explain
from app.wire.json.read_fill_value import read_fill_value
from app.wire.json.read_tensor import (
    GivenTensor,
    WrongTensors,
    check_framing,
    given_tensor,
    raise_first_fault,
    unsupported_dtype,
)
from app.wire.json.write_values import tensor_text
from app.wire.little_endian_items import Charge, Memory, view_of
from app.wire.request_schemas.gather_request import Tensor as TensorFields
from app.wire.request_schemas.lookup_request import LookupFeature, LookupRequest, check_arrays_given, valid_lookup
from app.wire.request_schemas.members import ABSENT

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
            read_explain(query)
        raise
    if query:
        found[0].explain = read_explain(query)
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

    def check_feature(number: int, given: Any) -> None:
        _given_arrays(number, LookupFeature.model_validate(given), body, view, found, charge)

    fields = valid_lookup(LookupRequest, document, "", limits.features, check_feature)
    given = [
        _given_arrays(number, feature, body, view, found, charge) for number, feature in enumerate(fields.features)
    ]
    fill_value = None
    if "fill_value" in document:
        fill_value = read_fill_value(fields.fill_value, fields.out_of_bounds, "/fill_value")
    if count_members(document) != found.members:
        check_framing(body, charge)  # a key is given twice

    for number, arrays in enumerate(given):
        for name, (_, unknown) in arrays.items():
            if unknown is not None:
                raise unsupported_dtype(f"features/{number}/{name}", unknown)
    features = []
    for number, (feature, arrays) in enumerate(zip(fields.features, given, strict=True)):
        tensors: dict[str, Tensor] = {}
        for name, (source, _) in arrays.items():
            tensor = source.read(charge)
            if tensor is None:
                raise WrongTensors([source for one in given for source, _ in one.values()])
            tensors[name] = tensor
        features.append(Feature(feature.tensor, **tensors, pooling=feature.pooling, pointer=f"/features/{number}"))
    call = LookupCall(features, fields.concat, fields.out_of_bounds, fill_value)
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


def _given_arrays(
    number: int,
    feature: LookupFeature,
    body: Buffer,
    view: NDArray[np.uint8],
    found: FoundArrays,
    charge: Charge | None,
) -> dict[str, GivenTensor]:
    """The arrays of a feature whose members have been validated. Raises invalid_field."""
    arrays: dict[str, GivenTensor] = {}
    for name in ARRAYS:
        fields: TensorFields = getattr(feature, name)
        if fields is not ABSENT:
            arrays[name] = given_tensor(f"features/{number}/{name}", fields, body, view, found.places, charge)
    if feature.pooling != "none" or len(arrays) > 1:
        check_arrays_given(feature.pooling, tuple(arrays), lambda name: f"/features/{number}/{name}")
    return arrays


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
