"""Decodes JSON strings to UTF-8, in compiled code: eight bytes at a time if none is escaped."""

# Comparisons are spelled out, because that compiles to faster code.
# ruff: noqa: PLR1714, SIM109
from __future__ import annotations

from typing import Final

from app.compilation.decorators import inner
from app.compilation.intrinsics import (
    Address,
    count_trailing_zeros,
    load_u8,
    load_u64,
    store_u8,
    store_u32,
    store_u64,
)
from app.json_text.compiled.characters import (
    ASCII_END,
    BACKSLASH,
    HIGH_BITS,
    QUOTE,
    SPACE,
    SURROGATE,
    SURROGATE_BITS,
    escape_marks,
    read_character,
    read_escape,
)
from app.tensors.string_frames import HEAD

LONGEST: Final = 2**32 - 1
"""Maximum number of bytes of a string in a frame."""


@inner
def _copy_plain(base: Address, place: int, stop: int, target: Address) -> tuple[int, Address]:
    """Copy UTF-8 from `place` up to a quote, a backslash or `stop` to `target`.

    Returns the place and the target after the copied text. The place is -1 for a control character or invalid UTF-8.
    `target` must have room for all bytes up to `stop`.
    """
    while place < stop:
        if place + 8 <= stop:
            word = load_u64(base + place)
            marks = (word & HIGH_BITS) | escape_marks(word)  # also marks bytes of 128 or more
            store_u64(target, word)
            if marks == 0:
                place += 8
                target += 8
                continue
            plain = count_trailing_zeros(marks) >> 3
            place += plain
            target += plain
        c = load_u8(base + place)
        if c == QUOTE or c == BACKSLASH:
            break
        if c < SPACE:
            return -1, target
        after = place + 1
        if c >= ASCII_END:
            after, _ = read_character(base, place, stop)
            if after < 0:
                return -1, target
        while place < after:
            store_u8(target, load_u8(base + place))
            place += 1
            target += 1
    return place, target


@inner
def _store_utf8(target: Address, code: int) -> Address:
    """Store the UTF-8 encoding of the code point `code`. Returns the target after it."""
    if code < 0x80:
        store_u8(target, code)
        return target + 1
    if code < 0x800:
        store_u8(target, 0xC0 | code >> 6)
    elif code < 0x10000:
        store_u8(target, 0xE0 | code >> 12)
    else:
        store_u8(target, 0xF0 | code >> 18)
        target += 1
        store_u8(target, 0x80 | code >> 12 & 0x3F)
    if code >= 0x800:
        target += 1
        store_u8(target, 0x80 | code >> 6 & 0x3F)
    store_u8(target + 1, 0x80 | code & 0x3F)
    return target + 2


@inner
def parse_string(base: Address, place: int, end: int, target: Address) -> tuple[int, Address]:
    """Decode the string whose opening quote is at `place` into a frame at `target`.

    Returns the place and the target after the string. The place is -1 if there is no valid JSON string, or if it
    contains a lone surrogate.
    """
    frame = target
    if load_u8(base + place) != QUOTE:
        return -1, frame
    place += 1
    target += HEAD
    while True:
        place, target = _copy_plain(base, place, end, target)
        if place < 0 or place >= end:
            return -1, frame
        c = load_u8(base + place)
        place += 1
        if c == QUOTE:
            length = target - frame - HEAD
            if length > LONGEST:
                return -1, frame
            store_u32(frame, length)
            return place, target
        place, c = read_escape(base, place)
        if c < 0 or c & SURROGATE_BITS == SURROGATE:
            return -1, frame
        target = _store_utf8(target, c)
