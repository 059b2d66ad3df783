"""A `ModelInferRequest` of the inference protocol over gRPC: its bytes to a `Call`.

As of a JSON body the arrays are cut out, as views of the message; the rest, names, shapes and parameters, is read by
protobuf, becomes what the JSON of the same request would be, and is validated by the same models. Requests repeat
themselves, but for their items and their id: a rest that came before is recognised by its bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from app.errors import GatherError, invalid_field
from app.tensors.buffer_type import Buffer
from app.tensors.dtypes import BY_OIP
from app.tensors.lookup_call import ARRAYS
from app.tensors.shape_limits import Limits
from app.wire.grpc_messages.classes import ModelInferRequest
from app.wire.json.body_without_arrays import MAX_BYTES
from app.wire.json.lookup_messages import MAX_FEATURE_BYTES
from app.wire.json.lossless_json import Number
from app.wire.little_endian_items import Charge
from app.wire.protobuf_fields import FieldLimit, MessageFields, bits, malformed, varint
from app.wire.protobuf_format import BYTES, FIXED32, FIXED64, NONE, ONE, VARINT
from app.wire.request_schemas.members import ABSENT
from app.wire.v2_alike_inputs import FEW
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
    pack_small,
)
from app.wire.v2_lookup import LookupRequest, inputs_by_name, lookup_head_of_document, lookup_of_arrays
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
_WANTED: Final = bits((_NAME, _VERSION, ID, _INPUTS, RAW))
_PACKED: Final = bytes(number << 3 | BYTES for number in (*_CONTENTS_KIND, STRINGS))
"""Tags of packed numbers, and of strings."""
_ITEMS: Final = bits((*_CONTENTS_KIND, STRINGS))
MOST_INPUTS: Final = len(ARRAYS) << 16
"""A lookup has three arrays for each feature, of which GATHERND_MAX_FEATURES may allow 65536."""
_MOST_NAMES: Final = 1 << 10
"""So often the name, the version and the id may occur in all; senders write each once, and the last one counts."""
_MOST_CONTENTS: Final = 1 << 14
"""Inputs with contents of their own; more arrays than these come raw."""
_RAW_BYTES, _CONTENTS_BYTES = 256, 2048
"""Bytes that the objects take which stand for a raw array, and for an input's contents."""
LONG_REST: Final = 1 << 12
"""A longer rest is for a thread: an input of two bytes takes 1.5 microseconds, one with a parameter six."""
_FRAMED: Final = 3
"""Bytes that a byte of a field of strings takes in frames at most, where that grows: an empty one is two bytes."""
_SHORT: Final = 1 << 8
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


def split(
    message: bytes, charge: Charge | None = None, limit: FieldLimit | None = None, most: int = MOST_INPUTS
) -> SplitRequest:
    """Cut the arrays out of a message that may have so many inputs.

    Raises malformed_request and limit_exceeded, and with `limit` TooManyFields.
    """
    whole = memoryview(message)
    texts = {_NAME: "", _VERSION: "", ID: ""}
    kept: list[Buffer] = []
    raws: list[memoryview] = []
    contents: dict[int, Contents] = {}
    inputs = names = end = 0
    found = MessageFields(message, limit)
    fields = found.find(0, len(message), _WANTED, _INPUTS, _CONTENTS)
    for number, kind, start, at, after, inside, own_start, own_first, own_after in fields:
        if kind != BYTES:
            continue
        if number == _INPUTS:
            inputs += 1
            if inputs > most:
                raise _too_many_inputs(most)
            if inside == NONE:
                continue
            places = ((own_start, own_first, own_after),) if inside == ONE else None
            shortened = _cut_contents(message, at, after, places, inputs - 1, contents, found, charge)
            kept += (whole[end:start], b"\x2a", varint(len(shortened)), shortened)
            _check_contents(len(contents), charge)
        else:
            if number == RAW:
                if len(raws) == most:
                    raise malformed(f"there are more than {most} raw_input_contents")
                raws.append(whole[at:after])
                if charge is not None and len(raws) % _BLOCK == 0:
                    charge(_BLOCK * _RAW_BYTES)
            else:
                names += 1
                if names > _MOST_NAMES:
                    raise malformed(f"model_name, model_version and id occur more than {_MOST_NAMES} times")
                try:
                    texts[number] = message[at:after].decode()
                except UnicodeDecodeError:
                    raise malformed(f"the string at byte {start} of the message is not UTF-8") from None
            if start > end:
                kept.append(whole[end:start])
        end = after
    kept.append(whole[end:])
    size = sum(map(len, kept))
    if charge is not None and size > LONG_REST:
        charge(size)
    return SplitRequest(texts[_NAME], texts[_VERSION], texts[ID], b"".join(kept), raws, contents)


def _too_many_inputs(most: int) -> GatherError:
    features = most // len(ARRAYS)
    return GatherError(
        "limit_exceeded",
        f"the request has more than {most} inputs, of which a lookup has {len(ARRAYS)} for each feature at most",
        pointer="/inputs",
        facts={"limit": "features", "maximum": features},
        hint=f"Send at most {features} features in a request, or have the operator raise GATHERND_MAX_FEATURES.",
    )


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
    message: bytes,
    at: int,
    end: int,
    places: Iterable[Sequence[int]] | None,
    number: int,
    contents: dict[int, Contents],
    fields: MessageFields,
    charge: Charge | None,
) -> bytes:
    """An input without its contents, which are added to `contents`; None for `places` where those are not known."""
    found: dict[int, list[Buffer]] = {}
    kept: list[bytes] = []
    begin = at
    if places is None:
        places = (field[2:5] for field in fields.find(at, end, 1 << _CONTENTS) if field[1] == BYTES)
    for start, first, after in places:
        kept.append(message[begin:start])
        begin = after
        # One field of few numbers, packed, or of one short string, as most are: it need not be looked for.
        if after - first > 1 and message[first] in _PACKED and first + 2 + message[first + 1] == after <= first + 0x81:
            value = memoryview(message)[first + 2 : after]
            if message[first] >> 3 == STRINGS:
                _frames(found).add(value)
            else:
                found.setdefault(message[first] >> 3, []).append(value)
        else:
            _read_contents(message, first, after, found, fields, charge)
    kept.append(message[begin:end])
    contents[number] = found
    return b"".join(kept)


