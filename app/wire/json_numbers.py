"""Arrays of JSON scalars to packed items, in compiled code: no element ever becomes a Python object.

One reader walks the nesting and holds it to the shape, checks the grammar of each element, rounds or ranges it to its
type and stores it. It gives up at the first thing that is not as it should be and says at which element; whoever
called finds out what that is (the reader of kind SKIP tells whether the nesting is right, whatever the elements).
"""

# Comparisons are spelt out, since that is what compiles well.
# ruff: noqa: PLR1714
from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from app.wire.decimals import (
    decimal,
    digits_before,
    long_whole,
    narrow,
    nearest,
    nearest_called,
    quick_decimal,
    signed,
    whole_digits,
)
from app.wire.json_scan import MAX_DEPTH, is_space, skip_nested, skip_space, skip_string, spells
from app.wire.machine import (
    below,
    bits_of,
    byte,
    entry,
    float_of,
    inlined,
    inner,
    other_marks,
    put_1,
    put_2,
    put_4,
    put_8,
    put_single,
    trailing_zeros,
)

OPEN: Final = MAX_DEPTH + 1
"""The depth of the elements where the first one is to set it."""
SKIP: Final = 0
_BOOL: Final = 1
_INT8: Final = 2
_INT64: Final = 5
_HALF: Final = 10
_BRAIN: Final = 11
_SINGLE: Final = 12
_DOUBLE: Final = 13
KINDS: Final[Mapping[str, int]] = {
    "string": SKIP,
    "bool": _BOOL,
    "int8": _INT8,
    "int16": 3,
    "int32": 4,
    "int64": _INT64,
    "uint8": 6,
    "uint16": 7,
    "uint32": 8,
    "uint64": 9,
    "float16": _HALF,
    "bfloat16": _BRAIN,
    "float32": _SINGLE,
    "float64": _DOUBLE,
    "complex64": _SINGLE,
    "complex128": _DOUBLE,
}
"""What `read_elements` calls the types: a complex one is pairs of its parts, a string is only walked over."""

# The largest magnitudes of negative and of other integers, unsigned, and the least that rounds to infinity, by kind.
_LOW: Final[NDArray[np.int64]] = np.array([0, 0, *(signed(2**bits) for bits in (7, 15, 31, 63)), *[0] * 8], np.int64)
_HIGH: Final[NDArray[np.int64]] = np.array(
    [0, 0, *(2**bits - 1 for bits in (7, 15, 31, 63)), *(signed(2**bits - 1) for bits in (8, 16, 32, 64)), *[0] * 4],
    np.int64,
)
TOO_LARGE: Final[NDArray[np.float64]] = np.array(
    [*[0.0] * 10, 65520.0, 2.0**128 - 2.0**119, 2.0**128 - 2.0**103, np.inf]
)
_NAN: Final[NDArray[np.int64]] = np.frombuffer(b'NaN"', np.uint8).astype(np.int64)
_INFINITY: Final[NDArray[np.int64]] = np.frombuffer(b'Infinity"', np.uint8).astype(np.int64)
_TRUE: Final[NDArray[np.int64]] = np.frombuffer(b"true", np.uint8).astype(np.int64)
_FALSE: Final[NDArray[np.int64]] = np.frombuffer(b"false", np.uint8).astype(np.int64)


@inlined
def _put_float(target, element, kind, number, negative):  # type: ignore[no-untyped-def]
    """Store the number, which is not negative, with its sign."""
    bits = bits_of(number)
    if kind == _SINGLE:
        put_single(target + 4 * element, float_of(bits | negative << 63))
    elif kind == _DOUBLE:
        put_8(target + 8 * element, bits | negative << 63)
    else:
        width, bias = (10, 15) if kind == _HALF else (7, 127)
        put_2(target + 2 * element, narrow(bits, width, bias) | negative << 15)


@inlined
def _put_integer(target, element, kind, value):  # type: ignore[no-untyped-def]
    width = (kind - _INT8) & 3
    if width == 3:
        put_8(target + 8 * element, value)
    elif width == 2:
        put_4(target + 4 * element, value)
    elif width == 1:
        put_2(target + 2 * element, value)
    else:
        put_1(target + element, value)


