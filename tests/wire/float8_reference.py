"""The floats of 8 bits as their formats define them, in exact fractions.

E4M3FN and E5M2 are of the OCP's 8-bit floating point specification, E8M0 of its microscaling formats.
"""

from __future__ import annotations

from fractions import Fraction
from functools import cache

FLOAT8 = ("float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu")
NAN = {"float8_e4m3fn": 0x7F, "float8_e5m2": 0x7E, "float8_e8m0fnu": 0xFF}


def number_of(dtype: str, bits: int) -> Fraction | str:
    """The number that 8 bits stand for, or its name in JSON."""
    if dtype == "float8_e8m0fnu":
        return "NaN" if bits == 0xFF else Fraction(2) ** (bits - 127)
    sign, size = (-1 if bits & 0x80 else 1), bits & 0x7F
    fraction, bias = (3, 7) if dtype == "float8_e4m3fn" else (2, 15)
    if dtype == "float8_e4m3fn" and size == 0x7F:
        return "NaN"
    if dtype == "float8_e5m2" and size >= 0x7C:
        return "NaN" if size > 0x7C else "-Infinity" if sign < 0 else "Infinity"
    exponent, rest = size >> fraction, size & ((1 << fraction) - 1)
    if exponent:
        return sign * Fraction(rest + (1 << fraction)) * Fraction(2) ** (exponent - bias - fraction)
    return sign * Fraction(rest) * Fraction(2) ** (1 - bias - fraction)


@cache
def finite(dtype: str) -> list[Fraction]:
    """The finite numbers of the type that are not negative, in ascending order: their bits are their places."""
    numbers = (number_of(dtype, bits) for bits in range(0x100 if dtype == "float8_e8m0fnu" else 0x80))
    return [number for number in numbers if isinstance(number, Fraction)]


def nearest(dtype: str, exact: Fraction, negative: bool) -> int | None:
    """The bits of the number nearest to one of the magnitude `exact`, half to even; None if there is none."""
    numbers = finite(dtype)
    if negative and exact and dtype == "float8_e8m0fnu":
        return None
    above = numbers[-1] * 2 if dtype == "float8_e8m0fnu" else 2 * numbers[-1] - numbers[-2]
    places = [*numbers, above]
    place = min(range(len(places)), key=lambda bits: (abs(places[bits] - exact), bits & 1))
    if exact > above or place == len(numbers):
        return None
    return place | (negative and dtype != "float8_e8m0fnu") << 7
