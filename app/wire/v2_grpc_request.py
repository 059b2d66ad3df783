"""A `ModelInferRequest` of the inference protocol over gRPC: its bytes to a `Call`.

As of a JSON body the arrays are cut out, as views of the message; the rest, names, shapes and parameters, is read by
protobuf, becomes what the JSON of the same request would be, and is validated by the same models. Requests repeat
themselves, but for their items and their id: a rest that came before is recognised by its bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import repeat
from operator import attrgetter
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
from app.wire.plain_protobuf_fields import varint
from app.wire.protobuf_fields import FieldLimit, MessageFields, bits, malformed
from app.wire.protobuf_format import BYTES, FINE, NONE, ONE
from app.wire.request_schemas.members import ABSENT
from app.wire.v2_alike_inputs import InputItems
from app.wire.v2_grpc_contents import Contents, check_count, check_field, count_items, pack, place_of
from app.wire.v2_grpc_cut_contents import CONTENTS, FRAMED, INPUTS, MOST_PARTS, cut_contents, too_many_parts
from app.wire.v2_grpc_short_contents import ShortContents, have_contents, read_contents, segments
from app.wire.v2_lookup import LookupRequest, inputs_by_name, lookup_head_of_document, lookup_of_arrays
from app.wire.v2_request_json import Head, Input, Model, head_of_document
from app.wire.v2_request_tensors import Request, WrongItemsError, call_of, check_datatypes, read_inputs

_NAME, _VERSION = 1, 2
ID: Final = 3
RAW: Final = 7
"""Numbers of the fields that differ from one request to the next: its id, and raw_input_contents."""
_OBJECT_BYTES: Final = 96
"""Bytes that a byte of the rest takes as objects at most: an input of two bytes is a message of protobuf's."""
_REMEMBERED: Final = 1 << 10
_SIZE: Final = "binary_data_size"
_PARAMETERS: Final = attrgetter("parameters")
_WANTED: Final = bits((_NAME, _VERSION, ID, INPUTS, RAW))
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
_BLOCK: Final = 256
"""So many arrays are charged at a time."""


class SplitRequest(NamedTuple):
    """A message without its arrays: `rest` is a message too, without model, version and id, which stand beside it.

    `raws` are the values of raw_input_contents, `contents` those of each input that has contents, by its number, and
    `short` those of inputs that are many and have few items each.
    """

    model: str
    version: str
    identifier: str
    rest: bytes
    raws: Sequence[memoryview]
    contents: Mapping[int, Contents]
    short: ShortContents | None

    @property
    def is_heavy(self) -> bool:
        """Whether reading the request takes so long that it is not for the event loop: its items, or all else."""
        size = 0 if self.short is None else len(self.short.octets) + len(self.short.frames)
        size += sum(len(value) for one in self.contents.values() for values in one.values() for value in values)
        return len(self.rest) > LONG_REST or size > 1 << 16

    @property
    def first_contents(self) -> int | None:
        """The number of the first input that has contents, None where none has."""
        first = [next(iter(self.contents))] if self.contents else []
        if self.short is not None:
            first.append(int(self.short.numbers[0]))
        return min(first, default=None)


def split(
    message: bytes, charge: Charge | None = None, limit: FieldLimit | None = None, most: int = MOST_INPUTS
) -> SplitRequest:
    """Cut the arrays out of a message that may have so many inputs.

    Raises malformed_request and limit_exceeded, and with `limit` TooManyFields.
    """
    return _Splitter(message, charge, limit, most).split()


