"""Parses a `ModelInferRequest` of the inference protocol over gRPC into a request.

protobuf parses the names, shapes and parameters. They are converted to the same document as an equivalent JSON request,
and the same models validate that document. Requests often differ only in items and id, so the other bytes of a message
are looked up in a cache before protobuf parses them.

Items in `InferTensorContents`, protobuf's repeated fields, are converted to packed items.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final, NamedTuple, NoReturn

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from app.errors import GatherError, Place, invalid_field
from app.formats.grpc.message_fields import InferMessage, malformed
from app.formats.grpc.messages.classes import ModelInferRequest
from app.formats.oip.infer_document import (
    AskedInference,
    Input,
    Model,
    read_document,
    read_items,
)
from app.formats.oip.input_items import dtype_of, packed_items, pointers_of
from app.json_text.lossless_json import Number
from app.memory.budget import Memory
from app.requests.envelope_cache import envelopes
from app.requests.request import ReadArray
from app.requests.schemas.member_types import ABSENT
from app.tensors.buffer_type import Buffer
from app.tensors.dtypes import DType
from app.tensors.little_endian_items import bounded_product, items_text, unpack
from app.tensors.shape_limits import Limits
from app.tensors.tensor import Tensor, coordinates

LONG_REST: Final = 1 << 12
"""A message with more bytes than this, excluding items and id, is charged first and then parsed in a thread."""
_OBJECT_BYTES: Final = 48
"""Maximum bytes of protobuf objects per byte of such a message: an input of two bytes becomes a message object."""
_INPUT_BYTES: Final = 1 << 10
"""Bytes of Python objects per input of a lookup."""
_REMEMBERED: Final = LONG_REST


class ParsedMessage(NamedTuple):
    """A parsed message.

    `split` holds the parts that were cut out first; `message` is the rest, as parsed by protobuf.
    """

    split: InferMessage
    message: Any

    @property
    def model(self) -> str:
        """The name of the model."""
        name: str = self.message.model_name
        return name

    @property
    def version(self) -> str | None:
        """The requested version of the model, if any."""
        return self.message.model_version or None


def parse(split: InferMessage, memory: Memory) -> ParsedMessage:
    """Parse a message with protobuf. Raises malformed_request, and any error of charging."""
    rest = split.rest
    if len(rest) <= _REMEMBERED:
        return ParsedMessage(split, _remembered_message(rest))
    if len(rest) > LONG_REST:
        memory.charge(_OBJECT_BYTES * len(rest))
    return ParsedMessage(split, _message(rest))


def _message(rest: bytes) -> Any:
    try:
        return ModelInferRequest.FromString(rest)
    except DecodeError:
        raise malformed("the message is not a ModelInferRequest") from None


_remembered_message = lru_cache(256)(_message)


def read_grpc_request(parsed: ParsedMessage, model: Model, limits: Limits, memory: Memory) -> AskedInference:
    """Build the request from a message. Errors have the same precedence as over REST."""
    split, message = parsed
    raws, inputs = split.raws, message.inputs
    if raws and len(raws) != len(inputs):
        raise malformed(f"{len(raws)} raw_input_contents were sent for {len(inputs)} inputs")

    def items(one: Input) -> ReadArray:
        given = inputs[one.number]
        if not raws:
            return typed_items(one, given.contents, memory)
        if given.HasField("contents"):
            return _refuse_contents, (one,)
        return packed_items(one, raws[one.number], memory)

    # One more input than the model has is enough to read: at least one of them is unknown or repeated, and is refused.
    # The same holds for outputs.
    most_inputs, most_outputs = len(model.inputs) + 1, 3
    if model.is_lookup:
        most_inputs, most_outputs = len(inputs), limits.features + 1
        memory.charge(_INPUT_BYTES * most_inputs)
    is_short = raws and len(split.rest) <= _REMEMBERED
    validated = envelopes.get((model.route, split.rest)) if is_short else None
    if validated is None:
        known, arrays = read_document(_document(message, most_inputs, most_outputs), model, items, limits, memory)
        if is_short:
            envelopes.keep(model.route, split.rest, replace(known.validated, ready=known))
    else:
        known = validated.ready
        arrays = {one.name: items(one) for one in known.inputs}
    asked = read_items(known, arrays, model, limits)
    asked.identifier, asked.binary = split.identifier or None, True
    if asked.outputs is not None:
        asked.outputs = dict.fromkeys(asked.outputs, True)
    return asked


def _refuse_contents(one: Input) -> NoReturn:
    raise invalid_field(
        f"{one.pointer}/contents",
        "an input has contents in addition to raw_input_contents, which has the items of all inputs",
        "Send the items of all inputs in raw_input_contents, or of all in contents.",
    )


def _document(message: Any, inputs: int, outputs: int) -> dict[str, Any]:
    """Return the request as a JSON document without items, with at most `inputs` inputs and `outputs` outputs."""
    described = [
        {
            "name": one.name,
            "datatype": one.datatype,
            "shape": one.shape[:],
            "parameters": _parameters(one.parameters),
        }
        for one in message.inputs[:inputs]
    ]
    asked = [{"name": one.name, "parameters": _parameters(one.parameters)} for one in message.outputs[:outputs]]
    return {"inputs": described, "parameters": _parameters(message.parameters), "outputs": asked or ABSENT}


def _parameters(given: Mapping[str, Any]) -> dict[str, Any]:
    """Convert parameters to their JSON form; a parameter without a value becomes null."""
    found: dict[str, Any] = {}
    for name, parameter in given.items():
        choice = parameter.WhichOneof("parameter_choice")
        value = None if choice is None else getattr(parameter, choice)
        found[name] = Number(repr(value)) if choice == "double_param" else value
    found.pop("binary_data_size", None)  # no items follow a message
    return found


FIELD_OF: Final = {
    "BOOL": "bool_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    "INT64": "int64_contents",
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
"""The field that holds the items of each datatype."""
_WIDE: Final = {"int_contents": np.dtype(np.int32), "uint_contents": np.dtype(np.uint32)}
"""The type of a field's items, for fields that hold several datatypes."""
_PORTION: Final = 1 << 14
"""Number of items to read at a time. This takes about a millisecond, during which nothing else runs."""
_ITEM_BYTES: Final = 24
"""Bytes of memory per item while it is read: two copies and an object."""


