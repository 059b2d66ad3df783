"""The fields of a protobuf message, found with Python: the sibling of `compiled_protobuf_fields`."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.tensors.frame_format import HEAD
from app.wire.protobuf_format import (
    BEHIND,
    BYTES,
    FINE,
    FIXED32,
    FIXED64,
    INNER_ROW,
    LONGEST,
    NO_END,
    NO_LENGTH,
    NONE,
    ONE,
    OTHERWISE,
    ROW,
    TOO_MANY,
    VARINT,
    WIRE_TYPE,
)

_FIXED: Final = {FIXED64: 8, FIXED32: 4}


def read_varint(message: memoryview, at: int) -> tuple[int, int]:
    """The varint at `at`, modulo 2^64, and where it ends: -1 where it does not."""
    if at < len(message) and message[at] < 0x80:  # as most are
        return message[at], at + 1
    value = shift = 0
    for place in range(at, min(at + LONGEST, len(message))):
        octet = message[place]
        value |= (octet & 0x7F) << shift
        if octet < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, place + 1
        shift += 7
    return 0, -1


def varint(value: int) -> bytes:
    """The bytes of a number of 0 or more."""
    if value < 0x80:
        return bytes((value,))
    written = bytearray()
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)


def _field_at(message: memoryview, at: int, end: int) -> tuple[int, int, int, int]:
    """See `compiled_protobuf_fields.field_at`."""
    if at + 1 < min(end, len(message)):
        tag, length = message[at], message[at + 1]
        after = at + 2 + length
        if tag & 0x87 == BYTES and tag > BYTES and length < 0x80 and after <= end:  # as of most short fields
            return FINE, tag, at + 2, after
    tag, begin = read_varint(message, at)
    if begin < 0:
        return NO_END, 0, at, at
    kind = tag & 7
    if kind == BYTES:
        if begin >= end:
            return NO_LENGTH, tag, at, at
        length, first = read_varint(message, begin)
        if first < 0:
            return NO_END, tag, begin, begin
        begin, after = first, first + length
    elif kind == VARINT:
        _, after = read_varint(message, begin)
        if after < 0:
            return NO_END, tag, begin, begin
    elif kind in _FIXED:
        after = begin + _FIXED[kind]
    else:
        return WIRE_TYPE, tag, at, at
    if after > end or not 8 <= tag < 1 << 32:
        return BEHIND, tag, at, at
    return FINE, tag, begin, after


def find_fields(
    octets: NDArray[np.uint8],
    at: int,
    end: int,
    wanted: int,
    outer: int,
    inner_number: int,
    most: int,
    words: NDArray[np.int64],
) -> tuple[int, int, int, int, int]:
    """See `compiled_protobuf_fields.find_fields`."""
    message, room = octets.data, words.size // ROW
    found: list[int] = []
    looked, fault, place, inner_tag = 0, FINE, at, inner_number << 3 | BYTES
    while at < end and len(found) < ROW * room:
        if looked >= most:
            fault, place = TOO_MANY, at
            break
        looked += 1
        fault, tag, begin, after = _field_at(message, at, end)
        if fault != FINE:
            place = begin
            break
        number, kind = tag >> 3, tag & 7
        if number < 63 and wanted >> number & 1:
            state, place, inside = NONE, begin, (0, 0, 0)
            while number == outer and kind == BYTES and place < after and state != OTHERWISE and looked < most:
                looked += 1
                wrong, tag, first, stop = _field_at(message, place, after)
                if wrong != FINE or (tag == inner_tag and state == ONE):
                    state = OTHERWISE
                elif tag == inner_tag:
                    state, inside = ONE, (place, first, stop)
                place = stop
            if number == outer and kind == BYTES and place < after and state != OTHERWISE:
                fault, place = TOO_MANY, at
                break
            found += (number, kind, at, begin, after, state, *inside)
        at = after
    words[: len(found)] = found
    return len(found) // ROW, at, fault, place if fault != FINE else at, looked


def copy_strings(octets: NDArray[np.uint8], words: NDArray[np.int64], out: NDArray[np.uint8]) -> int:
    """See `compiled_protobuf_fields.copy_strings`."""
    message, target, pieces = octets.data, 0, list[bytes | memoryview]()
    for at, after in words.reshape(-1, ROW)[:, 3:5].tolist():
        size = after - at
        if at < 0 or size < 0 or after > octets.size or HEAD + size > out.size - target:
            return -1
        pieces.append(size.to_bytes(HEAD, "little"))
        if size:
            pieces.append(message[at:after])
        target += HEAD + size
    out.data[:target] = b"".join(pieces)
    return target


def cut_fields(
    octets: NDArray[np.uint8],
    words: NDArray[np.int64],
    begin: int,
    outer: int,
    inner_number: int,
    out: NDArray[np.uint8],
    found: NDArray[np.int64],
) -> tuple[int, int, int, int, int, int]:
    """See `compiled_protobuf_fields.cut_fields`."""
    message, written, rows = octets.data, bytearray(), list[int]()
    outer_tag, inner_tag, number = outer << 3 | BYTES, inner_number << 3 | BYTES, -1
    fault, fault_at = FINE, -1
    for number, (field, kind, start, at, after, state, *_) in enumerate(words.reshape(-1, ROW).tolist()):
        if not 0 <= begin <= start <= at <= after <= octets.size:
            return -1, len(rows) // INNER_ROW, begin, number, FINE, begin
        tag, kept = field << 3 | kind, list[memoryview]()
        if tag == outer_tag and state != NONE:
            place = at
            while place < after and fault == FINE:
                fault, own, value, stop = _field_at(message, place, after)
                fault_at = value
                if fault == FINE and own == inner_tag:
                    rows += (number, 0, value, stop)
                    if len(rows) > found.size:
                        return -1, len(rows) // INNER_ROW - 1, begin, number, FINE, begin
                    while value < stop:
                        fault, own, value, value_end = _field_at(message, value, stop)
                        if fault != FINE:
                            fault_at = value
                            break
                        rows += (number, own, value, value_end)
                        value = value_end
                        if len(rows) > found.size:
                            return -1, len(rows) // INNER_ROW - 1, begin, number, FINE, begin
                elif fault == FINE:
                    kept.append(message[place:stop])
                place = stop
            if fault != FINE:
                break
            size = sum(map(len, kept))
            if start - begin + 2 * LONGEST + size > out.size - len(written):
                return -1, len(rows) // INNER_ROW, begin, number, FINE, begin
            written += b"".join((message[begin:start], varint(outer_tag), varint(size), *kept))
            begin = after
        elif tag != outer_tag and tag & 7 == BYTES:
            if start - begin > out.size - len(written):
                return -1, len(rows) // INNER_ROW, begin, number, FINE, begin
            written += message[begin:start]
            begin = after
    else:
        number, fault_at = number + 1, begin
    out.data[: len(written)] = written
    found[: len(rows)] = rows
    return len(written), len(rows) // INNER_ROW, begin, number, fault, fault_at
