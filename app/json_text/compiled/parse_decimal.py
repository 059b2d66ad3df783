"""Parses JSON numbers into digits and powers of ten, and into integers, in compiled code.

Digits are parsed eight at a time. If a number has more than 19 digits, the first 19 are kept, and a flag says whether
anything other than zeros was dropped.
"""

# Comparisons are spelled out, because that compiles to faster code.
# ruff: noqa: PLR1714, SIM109
from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.compilation.decorators import inlined, inner
from app.compilation.intrinsics import (
    Address,
    count_trailing_zeros,
    find_non_digits,
    int64,
    load_u8,
    load_u64,
    lshr,
    repeat_byte,
    signed,
    udiv,
    ult,
)
from app.json_text.compiled.characters import (
    LETTER_E,
    LOWER,
    MINUS,
    NINE,
    PLUS,
    POINT,
    ZERO,
)

TENS: Final[NDArray[np.int64]] = np.array([10**power for power in range(19)], np.int64)
_ZEROS: Final = repeat_byte(ZERO)
_KEPT: Final[NDArray[np.int64]] = np.array([signed(2**64 - (1 << (64 - 8 * count))) for count in range(9)], np.int64)
"""Masks that keep the last `count` of eight bytes."""
# Eight digits are combined into four pairs, and two multiplications then combine the pairs into one number, as in
# fast_float's `parse_eight_digits_unrolled`. The halves of the factors are 100 and 10**6, and 1 and 10**4.
_PAIRS: Final = 0x000000FF000000FF
_PAIRS_TO_MILLIONS: Final = 0x000F424000000064
_PAIRS_TO_UNITS: Final = 0x0000271000000001
_FAR: Final = 10**15
"""Limit on exponents. No body has enough digits to bring a number with a larger exponent back into range."""
_TENTH: Final = 2**64 // 10
_MOST_OF_FLOAT: Final = int64(19)
"""Number of digits that always fit below 2**64."""


@inlined
def _parse_eight_digits(text: int) -> int:
    """Convert eight digits, one per byte (0 to 9), the first in the lowest byte, to a number."""
    text = text * 10 + lshr(text, 8)
    text = (text & _PAIRS) * _PAIRS_TO_MILLIONS + (lshr(text, 16) & _PAIRS) * _PAIRS_TO_UNITS
    return lshr(text, 32)


@inlined
def digits_before(base: Address, stop: int, count: int) -> int:
    """Convert the `count` digits (at most 24) before `stop` to a number modulo 2**64.

    The 24 bytes before `stop` must be readable. Few branches depend on `count`, because the processor could not predict
    them.
    """
    last = min(count, 8)
    value = _parse_eight_digits((load_u64(base + stop - 8) ^ _ZEROS) & _KEPT[last])
    if count > 8:
        value += _parse_eight_digits((load_u64(base + stop - 16) ^ _ZEROS) & _KEPT[min(count, 16) - 8]) * 10**8
        if count > 16:
            value += _parse_eight_digits((load_u64(base + stop - 24) ^ _ZEROS) & _KEPT[count - 16]) * 10**16
    return value


@inner
def _digits(base: Address, place: int) -> tuple[int, int]:
    """Parse the digits at `place`. Returns their value modulo 2**64, and how many there are."""
    first, value = place, 0
    while True:
        c = load_u8(base + place) - ZERO
        if c < 0 or c > 9:
            return value, place - first
        value = value * 10 + c
        place += 1


@inner
def _long_digits(base: Address, place: int) -> tuple[int, int, int, bool]:
    """Parse the digits at `place`, with at most one point among them.

    Returns the first 19 significant digits, their power of ten, the next digit, and whether nonzero digits follow that
    one.
    """
    value = kept = power = digit = 0
    cut, fraction = False, False
    while True:
        c = load_u8(base + place)
        place += 1
        if c == POINT:
            fraction = True
            continue
        if c < ZERO or c > NINE:
            return value, power, digit, cut
        if kept < _MOST_OF_FLOAT:
            value = value * 10 + c - ZERO
            kept += value != 0
            power -= fraction
        else:
            if kept == _MOST_OF_FLOAT:
                digit = c - ZERO
                kept += 1
            else:
                cut |= c != ZERO
            power += not fraction


