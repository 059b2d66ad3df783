"""Floats rounded once, half to even, by exact fractions: nothing of `app` and nothing of NumPy's conversions."""

from __future__ import annotations

from fractions import Fraction
from math import copysign, inf, isinf, isnan
from typing import Final

FORMATS: Final = {"float16": (11, -14), "bfloat16": (8, -126), "float32": (24, -126), "float64": (53, -1022)}
"""Of each type the bits of precision, and the exponent of its least normal number."""


def rounded(number: float, name: str) -> float:
    """The number of a type that is nearest to a float64, of two the even one."""
    if isnan(number) or isinf(number) or number == 0:
        return number
    precision, least = FORMATS[name]
    exact = Fraction(number)
    exponent = max(abs(exact.numerator).bit_length() - exact.denominator.bit_length() - 1, least)
    while abs(exact) >= Fraction(2) ** (exponent + 1):
        exponent += 1
    unit = Fraction(2) ** (exponent - precision + 1)
    found = round(exact / unit) * unit  # Python rounds half to even
    largest = (2 - Fraction(2) ** (1 - precision)) * Fraction(2) ** (1 - least)
    if abs(found) > largest:
        return inf if found > 0 else -inf
    return copysign(float(found), number)