def _read_contents(
    message: bytes, at: int, end: int, found: dict[int, list[Buffer]], fields: MessageFields, charge: Charge | None
) -> None:
    whole = memoryview(message)
    for rows in fields.find_rows(at, end, _ITEMS):
        if charge is not None and len(rows) > FEW:
            charge(_FRAMED * int((rows[:, 4] - rows[:, 2]).sum()))
        if len(rows) > FEW and (rows[:, 0] == STRINGS).all() and _are_short_texts(rows):
            _frames(found).add_framed(fields.frames_of(rows), len(rows))
            continue
        for field, kind, _, first, after, *_ in rows.tolist():
            if field == STRINGS and kind == BYTES:
                _frames(found).add(whole[first:after])
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


def _are_short_texts(rows: NDArray[np.int64]) -> bool:
    """Whether all of the fields have bytes, and so few that they are copied byte by byte in no time."""
    return bool((rows[:, 1] == BYTES).all()) and int((rows[:, 4] - rows[:, 3]).max()) <= _SHORT


def _frames(found: dict[int, list[Buffer]]) -> Frames:
    """The strings of an input that were found so far."""
    if not found.get(STRINGS):
        found[STRINGS] = [Frames()]
    frames = found[STRINGS][0]
    assert isinstance(frames, Frames)
    return frames


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
    sizes = _sizes(split)
    message = _message(split.rest, sizes, MAX_FEATURE_BYTES * limits.features, charge)
    outputs = limits.features + 1
    plain = _plain_inputs(message.inputs, sizes)
    described = len(message.inputs) if plain is None else 0
    fields_, inputs = lookup_head_of_document(_document(message, sizes, described, outputs))
    if plain is not None:
        inputs = inputs_by_name(plain)
    raws, flat = _items(split, list(inputs.values()), charge)
    found = lookup_of_arrays(fields_, inputs, raws, limits, charge, flat)
    asked = None if found.outputs is None else dict.fromkeys(found.outputs, True)
    return found._replace(identifier=split.identifier or None, binary=True, outputs=asked)


def repeated_head(split: SplitRequest, model: Model) -> Head | None:
    """What a request that was read says beside its items; None for one that is too long to be remembered."""
    return _remembered(split.rest, model, _sizes(split)) if len(split.rest) <= _REMEMBERED else None


def _sizes(split: SplitRequest) -> tuple[int, ...]:
    return tuple([len(raw) for raw in split.raws])


def _read_head(rest: bytes, model: Model, sizes: Sequence[int], most: int, charge: Charge | None) -> Head:
    message = _message(rest, sizes, most, charge)
    # Of more inputs than the model has, the first one that it has not, or has already, is refused; so is an output.
    return head_of_document(_document(message, sizes, len(model.inputs) + 1, 2), model)


@lru_cache(256)
def _remembered(rest: bytes, model: Model, sizes: tuple[int, ...]) -> Head:
    return _read_head(rest, model, sizes, MAX_BYTES, None)


def _message(rest: bytes, sizes: Sequence[int], most: int, charge: Charge | None) -> Any:
    """The `ModelInferRequest` of a message without its arrays. Raises malformed_request and limit_exceeded."""
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
    return message


def _document(message: Any, sizes: Sequence[int], inputs: int, outputs: int) -> dict[str, Any]:
    """What the JSON of a request would be whose items follow it, with so many inputs and outputs at most."""
    described = []
    for number, one in enumerate(message.inputs[:inputs]):
        parameters = _parameters(one.parameters)
        parameters[_SIZE] = sizes[number] if sizes else 0
        shape = list(one.shape)
        described.append({"name": one.name, "datatype": one.datatype, "shape": shape, "parameters": parameters})
    asked = [{"name": one.name, "parameters": _parameters(one.parameters)} for one in message.outputs[:outputs]]
    return {"inputs": described, "parameters": _parameters(message.parameters), "outputs": asked or ABSENT}


def _plain_inputs(inputs: Iterable[Any], sizes: Sequence[int]) -> list[Input] | None:
    """The inputs, or None where one of them may have a fault that the JSON's models find.

    They do not where it has no parameters and no negative dimension: protobuf has seen to the types of its members.
    """
    found = []
    for number, one in enumerate(inputs):
        shape, datatype = tuple(one.shape), one.datatype
        if one.parameters or (shape and min(shape) < 0):
            return None
        size = sizes[number] if sizes else 0
        found.append(Input(number, one.name, datatype, BY_OIP.get(datatype), shape, size, 0, 0, 0))
    return found


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
    small = pack_small(inputs, chosen, given, counts, charge) if len(inputs) > FEW else {}
    packed: dict[str, TypedItems] = {}
    for place, (one, field, values, count) in enumerate(zip(inputs, chosen, given, counts, strict=True)):
        if place in small:
            packed[one.name] = small[place]
        else:
            packed[one.name] = pack(one, field, values, count, charge) if field else TypedItems(b"", one.pointer)
    return {name: one.items for name, one in packed.items()}, {name: one.pointer for name, one in packed.items()}
