"""Elements of a JSON array to packed items: numbers and bools of every type, a block of them at a time.

Floats are read as float64 and rounded once more, those of 8 bits once from the decimal, as
`app.wire.json.compiled.parse_element` does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from math import isinf
from typing import Any, Final

import numpy as np
import orjson
from numpy.typing import NDArray

from app.tensors import float_rounding
from app.tensors.dtypes import DType
from app.wire.json import lossless_json
from app.wire.json.codec_constants import BOOL, FIRST_FLOAT, FLOATS, INT8, INT64, STRING, UINT8, UINT64
from app.wire.json.plain.patterns import BARE_NUMBER, NUMBER

_TYPES: Final[Mapping[int, np.dtype[Any]]] = {
    BOOL: np.dtype("?"),
    **{INT8 + power: np.dtype(f"<i{1 << power}") for power in range(4)},
    **{UINT8 + power: np.dtype(f"<u{1 << power}") for power in range(4)},
    **{kind: row.numpy if row.npy else np.dtype(f"<u{row.item_size}") for kind, row in FLOATS.items()},
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


def read_block(text: bytes, kind: int, bare: bool) -> NDArray[Any] | None:
    """The items of a text of elements and commas, of strings none; or None where one of them is wrong."""
    if FIRST_FLOAT <= kind < STRING and b"-0" in text:
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
    if kind >= FIRST_FLOAT:
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
    return _rounded(np.array(items, np.float64), text, FLOATS[kind])


def _rounded(numbers: NDArray[np.float64], text: bytes, dtype: DType) -> NDArray[Any] | None:
    """The items nearest to numbers, which `text` has between commas; None if the type cannot hold one of them."""
    sizes = np.abs(numbers)
    finite = np.isfinite(numbers)
    if dtype.npy is not None:
        if dtype.item_size < 8 and (sizes[finite] >= float_rounding.too_large(dtype)).any():
            return None
        return numbers.astype(dtype.numpy, copy=False)
    if not float_rounding.has_infinity(dtype) and np.isinf(numbers).any():
        return None
    if not float_rounding.is_signed(dtype) and (numbers < 0).any():
        return None
    middles = float_rounding.middles(dtype)
    bits = np.searchsorted(middles, sizes)
    (ties,) = np.nonzero(middles[np.minimum(bits, len(middles) - 1)] == sizes)
    bits[ties] += bits[ties] & 1
    if dtype.item_size == 1 and len(ties):
        texts = text.split(b",")
        for tie in ties.tolist():
            exact, middle = Decimal(texts[tie].strip(_SPACES).decode()).copy_abs(), Decimal(sizes[tie])
            if exact != middle:
                bits[tie] = np.searchsorted(middles, sizes[tie]) + (exact > middle)
    if (bits[finite] >= len(middles)).any():
        return None
    bits[np.isinf(numbers)] = float_rounding.bits_of(dtype, np.inf)
    bits[np.isnan(numbers)] = float_rounding.bits_of(dtype, np.nan)
    if float_rounding.is_signed(dtype):
        bits[np.signbit(numbers) & ~np.isnan(numbers)] |= 1 << (8 * dtype.item_size - 1)
    return bits.astype(f"<u{dtype.item_size}")


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
    if FIRST_FLOAT <= kind < STRING and _NUMBER.fullmatch(text):
        number = float(text)
        return not isinf(number) and _rounded(np.array([number]), text, FLOATS[kind]) is not None
    return read_block(text, kind, bare) is not None
