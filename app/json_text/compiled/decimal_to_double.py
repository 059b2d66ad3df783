"""Digits and a power of ten to the nearest binary64, for compiled code.

A number of at most 19 digits becomes a float64 by one exact operation where it can (Clinger 1990), else by the product
with a 128-bit power of five (Eisel and Lemire, "Number parsing at a gigabyte per second", 2021; Mushtak and Lemire 2023
prove that it needs no fallback). Of longer numbers the first 19 digits bound the value from both sides: where the two
bounds round apart, `side_of` compares all digits with the middle of the two.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.compilation.decorators import inlined, inner
from app.compilation.intrinsics import (
    Address,
    count_leading_zeros,
    f64_bits,
    f64_from_bits,
    float64,
    int64,
    load_u8,
    load_u64,
    lshr,
    mulhi_u64,
    signed,
    stack_words,
    store_u64,
    ult,
)
from app.json_text.compiled.characters import (
    LETTER_E,
    LOWER,
    NINE,
    POINT,
    ZERO,
)
from app.json_text.compiled.parse_decimal import TENS, exponent_at

MIN_POWER: Final = -342
"""With a lower one all digits below 2**64 are less than half of the least float64, 2**-1074, and round to 0."""
MAX_POWER: Final = 308
"""With a higher one 1 is above the largest float64."""
INFINITY_BITS: Final = 0x7FF << 52
_EXACT: Final = 10**15
"""Below 2**53: such digits, and powers of ten up to 10**22, are float64 exactly, and one operation rounds once (Clinger
1990)."""


def _powers_of_five() -> NDArray[np.int64]:
    """Upper and lower half of 5**q cut to 128 significant bits, rounded up where it is a reciprocal, for each power."""
    rows = []
    for power in range(MIN_POWER, MAX_POWER + 1):
        if power >= 0:
            value = 5**power
            shift = value.bit_length() - 128
            value = value >> shift if shift > 0 else value << -shift
        else:
            # Both the rounding up and the two lengths of the quotient are those that the proofs are about.
            divisor: int = 5**-power
            size = (divisor - 1).bit_length()
            value = (1 << (size + 127 if power >= -27 else 2 * size + 128)) // divisor + 1
            value >>= value.bit_length() - 128
        rows.append((signed(value >> 64), signed(value & (2**64 - 1))))
    return np.array(rows, np.int64)


_FIVES: Final[NDArray[np.int64]] = _powers_of_five()
_FLOAT_TENS: Final[NDArray[np.float64]] = np.array([10.0**power for power in range(23)])
_LOG2_10: Final = 217706
"""log2(10) * 2**16, exact enough for all powers here (fast_float's `power`)."""
_MOST_DIGITS: Final = 800
"""More than the 767 digits that the middle between two floats can have: what follows them only breaks a tie."""
_LIMBS: Final = 64
"""Words of 10**_MOST_DIGITS, or of the mantissa of a middle times as large a power of five."""
_two_numbers: Final = stack_words(2 * _LIMBS)
_SMALL_FIVES: Final[NDArray[np.int64]] = np.array([5**power for power in range(28)], np.int64)
_FIVE_STEP: Final = 27
"""5**27 is the largest power of five below 2**63."""


@inlined
def nearest(value: int, power: int) -> float:
    """value * 10**power, the value unsigned, rounded once to float64, half to even: infinite from 2**1024 - 2**970."""
    if -22 <= power <= 22 and ult(value, _EXACT):
        exact: float = float64(value) / _FLOAT_TENS[-power] if power < 0 else float64(value) * _FLOAT_TENS[power]
        return exact
    if value == 0 or power < MIN_POWER:
        return 0.0
    if power > MAX_POWER:
        return np.inf
    zeros = count_leading_zeros(value)
    value <<= zeros
    upper = mulhi_u64(value, _FIVES[power - MIN_POWER, 0])
    lower = value * _FIVES[power - MIN_POWER, 0]
    if upper & 0x1FF == 0x1FF:
        more = mulhi_u64(value, _FIVES[power - MIN_POWER, 1])
        lower += more
        upper += ult(lower, more)
    top = lshr(upper, 63)
    mantissa = lshr(upper, top + 9)
    exponent = ((_LOG2_10 * power) >> 16) + 63 + top - zeros + 1023
    if exponent <= 0:
        if exponent <= -63:
            return 0.0
        mantissa = lshr(mantissa, 1 - exponent)
        mantissa = (mantissa + (mantissa & 1)) >> 1
        return f64_from_bits(mantissa)  # 2**52 is the smallest normal number, as it should be
    if exponent >= 0x7FF:  # one more would be the sign
        return np.inf
    halfway = mantissa & 3 == 1 and -4 <= power <= 23 and 0 <= lower <= 1
    if halfway and mantissa << (top + 9) == upper:
        mantissa -= 1
    mantissa = (mantissa + (mantissa & 1)) >> 1
    return f64_from_bits((exponent << 52) + mantissa - (1 << 52))  # a mantissa of 2**53 carries into the exponent


@inner
def nearest_called(value: int, power: int) -> float:
    """`nearest`, not made part of the caller: for the places where speed does not matter."""
    return nearest(value, power)


@inner
def narrow(bits: int, width: int, bias: int) -> int:
    """The float of `width` mantissa bits nearest to a float64 of the magnitude `bits`, half to even, as its bits."""
    if bits >= INFINITY_BITS:
        return (2 * bias + 1) << width | (bits > INFINITY_BITS) << (width - 1)
    exponent = (bits >> 52) - 1023 + bias
    fraction = bits & ((1 << 52) - 1)
    shift = 52 - width
    if exponent > 0:
        fraction |= exponent << 52
    else:
        fraction |= 1 << 52
        shift += 1 - exponent
        if shift > 54:
            return 0
    return (fraction + (1 << (shift - 1)) - 1 + ((fraction >> shift) & 1)) >> shift


@inner
def _grown(limbs: Address, size: int, factor: int, more: int) -> int:
    """How many words there are once the number at the address `limbs` has become itself * factor + more.

    It is `size` words of 64 bits, the lowest first; all is unsigned.
    """
    for i in range(size):
        limb = load_u64(limbs + 8 * i)
        low = limb * factor + more
        more = mulhi_u64(limb, factor) + ult(low, more)
        store_u64(limbs + 8 * i, low)
    if more != 0:
        store_u64(limbs + 8 * size, more)
        size += 1
    return size


@inner
def _times_five(limbs: Address, size: int, power: int) -> int:
    """How many words there are once the number has been multiplied by 5**power."""
    while power > 0:
        step = min(power, _FIVE_STEP)
        size = _grown(limbs, size, _SMALL_FIVES[step], int64(0))
        power -= step
    return size


@inner
def _shifted(limbs: Address, size: int, count: int) -> int:
    """How many words there are once the number has been multiplied by 2**count."""
    words = count >> 6
    size = _grown(limbs, size, 1 << (count & 63), int64(0))
    for i in range(size - 1, -1, -1):
        store_u64(limbs + 8 * (i + words), load_u64(limbs + 8 * i))
    for i in range(words):
        store_u64(limbs + 8 * i, 0)
    return size + words


@inner
def side_of(base: Address, place: int, low: float, half: int) -> int:
    """1, 0 or -1: the unsigned JSON number at `place` is above, at or below a float64, or the middle after it.

    With `half` 1 it is the middle of `low` and the next float64, which may be infinity, and the number is not 0 and
    lies between the two. With `half` 0 it is `low`, which is not 0, and the number rounds to it. All digits count.
    """
    left = _two_numbers()
    right = left + 8 * _LIMBS
    zero = int64(0)
    size = kept = power = part = digits_in_part = zero
    cut, fraction = False, False
    while True:
        c = load_u8(base + place)
        if c == POINT:
            fraction = True
        elif c < ZERO or c > NINE:
            break
        elif kept < _MOST_DIGITS:
            power -= fraction
            if kept > 0 or c != ZERO:
                kept += 1
                part = part * 10 + c - ZERO
                digits_in_part += 1
                if digits_in_part == 18:
                    size = _grown(left, size, TENS[18], part)
                    part = digits_in_part = zero
        else:
            cut |= c != ZERO
            power += not fraction
        place += 1
    size = _grown(left, size, TENS[digits_in_part], part)
    if load_u8(base + place) | LOWER == LETTER_E:
        _, exponent = exponent_at(base, place)
        power += exponent
    bits = f64_bits(low)
    mantissa, exponent = bits & ((1 << 52) - 1), bits >> 52
    if exponent > 0:
        mantissa |= 1 << 52
        exponent -= 1
    right_size = _grown(right, zero, zero, 2 * mantissa + half)
    # left * 10**power against right * 2**(exponent - 1075): the fives go to one side, then the twos.
    size = _times_five(left, size, power)
    right_size = _times_five(right, right_size, -power)
    twos = power - exponent + 1075
    left_bits = 64 * size - count_leading_zeros(load_u64(left + 8 * size - 8)) + twos
    right_bits = 64 * right_size - count_leading_zeros(load_u64(right + 8 * right_size - 8))
    if left_bits != right_bits:
        return 1 if left_bits > right_bits else -1
    if twos > 0:
        size = _shifted(left, size, twos)
    else:
        _shifted(right, right_size, -twos)
    for i in range(8 * size - 8, -8, -8):
        first, second = load_u64(left + i), load_u64(right + i)
        if first != second:
            return -1 if ult(first, second) else 1
    return 1 if cut else 0