def typed_items(one: Input, contents: Any, memory: Memory) -> ReadArray:
    """Return the reader of an input's items, which must be in the field for its datatype."""
    field = FIELD_OF.get(one.datatype, "")
    shape = one.shape or ()

    def read() -> Tensor:
        _check_field(one, contents)
        dtype = dtype_of(one)
        count = len(getattr(contents, field)) if field else 0
        pointer, _, shape_pointer, dtype_pointer = pointers_of(one.number)
        if field:
            pointer = f"{pointer}/contents/{field}"
        if bounded_product(shape, count + 1) != count:
            asked = items_text(shape)
            raise GatherError(
                "element_count_mismatch",
                f"{one.name}: {count} items were sent, but the shape requires {asked}",
                pointer=pointer,
                hint=(
                    f"Send {asked} in {field or 'raw_input_contents'}, or change the shape to match the {count} "
                    "received."
                ),
            )
        items = _pack(one, field, contents, memory) if field else b""
        tensor = unpack(dtype, shape, items, memory, one.name, (pointer, shape_pointer, dtype_pointer))
        tensor.form = "flat" if field else "whole"
        return tensor

    return read, ()


def _pack(one: Input, field: str, contents: Any, memory: Memory) -> Buffer:
    """Convert the items to packed bytes. Raises value_not_representable, and any error of charging."""
    values = getattr(contents, field)
    if len(values) > _PORTION:
        memory.charge(_ITEM_BYTES * len(values) + contents.ByteSize())
    if field == "bytes_contents":
        frames = bytearray()
        for at in range(0, len(values), _PORTION):
            frames += b"".join(
                [piece for text in values[at : at + _PORTION] for piece in (len(text).to_bytes(4, "little"), text)]
            )
        return frames
    dtype = dtype_of(one)
    items = np.empty(len(values), _WIDE.get(field, dtype.numpy))
    for at in range(0, len(values), _PORTION):
        some = values[at : at + _PORTION]
        items[at : at + len(some)] = np.fromiter(some, items.dtype, len(some))
    if items.dtype != dtype.numpy:
        _check_range(one, field, dtype, items)
        items = items.astype(dtype.numpy)
    return items.view(np.uint8).data


def _check_field(one: Input, contents: Any) -> None:
    """Raise invalid_field if there are items in the field of another datatype."""
    wanted = FIELD_OF.get(one.datatype, "")
    for field, _ in contents.ListFields():
        if field.name == wanted:
            continue
        pointer = f"{one.pointer}/contents/{field.name}"
        if not wanted:
            raise invalid_field(
                pointer,
                f"items of {one.datatype} have no field in contents",
                f"Send the items of {one.datatype} in raw_input_contents, and with them those of all inputs.",
            )
        raise invalid_field(pointer, f"items of {one.datatype} belong in {wanted}", f"Send the items in {wanted}.")


def _check_range(one: Input, field: str, dtype: DType, items: NDArray[Any]) -> None:
    wrong = (items < dtype.low) | (items > dtype.high)
    if wrong.any():
        item = int(wrong.argmax())
        pointer = f"{one.pointer}/contents/{field}/{item}"
        raise GatherError(
            "value_not_representable",
            f"{one.name}: {items[item]} is not a valid {one.datatype}: the range is {dtype.low} to {dtype.high}",
            places=[Place(pointer, coordinates(item, one.shape or ()), int(items[item]))],
            hint=f"Send a whole number from {dtype.low} to {dtype.high} at {pointer}.",
        )
