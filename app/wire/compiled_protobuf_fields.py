"""The fields of a protobuf message, found in compiled code: a message of millions of them is refused in milliseconds.

Places are int64; a length of 2^63 or more is negative, and so is refused as every length that leads out of the message.
"""

from __future__ import annotations

from app.llvm_intrinsics import (
    Address,
    Bytes,
    Integers,
    address_of,
    entry,
    inner,
    int64,
    load_u8,
    load_u64,
    store_u8,
    store_u32,
    store_u64,
)
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


@inner
def varint_end(base: Address, at: int, size: int) -> int:
    """Where the varint at `at` ends, or -1 where it does not within `size` bytes."""
    stop = min(at + LONGEST, size)
    while at < stop:
        if load_u8(base + at) < 0x80:
            return at + 1
        at += 1
    return int64(-1)


@inner
def varint(base: Address, at: int, end: int) -> int:
    """The varint in [at, end), modulo 2^64."""
    value = int64(0)
    shift = int64(0)
    while at < end:
        value |= (load_u8(base + at) & 0x7F) << shift
        shift += 7
        at += 1
    return value


@inner
def field_at(base: Address, size: int, at: int, end: int) -> tuple[int, int, int, int]:
    """(fault, tag, where its value begins, its end) of the field at `at`; with a fault, where it was found."""
    begin = varint_end(base, at, size)
    if begin < 0:
        return int64(NO_END), int64(0), at, at
    tag = varint(base, at, begin)
    kind = tag & 7
    if kind == BYTES:
        if begin >= end:
            return int64(NO_LENGTH), tag, at, at
        first = varint_end(base, begin, size)
        if first < 0:
            return int64(NO_END), tag, begin, begin
        length = varint(base, begin, first)
        begin = first
        after = first + length if length >= 0 and length <= end - first else end + 1
    elif kind == VARINT:
        after = varint_end(base, begin, size)
        if after < 0:
            return int64(NO_END), tag, begin, begin
    elif kind == FIXED64:
        after = begin + 8
    elif kind == FIXED32:
        after = begin + 4
    else:
        return int64(WIRE_TYPE), tag, at, at
    if after > end or tag < 8 or tag >= 1 << 32:
        return int64(BEHIND), tag, at, at
    return int64(FINE), tag, begin, after


@entry
def find_fields(
    octets: Bytes, at: int, end: int, wanted: int, outer: int, inner_number: int, most: int, words: Integers
) -> tuple[int, int, int, int, int]:
    """(rows, where to go on, fault, where it is, fields looked at) of the fields in [at, end), until `words` are full.

    There are rows of those whose numbers are bits of `wanted`. A field `outer` is looked into for `inner_number`.
    After `most` fields in all the fault is TOO_MANY.
    """
    base, size = address_of(octets), octets.size
    target, room = address_of(words), words.size // ROW
    inner_tag = inner_number << 3 | BYTES
    rows = int64(0)
    looked = int64(0)
    while at < end and rows < room:
        if looked >= most:
            return rows, at, int64(TOO_MANY), at, looked
        looked += 1
        fault, tag, begin, after = field_at(base, size, at, end)
        if fault != FINE:
            return rows, at, fault, begin, looked
        number, kind = tag >> 3, tag & 7
        if number < 63 and (wanted >> number) & 1:
            row = target + 8 * ROW * rows
            state = int64(NONE)
            if number == outer and kind == BYTES:
                place = begin
                while place < after and state != OTHERWISE:
                    if looked >= most:
                        return rows, at, int64(TOO_MANY), at, looked
                    looked += 1
                    fault, tag, first, stop = field_at(base, size, place, after)
                    if fault != FINE or (tag == inner_tag and state == ONE):
                        state = int64(OTHERWISE)
                    elif tag == inner_tag:
                        state = int64(ONE)
                        store_u64(row + 48, place)
                        store_u64(row + 56, first)
                        store_u64(row + 64, stop)
                    place = stop
            store_u64(row, number)
            store_u64(row + 8, kind)
            store_u64(row + 16, at)
            store_u64(row + 24, begin)
            store_u64(row + 32, after)
            store_u64(row + 40, state)
            rows += 1
        at = after
    return rows, at, int64(FINE), at, looked


