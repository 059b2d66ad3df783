"""A `ModelInferRequest` of the inference protocol over gRPC: its bytes to a request.

Names, shapes and parameters are read by protobuf, become what the JSON of the same request would be, and are validated
by the same models. Requests repeat themselves, but for their items and their id: a message that came before without
both is recognised by its bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from google.protobuf.message import DecodeError

from app.errors import invalid_field
from app.formats.grpc.message_fields import InferMessage, malformed
from app.formats.grpc.typed_contents import check_count, field_of, pack
from app.requests.schemas.members import ABSENT
from app.tensors.shape_limits import Limits
from app.wire.grpc_messages.classes import ModelInferRequest
from app.wire.json.lossless_json import Number
from app.wire.little_endian_items import Charge
from app.wire.v2_lookup import LookupRequest, lookup_head_of_document, lookup_of_arrays
from app.wire.v2_request_json import Head, Input, Model, head_of_document
from app.wire.v2_request_tensors import (
    InputItems,
    Request,
    WrongItemsError,
    call_of,
    check_datatypes,
    read_inputs,
)

LONG_REST: Final = 1 << 12
"""A message with a longer rest is parsed in a thread, and charged before."""
_OBJECT_BYTES: Final = 48
"""Bytes that a byte of the rest takes as protobuf's objects at most: an input of two bytes is a message."""
_INPUT_BYTES: Final = 1 << 10
"""Bytes that an input of a lookup takes as Python objects."""
_REMEMBERED: Final = 1 << 10
_SIZE: Final = "binary_data_size"


class ParsedMessage(NamedTuple):
    """A message as protobuf has read it; `split` has what was cut out before, `message` all else."""

    split: InferMessage
    message: Any

    @property
    def model(self) -> str:
        """The name of the model."""
        name: str = self.message.model_name
        return name

    @property
    def version(self) -> str | None:
        """The version of the model that is asked for, if any is."""
        return self.message.model_version or None


def parse(split: InferMessage, charge: Charge | None) -> ParsedMessage:
    """Have protobuf read a message. Raises malformed_request, and what charging raises."""
    rest = split.rest
    if len(rest) <= _REMEMBERED:
        return ParsedMessage(split, _remembered_message(rest))
    if charge is not None and len(rest) > LONG_REST:
        charge(_OBJECT_BYTES * len(rest))
    return ParsedMessage(split, _message(rest))


def _message(rest: bytes) -> Any:
    try:
        return ModelInferRequest.FromString(rest)
    except DecodeError:
        raise malformed("the message is no ModelInferRequest") from None


_remembered_message = lru_cache(256)(_message)


def read_grpc_request(parsed: ParsedMessage, model: Model, limits: Limits, charge: Charge | None) -> Request:
    """What a request to a model of an operator asks for; refused in the same order as over REST."""
    split, message = parsed
    _check_raws(parsed)
    if split.raws and len(split.rest) <= _REMEMBERED:
        head = _remembered_head(split.rest, model)
    else:
        head = _head(message, model)
    inputs = head.inputs
    items = _items(parsed, sorted(inputs, key=lambda one: one.number), charge)
    try:
        tensors, over_limit = read_inputs(inputs, b"", items, limits, charge)
    except WrongItemsError as error:
        raise error.explained(b"") from None
    return Request(call_of(head, model, tensors, over_limit), split.identifier or None, True, head.timeout)


def read_grpc_lookup(parsed: ParsedMessage, limits: Limits, charge: Charge | None) -> LookupRequest:
    """What a request to the model `lookup` asks for."""
    split, message = parsed
    _check_raws(parsed)
    if charge is not None:
        charge(_INPUT_BYTES * len(message.inputs))
    fields, inputs = lookup_head_of_document(_document(message, len(message.inputs), limits.features + 1))
    found = lookup_of_arrays(fields, inputs, _items(parsed, list(inputs.values()), charge), limits, charge)
    asked = None if found.outputs is None else dict.fromkeys(found.outputs, True)
    return found._replace(identifier=split.identifier or None, binary=True, outputs=asked)


def _head(message: Any, model: Model) -> Head:
    # Of more inputs than the model has, the first one that it has not, or has already, is refused; so is an output.
    return head_of_document(_document(message, len(model.inputs) + 1, 2), model)


@lru_cache(256)
def _remembered_head(rest: bytes, model: Model) -> Head:
    return _head(_message(rest), model)


def _check_raws(parsed: ParsedMessage) -> None:
    raws, inputs = parsed.split.raws, parsed.message.inputs
    if raws and len(raws) != len(inputs):
        raise malformed(f"{len(raws)} raw_input_contents came for {len(inputs)} inputs")


def _document(message: Any, inputs: int, outputs: int) -> dict[str, Any]:
    """What the JSON of a request would be whose items follow it, with so many inputs and outputs at most."""
    described = [
        {
            "name": one.name,
            "datatype": one.datatype,
            "shape": one.shape[:],
            "parameters": {**_parameters(one.parameters), _SIZE: 0},
        }
        for one in message.inputs[:inputs]
    ]
    asked = [{"name": one.name, "parameters": _parameters(one.parameters)} for one in message.outputs[:outputs]]
    return {"inputs": described, "parameters": _parameters(message.parameters), "outputs": asked or ABSENT}


def _parameters(given: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters as JSON has them; one without a value is null."""
    found: dict[str, Any] = {}
    for name, parameter in given.items():
        choice = parameter.WhichOneof("parameter_choice")
        value = None if choice is None else getattr(parameter, choice)
        found[name] = Number(repr(value)) if choice == "double_param" else value
    return found


def _items(parsed: ParsedMessage, inputs: Sequence[Input], charge: Charge | None) -> InputItems:
    """The items of the inputs, which are in their order in the request. Raises invalid_field if some are raw and others
    not, and what is wrong with items in fields: unsupported_dtype, element_count_mismatch, value_not_representable.
    """
    raws, given = parsed.split.raws, parsed.message.inputs
    if raws:
        for number, one in enumerate(given):
            if one.HasField("contents"):
                raise invalid_field(
                    f"/inputs/{number}/contents",
                    "an input has contents beside raw_input_contents, which has the items of all inputs",
                    "Send the items of all inputs in raw_input_contents, or of all in contents.",
                )
        return InputItems({one.name: raws[one.number] for one in inputs})
    contents = [given[one.number].contents for one in inputs]
    fields = [field_of(one, own) for one, own in zip(inputs, contents, strict=True)]
    check_datatypes(inputs)
    for one, field, own in zip(inputs, fields, contents, strict=True):
        if field:
            check_count(one, field, len(getattr(own, field)))
    packed = [
        pack(one, field, own, charge) if field else b""
        for one, field, own in zip(inputs, fields, contents, strict=True)
    ]
    names = [one.name for one in inputs]
    places = [f"/contents/{field}" if field else "" for field in fields]
    return InputItems(dict(zip(names, packed, strict=True)), dict(zip(names, places, strict=True)))
