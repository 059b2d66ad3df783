"""JSON's characters (RFC 8259), and compiled functions that skip strings, lists and objects.

All functions take the address of a body and byte offsets (`place`) into it. They never read beyond what is documented.
"""

# Comparisons are spelled out, because that compiles to faster code.
# ruff: noqa: PLR1714, SIM109, SIM110
from __future__ import annotations

from typing import Final

from app.compilation.decorators import inlined, inner
from app.compilation.intrinsics import (
    Address,
    Integers,
    count_trailing_zeros,
    find_string_ends,
    find_structure,
    load_u8,
    repeat_byte,
)
from app.json_text.constants import MAX_DEPTH

SPACE: Final = ord(" ")
TAB: Final = ord("\t")
NEWLINE: Final = ord("\n")
RETURN: Final = ord("\r")
QUOTE: Final = ord('"')
BACKSLASH: Final = ord("\\")
SLASH: Final = ord("/")
COMMA: Final = ord(",")
COLON: Final = ord(":")
OPENING_BRACKET: Final = ord("[")
CLOSING_BRACKET: Final = ord("]")
OPENING_BRACE: Final = ord("{")
CLOSING_BRACE: Final = ord("}")
MINUS: Final = ord("-")
PLUS: Final = ord("+")
POINT: Final = ord(".")
ZERO: Final = ord("0")
NINE: Final = ord("9")
LETTER_E: Final = ord("e")
LETTER_U: Final = ord("u")
LOWER: Final = 0x20
"""The bit that converts an ASCII capital to lowercase."""
ASCII_END: Final = 0x80
SURROGATE: Final = 0xD800
SURROGATE_BITS: Final = 0xFFFFF800
"""A code point is a surrogate if these bits are those of SURROGATE (The Unicode Standard, 3.8)."""
_HALF_BITS: Final = 0xFFFFFC00
_LOW_SURROGATE: Final = 0xDC00
_BEYOND_16_BITS: Final = 0x10000
_LAST_CHARACTER: Final = 0x10FFFF
_BACKSPACE: Final = ord("\b")
_FORM_FEED: Final = ord("\f")
_LETTER_A, _LETTER_B, _LETTER_F, _LETTER_N, _LETTER_R, _LETTER_T = b"abfnrt"
_OPENS: Final = 0x02
"""Of the five characters that `find_structure` finds, only [ and { have this bit."""
_BLOCK: Final = 64
"""Number of bytes that are searched at a time."""
HIGH_BITS: Final = repeat_byte(0x80)
_ONES: Final = repeat_byte(1)
_SPACES: Final = repeat_byte(SPACE)
_QUOTES: Final = repeat_byte(QUOTE)
_BACKSLASHES: Final = repeat_byte(BACKSLASH)


@inlined
def escape_marks(word: int) -> int:
    """Mark the bytes of a word that need escaping by setting their high bits. Returns 0 if there are none.

    Only the first mark is reliable; later bytes may be marked wrongly.
    """
    quotes, slashes = word ^ _QUOTES, word ^ _BACKSLASHES
    marks = ((word - _SPACES) & ~word) | ((quotes - _ONES) & ~quotes) | ((slashes - _ONES) & ~slashes)
    return marks & HIGH_BITS


@inner
def is_space(c: int) -> bool:
    """Return True if `c` is one of JSON's four white-space characters."""
    return c == SPACE or c == NEWLINE or c == RETURN or c == TAB


@inner
def skip_space(base: Address, place: int, end: int) -> int:
    """Return the first offset at or after `place` that is not white space."""
    while place < end and is_space(load_u8(base + place)):
        place += 1
    return place


@inner
def has_text_at(base: Address, place: int, text: Integers) -> bool:
    """Return True if `text` is at `place`. Reads no further than the first byte that differs."""
    for i in range(text.size):
        if load_u8(base + place + i) != text[i]:
            return False
    return True


@inner
def skip_string(base: Address, place: int, end: int) -> tuple[int, bool]:
    """Skip a string; `place` is after its opening quote.

    Returns the place after the closing quote, or -1, and whether the string has a backslash.
    """
    escaped = False
    while place + _BLOCK <= end:
        marks = find_string_ends(base + place)
        if marks == 0:
            place += _BLOCK
            continue
        place += count_trailing_zeros(marks)
        if load_u8(base + place) == QUOTE:
            return place + 1, escaped
        escaped = True
        place += 2
    while place < end:
        c = load_u8(base + place)
        if c == QUOTE:
            return place + 1, escaped
        if c == BACKSLASH:
            escaped = True
            place += 1
        place += 1
    return -1, escaped


