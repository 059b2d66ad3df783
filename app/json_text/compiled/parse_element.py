"""Reads elements of a JSON array into packed items, in compiled code: numbers and bools of every type.

`read_plain_floats` and `read_plain_integers` read runs of numbers in the common forms. `read_any_float` and
`read_any_integer` read one number of any form.
"""

# Comparisons are spelled out, because that compiles to faster code.
# ruff: noqa: PLR1714
from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.compilation.decorators import inlined, inner
from app.compilation.intrinsics import (
    Address,
    Integers,
    count_trailing_zeros,
    f64_bits,
    f64_from_bits,
    find_non_digits,
    int64,
    load_u8,
    signed,
    store_f32,
    store_u8,
    store_u16,
    store_u32,
    store_u64,
    ult,
)
from app.json_text.compiled.characters import (
    BACKSLASH,
    CLOSING_BRACE,
    CLOSING_BRACKET,
    COMMA,
    LETTER_E,
    LETTER_U,
    LOWER,
    MINUS,
    OPENING_BRACE,
    OPENING_BRACKET,
    POINT,
    QUOTE,
    SPACE,
    ZERO,
    has_text_at,
    hex_4,
    is_space,
    skip_nested,
    skip_string,
)
from app.json_text.compiled.decimal_to_double import (
    compare_decimal,
    narrow,
    nearest,
    nearest_not_inlined,
    read_exactly,
)
from app.json_text.compiled.parse_decimal import (
    decimal,
    digits_before,
    integral,
    quick_decimal,
)
from app.json_text.constants import FLOAT32, FLOAT64, FLOATS, INT8, STRING
from app.tensors import float_rounding

# For each kind, the largest magnitudes of negative and of non-negative integers, unsigned.
_LOW: Final[NDArray[np.int64]] = np.zeros(STRING, np.int64)
_LOW[INT8 : INT8 + 4] = [signed(2**bits) for bits in (7, 15, 31, 63)]
_HIGH: Final[NDArray[np.int64]] = np.zeros(STRING, np.int64)
_HIGH[INT8 : INT8 + 8] = [signed(2**bits - 1) for bits in (7, 15, 31, 63, 8, 16, 32, 64)]
_NO_SUCH: Final = -1
_TOO_LARGE: Final[NDArray[np.float64]] = np.zeros(STRING)
"""For each kind of float: the smallest float64 that rounds to infinity; 0 for 8-bit floats, which `read_any_float`
reads.
"""
_FRACTION: Final[NDArray[np.int64]] = np.zeros(STRING, np.int64)
_BIAS: Final[NDArray[np.int64]] = np.zeros(STRING, np.int64)
"""For each kind of float: the number of fraction bits, and the exponent bias."""
_IS_OCTET: Final[NDArray[np.bool_]] = np.zeros(STRING, np.bool_)
_MIDDLES: Final[NDArray[np.float64]] = np.full((STRING, 256), np.nan)
_LARGEST: Final[NDArray[np.int64]] = np.zeros(STRING, np.int64)
_INFINITY_BITS: Final[NDArray[np.int64]] = np.full(STRING, _NO_SUCH)
_NAN_BITS: Final[NDArray[np.int64]] = np.zeros(STRING, np.int64)
_IS_SIGNED: Final[NDArray[np.bool_]] = np.zeros(STRING, np.bool_)
"""For each kind of 8-bit float: see `app.tensors.float_rounding`."""
for _kind, _row in FLOATS.items():
    _FRACTION[_kind], _BIAS[_kind] = float_rounding.fraction_bits(_row), float_rounding.exponent_bias(_row)
    if _row.item_size > 1:
        _TOO_LARGE[_kind] = np.inf if _row.item_size == 8 else float_rounding.overflow_bound(_row)
        continue
    _middles = float_rounding.middles(_row)
    _MIDDLES[_kind, : len(_middles)] = _middles
    _IS_OCTET[_kind], _IS_SIGNED[_kind] = True, float_rounding.is_signed(_row)
    _LARGEST[_kind], _NAN_BITS[_kind] = len(_middles) - 1, float_rounding.bits_of(_row, np.nan)
    if float_rounding.has_infinity(_row):
        _INFINITY_BITS[_kind] = float_rounding.bits_of(_row, np.inf)
