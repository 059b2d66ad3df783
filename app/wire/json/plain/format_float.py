"""Lists of float32 as JSON: the sibling of `app.wire.json.compiled.format_float`.

A JSON library finds the shortest decimals and writes those as float64, whose text they are too. Where a decimal does
not come back as the same float32, since numbers are read as float64 and rounded once more, another one is looked for.
The text reads back as the same bits as that of compiled code, where small and large numbers may be written with or
without an exponent, and of two decimals that are equally near the other one may be taken.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import orjson
from numpy.typing import NDArray

_BLOCK: Final = 1 << 12
"""Numbers that are written together."""
_DIGITS: Final = 9
"""Of the longest decimal of a float32."""


def write_singles(items: NDArray[np.uint8], pairs: bool, text: NDArray[np.uint8]) -> int:
    """See `app.wire.json.compiled.format_float.write_singles`."""
    numbers = items.view(np.float32)
    size = 1
    for first in range(0, len(numbers), _BLOCK):
        written = _text(numbers[first : first + _BLOCK], pairs)
        text.data[size : size + len(written)] = written
        size += len(written)
    size -= len(numbers) > 0
    text[0], text[size] = b"[]"
    return size + 1


def _text(numbers: NDArray[np.float32], pairs: bool) -> bytes:
    """The items with a comma behind each."""
    found: list[Any] = orjson.loads(orjson.dumps(numbers, option=orjson.OPT_SERIALIZE_NUMPY))
    finite = np.isfinite(numbers)
    if not finite.all():
        found = [0.0 if one is None else one for one in found]
    read = np.array(found).astype(np.float32)
    for place in np.flatnonzero((read != numbers) & finite).tolist():
        found[place] = _read_back(numbers[place])
    for place in np.flatnonzero(~finite).tolist():
        one = numbers[place]
        found[place] = "NaN" if np.isnan(one) else "Infinity" if one > 0 else "-Infinity"
    values = list(zip(found[::2], found[1::2], strict=True)) if pairs else found
    return orjson.dumps(values)[1:-1] + b","


def _read_back(number: np.float32) -> float:
    """The shortest decimal, and of those the nearest, that comes back as `number` by way of float64."""
    for digits in range(1, _DIGITS + 1):
        nearest = float(f"{float(number):.{digits - 1}e}")
        step = 10.0 ** (int(f"{float(number):e}".partition("e")[2]) - digits + 1)
        for decimal in (nearest, nearest + step, nearest - step):
            rounded = float(f"{decimal:.{digits - 1}e}")
            if np.float32(rounded) == number:
                return rounded
    return float(number)