class _Splitter:
    """Cuts the arrays out of a message: `kept` is what was left of it up to `end`."""

    def __init__(self, message: bytes, charge: Charge | None, limit: FieldLimit | None, most: int) -> None:
        self._message = message
        self._whole = memoryview(message)
        self._charge = charge
        self._most = most
        self._fields = MessageFields(message, limit)
        self._texts = {_NAME: "", _VERSION: "", ID: ""}
        self._kept: list[Buffer] = []
        self._raws: list[memoryview] = []
        self._contents: dict[int, Contents] = {}
        self._short: ShortContents | None = None
        self._inputs = self._with_contents = self._names = self._end = 0

    def split(self) -> SplitRequest:
        """See the function."""
        kept, charge = self._kept, self._charge
        for rows in self._fields.find_rows(0, len(self._message), _WANTED, INPUTS, CONTENTS):
            for together, some in segments(rows):
                if together:
                    self._cut_together(some)
                else:
                    self._cut_one_by_one(some)
        kept.append(self._whole[self._end :])
        size = sum(map(len, kept))
        if charge is not None and size > LONG_REST:
            charge(size)
        model, version, identifier = self._texts.values()
        return SplitRequest(model, version, identifier, b"".join(kept), self._raws, self._contents, self._short)

    def _cut_one_by_one(self, rows: NDArray[np.int64]) -> None:
        kept, whole = self._kept, self._whole
        for number, kind, start, at, after, inside, own_start, own_first, own_after in rows.tolist():
            if kind != BYTES:
                continue
            if number == INPUTS:
                self._inputs += 1
                if self._inputs > self._most:
                    raise _too_many_inputs(self._most)
                if inside == NONE:
                    continue
                places = ((own_start, own_first, own_after),) if inside == ONE else None
                shortened = cut_contents(
                    self._message, at, after, places, self._inputs - 1, self._contents, self._fields, self._charge
                )
                kept += (whole[self._end : start], b"\x2a", varint(len(shortened)), shortened)
                self._count_contents(1)
            else:
                self._take(number, start, at, after)
                if start > self._end:
                    kept.append(whole[self._end : start])
            self._end = after

    def _cut_together(self, rows: NDArray[np.int64]) -> None:
        cut = self._fields.cut(rows, self._end, INPUTS, CONTENTS)
        is_input = (rows[:, 0] == INPUTS) & (rows[:, 1] == BYTES)
        have = have_contents(rows)
        numbers = self._inputs + np.cumsum(is_input) - 1
        # Of several faults the one that comes first in the message is told.
        beyond = _first(is_input & (numbers >= self._most))
        beyond_contents = _first(have & (self._with_contents + np.cumsum(have) > _MOST_CONTENTS))
        parts = np.bincount(cut.inner[cut.inner[:, 1] == 0, 0], minlength=len(rows))
        beyond_parts = _first(parts > MOST_PARTS)
        fault = cut.done if cut.fault != FINE else len(rows)
        read = rows[: min(beyond, beyond_parts, fault, beyond_contents)]
        for number, _, start, at, after, *_ in read[(read[:, 1] == BYTES) & (read[:, 0] != INPUTS)].tolist():
            self._take(number, start, at, after)
        if beyond < len(rows) and beyond <= min(beyond_parts, fault, beyond_contents):
            raise _too_many_inputs(self._most)
        if beyond_parts < len(rows) and beyond_parts <= min(fault, beyond_contents):
            raise too_many_parts(int(numbers[beyond_parts]))
        if fault < len(rows) and fault <= beyond_contents:
            self._fields.raise_fault(cut.fault, cut.place)
        self._count_contents(int(np.count_nonzero(have)))
        if self._charge is not None:
            self._charge(FRAMED * int((rows[:, 4] - rows[:, 3])[have].sum()))
        if self._short is None:
            self._short = ShortContents(self._message)
        self._short.add(numbers, rows, cut.inner)
        self._inputs = int(numbers[-1]) + 1
        self._kept.append(cut.rest)
        self._end = cut.end

    def _take(self, number: int, start: int, at: int, after: int) -> None:
        """Take the value of a field that is no input."""
        if number == RAW:
            if len(self._raws) == self._most:
                raise malformed(f"there are more than {self._most} raw_input_contents")
            self._raws.append(self._whole[at:after])
            if self._charge is not None and len(self._raws) % _BLOCK == 0:
                self._charge(_BLOCK * _RAW_BYTES)
            return
        self._names += 1
        if self._names > _MOST_NAMES:
            raise malformed(f"model_name, model_version and id occur more than {_MOST_NAMES} times")
        try:
            self._texts[number] = self._message[at:after].decode()
        except UnicodeDecodeError:
            raise malformed(f"the string at byte {start} of the message is not UTF-8") from None

    def _count_contents(self, count: int) -> None:
        """Charge for so many more inputs with contents. Raises limit_exceeded."""
        charged = self._with_contents // _BLOCK
        self._with_contents += count
        if self._with_contents > _MOST_CONTENTS:
            raise GatherError(
                "limit_exceeded",
                f"more than {_MOST_CONTENTS} inputs have contents",
                pointer="/inputs",
                facts={"limit": "contents", "maximum": _MOST_CONTENTS},
                hint="Send the items of all inputs in raw_input_contents.",
            )
        blocks = self._with_contents // _BLOCK - charged
        if self._charge is not None and blocks:
            self._charge(blocks * _BLOCK * _CONTENTS_BYTES)


def _first(faults: NDArray[np.bool_]) -> int:
    """The number of the first row with a fault, that of all rows where none has one."""
    return int(np.argmax(faults)) if faults.any() else len(faults)


def _too_many_inputs(most: int) -> GatherError:
    features = most // len(ARRAYS)
    return GatherError(
        "limit_exceeded",
        f"the request has more than {most} inputs, of which a lookup has {len(ARRAYS)} for each feature at most",
        pointer="/inputs",
        facts={"limit": "features", "maximum": features},
        hint=f"Send at most {features} features in a request, or have the operator raise GATHERND_MAX_FEATURES.",
    )