@inlined
def quick_decimal(base: Address, place: int) -> tuple[int, int, int]:
    """Parse a JSON number of a common form. Returns the place after it, its digits and its power of ten.

    The returned place is 0 if there is no number, or if the number has a rare form, which `decimal` reads. The caller
    handles the sign. 24 bytes before `place` and 33 after it must be readable. As in `digits_before`, some unneeded
    steps are executed to avoid branches that the processor cannot predict.
    """
    begin = place + (load_u8(base + place) == MINUS)
    marks = find_non_digits(base + place) & -2  # bit 0 is a sign, or a digit
    stop = place + count_trailing_zeros(marks)
    count = stop - begin
    initial = load_u8(base + begin)
    if count == 0 or count > 8 or not ZERO <= initial <= NINE or (count > 1 and initial == ZERO):
        return 0, 0, 0
    value = _parse_eight_digits((load_u64(base + stop - 8) ^ _ZEROS) & _KEPT[count])
    power = 0
    c = load_u8(base + stop)
    if c == POINT:
        power = -1 - stop
        stop = place + count_trailing_zeros(marks & (marks - 1))
        power += stop
        if power == 0 or count + power > 19:
            return 0, 0, 0
        part = _parse_eight_digits((load_u64(base + stop - 8) ^ _ZEROS) & _KEPT[min(power, 8)])
        part += _parse_eight_digits((load_u64(base + stop - 16) ^ _ZEROS) & _KEPT[min(max(power, 8), 16) - 8]) * 10**8
        if power > 12:
            part += _parse_eight_digits((load_u64(base + stop - 24) ^ _ZEROS) & _KEPT[max(power, 16) - 16]) * 10**16
        value = value * TENS[power] + part
        c = load_u8(base + stop)
    power = -power
    if c | LOWER == LETTER_E:
        sign = load_u8(base + stop + 1)
        first = stop + (2 if sign == PLUS or sign == MINUS else 1)
        stop = first
        part = 0
        while True:
            c = load_u8(base + stop) - ZERO
            if c < 0 or c > 9:
                break
            part = part * 10 + c
            stop += 1
        if stop == first or stop > first + 4:
            return 0, 0, 0
        power += -part if sign == MINUS else part
    return stop, value, power


@inner
def exponent_at(base: Address, place: int) -> tuple[int, int]:
    """Parse the exponent whose `e` is at `place`. Returns the place after it, or -1 if it has no digits, and its value.

    Values beyond ±10**15 are not exact, but remain beyond that bound.
    """
    place += 1
    sign = load_u8(base + place)
    if sign == PLUS or sign == MINUS:
        place += 1
    exponent, begin = 0, place
    while True:
        c = load_u8(base + place) - ZERO
        if c < 0 or c > 9:
            break
        if exponent < _FAR:
            exponent = exponent * 10 + c
        place += 1
    if place == begin:
        return -1, 0
    return place, -exponent if sign == MINUS else exponent


@inner
def _decimal(base: Address, place: int) -> tuple[int, int, int, int, bool]:
    """Parse an unsigned JSON number. Returns (place after it or -1, digits, power of ten, digit, cut).

    The number is digits * 10**power, with unsigned digits. If it has more than 19 digits, `digit` is the next digit,
    and `cut` says whether nonzero digits follow that one.
    """
    first = place
    value, count = _digits(base, place)
    if count == 0 or (count > 1 and load_u8(base + place) == ZERO):
        return -1, 0, 0, 0, False
    place += count
    power = digit = 0
    cut = False
    if load_u8(base + place) == POINT:
        part, behind = _digits(base, place + 1)
        if behind == 0:
            return -1, 0, 0, 0, False
        place += 1 + behind
        count += behind
        if count <= _MOST_OF_FLOAT:
            value = value * TENS[behind] + part
            power = -behind
    if count > _MOST_OF_FLOAT:
        value, power, digit, cut = _long_digits(base, first)
    if load_u8(base + place) | LOWER == LETTER_E:
        place, exponent = exponent_at(base, place)
        if place < 0:
            return -1, 0, 0, 0, False
        power += exponent
    return place, value, power, digit, cut


@inner
def decimal(base: Address, place: int) -> tuple[int, int, int, bool]:
    """Parse an unsigned JSON number. Returns (place after it or -1, digits, power of ten, cut).

    The number is digits * 10**power, with unsigned digits. If `cut` is True, it has more nonzero digits.
    """
    stop, value, power, digit, cut = _decimal(base, place)
    return stop, value, power, cut or digit != 0


@inner
def integral(base: Address, place: int) -> tuple[int, int, bool]:
    """Parse an unsigned JSON number of any form as an integer. Returns (place after it or -1, value, fits).

    `fits` is True if the number is exactly an integer below 2**64.
    """
    stop, value, power, digit, cut = _decimal(base, place)
    if stop < 0 or cut:
        return stop, value, False
    if digit != 0:
        if ult(_TENTH, value) or (value == _TENTH and digit > 5):
            return stop, value, False
        value = value * 10 + digit
        power -= 1
    while power != 0 and value != 0:
        if power > 0:
            if ult(_TENTH, value):
                return stop, value, False
            value *= 10
            power -= 1
        else:
            tenth = udiv(value, 10)
            if 10 * tenth != value:
                return stop, value, False
            value = tenth
            power += 1
    return stop, value, True
