"""Converts digits and a power of ten to the nearest binary64, in compiled code.

A number of at most 19 digits is converted by one exact operation if possible (Clinger 1990), and otherwise by
multiplication with a 128-bit power of five (Eisel and Lemire, "Number parsing at a gigabyte per second", 2021; Mushtak
and Lemire 2023 prove that it needs no fallback). Longer numbers, which are rare, are read by the C library.
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
"""With a lower power, any digits below 2**64 are less than half of the smallest float64, 2**-1074, and round to 0."""
MAX_POWER: Final = 308
"""With a higher power, even the digit 1 exceeds the largest float64."""
INFINITY_BITS: Final = 0x7FF << 52
_EXACT: Final = 10**15
"""Smaller digits (below 2**53) and powers of ten up to 10**22 are exact in float64, so one operation on them rounds
only once (Clinger 1990).
"""


def _powers_of_five() -> NDArray[np.int64]:
    """Return the upper and lower halves of 5**q, truncated to 128 significant bits; reciprocals are rounded up."""
    rows = []
    for power in range(MIN_POWER, MAX_POWER + 1):
        if power >= 0:
            value = 5**power
            shift = value.bit_length() - 128
            value = value >> shift if shift > 0 else value << -shift
        else:
            # The proofs require this rounding up and these two quotient lengths.
            divisor: int = 5**-power
            size = (divisor - 1).bit_length()
            value = (1 << (size + 127 if power >= -27 else 2 * size + 128)) // divisor + 1
            value >>= value.bit_length() - 128
        rows.append((signed(value >> 64), signed(value & (2**64 - 1))))
    return np.array(rows, np.int64)


_FIVES: Final[NDArray[np.int64]] = _powers_of_five()
_FLOAT_TENS: Final[NDArray[np.float64]] = np.array([10.0**power for power in range(23)])
_LOG2_10: Final = 217706
"""log2(10) * 2**16, accurate enough for all powers here (fast_float's `power`)."""
_DOWNWARD, _UPWARD = (0x400, 0x800) if platform.machine() == "x86_64" else (0x800000, 0x400000)
"""Rounding modes of <fenv.h> on x86-64 and aarch64; 0 is to nearest."""


@inlined
def nearest(value: int, power: int) -> float:
    """Return value * 10**power (value unsigned), rounded once to float64, half to even.

    Results of at least 2**1024 - 2**970 are infinite.
    """
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
        return f64_from_bits(mantissa)  # a mantissa of 2**52 correctly becomes the smallest normal number
    if exponent >= 0x7FF:  # a larger exponent would overflow into the sign
        return np.inf
    halfway = mantissa & 3 == 1 and -4 <= power <= 23 and 0 <= lower <= 1
    if halfway and mantissa << (top + 9) == upper:
        mantissa -= 1
    mantissa = (mantissa + (mantissa & 1)) >> 1
    return f64_from_bits((exponent << 52) + mantissa - (1 << 52))  # a mantissa of 2**53 carries into the exponent


@inner
def nearest_not_inlined(value: int, power: int) -> float:
    """`nearest` without inlining, for callers whose speed does not matter."""
    return nearest(value, power)


@inner
def narrow(bits: int, width: int, bias: int) -> int:
    """Round a float64, given as the bits of its magnitude, to a float with `width` mantissa bits, half to even.

    Returns the bits of the result.
    """
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
    """Return the float64 nearest to the unsigned JSON number at `place`, from all of its digits, half to even."""
    return strtod(base + place, 0)


@inner
def compare_decimal(base: Address, place: int, number: float) -> int:
    """Compare the unsigned JSON number at `place` with `number`, the float64 that it rounds to. Returns 1, 0 or -1."""
    fesetround(_UPWARD)
    above = strtod(base + place, 0)
    fesetround(_DOWNWARD)
    below = strtod(base + place, 0)
    fesetround(0)
    return (above > number) - (below < number)
