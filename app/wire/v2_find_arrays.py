"""Where the items of the inputs are in the JSON of an infer request, found without reading them.

The same walk as `json_scan.scan` makes for the native format, one level deeper: each input is an object in a list, and
its items are the member `data`. Of those there may be any number, as a request has objects that the protocol ignores.
"""

# Numba compiles comparisons of this form to branches.
# ruff: noqa: PLR1714

from __future__ import annotations

from typing import Final

import numpy as np

from app.llvm_intrinsics import Address, Bytes, Integers, address_of, entry, inner, load_u8
from app.wire.json.find_arrays import (
    ESCAPED,
    MAX_DEPTH,
    SCALAR,
    STRING,
    hex_4,
    is_space,
    skip_nested,
    skip_space,
    skip_string,
)

_LEVEL: Final = 3
_KEY: Final = np.frombuffer(b"data", np.uint8).astype(np.int64)


@inner
def _is_data(base: Address, begin: int, stop: int) -> bool:
    """Whether the key between `begin` and `stop`, escapes or not, is `data`."""
    length = 0
    while begin < stop:
        c = load_u8(base + begin)
        begin += 1
        if c == 92:
            if load_u8(base + begin) != 117:
                return False
            c = hex_4(base, begin + 1)
            begin += 5
        if length == 4 or c != _KEY[length]:
            return False
        length += 1
    return length == 4


@entry
def scan(view: Bytes, spans: Integers) -> tuple[bool, int, bool, int]:
    """(fine, members, odd, count): where the values of the members `data` of objects three levels deep are.

    `spans` takes for each, as many as it has room for, the first byte, the end and the kind; `count` is of all. `fine`,
    `members`, `odd` and the kind are those of `json_scan.scan`; what `spans` had no room for is counted as outside.
    """
    base, end = address_of(view), view.size
    odd = False
    place = depth = members = count = 0
    while place < end:
        c = load_u8(base + place)
        if c == 34:
            begin = place + 1
            place, escaped = skip_string(base, begin, end)
            if place < 0:
                return False, members, odd, count
            stop = place - 1
            place = skip_space(base, place, end)
            if place >= end or load_u8(base + place) != 58:
                continue
            members += 1
            place = skip_space(base, place + 1, end)
            if depth != _LEVEL or place == end or stop - begin < 4 or not _is_data(base, begin, stop):
                continue
            count += 1
            if 3 * count > spans.size:
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
                return False, members, odd, count
            spans[3 * count - 3] = first
            spans[3 * count - 2] = place
            spans[3 * count - 1] = kind
            continue
        place += 1
        if c == 123 or c == 91:
            depth += 1
            if depth > MAX_DEPTH:
                return False, members, odd, count
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
    return True, members, odd, count
