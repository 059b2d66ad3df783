"""Digits and a power of ten to the nearest binary64, for compiled code.

A number of at most 19 digits becomes a float64 by one exact operation where it can (Clinger 1990), else by the product
with a 128-bit power of five (Eisel and Lemire, "Number parsing at a gigabyte per second", 2021; Mushtak and Lemire 2023
prove that it needs no fallback). The C library reads longer numbers, which are rare.
"""

from __future__ import annotations

import platform
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.compilation.decorators import inlined, inner
from app.compilation.intrinsics import (
    Address,
    count_leading_zeros,
    f64_from_bits,
    fesetround,
    float64,
    lshr,
    mulhi_u64,
    signed,
    strtod,
    ult,
)

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
_DOWNWARD, _UPWARD = (0x400, 0x800) if platform.machine() == "x86_64" else (0x800000, 0x400000)
"""Directions of rounding, as <fenv.h> of x86-64 and of aarch64 has them; 0 stands for to nearest."""


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
def read_exactly(base: Address, place: int) -> float:
    """The float64 nearest to the unsigned JSON number at `place`, all of its digits read, half to even."""
    return strtod(base + place, 0)


@inner
def side_of(base: Address, place: int, number: float) -> int:
    """1, 0 or -1: the unsigned JSON number at `place` is above, at or below the float64 that it rounds to."""
    fesetround(_UPWARD)
    above = strtod(base + place, 0)
    fesetround(_DOWNWARD)
    below = strtod(base + place, 0)
    fesetround(0)
    return (above > number) - (below < number)
