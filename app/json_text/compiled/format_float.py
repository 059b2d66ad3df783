"""Writes lists of float32 as JSON, in compiled code. Each number is the shortest decimal that reads back unchanged.

The digits are computed as in Schubfach (Giulietti, "The Schubfach way to render doubles", 2020), but with only one
product per number. The error of the product is bounded; a decimal so close to a rounding boundary that the error could
matter is checked by reading it back. Such a check is needed anyway, because readers round to float64 and then again to
float32. For example, 7.038531e-26 is close to the midpoint of two float32 numbers. It is the shortest decimal of one of
them, but reads back as the other.
"""

# Comparisons are spelled out, because that compiles to faster code.
from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.compilation.decorators import entry, inlined, inner
from app.compilation.intrinsics import (
    Address,
    Bytes,
    address_of,
    count_leading_zeros,
    f32_bits,
    load_u32,
    lshr,
    mulhi_u64,
    repeat_byte,
    signed,
    store_u8,
    store_u16,
    store_u64,
    udiv,
    ult,
)
from app.json_text.compiled.characters import (
    CLOSING_BRACKET,
    COMMA,
    LETTER_E,
    MINUS,
    OPENING_BRACKET,
    POINT,
    QUOTE,
    ZERO,
)
from app.json_text.compiled.decimal_to_double import nearest_not_inlined
from app.json_text.compiled.parse_decimal import TENS

_LEAST_POWER: Final = -31
_MOST_POWER: Final = 45
"""A float32 is written as digits * 10**p with p from -45 (2**-149) to 31 (2**104), so it is multiplied by 10**-p."""
_FINE: Final = 24
"""Number of bits computed for a quarter of a digit. The error of the product is less than two units of the last bit."""
_ONE: Final = 4 << _FINE
_UNSURE: Final = 4
"""Twice that error; a decimal that is closer to a rounding boundary is read back."""
_INFINITY_BITS: Final = 0xFF << 23


def _powers_of_ten() -> NDArray[np.int64]:
    """Return the first 64 bits of each power of ten, rounded up."""
    rows = []
    for power in range(_LEAST_POWER, _MOST_POWER + 1):
        if power >= 0:
            whole: int = 10**power
            shift = whole.bit_length() - 64
            bits = -(-whole >> shift) if shift > 0 else whole << -shift
        else:
            divisor: int = 10**-power
            bits = (1 << (divisor.bit_length() + 63)) // divisor + 1
        rows.append(signed(bits))
    return np.array(rows, np.int64)


_LOG10_2: Final = 1262611
_LOG2_10: Final = 1741647
"""log10(2) * 2**22 and log2(10) * 2**19; for the exponents here, the integer part of a product is exact (Giulietti)."""
_POWERS: Final[NDArray[np.int64]] = _powers_of_ten()
_ZEROS: Final = repeat_byte(ZERO)
_ZERO_POINT: Final = int.from_bytes(b"0.000000", "little")
_POINT_ZERO: Final = int.from_bytes(b".0", "little")
_INFINITY: Final = int.from_bytes(b"Infinity", "little")
_NAN: Final = int.from_bytes(b'"NaN"', "little")


@inlined
def _digits(bits: int) -> tuple[int, int]:
    """Return the digits and the power of ten of the shortest decimal for a finite, non-negative float32."""
    fraction = bits & 0x7FFFFF
    exponent = bits >> 23
    whole = fraction | (exponent > 0) << 23
    uneven = fraction == 0  # the lower neighbor may be only half as far away as the upper one
    exponent = max(exponent, 1) - 150
    power = (exponent * _LOG10_2) >> 22
    shift = exponent + ((-power * _LOG2_10) >> 19) + 1 + _FINE
    factor = _POWERS[-power - _LEAST_POWER]
    value = mulhi_u64(factor, whole << (shift + 2))
    reach = lshr(factor, 63 - shift)  # half the distance to the next float
    digits = value >> (_FINE + 2)
    tens = udiv(digits, 10)
    rest = value - 10 * _ONE * tens
    under, over = reach - rest, reach + rest - 10 * _ONE
    if uneven or ult(under + _UNSURE, 2 * _UNSURE) or ult(over + _UNSURE, 2 * _UNSURE):
        return _digits_by_search(bits, value, power)
    short = (under > 0) | (over > 0)  # without a branch, which the processor could not predict
    tens += over > 0
    # 10**power is at most the distance to the next float, so the nearer decimal is within half of that distance.
    digits += value & (_ONE - 1) > _ONE >> 1
    return tens if short else digits, power + short


