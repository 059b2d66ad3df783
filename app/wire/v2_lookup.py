"""The model `lookup` of the inference protocol: infer requests to a `LookupCall`, a `Answer` to infer answers.

The inputs are `0.indices`, `0.offsets`, `0.weights`, `1.indices` and so on, as JSON or in binary; all else of the
request is the JSON text of the parameter `lookup`, as safetensors has it in `__metadata__`. The outputs are `output`,
or `0.output`, `1.output` and so on; the answer's parameter `lookup` says what a JSON answer says beside its outputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import orjson

from app.errors import GatherError, invalid_field
from app.formats.body_formats import LONG_BINARY, LONG_LOOKUP
from app.formats.json.write_answer import answer_fields
from app.requests.schemas.members import ABSENT
from app.requests.schemas.v2_lookup_request import LookupInferDicts, valid_infer_lookup
from app.tensors.buffer_type import Buffer
from app.tensors.gather_call import OUTPUT, Answer
from app.tensors.lookup_call import ARRAYS, LOOKUP, LookupCall
from app.tensors.operator_signature import OWN_FIELDS
from app.tensors.shape_limits import Limits
from app.wire.json.body_without_arrays import MAX_FEATURE_BYTES, OBJECT_BYTES, PLACE_BYTES, count_members, read_envelope
from app.wire.json.find_arrays import FoundArrays, find_inputs
from app.wire.json.write_values import is_long, values_text
from app.wire.little_endian_items import REFUSED_BY_CHARGE, Charge, Memory, packed_bytes, view_of
from app.wire.safetensors_lookup import arrays_of, features_of, read_parameters
from app.wire.v2_answer import VERSION, check_writable
from app.wire.v2_request_json import NO_ARRAYS, Input, check_framing, given_twice, located_input, malformed
from app.wire.v2_request_tensors import InputItems, WrongItemsError, read_inputs, split_blobs

_POINTER: Final = f"/parameters/{LOOKUP}"
_LEAST_DATA: Final = 8
"""Bytes of the shortest member `data`."""
_MOST_MICROSECONDS: Final = 10**15
_IN_LOOKUP: Final = ("out_of_bounds", "fill_value")
"""Parameters of other models that a lookup has within its parameter `lookup`."""
_FOREIGN: Final = (*OWN_FIELDS, "dialect", "device")
"""Parameters that other models have and this one has not."""


class LookupModel:
    """The model `lookup`, which has as many inputs as a request has."""

    name: Final = LOOKUP
    resident: Final = False


class LookupRequest(NamedTuple):
    """An infer request, read: `outputs` are those asked for, None for all, and whether each is to be binary."""

    call: LookupCall
    identifier: str | None
    outputs: dict[str, bool] | None
    binary: bool
    timeout: float | None


def is_heavy(body: Buffer, json_size: int | None) -> bool:
    """Whether reading the request takes so long that it is not for the event loop: its JSON, or items to be copied."""
    return (len(body) if json_size is None else json_size) > LONG_LOOKUP or len(body) > LONG_BINARY


def read_lookup_request(
    body: Buffer, json_size: int | None, limits: Limits, charge: Charge | None = None
) -> LookupRequest:
    """What an infer request to the model `lookup` asks for; see `v2_request_tensors.read_request`."""
    if json_size == 0:
        raise malformed("a body without JSON is for a model with one input; lookup has one for each array")
    text, blobs = body, memoryview(b"")
    if json_size is not None:
        if json_size > len(body):
            raise malformed(f"the JSON is {json_size} bytes long by its own account; the body has {len(body)} bytes")
        text, blobs = memoryview(body)[:json_size], memoryview(body)[json_size:]
    try:
        return _read(text, blobs, limits, charge)
    except GatherError as error:
        if error.code not in REFUSED_BY_CHARGE:
            check_framing(text, charge)
        raise
    except WrongItemsError as error:
        check_framing(text, charge)
        raise error.explained(text) from None


def _read(text: Buffer, blobs: Buffer, limits: Limits, charge: Charge | None) -> LookupRequest:
    most = min(len(ARRAYS) * limits.features, len(text) // _LEAST_DATA) + 1
    if charge is not None:
        charge(PLACE_BYTES * most + OBJECT_BYTES * min(len(text), MAX_FEATURE_BYTES * limits.features))
    found = find_inputs(view_of(text), most)
    if not found.closed:
        raise malformed("the JSON of the request is not JSON: quotes or brackets do not close")
    document = read_envelope(
        text, found, "the items of the inputs", check_framing, charge, MAX_FEATURE_BYTES * limits.features
    )
    fields = valid_infer_lookup(document)
    if found.arrays >= most or (
        _count_known_members(document) != found.members and count_members(document) != found.members
    ):
        check_framing(text, charge)  # a key that is given twice, or items among what is ignored
    _check_own_parameters(document["parameters"])
    inputs = inputs_by_name(_located_inputs(fields.inputs, text, found, charge))
    blob_inputs = [one for one in inputs.values() if one.size is not None]
    return _request(fields, inputs, text, InputItems(split_blobs(blob_inputs, blobs)), limits, charge)


def _count_known_members(document: Any) -> int:
    """How many members the objects of a request have, but for objects that are ignored."""
    inputs, parameters = document["inputs"], document["parameters"]
    of_inputs = sum([len(own) for one in inputs if (own := one.get("parameters"))])
    return len(document) + len(parameters) + sum(map(len, inputs)) + of_inputs


def lookup_head_of_document(document: Any) -> tuple[LookupInferDicts, dict[str, Input]]:
    """The fields and the inputs of a request in another form than JSON; see `v2_request_json.head_of_document`."""
    fields = valid_infer_lookup(document)
    _check_own_parameters(document["parameters"])
    return fields, inputs_by_name(_located_inputs(fields.inputs, b"", NO_ARRAYS, None))


def _located_inputs(
    described: Sequence[dict[str, Any]], text: Buffer, found: FoundArrays, charge: Charge | None
) -> Iterator[Input]:
    """The inputs of a request. Raises invalid_field."""
    for number, given in enumerate(described):
        parameters = given.get("parameters")
        size = parameters.get("binary_data_size") if parameters else None
        data = given.get("data", ABSENT)
        yield located_input(number, given["name"], given["datatype"], given["shape"], size, data, text, found, charge)


def inputs_by_name(inputs: Iterable[Input]) -> dict[str, Input]:
    """The inputs by their names. Raises invalid_field for the first of a name that another one has."""
    found: dict[str, Input] = {}
    for one in inputs:
        if one.name in found:
            raise given_twice(one.number, one.name)
        found[one.name] = one
    return found


def lookup_of_arrays(
    fields: LookupInferDicts,
    inputs: Mapping[str, Input],
    items: InputItems,
    limits: Limits,
    charge: Charge | None,
) -> LookupRequest:
    """What such a request asks for, with the bytes of its arrays; see `v2_request_tensors.read_inputs`."""
    try:
        return _request(fields, inputs, b"", items, limits, charge)
    except WrongItemsError as error:
        raise error.explained(b"") from None


def _request(
    fields: LookupInferDicts,
    inputs: Mapping[str, Input],
    text: Buffer,
    items: InputItems,
    limits: Limits,
    charge: Charge | None,
) -> LookupRequest:
    asked, fill_value = read_parameters(fields.parameters.lookup, _POINTER, limits, charge)
    arrays = arrays_of(asked, inputs, lambda name: inputs[name].pointer if name in inputs else "/inputs", "an input")
    outputs = _asked_outputs(fields, asked.concat, len(asked.features))
    order = [one for given in arrays for one in given.values()]
    tensors, _ = read_inputs(order, text, items, limits, charge)
    features = features_of(asked, _POINTER, arrays, iter(tensors))
    call = LookupCall(features, asked.concat, asked.out_of_bounds, fill_value, False, _POINTER)
    parameters = fields.parameters
    timeout = min(parameters.timeout, _MOST_MICROSECONDS) / 1e6 if parameters.timeout else None
    return LookupRequest(call, fields.id, outputs, bool(parameters.binary_data_output), timeout)


def _check_own_parameters(parameters: Mapping[str, Any]) -> None:
    """Raises invalid_field for a parameter that other models have; unknown ones are ignored."""
    for name in _FOREIGN:
        if name in parameters:
            hint = f"Leave out {name!r}, since a lookup runs on the CPU and has no operator's parameters."
            if name in _IN_LOOKUP:
                hint = f"Write {name!r} in the JSON text of the parameter 'lookup', beside 'features'."
            raise invalid_field(f"/parameters/{name}", f"the model {LOOKUP} has no parameter {name}", hint)


def _asked_outputs(fields: LookupInferDicts, concat: bool, features: int) -> dict[str, bool] | None:
    """The outputs asked for and whether each is to be binary. Raises invalid_field for one that there is not."""
    if not fields.outputs:
        return None
    names = [OUTPUT] if concat else [f"{number}.{OUTPUT}" for number in range(features)]
    known = frozenset(names)
    found: dict[str, bool] = {}
    outputs: Sequence[dict[str, Any]] = fields.outputs
    for number, output in enumerate(outputs):
        name, parameters = output["name"], output.get("parameters")
        at = f"/outputs/{number}/name"
        if name not in known:
            raise invalid_field(
                at,
                f"{name[:100]!a} is not an output of this request, which has {names[0]} to {names[-1]}",
                f"Ask for {names[0]!r}, or leave out the outputs.",
            )
        if name in found:
            raise invalid_field(at, f"the output {name!r} is asked for twice", f"Ask for {name!r} once.")
        binary = parameters.get("binary_data") if parameters else None
        found[name] = bool(fields.parameters.binary_data_output) if binary is None else binary
    return found


def is_long_answer(answer: Answer, request: LookupRequest) -> bool:
    """Whether writing it takes so long: texts do, and strings, whose frames are copied; other items are as they are."""
    whole = request.outputs is None and request.binary
    return any(is_long(output) for output in answer.outputs.values() if not (whole and output.dtype.item_size))


def check_outputs_writable(answer: Answer) -> None:
    """Raises unsupported_dtype at the first feature whose tensor is of a type that the protocol does not have."""
    for number, output in enumerate(answer.outputs.values()):
        check_writable(output.dtype, LOOKUP, f"{_POINTER}/features/{number}/tensor")


def write_lookup_answer(
    answer: Answer, request: LookupRequest, memory: Memory | None = None
) -> tuple[list[Buffer], int | None]:
    """The body of the answer in pieces, and the size of its JSON where binary items follow.

    `memory` is charged with what is made. Raises unsupported_dtype, and what charging raises.
    """
    check_outputs_writable(answer)
    wanted = request.outputs or dict.fromkeys(answer.outputs, request.binary)
    head: dict[str, Any] = {} if request.identifier is None else {"id": request.identifier}
    head |= {"model_name": LOOKUP, "model_version": VERSION}
    head["parameters"] = {"device": "cpu", LOOKUP: answer_fields(answer).decode()}
    if answer.replaced is not None:
        head["parameters"]["replaced"] = answer.replaced
    pieces: list[Buffer] = [orjson.dumps(head)[:-1], b',"outputs":[']
    blobs: list[Buffer] = []
    for number, (name, binary) in enumerate(wanted.items()):
        output = answer.outputs[name]
        described: dict[str, Any] = {"name": name, "datatype": output.dtype.oip, "shape": output.shape}
        if binary:
            blobs.append(packed_bytes(output, memory))
            described["parameters"] = {"binary_data_size": len(blobs[-1])}
        pieces.append((b"," if number else b"") + orjson.dumps(described)[: None if binary else -1])
        if not binary:
            pieces += [b',"data":', *values_text(output, memory), b"}"]
    pieces.append(b"]}")
    if not blobs:
        return pieces, None
    return [*pieces, *blobs], sum(map(len, pieces))