@inner
def _run_floats(base, place, last, kind, target, element, room):  # type: ignore[no-untyped-def]
    """(place, element, after): read elements from `place` to `last` on for as long as they are plain numbers.

    Stops at the delimiter after an element that no comma follows (`after`), or at an element for someone else.
    """
    while 32 <= place <= last and element < room:
        negative = byte(base + place) == 45
        stop, value, power = quick_decimal(base, place)
        if stop == 0:
            break
        number = nearest(value, power)
        if number >= TOO_LARGE[kind]:
            break
        _put_float(target, element, kind, number, negative)
        element += 1
        if byte(base + stop) != 44:
            return stop, element, True
        place = stop + 1
        while byte(base + place) == 32:
            place += 1
    return place, element, False


@inner
def _run_integers(base, place, last, kind, target, element, room):  # type: ignore[no-untyped-def]
    """As `_run_floats`, for integers."""
    low, high = _LOW[kind], _HIGH[kind]
    while 32 <= place <= last and element < room:
        negative = byte(base + place) == 45
        begin = place + negative
        stop = place + trailing_zeros(other_marks(base + place) & -2)  # bit 0 is a sign, or a digit
        count = stop - begin
        after, first = byte(base + stop), byte(base + begin) - 48
        if not 0 <= first <= 9 or count == 0 or count > 19 or (count > 1 and first == 0):
            break
        if after == 46 or after | 32 == 101:
            break
        value = digits_before(base, stop, count)
        if below(low if negative else high, value):
            break
        _put_integer(target, element, kind, -value if negative else value)
        element += 1
        if after != 44:
            return stop, element, True
        place = stop + 1
        while byte(base + place) == 32:
            place += 1
    return place, element, False


@inner
def _read_odd_float(base, place, size, kind, target, element):  # type: ignore[no-untyped-def]
    """As `_read_float`, anything."""
    c = byte(base + place)
    negative = c == 45
    if c != 34:
        stop, value, power, cut = decimal(base, place + negative)
        if stop < 0:
            return stop, False
        number = nearest_called(value, power)
        if cut and number != nearest_called(value + 1, power):
            return stop, True
        if number >= TOO_LARGE[kind]:
            return -1, False
        _put_float(target, element, kind, number, negative)
        return stop, False
    if spells(base, place + 1, _NAN):
        _put_float(target, element, kind, np.nan, negative)
        return place + 5, False
    negative = byte(base + place + 1) == 45
    if spells(base, place + 1 + negative, _INFINITY):
        _put_float(target, element, kind, np.inf, negative)
        return place + 10 + negative, False
    stop, escaped = skip_string(base, place + 1, size)
    return stop if escaped else -1, True


@inner
def _read_odd_integer(base, place, kind, target, element):  # type: ignore[no-untyped-def]
    """As `_read_integer`, anything."""
    negative = byte(base + place) == 45
    place += negative
    value, count = whole_digits(base, place)
    if count == 0:
        return -1, False
    stop = place + count
    after = byte(base + stop)
    if after == 46 or after | 32 == 101:
        stop, value, power, cut = decimal(base, place)
        if stop < 0:
            return stop, False
        number = nearest_called(value, power)
        if cut and number != nearest_called(value + 1, power):
            return stop, True
        if number != np.floor(number) or number >= 2.0**64:
            return -1, False
        value = np.int64(number) if number < 2.0**63 else np.int64(number - 2.0**63) + _LOW[_INT64]
    elif count > 19:
        value, fits = long_whole(base, place, count)
        if not fits:
            return -1, False
    if below(_LOW[kind] if negative else _HIGH[kind], value):
        return -1, False
    _put_integer(target, element, kind, -value if negative else value)
    return stop, False


@inner
def _read_bool(base, place, target, element):  # type: ignore[no-untyped-def]
    if spells(base, place, _TRUE):
        put_1(target + element, 1)
        return place + 4
    put_1(target + element, 0)
    return place + 5 if spells(base, place, _FALSE) else -1