@inner
def _digits_by_search(bits: int, value: int, power: int) -> tuple[int, int]:
    """Like `_digits`, but reads back candidates, the shorter and nearer ones first.

    The float is about value / _ONE * 10**power.

    The last candidate, with one digit more than ever needed, always reads back as the same float.
    """
    if bits == 0:
        return 0, 1
    size = 10 * _ONE
    for longer in range(2):
        digits = udiv(value, size)
        nearer = value - digits * size > size >> 1
        for other in range(2):
            tried = digits + (nearer != other)
            if tried > 0 and f32_bits(nearest_not_inlined(tried, power + 1 - longer)) == bits:
                return tried, power + 1 - longer
        size = _ONE
    return udiv(10 * value + (_ONE >> 1), _ONE), power - 1


@inlined
def _spread(number: int) -> int:
    """Split a number below 10**8 into eight digits, one per byte, the first digit in the lowest byte."""
    pairs = udiv(number, 10000)
    pairs |= (number - 10000 * pairs) << 32
    hundreds = ((pairs * 10486) >> 20) & 0x7F0000007F  # 2**20 / 100, rounded up: exact for four digits
    pairs = hundreds | (pairs - 100 * hundreds) << 16
    tens = ((pairs * 103) >> 10) & 0x000F000F000F000F  # 2**10 / 10, rounded up: exact for two digits
    return tens | (pairs - 10 * tens) << 8


@inlined
def _put_decimal(to: Address, digits: int, power: int) -> Address:
    """Write digits * 10**power, with at most nine digits, at the address `to`. Returns the address after it."""
    count = ((64 - count_leading_zeros(digits)) * 1233) >> 12  # number of bits times log10(2)
    count += digits >= TENS[count]
    point: int = count + power
    digits *= TENS[9 - count]
    first = udiv(digits, 10**8)
    rest = _spread(digits - first * 10**8)
    count = 9 - (count_leading_zeros(rest) >> 3)
    rest |= _ZEROS
    first += ZERO
    if -4 < point <= 0:
        store_u64(to, _ZERO_POINT)
        to += 2 - point
        store_u8(to, first)
        store_u64(to + 1, rest)
        return to + count
    store_u8(to, first)
    if 0 < point <= 16:
        store_u64(to + 1, rest)
        if point < 9:
            store_u8(to + point, POINT)
            store_u64(to + point + 1, lshr(rest, 8 * (point - 1)))
            return to + point + 1 + max(count - point, 1)
        store_u64(to + 9, _ZEROS)
        store_u16(to + point, _POINT_ZERO)
        return to + point + 2
    if count > 1:
        store_u8(to + 1, POINT)
        store_u64(to + 2, rest)
        count += 1
    store_u8(to + count, LETTER_E)
    to += count + 1
    point -= 1
    if point < 0:
        store_u8(to, MINUS)
        to += 1
        point = -point
    if point >= 10:
        store_u8(to, ZERO + udiv(point, 10))
        to += 1
    store_u8(to, ZERO + point - 10 * udiv(point, 10))
    return to + 1


@entry
def write_singles(items: Bytes, pairs: bool, text: Bytes) -> int:
    """Write float32 `items` as a JSON list to `text`; with `pairs`, as a list of pairs. Returns the length."""
    source, to = address_of(items), address_of(text)
    start = to
    store_u8(to, OPENING_BRACKET)
    to += 1
    for item in range(items.size >> 2):
        bits = load_u32(source + 4 * item)
        if pairs and item & 1 == 0:
            store_u8(to, OPENING_BRACKET)
            to += 1
        negative = bits >> 31
        bits &= 0x7FFFFFFF
        if bits >= _INFINITY_BITS:
            store_u64(to, _NAN)
            to += 5
            if bits == _INFINITY_BITS:
                store_u8(to - 4, MINUS)
                to += negative - 4
                store_u64(to, _INFINITY)
                store_u8(to + 8, QUOTE)
                to += 9
        else:
            store_u8(to, MINUS)
            to += negative
            digits, power = _digits(bits)
            to = _put_decimal(to, digits, power)
        if pairs and item & 1 != 0:
            store_u8(to, CLOSING_BRACKET)
            to += 1
        store_u8(to, COMMA)
        to += 1
    to -= items.size > 0
    store_u8(to, CLOSING_BRACKET)
    return to + 1 - start
