"""A `ModelInferRequest` of the inference protocol over gRPC: its bytes to a `Call`.

As of a JSON body the arrays are cut out, as views of the message; the rest, names, shapes and parameters, is read by
protobuf, becomes what the JSON of the same request would be, and is validated by the same models. Requests repeat
themselves, but for their items and their id: a rest that came before is recognised by its bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from google.protobuf.message import DecodeError

from app.errors import GatherError, invalid_field
from app.tensors.buffer_type import Buffer
from app.tensors.shape_limits import Limits
from app.wire.grpc_messages.classes import ModelInferRequest
from app.wire.json.body_without_arrays import MAX_BYTES
from app.wire.json.lookup_messages import MAX_FEATURE_BYTES
from app.wire.json.lossless_json import Number
from app.wire.little_endian_items import Charge
from app.wire.protobuf_fields import BYTES, FIXED32, FIXED64, VARINT, FieldLimit, fields, malformed, varint
from app.wire.request_schemas.members import ABSENT
from app.wire.v2_grpc_contents import (
    MOST_CHUNKS,
    STRINGS,
    Contents,
    Frames,
    TypedItems,
    check_count,
    check_field,
    count_items,
    pack,
)
from app.wire.v2_lookup import LookupRequest, lookup_head_of_document, lookup_of_arrays
from app.wire.v2_request_json import Head, Input, Model, head_of_document
from app.wire.v2_request_tensors import Request, WrongItemsError, call_of, check_datatypes, read_inputs

_NAME, _VERSION, _INPUTS = 1, 2, 5
ID: Final = 3
RAW: Final = 7
"""Numbers of the fields that differ from one request to the next: its id, and raw_input_contents."""
_CONTENTS: Final = 5
_CONTENTS_KIND: Final = {1: VARINT, 2: VARINT, 3: VARINT, 4: VARINT, 5: VARINT, 6: FIXED32, 7: FIXED64}
_OBJECT_BYTES: Final = 96
"""Bytes that a byte of the rest takes as objects at most: an input of two bytes is a message of protobuf's."""
_REMEMBERED: Final = 1 << 10
_SIZE: Final = "binary_data_size"
_MOST_RAWS: Final = 3 << 16
"""A lookup has three arrays for each feature, of which GATHERND_MAX_FEATURES may allow 65536."""
_MOST_CONTENTS: Final = 1 << 14
"""Inputs with contents of their own; more arrays than these come raw."""
_RAW_BYTES, _CONTENTS_BYTES = 256, 2048
"""Bytes that the objects take which stand for a raw array, and for an input's contents."""
LONG_REST: Final = 1 << 12
"""A longer rest is for a thread: an input of two bytes takes 9 microseconds."""
_BLOCK: Final = 256
"""So many arrays are charged at a time."""


class SplitRequest(NamedTuple):
    """A message without its arrays: `rest` is a message too, without model, version and id, which stand beside it.

    `raws` are the values of raw_input_contents, `contents` those of each input that has contents, by its number.
    """

    model: str
    version: str
    identifier: str
    rest: bytes
    raws: Sequence[memoryview]
    contents: Mapping[int, Contents]

    @property
    def is_heavy(self) -> bool:
        """Whether reading the request takes so long that it is not for the event loop: its items, or all else."""
        return (
            len(self.rest) > LONG_REST
            or sum(len(value) for one in self.contents.values() for values in one.values() for value in values)
            > 1 << 16
        )


def split(message: bytes, charge: Charge | None = None, limit: FieldLimit | None = None) -> SplitRequest:
    """Cut the arrays out of a message. Raises malformed_request and limit_exceeded, and with `limit` TooManyFields."""
    whole = memoryview(message)
    texts = {_NAME: "", _VERSION: "", ID: ""}
    kept: list[Buffer] = []
    raws: list[memoryview] = []
    contents: dict[int, Contents] = {}
    inputs = end = 0
    for number, kind, start, at, after in fields(message, 0, len(message), limit):
        cut = False
        if kind == BYTES:
            if number == RAW:
                if len(raws) == _MOST_RAWS:
                    raise malformed(f"there are more than {_MOST_RAWS} raw_input_contents")
                raws.append(whole[at:after])
                cut = True
                if charge is not None and len(raws) % _BLOCK == 0:
                    charge(_BLOCK * _RAW_BYTES)
            elif number == _INPUTS:
                shortened = _cut_contents(message, at, after, inputs, contents, limit)
                inputs += 1
                if shortened is not None:
                    kept += (whole[end:start], b"\x2a", varint(len(shortened)), shortened)
                    end = after
                    _check_contents(len(contents), charge)
            elif number <= ID:
                try:
                    texts[number] = message[at:after].decode()
                except UnicodeDecodeError:
                    raise malformed(f"the string at byte {start} of the message is not UTF-8") from None
                cut = True
        if cut:
            kept.append(whole[end:start])
            end = after
    kept.append(whole[end:])
    return SplitRequest(texts[_NAME], texts[_VERSION], texts[ID], b"".join(kept), raws, contents)


