"""The fields of a protobuf message, found in its bytes without making objects of them (protobuf.dev, "Encoding").

A field is a tag, its number times 8 plus its wire type, and then a varint (wire type 0), 8 bytes (1), 4 bytes (5), or a
length and that many bytes (2). Groups (3 and 4), which proto3 does not have, are refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.compiled_later import CompiledLater
from app.errors import GatherError
from app.tensors.buffer_type import Buffer
from app.tensors.frame_format import HEAD
from app.wire import plain_protobuf_fields
from app.wire.little_endian_items import view_of
from app.wire.protobuf_format import (
    BEHIND,
    FINE,
    INNER_ROW,
    LONGEST,
    NO_END,
    NO_LENGTH,
    NONE,
    ROW,
    TOO_MANY,
    WIRE_TYPE,
)

find_fields: Final = CompiledLater(plain_protobuf_fields.find_fields)
"""Finds the fields of a message, compiled once that is ready."""
copy_strings: Final = CompiledLater(plain_protobuf_fields.copy_strings)
"""Copies the values of fields that were found as strings in frames."""
cut_fields: Final = CompiledLater(plain_protobuf_fields.cut_fields)
"""Copies a message without some of its fields, and finds what is in those."""
_ROWS: Final = 1 << 9
_MANY_ROWS: Final = 1 << 11
"""Fields that are found at a time: at first, and of a message with more of them."""
_UNLIMITED: Final = 1 << 62
Field = Sequence[int]
"""Number and wire type of a field, where its tag and where its value begins, bytes behind their length, and its end;
whether what was looked for within it is there, NONE, ONE or OTHERWISE, and of ONE the same three places."""


def malformed(detail: str) -> GatherError:
    """The error for bytes that are no message."""
    return GatherError(
        "malformed_request", detail, hint="Send a ModelInferRequest of the inference protocol, as its clients write it."
    )


def joined(octets: NDArray[np.uint8], begins: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Bytes [begin, end) of all these places, one behind the other; there is at least one."""
    sizes = ends - begins
    stops = np.cumsum(sizes)
    found: NDArray[np.uint8] = octets[np.arange(stops[-1]) + np.repeat(begins - stops + sizes, sizes)]
    return found


class TooManyFields(Exception):
    """A message has more fields than were to be looked for."""


class CutFields(NamedTuple):
    """What `MessageFields.cut` left of a message, and where it goes on; what it cut out and the fields of that, a row
    each (see `INNER_ROW`); how many fields were done before one with a fault, the fault, and where that is.
    """

    rest: memoryview
    end: int
    inner: NDArray[np.int64]
    done: int
    fault: int
    place: int


class FieldLimit:
    """How many fields may still be looked for in a message and in those that are its fields."""

    __slots__ = ("left",)

    def __init__(self, most: int) -> None:
        self.left = most


def bits(numbers: Iterable[int]) -> int:
    """The numbers of the fields that are wanted, as `MessageFields.find` takes them."""
    return sum(1 << number for number in numbers)


class MessageFields:
    """Finds fields of a message and of those that are its fields, all counted against `limit`."""

    def __init__(self, message: Buffer, limit: FieldLimit | None = None) -> None:
        self._view = view_of(message)
        self._limit = limit or FieldLimit(_UNLIMITED)
        self._words = np.empty(ROW * _ROWS, np.int64)

    def find(self, at: int, end: int, wanted: int, outer: int = 0, inner: int = 0) -> Iterator[Field]:
        """The fields in bytes [at, end) of the message whose numbers are `wanted`, see `bits`.

        Fields of the number `outer` are looked into for those of bytes with the number `inner`. Raises
        malformed_request where the fields are not that long, or are no fields, and TooManyFields.
        """
        for rows in self.find_rows(at, end, wanted, outer, inner):
            yield from rows.tolist()

    def find_rows(self, at: int, end: int, wanted: int, outer: int = 0, inner: int = 0) -> Iterator[NDArray[np.int64]]:
        """The same, some fields at a time: a row for each, which is overwritten when others are looked for."""
        limit = self._limit
        while at < end:
            rows, at, fault, place, looked = find_fields.run(
                self._view, at, end, wanted, outer, inner, limit.left, self._words
            )
            limit.left -= looked
            full = rows == len(self._words) // ROW
            yield self._words[: ROW * rows].reshape(rows, ROW)
            if full and rows < _MANY_ROWS:
                self._words = np.empty(ROW * _MANY_ROWS, np.int64)
            if fault != FINE:
                self.raise_fault(fault, place)

    def frames_of(self, rows: NDArray[np.int64]) -> memoryview:
        """The values of fields that were found, as strings in frames."""
        framed = np.empty(HEAD * len(rows) + int((rows[:, 4] - rows[:, 3]).sum()), np.uint8)
        copied = copy_strings.run(self._view, rows.reshape(-1), framed)
        assert copied == len(framed)
        return framed.data

    def cut(self, rows: NDArray[np.int64], begin: int, outer: int, inner: int) -> CutFields:
        """Bytes from `begin` to the last of the fields that were found, without fields `inner` of fields `outer`, and
        without fields of bytes that are no `outer`. See `find` for `outer` and `inner`. Raises TooManyFields.
        """
        size = int(rows[-1, 4])
        out = np.empty(size - begin + 2 * LONGEST, np.uint8)
        room = min(int((rows[:, 4] - rows[:, 3])[rows[:, 5] != NONE].sum()) // 2, self._limit.left)
        found = np.empty(INNER_ROW * room, np.int64)
        used, count, end, done, fault, place = cut_fields.run(
            self._view, rows.reshape(-1), begin, outer, inner, out, found
        )
        if used < 0:  # there is room for all that there may be, but not for more than the limit says
            raise TooManyFields
        self._limit.left -= count
        return CutFields(out[:used].data, end, found[: INNER_ROW * count].reshape(-1, INNER_ROW), done, fault, place)

    def raise_fault(self, fault: int, place: int) -> None:
        """Raises TooManyFields or malformed_request."""
        if fault == TOO_MANY:
            raise TooManyFields
        if fault == NO_END:
            raise malformed(f"the number at byte {place} of the message does not end")
        if fault == NO_LENGTH:
            raise malformed(f"the field at byte {place} of the message has no length")
        if fault == WIRE_TYPE:
            tag, _ = plain_protobuf_fields.read_varint(self._view.data, place)
            raise malformed(f"the field at byte {place} of the message has the wire type {tag & 7}")
        assert fault == BEHIND
        raise malformed(f"the field at byte {place} of the message ends behind it, or has no number")