@inner
def _skip_element(base, place, end):  # type: ignore[no-untyped-def]
    """The place after a string, an object, or whatever goes on to the next delimiter; -1 where there is nothing."""
    c = byte(base + place)
    if c == 34:
        place, _ = skip_string(base, place + 1, end)
        return place
    if c == 123:
        return skip_nested(base, place, end, np.int64(0))
    first = place
    while place < end and c != 44 and c != 91 and c != 93 and c != 125 and not is_space(c):
        place += 1
        c = byte(base + place)
    return place if place > first else -1


@entry
def read_elements(view, first, end, kind, leaf, inner, room, dims, out, pending):  # type: ignore[no-untyped-def]
    """(fine, place, element, waiting, leaf, inner): read the elements of the span [first, end) of `view` into `out`.

    Elements stand `leaf` lists deep, the innermost lists have `inner` elements and the outer ones as many as the first
    half of `dims` says, outermost first (the second half is working room). Where `leaf` is OPEN and `inner` and `dims`
    are -1, the first lists set them. `room` is how many elements there may be. Where not `fine`, the element at
    `place` or the nesting there is wrong. Elements that need someone slower go to `pending` as (element, place, place
    after), as many as it can take; `waiting` counts them all.
    """
    base, size, target = np.int64(view.ctypes.data), view.size, np.int64(out.ctypes.data)
    counters = dims.size // 2
    place = first
    zero: Any = np.int64(0)  # a plain 0 is a type of its own, to compile for once more
    depth = here = element = waiting = zero
    while True:
        c = byte(base + place)
        if c <= 32:
            place = skip_space(base, place, end)
            c = byte(base + place)
        if c == 91 and depth < leaf:
            if depth > 0:
                dims[counters + depth - 1] = here
            depth += 1
            place = skip_space(base, place + 1, end)
            here = 0
            if byte(base + place) != 93:
                continue
            here = -1
            if leaf == OPEN:
                leaf = depth
        else:
            if leaf == OPEN:
                leaf = depth
            if depth != leaf or element >= room:
                return False, place, element, waiting, leaf, inner
            after = False
            if kind >= _INT8 and depth > 0:
                before = element
                if kind >= _HALF:
                    place, element, after = _run_floats(base, place, size - 64, kind, target, element, room)
                else:
                    place, element, after = _run_integers(base, place, size - 64, kind, target, element, room)
                here += element - before - after
            if not after:
                place = skip_space(base, place, end)
                if element >= room:
                    return False, place, element, waiting, leaf, inner
                slow = False
                if kind >= _HALF:
                    stop, slow = _read_odd_float(base, place, size, kind, target, element)
                elif kind >= _INT8:
                    stop, slow = _read_odd_integer(base, place, kind, target, element)
                elif kind == _BOOL:
                    stop = _read_bool(base, place, target, element)
                else:
                    stop = _skip_element(base, place, end)
                if stop < 0:
                    return False, place, element, waiting, leaf, inner
                if slow:
                    if 3 * waiting < pending.size:
                        pending[3 * waiting] = element
                        pending[3 * waiting + 1] = place
                        pending[3 * waiting + 2] = stop
                    waiting += 1
                place = stop
                element += 1
        while True:
            if depth == 0:
                return place == end, place, element, waiting, leaf, inner
            here += 1
            c = byte(base + place)
            if c <= 32:
                place = skip_space(base, place, end)
                c = byte(base + place)
            if c == 44:
                place += 1
                break
            if c != 93:
                return False, place, element, waiting, leaf, inner
            if depth == leaf:
                if inner < 0:
                    inner = here
                wanted = inner
            else:
                if dims[depth - 1] < 0:
                    dims[depth - 1] = here
                wanted = dims[depth - 1]
            if here != wanted:
                return False, place, element, waiting, leaf, inner
            place += 1
            depth -= 1
            if depth > 0:
                here = dims[counters + depth - 1]