@entry
def copy_strings(octets: Bytes, words: Integers, out: Bytes) -> int:
    """Copy the values of the fields in the rows `words` to `out` as frames (see `frame_format`): the bytes used, or -1
    where one is not within `octets` or does not fit.
    """
    base, size = address_of(octets), octets.size
    source, rows = address_of(words), words.size // ROW
    target = address_of(out)
    end = target + out.size
    first = target
    for row in range(rows):
        at = load_u64(source + 8 * (ROW * row + 3))
        after = load_u64(source + 8 * (ROW * row + 4))
        if at < 0 or after < at or after > size or HEAD + after - at > end - target:
            return int64(-1)
        store_u32(target, after - at)
        target += HEAD
        while at < after:
            store_u8(target, load_u8(base + at))
            target += 1
            at += 1
    return target - first


@inner
def copy(base: Address, at: int, after: int, target: Address) -> Address:
    """Copy bytes [at, after) to `target`: where they end there."""
    while at < after:
        store_u8(target, load_u8(base + at))
        target += 1
        at += 1
    return target


@inner
def store_varint(target: Address, value: int) -> Address:
    """Write `value` as a varint: where it ends."""
    while value > 0x7F:
        store_u8(target, value & 0x7F | 0x80)
        value >>= 7
        target += 1
    store_u8(target, value)
    return target + 1


@inner
def store_row(target: Address, count: int, number: int, tag: int, begin: int, end: int) -> int:
    """Write row `count` of those that `cut_fields` finds: how many there are then."""
    row = target + 8 * INNER_ROW * count
    store_u64(row, number)
    store_u64(row + 8, tag)
    store_u64(row + 16, begin)
    store_u64(row + 24, end)
    return count + 1


@entry
def cut_fields(
    octets: Bytes, words: Integers, begin: int, outer: int, inner_number: int, out: Bytes, found: Integers
) -> tuple[int, int, int, int, int, int]:
    """(bytes of `out`, rows of `found`, where to go on, rows done, fault, where it is) of copying bytes from `begin` to
    the last of the fields in the rows `words`, without what is cut out: of fields `outer` the fields of bytes with the
    number `inner_number`, and other fields of bytes as a whole. In `found` there is a row for each that is cut out of a
    field `outer`, with the tag 0, and behind it one for each of its own fields.

    The first number is -1 where a row is not within `octets` or something does not fit.
    """
    base, size = address_of(octets), octets.size
    source, rows = address_of(words), words.size // ROW
    target, target_of_rows = address_of(out), address_of(found)
    first, end, room = target, target + out.size, found.size // INNER_ROW
    outer_tag, inner_tag = outer << 3 | BYTES, inner_number << 3 | BYTES
    count = int64(0)
    for number in range(rows):
        row = source + 8 * ROW * number
        tag = load_u64(row) << 3 | load_u64(row + 8)
        start, at, after = load_u64(row + 16), load_u64(row + 24), load_u64(row + 32)
        if begin < 0 or start < begin or at < start or after < at or after > size:
            return int64(-1), count, begin, number, int64(FINE), begin
        if tag == outer_tag and load_u64(row + 40) != NONE:
            kept = int64(0)
            place = at
            while place < after:
                fault, own, value, stop = field_at(base, size, place, after)
                if fault != FINE:
                    return target - first, count, begin, number, fault, value
                if own == inner_tag:
                    if count >= room:
                        return int64(-1), count, begin, number, int64(FINE), begin
                    count = store_row(target_of_rows, count, number, int64(0), value, stop)
                    while value < stop:
                        fault, own, value, value_end = field_at(base, size, value, stop)
                        if fault != FINE:
                            return target - first, count, begin, number, fault, value
                        if count >= room:
                            return int64(-1), count, begin, number, int64(FINE), begin
                        count = store_row(target_of_rows, count, number, own, value, value_end)
                        value = value_end
                else:
                    kept += stop - place
                place = stop
            if start - begin + 2 * LONGEST + kept > end - target:
                return int64(-1), count, begin, number, int64(FINE), begin
            target = copy(base, begin, start, target)
            target = store_varint(target, outer_tag)
            target = store_varint(target, kept)
            place = at
            while place < after:
                fault, own, value, stop = field_at(base, size, place, after)
                if own != inner_tag:
                    target = copy(base, place, stop, target)
                place = stop
            begin = after
        elif tag != outer_tag and (tag & 7) == BYTES:
            if start - begin > end - target:
                return int64(-1), count, begin, number, int64(FINE), begin
            target = copy(base, begin, start, target)
            begin = after
    return target - first, count, begin, int64(rows), int64(FINE), begin
