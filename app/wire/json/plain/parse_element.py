"""Elements of a JSON array to packed items: numbers and bools of every type, a block of them at a time.

Floats are read as float64 and rounded once more, as `app.wire.json.compiled.parse_element` does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import isinf
from typing import Any, Final

import numpy as np
import orjson
from numpy.typing import NDArray

from app.wire.json import lossless_json
from app.wire.json.codec_constants import (
    BFLOAT16,
    BOOL,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    INT8,
    INT64,
    STRING,
    TOO_LARGE,
    UINT8,
    UINT64,
)
from app.wire.json.plain.patterns import BARE_NUMBER, NUMBER

_TYPES: Final[Mapping[int, np.dtype[Any]]] = {
    BOOL: np.dtype("?"),
    **{INT8 + power: np.dtype(f"<i{1 << power}") for power in range(4)},
    **{UINT8 + power: np.dtype(f"<u{1 << power}") for power in range(4)},
    FLOAT16: np.dtype("<f2"),
    BFLOAT16: np.dtype("<u2"),
    FLOAT32: np.dtype("<f4"),
    FLOAT64: np.dtype("<f8"),
}
WIDTHS: Final = {kind: dtype.itemsize for kind, dtype in _TYPES.items()}
"""Bytes of an item of each kind."""
_NON_FINITE: Final = {"NaN": np.nan, "Infinity": np.inf, "-Infinity": -np.inf}
_NUMBER: Final = re.compile(NUMBER)
_MINUS_ZERO: Final = re.compile(rb"(?<![eE])-0(?![.0-9eE])")
_BARE: Final = re.compile(rb'(?<!")(?:%b)(?!")' % BARE_NUMBER)
_FEW_DIGITS: Final = re.compile(rb"(?:[^0-9.]++|[0-9.]{1,16}+(?![0-9.]))*+")
_HUNDREDS_OF_DIGITS: Final = re.compile(rb"(?:[^0-9.]++|[0-9.]{1,700}+(?![0-9.]))*+")
"""They run over a text as far as no number has more than 15, or 699 digits."""
_EXPONENT: Final = re.compile(rb"[eE]")
_EXACT: Final = 1e15
"""An integer up to this one is the only decimal of at most 15 digits that rounds to it."""
_MOST_DIGITS: Final = 40
"""Of an integer that is computed: any longer one is out of every range."""
_SPACES: Final = b" \t\n\r"
# Of a bfloat16: bits of its fraction, and the bias of its exponent; the same of a float64.
_FRACTION, _BIAS = 7, 127
_FRACTION_64, _BIAS_64 = 52, 1023


def read_block(text: bytes, kind: int, bare: bool) -> NDArray[Any] | None:
    """The items of a text of elements and commas, of strings none; or None where one of them is wrong."""
    if FLOAT16 <= kind < STRING and b"-0" in text:
        text = _MINUS_ZERO.sub(b"-0.0", text)  # an integer would lose its sign
    if bare and (b"N" in text or b"I" in text):
        text = _BARE.sub(rb'"\g<0>"', text)
    try:
        items = orjson.loads(b"[%b]" % text)
    except orjson.JSONDecodeError:
        return None
    types = set(map(type, items))
    if kind == STRING:
        return np.array([], np.uint8) if types <= {str} else None
    if kind == BOOL:
        return np.array(items, np.bool_) if types <= {bool} else None
    if kind >= FLOAT16:
        return _floats(items, types, text, kind)
    return _integers(items, types, text, kind)


def _runs_over(pattern: re.Pattern[bytes], text: bytes) -> bool:
    found = pattern.match(text)
    return found is not None and found.end() == len(text)


def _floats(items: list[Any], types: set[type], text: bytes, kind: int) -> NDArray[Any] | None:
    if not types <= {int, float, str}:
        return None
    non_finite = str in types
    if float in types and not _runs_over(_HUNDREDS_OF_DIGITS, text):
        # Of more than 768 digits the library does not look at all.
        items = [float(one) if type(item) is float else item for one, item in zip(text.split(b","), items, strict=True)]
    if non_finite:
        items = [_NON_FINITE.get(item) if type(item) is str else item for item in items]
        if None in items:
            return None
    numbers = np.array(items, np.float64)
    limit = TOO_LARGE.get(kind)
    if limit is not None:
        too_large = np.abs(numbers) >= limit
        if non_finite:
            too_large &= np.isfinite(numbers)
        if too_large.any():
            return None
    return _bfloat16(numbers) if kind == BFLOAT16 else numbers.astype(_TYPES[kind], copy=False)


def _bfloat16(numbers: NDArray[np.float64]) -> NDArray[np.uint16]:
    """The bits of the bfloat16 nearest to each float64, half to even. NumPy's way over float32 would round twice."""
    bits = numbers.view(np.int64)
    magnitude = bits & (2**63 - 1)
    exponent = (magnitude >> _FRACTION_64) - _BIAS_64 + _BIAS
    fraction = magnitude & (2**_FRACTION_64 - 1)
    normal = exponent > 0
    fraction |= np.where(normal, exponent, 1) << _FRACTION_64
    shift = _FRACTION_64 - _FRACTION + np.where(normal, 0, 1 - exponent)
    least = np.minimum(shift, _FRACTION_64 + 2)
    rounded = (fraction + (1 << (least - 1)) - 1 + ((fraction >> least) & 1)) >> least
    rounded[shift > least] = 0
    infinity = (2 * _BIAS + 1) << _FRACTION
    rounded[np.isinf(numbers)] = infinity
    rounded[np.isnan(numbers)] = infinity | 1 << (_FRACTION - 1)
    signs = np.where(np.isnan(numbers), 0, bits < 0) << 15
    narrow: NDArray[np.uint16] = (rounded | signs).astype(np.uint16)
    return narrow


def _integers(items: list[Any], types: set[type], text: bytes, kind: int) -> NDArray[Any] | None:
    if not types <= {int, float}:
        return None
    dtype = _TYPES[kind]
    if float in types:
        numbers = np.array(items, np.float64)
        exact = bool((np.abs(numbers) <= _EXACT).all()) and _runs_over(_FEW_DIGITS, text)
        exact = exact and (bool(numbers.all()) or _EXPONENT.search(text) is None)  # 1e-400 is read as 0
        if exact and not (numbers == np.trunc(numbers)).all():
            return None
        found = numbers.astype(np.int64).tolist() if exact else [_integer(one) for one in text.split(b",")]
        if None in found:
            return None
        items = found
    try:
        integers = np.array(items, dtype if kind == UINT64 else np.int64)
    except OverflowError:
        return None
    if kind in (INT64, UINT64):
        return integers
    limits = np.iinfo(dtype)
    if integers.size and (integers.min() < limits.min or integers.max() > limits.max):
        return None
    return integers.astype(dtype)


def _integer(text: bytes) -> int | None:
    """The integer that the text of a JSON number is, exactly, or None."""
    return lossless_json.integer(lossless_json.Number(text.strip(_SPACES).decode()), _MOST_DIGITS)


def is_element(text: bytes, kind: int, bare: bool) -> bool:
    """Whether the text of a JSON value is an element of this kind."""
    if FLOAT16 <= kind < STRING and _NUMBER.fullmatch(text):
        number = abs(float(text))
        return not isinf(number) and number < TOO_LARGE.get(kind, np.inf)
    return read_block(text, kind, bare) is not None
