"""Reads the elements of a JSON array into packed items.

This is the plain reader: Python's JSON library converts the text to lists, and NumPy converts the lists to items. It is
used until the compiled reader, which returns the same results, is ready.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from itertools import islice
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from app.compilation.until_compiled import UntilCompiled
from app.json_text.constants import KINDS, OPEN, SKIP, STRING
from app.json_text.lossless_json import Number, integer, integer_or_number
from app.tensors import float_rounding
from app.tensors.dtypes import DTYPES, DType
from app.tensors.string_frames import HEAD

_DTYPES: Final[Mapping[int, DType]] = {
    kind: DTYPES[name] for name, kind in KINDS.items() if DTYPES[name].kind != "complex"
}
"""The element type for each kind of elements."""
_ELEMENT: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[^ \t\n\r,\[\]"]++', re.DOTALL)
_NON_FINITE: Final = {"NaN": np.nan, "Infinity": np.inf, "-Infinity": -np.inf}
_MOST_DIGITS: Final = 40
"""Maximum number of digits of an integer to compute; a longer integer is out of every range."""
_WORD: Final = 8
MEMORY_OF_TEXT: Final = 40
"""Bytes of memory per byte of text that the plain reader needs in addition to its output, for a number's object and
text.
"""


@UntilCompiled
def read_elements(
    view: NDArray[np.uint8],
    first: int,
    end: int,
    kind: int,
    leaf: int,
    inner: int,
    room: int,
    dims: NDArray[np.int64],
    out: NDArray[np.uint8],
    bare: bool,
) -> tuple[bool, int, int, int, int, int]:
    """Read the elements of the span [first, end) of `view` into `out`.

    Returns (fine, place, element, used, leaf, inner). If `fine` is False, either the nesting is invalid, or the element
    with index `element` (at `place`) is.

    Elements are nested in `leaf` lists. The innermost lists have `inner` elements. The first half of `dims` holds the
    sizes of the outer lists, outermost first; the second half is scratch memory. If `inner` is -1, the first innermost
    list sets it; if `leaf` is OPEN as well, the first lists set both `leaf` and `dims`, whose sizes must then be -1.
    `room` is the maximum number of elements. With `bare`, NaN and infinities without quotes, which are not JSON, are
    accepted as floats.

    For strings, the first `room` words of `out` receive the offsets of the frames, and the frames follow in `used`
    bytes (see `strings_room`).
    """
    wrong = False, first, 0, 0, leaf, inner
    text = view[first:end].tobytes()
    try:
        values = json.loads(text.decode(), parse_int=integer_or_number, parse_float=Number, parse_constant=float)
    except (ValueError, RecursionError):
        return wrong
    nested = _flatten(values, leaf)
    if nested is None:
        return wrong
    sizes, elements = nested
    given = [*dims[: leaf - 1].tolist(), inner] if leaf else []
    if (inner >= 0 and sizes != given) or len(elements) > room:
        return wrong
    used, item = 0, None
    if kind == STRING:
        used, item = _store_strings(elements, room, out)
    elif kind != SKIP:
        item = _store_items(_DTYPES[kind], elements, bare, out)
    if item is not None:
        place = next(islice(_ELEMENT.finditer(text), item, None)).start()
        return False, first + place, item, 0, leaf, inner
    outer = sizes[:-1]
    dims[: len(outer)] = outer
    return True, end, len(elements), used, len(sizes), sizes[-1] if sizes else inner


def _flatten(values: Any, leaf: int) -> tuple[list[int], list[Any]] | None:
    """Return the sizes of evenly nested lists and their elements; None if they are uneven or not `leaf` deep."""
    sizes: list[int] = []
    level = [values]
    while level and type(level[0]) is list and len(sizes) < leaf:
        size = len(level[0])
        if any(type(one) is not list or len(one) != size for one in level):
            return None
        sizes.append(size)
        level = [each for one in level for each in one]
    if any(type(one) is list for one in level) or leaf not in (len(sizes), OPEN):
        return None
    return sizes, level


def _store_items(dtype: DType, elements: Sequence[Any], bare: bool, out: NDArray[np.uint8]) -> int | None:
    """Store numbers or bools as `dtype`. Returns the index of the first element that `dtype` cannot hold, or None."""
    if dtype.kind == "float":
        items, wrong = _floats(dtype, elements, bare)
        if wrong.any():
            return int(wrong.argmax())
    else:
        found = [_to_bool(one) if dtype.kind == "bool" else _to_integer(dtype, one) for one in elements]
        if None in found:
            return found.index(None)
        items = np.array(found, dtype.numpy)
    out[: items.nbytes] = items.view(np.uint8)
    return None


def _to_bool(value: object) -> bool | None:
    return value if type(value) is bool else None


def _to_integer(dtype: DType, value: object) -> int | None:
    number = integer(value, _MOST_DIGITS) if type(value) in (int, Number) else None
    return number if number is not None and dtype.low <= number <= dtype.high else None


def _floats(dtype: DType, elements: Sequence[Any], bare: bool) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Round elements to a float type, half to even. Also returns which elements the type cannot hold.

    A decimal is read as float64 and then rounded again to the type. For 8-bit floats, it is rounded only once.
    """
    read = [_to_float(one, bare) for one in elements]
    wrong = np.array([one is None for one in read], np.bool_)
    numbers = np.array([np.nan if one is None else one for one in read], np.float64)
    too_large = np.array([type(one) in (int, Number) for one in elements], np.bool_) & np.isinf(numbers)
    if dtype.npy is None:
        items, cannot_hold = _narrow_floats(dtype, numbers, elements)
        return items, wrong | too_large | cannot_hold
    if dtype.item_size < _WORD:
        too_large |= np.isfinite(numbers) & (np.abs(numbers) >= float_rounding.overflow_bound(dtype))
    with np.errstate(all="ignore"):
        return numbers.astype(dtype.numpy), wrong | too_large


