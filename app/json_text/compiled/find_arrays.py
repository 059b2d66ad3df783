"""Finds the arrays of a JSON body, in compiled code: the scanner of `app.json_text.find_arrays`."""

# Comparisons are spelled out, because that compiles to faster code.
# ruff: noqa: PLR1714, SIM109
from __future__ import annotations

from typing import Final, TypeAlias

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
    stack_words,
    store_u64,
)
from app.json_text.compiled.characters import (
    ASCII_END,
    BACKSLASH,
    CLOSING_BRACE,
    CLOSING_BRACKET,
    COLON,
    COMMA,
    LETTER_U,
    OPENING_BRACE,
    OPENING_BRACKET,
    QUOTE,
    hex_4,
    is_space,
    skip_nested,
    skip_space,
    skip_string,
)
from app.json_text.constants import (
    ESCAPED,
    INPUT_DEPTH,
    MAX_DEPTH,
    MOST_ARRAYS,
    QUOTED,
    SCALAR,
    TENSOR_DEPTH,
)

_SHORTEST_KEY, _LONGEST_KEY = 4, 6
Place: TypeAlias = tuple[int, int, int]
"""The first byte of an array, its end and its kind."""


def _packed(key: bytes) -> int:
    """Return the result of `_pack_key` for a key."""
    return int.from_bytes(key, "little") | len(key) << 56


_VALUES: Final = _packed(b"values")
_BASE64: Final = _packed(b"base64")
_DATA: Final = _packed(b"data")


@inner
def _pack_key(base: Address, begin: int, stop: int, escaped: bool) -> int:
    """Pack the key between the quotes at `begin` - 1 and `stop`, together with its length, into a word.

    Returns -1 if it cannot be the key of an array. At least two bytes, a colon and a value, follow the closing quote.
    """
    if not escaped:
        length = stop - begin
        if length < _SHORTEST_KEY or length > _LONGEST_KEY:
            return -1
        return lshr(load_u64(base + begin - 1), 8) & ((1 << 8 * length) - 1) | length << 56
    key, length = 0, 0
    while begin < stop:
        c = load_u8(base + begin)
        begin += 1
        if c == BACKSLASH:
            if load_u8(base + begin) != LETTER_U:
                return -1
            c = hex_4(base, begin + 1)
            begin += 5
        if c < 0 or c >= ASCII_END or length == _LONGEST_KEY:
            return -1
        key |= c << (8 * length)
        length += 1
    return key | length << 56


@inner
def _skip_value(base: Address, place: int, end: int, depth: int) -> tuple[int, int]:
    """Skip the value at `place`. Returns the place after it, or -1 if it is not closed, and its kind."""
    kind = SCALAR
    c = load_u8(base + place)
    if c == QUOTE:
        place, escaped = skip_string(base, place + 1, end)
        return place, ESCAPED if escaped else QUOTED
    if c == OPENING_BRACKET or c == OPENING_BRACE:
        ahead = place
        while ahead < end and load_u8(base + ahead) == OPENING_BRACKET:
            kind += 1
            ahead = skip_space(base, ahead + 1, end)
        return skip_nested(base, place, end, depth), kind
    while place < end:
        c = load_u8(base + place)
        if c == COMMA or c == CLOSING_BRACE or c == CLOSING_BRACKET or is_space(c):
            break
        place += 1
    return place, kind


@inner
def _scan(
    base: Address, end: int, level: int, key: int, other_key: int, places: Address, most: int
) -> tuple[bool, int, int]:
    """Find the arrays in members at depth `level` with one of the two keys. Returns (closed, members, count).

    Writes three words for each of the first `most` arrays to `places`: its first byte, its end and its kind. Any other
    arrays are counted but not written to `places`; they are scanned like the rest of the body.
    """
    place = depth = members = count = int64(0)
    while place < end:
        c = load_u8(base + place)
        if c == QUOTE:
            begin = place + 1
            place, escaped = skip_string(base, begin, end)
            if place < 0:
                return False, members, count
            stop = place - 1
            place = skip_space(base, place, end)
            if place >= end or load_u8(base + place) != COLON:
                continue
            members += 1
            place = skip_space(base, place + 1, end)
            if depth != level or place == end:
                continue
            found = _pack_key(base, begin, stop, escaped)
            if found != key and found != other_key:
                continue
            count += 1
            if count > most:
                continue
            first = place
            place, kind = _skip_value(base, place, end, depth)
            if place < 0:
                return False, members, count
            words = places + 24 * (count - 1)
            store_u64(words, first)
            store_u64(words + 8, place)
            store_u64(words + 16, kind)
            continue
        place += 1
        if c == OPENING_BRACE or c == OPENING_BRACKET:
            depth += 1
            if depth > MAX_DEPTH:
                return False, members, count
        elif c == CLOSING_BRACE or c == CLOSING_BRACKET:
            depth -= 1
    return True, members, count


_stack_places: Final = stack_words(3 * MOST_ARRAYS)


@inner
def _place(words: Address) -> Place:
    """Return the three words at an address."""
    return load_u64(words), load_u64(words + 8), load_u64(words + 16)


@entry
def scan_tensors(view: Bytes) -> tuple[bool, int, int, tuple[Place, Place, Place, Place]]:
    """See `app.json_text.find_arrays.scan_tensors`."""
    places = _stack_places()
    for word in range(3 * MOST_ARRAYS):
        store_u64(places + 8 * word, 0)
    closed, members, arrays = _scan(
        address_of(view), view.size, int64(TENSOR_DEPTH), int64(_VALUES), int64(_BASE64), places, int64(MOST_ARRAYS)
    )
    four = _place(places), _place(places + 24), _place(places + 48), _place(places + 72)
    return closed, members, min(arrays, MOST_ARRAYS), four


@entry
def scan_arrays(view: Bytes, depth: int, places: Integers) -> tuple[bool, int, int]:
    """See `app.json_text.find_arrays.scan_arrays`."""
    key, other_key = int64(_VALUES), int64(_BASE64)
    if depth == INPUT_DEPTH:
        key = other_key = int64(_DATA)
    return _scan(address_of(view), view.size, depth, key, other_key, address_of(places), places.size // 3)
