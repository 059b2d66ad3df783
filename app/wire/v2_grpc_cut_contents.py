"""The contents of inputs, cut out of a message one input after the other: the values of their fields of items."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.errors import GatherError
from app.tensors.buffer_type import Buffer
from app.wire.little_endian_items import Charge, view_of
from app.wire.protobuf_fields import MessageFields, bits, joined
from app.wire.protobuf_format import BYTES, FIXED32, FIXED64, VARINT
from app.wire.v2_alike_inputs import FEW
from app.wire.v2_grpc_contents import FLOATS, MOST_CHUNKS, STRINGS, VARINTS, Contents, Frames

INPUTS: Final = 5
CONTENTS: Final = 5
"""Numbers of the fields: the inputs of a request, and the contents of an input."""
KIND: Final = dict.fromkeys(VARINTS, VARINT) | {
    number: FIXED32 if size == 4 else FIXED64 for number, size in FLOATS.items()
}
"""Wire types of numbers that are not packed, by the fields that have them."""
_PACKED: Final = bytes(number << 3 | BYTES for number in (*KIND, STRINGS))
"""Tags of packed numbers, and of strings."""
_ITEMS: Final = bits((*KIND, STRINGS))
FRAMED: Final = 3
"""Bytes that a byte of a field of strings takes in frames at most, where that grows: an empty one is two bytes."""
_SHORT: Final = 1 << 8
_TOGETHER: Final = 1 << 17
"""Bytes of a value that is copied with others, and of all of those."""
MOST_PARTS: Final = 16
"""In so many parts the contents of an input may come; senders write them in one."""


class Values(list[Buffer]):
    """The values of a field of numbers, and how often it occurs in the message: short ones are put together."""

    times = 0


def contents_of(message: bytes, at: int, end: int) -> Contents:
    """The contents of the input in bytes [at, end) of a message, which was read before."""
    found: dict[int, Contents] = {}
    cut_contents(message, at, end, None, 0, found, MessageFields(message), None)
    return found[0]


def cut_contents(
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
        places = (field[2:5] for field in fields.find(at, end, 1 << CONTENTS) if field[1] == BYTES)
    for parts, (start, first, after) in enumerate(places):
        if parts == MOST_PARTS:
            raise too_many_parts(number)
        kept.append(message[begin:start])
        begin = after
        # One field of few numbers, packed, or of one short string, as most are: it need not be looked for.
        if after - first > 1 and message[first] in _PACKED and first + 2 + message[first + 1] == after <= first + 0x81:
            value = memoryview(message)[first + 2 : after]
            if message[first] >> 3 == STRINGS:
                _frames(found).add(value)
            else:
                _add(found, message[first] >> 3, value, 1)
        else:
            _read_contents(message, first, after, found, fields, charge)
    kept.append(message[begin:end])
    contents[number] = found
    return b"".join(kept)


def _read_contents(
    message: bytes, at: int, end: int, found: dict[int, list[Buffer]], fields: MessageFields, charge: Charge | None
) -> None:
    for rows in fields.find_rows(at, end, _ITEMS):
        if charge is not None and len(rows) > FEW:
            charge(FRAMED * int((rows[:, 4] - rows[:, 2]).sum()))
        sizes = rows[:, 4] - rows[:, 3]
        if len(rows) <= FEW or int(sizes.max()) > _SHORT or int(sizes.sum()) > _TOGETHER:
            _add_one_by_one(message, rows, found)
            continue
        numbers = rows[:, 0]
        alike = bool((numbers == numbers[0]).all())  # as in every usual request, and much faster to find out than which
        for field in [int(numbers[0])] if alike else np.unique(numbers).tolist():
            _add_together(message, rows if alike else rows[numbers == field], field, found, fields)


def _add_together(
    message: bytes, rows: NDArray[np.int64], field: int, found: dict[int, list[Buffer]], fields: MessageFields
) -> None:
    """Add short values of a field: as one, where none ends in the middle of an item."""
    kinds = rows[:, 1]
    rows = rows[(kinds == BYTES) | (kinds == KIND.get(field, BYTES))]
    begins, ends = rows[:, 3], rows[:, 4]
    sizes = ends - begins
    if field == STRINGS:
        _frames(found).add_framed(fields.frames_of(rows), len(rows))
        return
    octets = view_of(message)
    broken = sizes % FLOATS[field] > 0 if field in FLOATS else octets[ends[sizes > 0] - 1] >= 0x80
    if broken.any() or not len(rows):
        _add_one_by_one(message, rows, found)
        return
    _add(found, field, joined(octets, begins, ends).data, len(rows))


def _add_one_by_one(message: bytes, rows: NDArray[np.int64], found: dict[int, list[Buffer]]) -> None:
    whole = memoryview(message)
    for field, kind, _, first, after, *_ in rows.tolist():
        if field == STRINGS and kind == BYTES:
            _frames(found).add(whole[first:after])
        elif field in KIND and kind in (BYTES, KIND[field]):
            _add(found, field, whole[first:after], 1)


def _add(found: dict[int, list[Buffer]], field: int, value: memoryview, times: int) -> None:
    """Add a value of numbers, which stands for so many of the message."""
    values = found.setdefault(field, Values())
    assert isinstance(values, Values)
    values.append(value)
    values.times += times
    if values.times > MOST_CHUNKS:
        raise GatherError(
            "limit_exceeded",
            f"a field of numbers occurs more than {MOST_CHUNKS} times in a tensor's contents",
            pointer="/inputs",
            facts={"limit": "contents_fields", "maximum": MOST_CHUNKS},
            hint="Send repeated numbers packed, as proto3 does.",
        )


def too_many_parts(number: int) -> GatherError:
    """The error for an input whose contents come in more than MOST_PARTS parts."""
    return GatherError(
        "limit_exceeded",
        f"the contents of an input come in more than {MOST_PARTS} parts",
        pointer=f"/inputs/{number}",
        facts={"limit": "contents_parts", "maximum": MOST_PARTS},
        hint="Send the contents of each input as one message, as protobuf's classes do.",
    )


def _frames(found: dict[int, list[Buffer]]) -> Frames:
    """The strings of an input that were found so far."""
    if not found.get(STRINGS):
        found[STRINGS] = [Frames()]
    frames = found[STRINGS][0]
    assert isinstance(frames, Frames)
    return frames
