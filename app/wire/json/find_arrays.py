"""Where the tensors of a JSON body are, found without reading them, and a strict check of the whole.

`scan` walks the small part of a body and cuts out what the `values` and `base64` members hold, large or not: the rest
goes to a JSON library, the spans to `json_numbers`. It looks at no more than it needs and so accepts much that is not
JSON; the library and the readers of the spans refuse that. `check` is the whole grammar of RFC 8259 together with
UTF-8, the depth and a hash of each key; it runs when something is refused, to tell what is no JSON from what is wrong
for another reason.
"""

# Comparisons are spelt out, since that is what compiles well.
# ruff: noqa: PLR1714, SIM109, SIM110
from __future__ import annotations

from typing import Final

from app.llvm_intrinsics import (
    Address,
    Bytes,
    Integers,
    address_of,
    count_trailing_zeros,
    entry,
    find_string_ends,
    find_structure,
    inner,
    int64,
    load_u8,
    load_u64,
    lshr,
)

MAX_DEPTH: Final = 512
SPANS: Final = 4
"""How many spans are cut out at most: values and base64 of data and of indices; whoever has more repeats a key."""
SCALAR: Final = 0
STRING: Final = -1
ESCAPED: Final = -2
_VALUES: Final = int.from_bytes(b"values", "little")
_BASE64: Final = int.from_bytes(b"base64", "little")
_SIX: Final = (1 << 48) - 1


@inner
def is_space(c: int) -> bool:
    """Whether `c` is one of JSON's four white-space characters."""
    return c == 32 or c == 10 or c == 13 or c == 9


@inner
def skip_space(base: Address, place: int, end: int) -> int:
    """The first place from `place` on that is no white space."""
    while place < end and is_space(load_u8(base + place)):
        place += 1
    return place


@inner
def spells(base: Address, place: int, text: Integers) -> bool:
    """Whether `text` stands at `place`; looks no further than the first byte that differs."""
    for i in range(text.size):
        if load_u8(base + place + i) != text[i]:
            return False
    return True


@inner
def skip_string(base: Address, place: int, end: int) -> tuple[int, bool]:
    """`place` is after the opening quote: (the place after the closing one, or -1; whether there is a backslash)."""
    escaped = False
    while place + 64 <= end:
        marks = find_string_ends(base + place)
        if marks == 0:
            place += 64
            continue
        place += count_trailing_zeros(marks)
        if load_u8(base + place) == 34:
            return place + 1, escaped
        escaped = True
        place += 2
    while place < end:
        c = load_u8(base + place)
        if c == 34:
            return place + 1, escaped
        if c == 92:
            escaped = True
            place += 1
        place += 1
    return -1, escaped


@inner
def skip_nested(base: Address, place: int, end: int, depth: int) -> int:
    """`place` is at an opening bracket or brace, `depth` levels deep: the place after the one that closes it, or -1."""
    outside = depth
    while place < end:
        if place + 64 <= end:
            marks = find_structure(base + place)
            if marks == 0:
                place += 64
                continue
            block = place
            place = block + 64
            while marks != 0:
                here = block + count_trailing_zeros(marks)
                c = load_u8(base + here)
                if c == 34:
                    place, _ = skip_string(base, here + 1, end)
                    if place < 0:
                        return -1
                    break
                if c & 2 != 0:  # [ and { but not ] and }
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
        if c == 34:
            place, _ = skip_string(base, place, end)
            if place < 0:
                return -1
        elif c == 91 or c == 123:
            depth += 1
            if depth > MAX_DEPTH:
                return -1
        elif c == 93 or c == 125:
            depth -= 1
            if depth == outside:
                return place
    return -1


@inner
def hex_4(base: Address, place: int) -> int:
    """The value of four hexadecimal digits at `place`, or -1; looks no further than the first that is none."""
    value = 0
    for i in range(4):
        c = load_u8(base + place + i)
        if 48 <= c <= 57:
            c -= 48
        elif 97 <= c | 32 <= 102:
            c = (c | 32) - 87
        else:
            return -1
        value = value * 16 + c
    return value


@inner
def escaped(base: Address, place: int) -> tuple[int, int]:
    """`place` is after a backslash: (place after the escape, the number of its character, or -1 where it is none).

    Two escapes that are a surrogate pair are one character, a surrogate alone is itself.
    """
    c = load_u8(base + place)
    place += 1
    if c == 117:
        c = hex_4(base, place)
        place += 4
        if c & 0xFFFFFC00 == 0xD800 and load_u8(base + place) == 92 and load_u8(base + place + 1) == 117:
            low = hex_4(base, place + 2)
            if low & 0xFFFFFC00 == 0xDC00:
                c = 0x10000 + ((c & 0x3FF) << 10) + (low & 0x3FF)
                place += 6
        return place, c
    if c == 98:
        c = 8
    elif c == 102:
        c = 12
    elif c == 110:
        c = 10
    elif c == 114:
        c = 13
    elif c == 116:
        c = 9
    elif c != 34 and c != 92 and c != 47:
        c = -1
    return place, c


