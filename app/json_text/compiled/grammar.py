"""Checks a body against the whole grammar of JSON, and for repeated keys, in compiled code.

See `app.json_text.grammar`.

Thanks to this check, a large array with one invalid element need not be converted to Python objects.
"""

# Comparisons are spelled out, because that compiles to faster code.
# ruff: noqa: PLR1714, SIM109
from __future__ import annotations

from typing import Final

import numpy as np

from app.compilation.decorators import entry, inner
from app.compilation.intrinsics import (
    Address,
    Bytes,
    Integers,
    address_of,
    int64,
    load_u8,
    load_u64,
    lshr,
    repeat_byte,
    signed,
)
from app.json_text.compiled.characters import (
    ASCII_END,
    BACKSLASH,
    CLOSING_BRACE,
    CLOSING_BRACKET,
    COLON,
    COMMA,
    LETTER_E,
    LOWER,
    MINUS,
    NINE,
    OPENING_BRACE,
    OPENING_BRACKET,
    PLUS,
    POINT,
    QUOTE,
    SPACE,
    ZERO,
    has_text_at,
    read_character,
    read_escape,
    skip_space,
)
from app.json_text.constants import MAX_DEPTH

_MIX: Final = signed(0x9E3779B97F4A7C15)
"""2**64 divided by the golden ratio, made odd (Knuth, The Art of Computer Programming 3, 6.4)."""
_LITERALS: Final = tuple(
    np.frombuffer(text, np.uint8).astype(np.int64) for text in (b"true", b"false", b"null", b"NaN", b"Infinity")
)
_TRUE, _FALSE, _NULL, _NAN, _INFINITY = _LITERALS
_UPPER_HALVES: Final = repeat_byte(0xF0)
_ZEROS: Final = repeat_byte(ZERO)
_SIXES: Final = repeat_byte(6)
_HIGH_BITS: Final = repeat_byte(0x80)
_ONES: Final = repeat_byte(1)
_SPACES: Final = repeat_byte(SPACE)
_QUOTES: Final = repeat_byte(QUOTE)
_BACKSLASHES: Final = repeat_byte(BACKSLASH)


@inner
def _skip_key(base: Address, place: int, end: int, serial: int) -> tuple[int, bool, int]:
    """Check and hash a key; `place` is after its opening quote.

    Returns the place after the closing quote (or of a fault), whether the string is valid, and its hash.
    """
    code = serial * _MIX
    code ^= lshr(code, 29)
    while True:
        if place >= end:
            return place, False, code
        c = load_u8(base + place)
        if c == QUOTE:
            return place + 1, True, code
        if c < SPACE:
            return place, False, code
        place += 1
        if c == BACKSLASH:
            after, c = read_escape(base, place)
            if c < 0:
                return place, False, code
            place = after
        elif c >= ASCII_END:
            after, c = read_character(base, place - 1, end)
            if after < 0:
                return place - 1, False, code
            place = after
        code = (code ^ c) * _MIX
        code ^= lshr(code, 29)


@inner
def _skip_text(base: Address, place: int, end: int) -> tuple[int, bool]:
    """Check a string that is not a key, without hashing it; `place` is after its opening quote.

    Returns the place after the closing quote (or of a fault), and whether the string is valid.
    """
    while True:
        while place + 8 <= end:
            word = load_u64(base + place)
            # No high bit is set if all bytes are ASCII characters from the space upward, other than quotes and
            # backslashes.
            low = word - _SPACES
            if (word | low | ((word ^ _QUOTES) - _ONES) | ((word ^ _BACKSLASHES) - _ONES)) & _HIGH_BITS != 0:
                break
            place += 8
        if place >= end:
            return place, False
        c = load_u8(base + place)
        if c == QUOTE:
            return place + 1, True
        if c < SPACE:
            return place, False
        place += 1
        if c == BACKSLASH:
            after, c = read_escape(base, place)
            if c < 0:
                return place, False
            place = after
        elif c >= ASCII_END:
            after, c = read_character(base, place - 1, end)
            if after < 0:
                return place - 1, False
            place = after


@inner
def _skip_digits(base: Address, place: int, end: int) -> int:
    """Return the first offset at or after `place` that is not a digit."""
    while place + 8 <= end:
        word = load_u64(base + place)
        # A digit's upper four bits are 3, and remain 3 after 6 is added.
        if word & _UPPER_HALVES != _ZEROS or (word + _SIXES) & _UPPER_HALVES != _ZEROS:
            break
        place += 8
    while ZERO <= load_u8(base + place) <= NINE:
        place += 1
    return place


@inner
def _skip_number(base: Address, place: int, end: int) -> int:
    """Return the place after an unsigned JSON number, or -1."""
    first = place
    place = _skip_digits(base, place, end)
    if place == first or (place > first + 1 and load_u8(base + first) == ZERO):
        return -1
    if load_u8(base + place) == POINT:
        first = place + 1
        place = _skip_digits(base, first, end)
        if place == first:
            return -1
    if load_u8(base + place) | LOWER == LETTER_E:
        place += 1
        c = load_u8(base + place)
        first = place + (c == PLUS or c == MINUS)
        place = _skip_digits(base, first, end)
        if place == first:
            return -1
    return place


@entry
def check(view: Bytes, end: int, stack: Integers, keys: Integers, bare: bool) -> tuple[int, int]:
    """See `app.json_text.grammar.check`."""
    base = address_of(view)
    zero = int64(0)
    depth = members = objects = zero
    place = skip_space(base, zero, end)
    while True:
        c = load_u8(base + place)
        opened = c == OPENING_BRACE or c == OPENING_BRACKET
        if opened:
            if depth == MAX_DEPTH:
                return place, members
            depth += 1
            objects += 1
            stack[depth] = objects if c == OPENING_BRACE else 0
            place = skip_space(base, place + 1, end)
        elif c == QUOTE:
            place, fine = _skip_text(base, place + 1, end)
            if not fine:
                return place, members
        elif has_text_at(base, place, _TRUE) or has_text_at(base, place, _NULL):
            place += 4
        elif has_text_at(base, place, _FALSE):
            place += 5
        else:
            stop = _skip_number(base, place + (c == MINUS), end)
            if stop < 0 and bare:
                if has_text_at(base, place, _NAN):
                    stop = place + 3
                elif has_text_at(base, place + (c == MINUS), _INFINITY):
                    stop = place + (c == MINUS) + 8
            if stop < 0:
                return place, members
            place = stop
        while True:  # after a value, or after an opening bracket
            if not opened:
                place = skip_space(base, place, end)
            if depth == 0:
                return -1 if place == end else place, members
            if place >= end:
                return place, members
            c = load_u8(base + place)
            inside = stack[depth]
            if c == (CLOSING_BRACE if inside else CLOSING_BRACKET):
                depth -= 1
                place += 1
                opened = False
                continue
            if not opened:
                if c != COMMA:
                    return place, members
                place = skip_space(base, place + 1, end)
            if inside:
                if load_u8(base + place) != QUOTE:
                    return place, members
                place, fine, code = _skip_key(base, place + 1, end, inside)
                if not fine:
                    return place, members
                if members < keys.size:
                    keys[members] = code
                members += 1
                place = skip_space(base, place, end)
                if load_u8(base + place) != COLON:
                    return place, members
                place = skip_space(base, place + 1, end)
            break