def _check_contents(count: int, charge: Charge | None) -> None:
    """Charge for so many inputs with contents. Raises limit_exceeded."""
    if count > _MOST_CONTENTS:
        raise GatherError(
            "limit_exceeded",
            f"more than {_MOST_CONTENTS} inputs have contents",
            pointer="/inputs",
            facts={"limit": "contents", "maximum": _MOST_CONTENTS},
            hint="Send the items of all inputs in raw_input_contents.",
        )
    if charge is not None and count % _BLOCK == 0:
        charge(_BLOCK * _CONTENTS_BYTES)


def _cut_contents(
    message: bytes, at: int, end: int, number: int, contents: dict[int, Contents], limit: FieldLimit | None
) -> bytes | None:
    """An input without its contents, which are added to `contents`; None where it has none."""
    found: dict[int, list[Buffer]] = {}
    kept: list[bytes] = []
    begin, has_contents = at, False
    for field, kind, start, first, after in fields(message, at, end, limit):
        if field == _CONTENTS and kind == BYTES:
            has_contents = True
            kept.append(message[begin:start])
            begin = after
            _read_contents(message, first, after, found, limit)
    if not has_contents:
        return None
    kept.append(message[begin:end])
    contents[number] = found
    return b"".join(kept)


def _read_contents(message: bytes, at: int, end: int, found: dict[int, list[Buffer]], limit: FieldLimit | None) -> None:
    whole = memoryview(message)
    for field, kind, _, first, after in fields(message, at, end, limit):
        if field == STRINGS and kind == BYTES:
            if not found.get(STRINGS):
                found[STRINGS] = [Frames()]
            frames = found[STRINGS][0]
            assert isinstance(frames, Frames)
            frames.add(whole[first:after])
        elif field in _CONTENTS_KIND and kind in (BYTES, _CONTENTS_KIND[field]):
            values = found.setdefault(field, [])
            values.append(whole[first:after])
            if len(values) > MOST_CHUNKS:
                raise GatherError(
                    "limit_exceeded",
                    f"a field of numbers occurs more than {MOST_CHUNKS} times in a tensor's contents",
                    pointer="/inputs",
                    facts={"limit": "contents_fields", "maximum": MOST_CHUNKS},
                    hint="Send repeated numbers packed, as proto3 does.",
                )


def read_grpc_request(split: SplitRequest, model: Model, limits: Limits, charge: Charge | None) -> Request:
    """What a request to a model of an operator asks for; refused in the same order as over REST."""
    sizes = _sizes(split)
    if len(split.rest) <= _REMEMBERED:
        head = _remembered(split.rest, model, sizes)
    else:
        head = _read_head(split.rest, model, sizes, MAX_BYTES, charge)
    inputs = head.inputs
    if not split.contents and len(split.raws) == len(inputs):
        raws: dict[str, Buffer] = {one.name: split.raws[one.number] for one in inputs}
        flat: dict[str, str] = {}
    else:
        raws, flat = _items(split, sorted(inputs, key=lambda one: one.number), charge)
    try:
        tensors, over_limit = read_inputs(inputs, b"", raws, limits, charge, flat)
    except WrongItemsError as error:
        raise error.explained(b"") from None
    return Request(call_of(head, model, tensors, over_limit), split.identifier or None, True, head.timeout)


