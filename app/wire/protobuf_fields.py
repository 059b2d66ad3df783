"""The fields of a protobuf message, found in its bytes without making objects of them (protobuf.dev, "Encoding").

A field is a tag, its number times 8 plus its wire type, and then a varint (wire type 0), 8 bytes (1), 4 bytes (5), or a
length and that many bytes (2). Groups (3 and 4), which proto3 does not have, are refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from app.errors import GatherError
from app.tensors.buffer_type import Buffer

VARINT: Final = 0
FIXED64: Final = 1
BYTES: Final = 2
FIXED32: Final = 5
_LONGEST: Final = 10
_FIXED: Final = {FIXED64: 8, FIXED32: 4}
Field = tuple[int, int, int, int, int]
"""Number and wire type of a field, where its tag and where its value begins, bytes behind their length, and its end."""


def malformed(detail: str) -> GatherError:
    """The error for bytes that are no message."""
    return GatherError(
        "malformed_request", detail, hint="Send a ModelInferRequest of the inference protocol, as its clients write it."
    )


def read_varint(message: Buffer, at: int) -> tuple[int, int]:
    """The varint at `at`, modulo 2^64, and where it ends. Raises malformed_request."""
    value = shift = 0
    for place in range(at, min(at + _LONGEST, len(message))):
        octet = message[place]
        value |= (octet & 0x7F) << shift
        if octet < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, place + 1
        shift += 7
    raise malformed(f"the number at byte {at} of the message does not end")


class TooManyFields(Exception):
    """A message has more fields than were to be looked for."""


class FieldLimit:
    """How many fields may still be looked for in a message and in those that are its fields."""

    __slots__ = ("left",)

    def __init__(self, most: int) -> None:
        self.left = most


def fields(message: Buffer, at: int, end: int, limit: FieldLimit | None = None) -> Iterator[Field]:
    """The fields in `message[at:end]`, counted against `limit`.

    Raises malformed_request where they are not that long, or are no fields, and TooManyFields.
    """
    while at < end:
        if limit is not None:
            limit.left -= 1
            if limit.left < 0:
                raise TooManyFields
        start = at
        tag = message[at]
        at += 1
        if tag >= 0x80:
            tag, at = read_varint(message, start)
        kind = tag & 7
        if kind == BYTES:
            if at >= end:
                raise malformed(f"the field at byte {start} of the message has no length")
            size = message[at]
            at += 1
            if size >= 0x80:
                size, at = read_varint(message, at - 1)
            after = at + size
        elif kind == VARINT:
            _, after = read_varint(message, at)
        elif kind in _FIXED:
            after = at + _FIXED[kind]
        else:
            raise malformed(f"the field at byte {start} of the message has the wire type {kind}")
        if after > end or not 8 <= tag < 1 << 32:
            raise malformed(f"the field at byte {start} of the message ends behind it, or has no number")
        yield tag >> 3, kind, start, at, after
        at = after


def varint(value: int) -> bytes:
    """The bytes of a number of 0 or more."""
    written = bytearray()
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)