def _to_float(value: object, bare: bool) -> float | None:
    """Return the float64 nearest to a JSON number, or the value of a name such as "NaN"; None for other values."""
    if type(value) is float:  # NaN or an infinity without quotes
        return value if bare else None
    if type(value) is Number:
        return float(value.text)
    if type(value) is int:
        return float(str(value))  # infinite if above the largest float64; float(value) would raise an error
    return _NON_FINITE.get(value) if type(value) is str else None


def _narrow_floats(
    dtype: DType, numbers: NDArray[np.float64], elements: Sequence[Any]
) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Round `numbers` to a float type that NumPy lacks. Returns the bits, and which numbers the type cannot hold."""
    sizes = np.abs(numbers)
    middles = float_rounding.middles(dtype)
    bits = np.searchsorted(middles, sizes)
    for tie in np.flatnonzero(middles[np.minimum(bits, len(middles) - 1)] == sizes).tolist():
        middle = exact = Decimal(sizes[tie])
        if dtype.item_size == 1:  # the decimal may be above or below the midpoint that it rounded to
            value = elements[tie]
            exact = Decimal(value.text if type(value) is Number else value).copy_abs()
        bits[tie] += exact > middle or (exact == middle and bits[tie] & 1)
    cannot_hold = np.isfinite(numbers) & (bits >= len(middles))
    cannot_hold |= np.isinf(numbers) & (not float_rounding.has_infinity(dtype))
    cannot_hold |= (numbers < 0) & (not float_rounding.is_signed(dtype))
    bits[np.isinf(numbers)] = float_rounding.bits_of(dtype, np.inf)
    bits[np.isnan(numbers)] = float_rounding.bits_of(dtype, np.nan)
    if float_rounding.is_signed(dtype):
        bits[np.signbit(numbers) & ~np.isnan(numbers)] |= 1 << (8 * dtype.item_size - 1)
    return bits.astype(f"<u{dtype.item_size}"), cannot_hold


def _store_strings(elements: Sequence[Any], room: int, out: NDArray[np.uint8]) -> tuple[int, int | None]:
    """Store strings as frames, and store the offset of each frame.

    Returns the number of bytes in the frames, and the index of the first element that is not a string, or None.
    """
    starts, octets = out[: _WORD * room].view(np.int64), out[_WORD * room :]
    used = 0
    for number, value in enumerate(elements):
        try:
            text = value.encode()
        except (AttributeError, UnicodeEncodeError):
            return 0, number
        frame = len(text).to_bytes(HEAD, "little") + text
        starts[number] = used
        octets.data[used : used + len(frame)] = frame
        used += len(frame)
    return used, None