_NAN: Final[NDArray[np.int64]] = np.frombuffer(b"NaN", np.uint8).astype(np.int64)
_INFINITY: Final[NDArray[np.int64]] = np.frombuffer(b"Infinity", np.uint8).astype(np.int64)
_MINUS: Final[NDArray[np.int64]] = np.frombuffer(b"-", np.uint8).astype(np.int64)
_TRUE: Final[NDArray[np.int64]] = np.frombuffer(b"true", np.uint8).astype(np.int64)
_FALSE: Final[NDArray[np.int64]] = np.frombuffer(b"false", np.uint8).astype(np.int64)


@inlined
def _put_float(target: Address, element: int, kind: int, number: float, negative: bool) -> None:
    """Store the non-negative `number` with a sign."""
    bits = f64_bits(number)
    if kind == FLOAT32:
        store_f32(target + 4 * element, f64_from_bits(bits | negative << 63))
    elif kind == FLOAT64:
        store_u64(target + 8 * element, bits | negative << 63)
    else:
        store_u16(target + 2 * element, narrow(bits, _FRACTION[kind], _BIAS[kind]) | negative << 15)


@inlined
def _put_integer(target: Address, element: int, kind: int, value: int) -> None:
    width = (kind - INT8) & 3
    if width == 3:
        store_u64(target + 8 * element, value)
    elif width == 2:
        store_u32(target + 4 * element, value)
    elif width == 1:
        store_u16(target + 2 * element, value)
    else:
        store_u8(target + element, value)


@inner
def read_plain_floats(
    base: Address, place: int, last: int, kind: int, target: Address, element: int, room: int
) -> tuple[int, int, bool]:
    """Read elements from `place` on, as long as they begin no later than `last` and are plain numbers.

    Returns (place, element, after). Stops after an element that is not followed by a comma (`after` is True, and
    `place` is at its delimiter), or before an element of another form.
    """
    while 32 <= place <= last and element < room:
        negative = load_u8(base + place) == MINUS
        stop, value, power = quick_decimal(base, place)
        if stop == 0:
            break
        number = nearest(value, power)
        if number >= _TOO_LARGE[kind]:
            break
        _put_float(target, element, kind, number, negative)
        element += 1
        if load_u8(base + stop) != COMMA:
            return stop, element, True
        place = stop + 1
        while load_u8(base + place) == SPACE:
            place += 1
    return place, element, False


@inner
def read_plain_integers(
    base: Address, place: int, last: int, kind: int, target: Address, element: int, room: int
) -> tuple[int, int, bool]:
    """Like `read_plain_floats`, for integers."""
    low, high = _LOW[kind], _HIGH[kind]
    while 32 <= place <= last and element < room:
        negative = load_u8(base + place) == MINUS
        begin = place + negative
        stop = place + count_trailing_zeros(find_non_digits(base + place) & -2)  # bit 0 is a sign, or a digit
        count = stop - begin
        after, first = load_u8(base + stop), load_u8(base + begin) - ZERO
        if not 0 <= first <= 9 or count == 0 or count > 19 or (count > 1 and first == 0):
            break
        if after == POINT or after | LOWER == LETTER_E:
            break
        value = digits_before(base, stop, count)
        if ult(low if negative else high, value):
            break
        _put_integer(target, element, kind, -value if negative else value)
        element += 1
        if after != COMMA:
            return stop, element, True
        place = stop + 1
        while load_u8(base + place) == SPACE:
            place += 1
    return place, element, False


@inner
def _skip_name(base: Address, place: int, name: Integers, quoted: bool) -> int:
    """Return the place after `name`, or -1. In a string, the name may have escapes."""
    for i in range(name.size):
        c = load_u8(base + place)
        place += 1
        if quoted and c == BACKSLASH and load_u8(base + place) == LETTER_U:
            c = hex_4(base, place + 1)
            place += 5
        if c != name[i]:
            return -1
    return place