def read_grpc_lookup(split: SplitRequest, limits: Limits, charge: Charge | None) -> LookupRequest:
    """The same of a request to the model `lookup`."""
    document = _document(split.rest, _sizes(split), MAX_FEATURE_BYTES * limits.features, charge)
    fields_, inputs = lookup_head_of_document(document)
    raws, flat = _items(split, list(inputs.values()), charge)
    found = lookup_of_arrays(fields_, inputs, raws, limits, charge, flat)
    outputs = None if found.outputs is None else dict.fromkeys(found.outputs, True)
    return found._replace(identifier=split.identifier or None, binary=True, outputs=outputs)


def repeated_head(split: SplitRequest, model: Model) -> Head | None:
    """What a request that was read says beside its items; None for one that is too long to be remembered."""
    return _remembered(split.rest, model, _sizes(split)) if len(split.rest) <= _REMEMBERED else None


def _sizes(split: SplitRequest) -> tuple[int, ...]:
    return tuple([len(raw) for raw in split.raws])


def _read_head(rest: bytes, model: Model, sizes: Sequence[int], most: int, charge: Charge | None) -> Head:
    return head_of_document(_document(rest, sizes, most, charge), model)


@lru_cache(256)
def _remembered(rest: bytes, model: Model, sizes: tuple[int, ...]) -> Head:
    return _read_head(rest, model, sizes, MAX_BYTES, None)


def _document(rest: bytes, sizes: Sequence[int], most: int, charge: Charge | None) -> dict[str, Any]:
    """What the JSON of a request would be whose items follow it. Raises malformed_request and limit_exceeded."""
    if len(rest) > most:
        detail = f"all but the items of the inputs takes {len(rest)} bytes of at most {most}"
        raise GatherError("limit_exceeded", detail, facts={"limit": "fields_bytes", "maximum": most})
    if charge is not None:
        charge(_OBJECT_BYTES * len(rest))
    try:
        message = ModelInferRequest.FromString(rest)
    except DecodeError:
        raise malformed("the message is no ModelInferRequest") from None
    count = len(message.inputs)
    if sizes and len(sizes) != count:
        raise malformed(f"{len(sizes)} raw_input_contents came for {count} inputs")
    inputs = []
    for number, one in enumerate(message.inputs):
        parameters = _parameters(one.parameters)
        parameters[_SIZE] = sizes[number] if sizes else 0
        shape = list(one.shape)
        inputs.append({"name": one.name, "datatype": one.datatype, "shape": shape, "parameters": parameters})
    return {
        "inputs": inputs,
        "parameters": _parameters(message.parameters),
        "outputs": [{"name": one.name, "parameters": _parameters(one.parameters)} for one in message.outputs] or ABSENT,
    }


def _parameters(given: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters as JSON has them; one without a value is null."""
    found: dict[str, Any] = {}
    for name, parameter in given.items():
        choice = parameter.WhichOneof("parameter_choice")
        value = None if choice is None else getattr(parameter, choice)
        found[name] = Number(repr(value)) if choice == "double_param" else value
    return found


def _items(
    split: SplitRequest, inputs: Sequence[Input], charge: Charge | None
) -> tuple[dict[str, Buffer], dict[str, str]]:
    """The packed items of each input, and the pointers of those that came one by one.

    `inputs` are in their order in the request. Raises invalid_field where some are raw and others not, and what is
    wrong with items in fields: unsupported_dtype, element_count_mismatch, value_not_representable.
    """
    if split.raws:
        for number in split.contents:
            raise invalid_field(
                f"/inputs/{number}/contents",
                "an input has contents beside raw_input_contents, which has the items of all inputs",
                "Send the items of all inputs in raw_input_contents, or of all in contents.",
            )
        return {one.name: split.raws[one.number] for one in inputs}, {}
    chosen = [check_field(one, split.contents.get(one.number, {})) for one in inputs]
    check_datatypes(inputs)
    given = [split.contents.get(one.number, {}).get(field, ()) for one, field in zip(inputs, chosen, strict=True)]
    counts = [count_items(field, values) for field, values in zip(chosen, given, strict=True)]
    for one, field, count in zip(inputs, chosen, counts, strict=True):
        if field:
            check_count(one, field, count)
    packed: dict[str, TypedItems] = {}
    for one, field, values, count in zip(inputs, chosen, given, counts, strict=True):
        packed[one.name] = pack(one, field, values, count, charge) if field else TypedItems(b"", one.pointer)
    return {name: one.items for name, one in packed.items()}, {name: one.pointer for name, one in packed.items()}
