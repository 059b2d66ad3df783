"""Writes the lists in a response that libraries do not write correctly: framed strings and float32.

These are the plain writers, which are used until the compiled ones are ready.
"""

from __future__ import annotations

import json
from decimal import ROUND_HALF_DOWN, Decimal

import numpy as np
from numpy.typing import NDArray

from app.compilation.until_compiled import UntilCompiled
from app.tensors.string_frames import ROOM, frame_text


@UntilCompiled
def write_strings(octets: NDArray[np.uint8], starts: NDArray[np.int64], out: NDArray[np.uint8]) -> int:
    """Write the strings whose frames begin at `starts` to `out` as a JSON list. Returns the number of bytes.

    Only quotes, backslashes and control characters are escaped, as RFC 8259 requires: with the short escape if one
    exists, and otherwise with four hexadecimal digits. If `out` is empty, the bytes are only counted. Returns -1 if a
    frame is not within `octets`, or if the text needs any of the last ROOM bytes of `out`.
    """
    texts = []
    for start in starts.tolist():
        text = frame_text(octets, start)
        if text is None:
            return -1
        texts.append(str(text, "utf-8", "surrogateescape"))
    listed = json.dumps(texts, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogateescape")
    if out.size:
        if len(listed) > out.size - ROOM:
            return -1
        out.data[: len(listed)] = listed
    return len(listed)


@UntilCompiled
def write_singles(items: NDArray[np.uint8], pairs: bool, text: NDArray[np.uint8]) -> int:
    """Write float32 items, or `pairs` of them, to `text` as a JSON list. Returns the number of bytes.

    Each number gives back the same bits when it is read as float64 and then rounded to float32. NaN and infinities are
    written as strings. `text` must have room for WIDEST bytes per number, plus TEXT_ROOM.
    """
    numbers = [_decimal(number) for number in items.view(np.float32)]
    if pairs:
        numbers = [f"[{real},{other}]" for real, other in zip(numbers[::2], numbers[1::2], strict=True)]
    listed = f"[{','.join(numbers)}]".encode()
    text.data[: len(listed)] = listed
    return len(listed)


def _decimal(number: np.float32) -> str:
    if not np.isfinite(number):
        return '"NaN"' if np.isnan(number) else '"Infinity"' if number > 0 else '"-Infinity"'
    shortest, exact = Decimal(str(number)).normalize(), Decimal(float(number))
    # If two decimals are equally near, use the one nearer to 0.
    texts = exact.quantize(shortest, ROUND_HALF_DOWN), shortest, f"{exact:.7e}", f"{exact:.8e}"
    decimals = (float(text) for text in texts)
    nearest = next(decimal for decimal in decimals if np.float32(decimal) == number)
    return repr(nearest).replace("e+", "e").replace("e-0", "e-")