@inner
def _read_non_finite(base: Address, place: int, bare: bool) -> tuple[int, float, bool]:
    """Read the name of NaN or an infinity. Returns the place after it or -1, its magnitude, and whether it is negative.

    `bare` also accepts names without quotes.
    """
    quoted = load_u8(base + place) == QUOTE
    if not quoted and not bare:
        return -1, np.nan, False
    place += quoted
    number, negative = np.nan, False
    stop = _skip_name(base, place, _NAN, quoted)
    if stop < 0:
        minus = _skip_name(base, place, _MINUS, quoted)
        number, negative = np.inf, minus >= 0
        stop = _skip_name(base, minus if negative else place, _INFINITY, quoted)
    if quoted and stop >= 0:
        stop = stop + 1 if load_u8(base + stop) == QUOTE else -1
    return stop, number, negative


@inner
def _read_finite(base: Address, place: int) -> tuple[int, float]:
    """Read any unsigned JSON number. Returns the place after it, or -1, and its value."""
    stop, value, power, cut = decimal(base, place)
    if stop < 0:
        return stop, 0.0
    return stop, read_exactly(base, place) if cut else nearest_not_inlined(value, power)


@inner
def _nearest_octet(base: Address, place: int, kind: int, number: float) -> int:
    """Round the decimal at `place` to an 8-bit float, half to even.

    Returns its bits, which exceed `_LARGEST` if it is too large. `number` is the float64 nearest to the decimal.
    """
    low, high = int64(0), _LARGEST[kind] + 1
    while low < high:
        middle = (low + high) >> 1
        if _MIDDLES[kind, middle] < number:
            low = middle + 1
        else:
            high = middle
    if number == _MIDDLES[kind, low]:
        side = compare_decimal(base, place, number)
        return low + (side > 0 or (side == 0 and low & 1 != 0))
    return low


@inner
def read_any_float(base: Address, place: int, kind: int, target: Address, element: int, bare: bool) -> int:
    """Read one element of a float type in any form. Returns the place after it, or -1."""
    negative = load_u8(base + place) == MINUS
    begin = place + negative
    stop, number = _read_finite(base, begin)
    is_finite = stop >= 0
    if not is_finite:
        stop, number, negative = _read_non_finite(base, place, bare)
        if stop < 0:
            return -1
    if not _IS_OCTET[kind]:
        if is_finite and number >= _TOO_LARGE[kind]:
            return -1
        _put_float(target, element, kind, number, negative)
        return stop
    if not is_finite:
        bits = _INFINITY_BITS[kind] if number == np.inf else _NAN_BITS[kind]
    else:
        bits = _nearest_octet(base, begin, kind, number)
        if bits > _LARGEST[kind]:
            return -1
    if bits < 0 or (negative and not _IS_SIGNED[kind] and number > 0):
        return -1
    store_u8(target + element, bits | (negative and _IS_SIGNED[kind]) << 7)
    return stop


@inner
def read_any_integer(base: Address, place: int, kind: int, target: Address, element: int) -> int:
    """Read one element of an integer type in any form. Returns the place after it, or -1."""
    negative = load_u8(base + place) == MINUS
    stop, value, fits = integral(base, place + negative)
    if stop < 0 or not fits:
        return -1
    if ult(_LOW[kind] if negative else _HIGH[kind], value):
        return -1
    _put_integer(target, element, kind, -value if negative else value)
    return stop


@inner
def read_bool(base: Address, place: int, target: Address, element: int) -> int:
    """Read `true` or `false`. Returns the place after it, or -1."""
    if has_text_at(base, place, _TRUE):
        store_u8(target + element, 1)
        return place + 4
    store_u8(target + element, 0)
    return place + 5 if has_text_at(base, place, _FALSE) else -1


@inner
def skip_element(base: Address, place: int, end: int) -> int:
    """Skip a string, an object, or any other text up to the next delimiter. Returns the place after it, or -1."""
    c = load_u8(base + place)
    if c == QUOTE:
        place, _ = skip_string(base, place + 1, end)
        return place
    if c == OPENING_BRACE:
        return skip_nested(base, place, end, int64(0))
    first = place
    while (
        place < end
        and c != COMMA
        and c != OPENING_BRACKET
        and c != CLOSING_BRACKET
        and c != CLOSING_BRACE
        and not is_space(c)
    ):
        place += 1
        c = load_u8(base + place)
    return place if place > first else -1