@inner
def skip_nested(base: Address, place: int, end: int, depth: int) -> int:
    """Skip a list or an object; `place` is at its opening bracket or brace, at depth `depth`.

    Returns the place after the closing bracket or brace, or -1 if there is none or the nesting is too deep.
    """
    outside = depth
    while place < end:
        if place + _BLOCK <= end:
            marks = find_structure(base + place)
            if marks == 0:
                place += _BLOCK
                continue
            block = place
            place = block + _BLOCK
            while marks != 0:
                here = block + count_trailing_zeros(marks)
                c = load_u8(base + here)
                if c == QUOTE:
                    place, _ = skip_string(base, here + 1, end)
                    if place < 0:
                        return -1
                    break
                if c & _OPENS != 0:
                    depth += 1
                    if depth > MAX_DEPTH:
                        return -1
                else:
                    depth -= 1
                    if depth == outside:
                        return here + 1
                marks &= marks - 1
            continue
        c = load_u8(base + place)
        place += 1
        if c == QUOTE:
            place, _ = skip_string(base, place, end)
            if place < 0:
                return -1
        elif c == OPENING_BRACKET or c == OPENING_BRACE:
            depth += 1
            if depth > MAX_DEPTH:
                return -1
        elif c == CLOSING_BRACKET or c == CLOSING_BRACE:
            depth -= 1
            if depth == outside:
                return place
    return -1


@inner
def hex_4(base: Address, place: int) -> int:
    """Return the value of four hexadecimal digits at `place`, or -1. Reads no further than the first invalid digit."""
    value = 0
    for i in range(4):
        c = load_u8(base + place + i)
        if ZERO <= c <= NINE:
            c -= ZERO
        elif _LETTER_A <= c | LOWER <= _LETTER_F:
            c = (c | LOWER) - _LETTER_A + 10
        else:
            return -1
        value = value * 16 + c
    return value


@inner
def read_escape(base: Address, place: int) -> tuple[int, int]:
    """Read an escape; `place` is after its backslash. Returns the place after it, and its code point or -1 if invalid.

    Two escapes that form a surrogate pair are one code point; a lone surrogate is returned as it is.
    """
    c = load_u8(base + place)
    place += 1
    if c == LETTER_U:
        c = hex_4(base, place)
        place += 4
        if c & _HALF_BITS == SURROGATE and load_u8(base + place) == BACKSLASH and load_u8(base + place + 1) == LETTER_U:
            low = hex_4(base, place + 2)
            if low & _HALF_BITS == _LOW_SURROGATE:
                c = _BEYOND_16_BITS + ((c & 0x3FF) << 10) + (low & 0x3FF)
                place += 6
        return place, c
    if c == _LETTER_B:
        c = _BACKSPACE
    elif c == _LETTER_F:
        c = _FORM_FEED
    elif c == _LETTER_N:
        c = NEWLINE
    elif c == _LETTER_R:
        c = RETURN
    elif c == _LETTER_T:
        c = TAB
    elif c != QUOTE and c != BACKSLASH and c != SLASH:
        c = -1
    return place, c


@inner
def read_character(base: Address, place: int, stop: int) -> tuple[int, int]:
    """Read a character of several bytes of UTF-8. Returns the place after it, or -1 if invalid, and its code point.

    Reads no further than `stop`.
    """
    c = load_u8(base + place)
    more = 1 if c & 0xE0 == 0xC0 else 2 if c & 0xF0 == 0xE0 else 3 if c & 0xF8 == 0xF0 else 0
    if more == 0 or place + more >= stop:
        return -1, 0
    code = c & (0x3F >> more)
    for i in range(1, more + 1):
        c = load_u8(base + place + i)
        if c & 0xC0 != 0x80:
            return -1, 0
        code = code << 6 | c & 0x3F
    least = ASCII_END if more == 1 else 0x800 if more == 2 else _BEYOND_16_BITS
    if code < least or code > _LAST_CHARACTER or code & SURROGATE_BITS == SURROGATE:
        return -1, 0
    return place + more + 1, code
