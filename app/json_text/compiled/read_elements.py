"""Reads arrays of JSON scalars into packed items, in compiled code: no number becomes a Python object.

The reader checks the nesting against the shape. It checks the grammar of each element, rounds or range-checks it for
its type, and stores it. It stops at the first fault and returns the fault's place; the caller finds the cause. (Kind
SKIP checks only the nesting, for elements of any kind.) Strings are stored as frames (see `app.tensors.string_frames`),
with the offset of each frame.
"""

from __future__ import annotations

from app.compilation.decorators import entry
from app.compilation.intrinsics import Bytes, Integers, address_of, int64, load_u8, store_u64
from app.json_text.compiled.characters import (
    CLOSING_BRACKET,
    COMMA,
    OPENING_BRACKET,
    SPACE,
    skip_space,
)
from app.json_text.compiled.parse_element import (
    read_any_float,
    read_any_integer,
    read_bool,
    read_plain_floats,
    read_plain_integers,
    skip_element,
)
from app.json_text.compiled.parse_string import parse_string
from app.json_text.constants import BOOL, FIRST_FLOAT, INT8, OPEN, STRING


@entry
def read_elements(
    view: Bytes,
    first: int,
    end: int,
    kind: int,
    leaf: int,
    inner: int,
    room: int,
    dims: Integers,
    out: Bytes,
    bare: bool,
) -> tuple[bool, int, int, int, int, int]:
    """See `app.json_text.read_elements.read_elements`.

    This is one function, because nearly all of its variables are carried through the loop.
    """
    base, size, target = address_of(view), view.size, address_of(out)
    counters = dims.size // 2
    place = first
    zero = int64(0)
    depth = here = element = used = zero
    while True:
        c = load_u8(base + place)
        if c <= SPACE:
            place = skip_space(base, place, end)
            c = load_u8(base + place)
        if c == OPENING_BRACKET and depth < leaf:
            if depth > 0:
                dims[counters + depth - 1] = here
            depth += 1
            place = skip_space(base, place + 1, end)
            here = 0
            if load_u8(base + place) != CLOSING_BRACKET:
                continue
            here = -1
            if leaf == OPEN:
                leaf = depth
        else:
            if leaf == OPEN:
                leaf = depth
            if depth != leaf or element >= room:
                return False, place, element, used, leaf, inner
            after = False
            if INT8 <= kind < STRING and depth > 0:
                before = element
                if kind >= FIRST_FLOAT:
                    place, element, after = read_plain_floats(base, place, size - 64, kind, target, element, room)
                else:
                    place, element, after = read_plain_integers(base, place, size - 64, kind, target, element, room)
                here += element - before - after
            if not after:
                place = skip_space(base, place, end)
                if element >= room:
                    return False, place, element, used, leaf, inner
                if kind >= FIRST_FLOAT and kind != STRING:
                    stop = read_any_float(base, place, kind, target, element, bare)
                elif kind == STRING:
                    store_u64(target + 8 * element, used)
                    stop, used = parse_string(base, place, end, target + 8 * room + used)
                    used -= target + 8 * room
                elif kind >= INT8:
                    stop = read_any_integer(base, place, kind, target, element)
                elif kind == BOOL:
                    stop = read_bool(base, place, target, element)
                else:
                    stop = skip_element(base, place, end)
                if stop < 0:
                    return False, place, element, used, leaf, inner
                place = stop
                element += 1
        while True:
            if depth == 0:
                return place == end, place, element, used, leaf, inner
            here += 1
            c = load_u8(base + place)
            if c <= SPACE:
                place = skip_space(base, place, end)
                c = load_u8(base + place)
            if c == COMMA:
                place += 1
                break
            if c != CLOSING_BRACKET:
                return False, place, element, used, leaf, inner
            if depth == leaf:
                if inner < 0:
                    inner = here
                wanted = inner
            else:
                if dims[depth - 1] < 0:
                    dims[depth - 1] = here
                wanted = dims[depth - 1]
            if here != wanted:
                return False, place, element, used, leaf, inner
            place += 1
            depth -= 1
            if depth > 0:
                here = dims[counters + depth - 1]