def read_grpc_request(split: SplitRequest, model: Model, limits: Limits, charge: Charge | None) -> Request:
    """What a request to a model of an operator asks for; refused in the same order as over REST."""
    sizes = _sizes(split)
    if len(split.rest) <= _REMEMBERED:
        head = _remembered(split.rest, model, sizes)
    else:
        head = _read_head(split.rest, model, sizes, MAX_BYTES, charge)
    inputs = head.inputs
    if len(split.raws) == len(inputs) and split.first_contents is None:
        items = InputItems({one.name: split.raws[one.number] for one in inputs})
    else:
        items = _items(split, sorted(inputs, key=lambda one: one.number), charge)
    try:
        tensors, over_limit = read_inputs(inputs, b"", items, limits, charge)
    except WrongItemsError as error:
        raise error.explained(b"") from None
    return Request(call_of(head, model, tensors, over_limit), split.identifier or None, True, head.timeout)


def read_grpc_lookup(split: SplitRequest, limits: Limits, charge: Charge | None) -> LookupRequest:
    """The same of a request to the model `lookup`."""
    sizes = _sizes(split)
    message = _message(split.rest, sizes, MAX_FEATURE_BYTES * limits.features, charge)
    outputs = limits.features + 1
    plain = _plain_inputs(list(message.inputs), sizes)
    described = len(message.inputs) if plain is None else 0
    fields_, inputs = lookup_head_of_document(_document(message, sizes, described, outputs))
    if plain is not None:
        inputs = inputs_by_name(plain)
    found = lookup_of_arrays(fields_, inputs, _items(split, list(inputs.values()), charge), limits, charge)
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
        shape = one.shape[:]
        described.append({"name": one.name, "datatype": one.datatype, "shape": shape, "parameters": parameters})
    asked = [{"name": one.name, "parameters": _parameters(one.parameters)} for one in message.outputs[:outputs]]
    return {"inputs": described, "parameters": _parameters(message.parameters), "outputs": asked or ABSENT}


def _plain_inputs(inputs: Sequence[Any], sizes: Sequence[int]) -> list[Input] | None:
    """The inputs, or None where one of them may have a fault that the JSON's models find.

    They do not where it has no parameters and no negative dimension: protobuf has seen to the types of its members.
    """
    # Not tuple(one.shape), which takes five times as long, and not one loop over all of them.
    shapes = [tuple(one.shape[:]) for one in inputs]
    if any(map(_PARAMETERS, inputs)) or any(min(shape) < 0 for shape in set(shapes) if shape):
        return None
    datatypes = [one.datatype for one in inputs]
    members = (
        [one.name for one in inputs], datatypes, map(BY_OIP.get, datatypes), shapes, sizes or repeat(0),
        repeat(0), repeat(0), repeat(0),
    )  # fmt: skip
    return list(map(Input._make, zip(range(len(inputs)), *members, strict=False)))


def _parameters(given: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters as JSON has them; one without a value is null."""
    found: dict[str, Any] = {}
    for name, parameter in given.items():
        choice = parameter.WhichOneof("parameter_choice")
        value = None if choice is None else getattr(parameter, choice)
        found[name] = Number(repr(value)) if choice == "double_param" else value
    return found


def _items(split: SplitRequest, inputs: Sequence[Input], charge: Charge | None) -> InputItems:
    """The items of the inputs, which are in their order in the request. Raises invalid_field where some are raw and
    others not, and what is wrong with items in fields: unsupported_dtype, element_count_mismatch,
    value_not_representable.
    """
    if split.raws:
        number = split.first_contents
        if number is not None:
            raise invalid_field(
                f"/inputs/{number}/contents",
                "an input has contents beside raw_input_contents, which has the items of all inputs",
                "Send the items of all inputs in raw_input_contents, or of all in contents.",
            )
        return InputItems({one.name: split.raws[one.number] for one in inputs})
    if split.short is not None:
        return read_contents(split.short, split.contents, inputs, charge)
    chosen = [check_field(one, split.contents.get(one.number, {})) for one in inputs]
    check_datatypes(inputs)
    given = [split.contents.get(one.number, {}).get(field, ()) for one, field in zip(inputs, chosen, strict=True)]
    counts = [count_items(field, values) for field, values in zip(chosen, given, strict=True)]
    for one, field, count in zip(inputs, chosen, counts, strict=True):
        if field:
            check_count(one, field, count)
    packed = [
        pack(one, field, values, count, charge) if field else b""
        for one, field, values, count in zip(inputs, chosen, given, counts, strict=True)
    ]
    names = [one.name for one in inputs]
    return InputItems(dict(zip(names, packed, strict=True)), dict(zip(names, map(place_of, chosen), strict=True)))
