"""The ordered values of a narrow float type, and the midpoints at which rounding changes.

In every type, the non-negative finite values have the bits 0, 1, 2, ... in ascending order. So the bits of the value
nearest to x equal the number of midpoints below x. A midpoint is rounded to the neighbor with even bits.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from app.tensors.dtypes import DType

_finfo: Final[Any] = ml_dtypes.finfo


def bits_of(dtype: DType, number: float) -> int:
    """Return the bits of a number in the float type. The number may be an infinity or a NaN."""
    with np.errstate(all="ignore"):
        return int(np.array([number]).astype(dtype.numpy).view(f"u{dtype.item_size}")[0])


def largest_finite(dtype: DType) -> float:
    """Return the largest finite value."""
    return float(_finfo(dtype.numpy).max)


def fraction_bits(dtype: DType) -> int:
    """Return the number of fraction bits, excluding the leading 1."""
    return int(_finfo(dtype.numpy).nmant)


def exponent_bias(dtype: DType) -> int:
    """Return the exponent bias."""
    return has_zero(dtype) - int(_finfo(dtype.numpy).minexp)


def has_zero(dtype: DType) -> bool:
    """Return whether all-zero bits are the value 0 and a zero exponent field means subnormal values."""
    return bool(np.zeros(1, dtype.numpy).astype(np.float64)[0] == 0)


def overflow_bound(dtype: DType) -> float:
    """Return the midpoint between the largest finite value and the value that would follow it."""
    info = _finfo(dtype.numpy)
    return largest_finite(dtype) + 2.0 ** int(info.maxexp - info.nmant - 2)


def is_signed(dtype: DType) -> bool:
    """Return whether the type has negative values."""
    return float(_finfo(dtype.numpy).min) < 0


def has_infinity(dtype: DType) -> bool:
    """Return whether the type has infinities."""
    with np.errstate(all="ignore"):
        return bool(np.isinf(np.array([np.inf]).astype(dtype.numpy).astype(np.float64))[0])


@cache
def middles(dtype: DType) -> NDArray[np.float64]:
    """Return the midpoints of a type with at most 16 bits. The last one is `overflow_bound`."""
    bits: NDArray[Any] = np.arange(bits_of(dtype, largest_finite(dtype)) + 1, dtype=f"u{dtype.item_size}")
    numbers = bits.view(dtype.numpy).astype(np.float64)
    found: NDArray[np.float64] = np.append((numbers[:-1] + numbers[1:]) / 2, overflow_bound(dtype))
    found.flags.writeable = False
    return found