@inner
def character(base: Address, place: int, stop: int) -> tuple[int, int]:
    """(place after, its number) of a character whose UTF-8 has more than one byte; the place is -1 where it is none.

    Looks no further than `stop`.
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
    least = 0x80 if more == 1 else 0x800 if more == 2 else 0x10000
    if code < least or code > 0x10FFFF or code & 0xFFFFF800 == 0xD800:
        return -1, 0
    return place + more + 1, code


@inner
def _is_span_key(base: Address, begin: int, stop: int, escaped: bool) -> bool:
    """Whether the key within the quotes at begin - 1 and `stop` is `values` or `base64`."""
    if not escaped:
        if stop - begin != 6:
            return False
        key = lshr(load_u64(base + begin - 1), 8) & _SIX  # both quotes are part of the body
        return key == _VALUES or key == _BASE64
    key, length = 0, 0
    while begin < stop:
        c = load_u8(base + begin)
        begin += 1
        if c == 92:
            if load_u8(base + begin) != 117:
                return False
            c = hex_4(base, begin + 1)
            begin += 5
        if c < 0 or c > 127 or length == 6:
            return False
        key |= c << (8 * length)
        length += 1
    return length == 6 and (key == _VALUES or key == _BASE64)


@entry
def scan(view: Bytes) -> tuple[int, ...]:
    """(fine, members, odd, spans, then first byte, end and kind of each of SPANS spans).

    `fine` is False where strings or brackets do not close. `members` counts the members of all objects outside the
    spans. `odd` says that a number outside the spans is not a plain integer of at most 18 digits. The kind of a span is
    the number of brackets it opens with, or SCALAR, STRING, or ESCAPED for a string with a backslash.
    """
    base, end = address_of(view), view.size
    first_0 = end_0 = kind_0 = first_1 = end_1 = kind_1 = 0
    first_2 = end_2 = kind_2 = first_3 = end_3 = kind_3 = 0
    fine, odd = True, False
    zero = int64(0)
    place = depth = members = spans = zero
    while place < end:
        c = load_u8(base + place)
        if c == 34:
            begin = place + 1
            place, escaped = skip_string(base, begin, end)
            if place < 0:
                fine = False
                break
            stop = place - 1
            place = skip_space(base, place, end)
            if place >= end or load_u8(base + place) != 58:
                continue
            members += 1
            place = skip_space(base, place + 1, end)
            if depth != 2 or spans == SPANS or place == end or not _is_span_key(base, begin, stop, escaped):
                continue
            first, kind = place, SCALAR
            c = load_u8(base + place)
            if c == 34:
                place, escaped = skip_string(base, place + 1, end)
                kind = ESCAPED if escaped else STRING
            elif c == 91 or c == 123:
                ahead = place
                while ahead < end and load_u8(base + ahead) == 91:
                    kind += 1
                    ahead = skip_space(base, ahead + 1, end)
                place = skip_nested(base, place, end, depth)
            else:
                while place < end:
                    c = load_u8(base + place)
                    if c == 44 or c == 125 or c == 93 or is_space(c):
                        break
                    place += 1
            if place < 0:
                fine = False
                break
            if spans == 0:
                first_0, end_0, kind_0 = first, place, kind
            elif spans == 1:
                first_1, end_1, kind_1 = first, place, kind
            elif spans == 2:
                first_2, end_2, kind_2 = first, place, kind
            else:
                first_3, end_3, kind_3 = first, place, kind
            spans += 1
            continue
        place += 1
        if c == 123 or c == 91:
            depth += 1
            if depth > MAX_DEPTH:
                fine = False
                break
        elif c == 125 or c == 93:
            depth -= 1
        elif 48 <= c <= 57:
            begin = place - 1
            while place < end and 48 <= load_u8(base + place) <= 57:
                place += 1
            if place - begin > 18:
                odd = True
            elif place < end:
                c = load_u8(base + place)
                odd |= c == 46 or c == 69 or c == 101
    return (
        fine, members, odd, spans, first_0, end_0, kind_0, first_1, end_1, kind_1, first_2, end_2, kind_2,
        first_3, end_3, kind_3,
    )  # fmt: skip
