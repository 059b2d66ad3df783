"""Check for valid UTF-8 (RFC 3629), in compiled code."""

from __future__ import annotations

from typing import Final

import numpy as np

from app.compilation.decorators import inner
from app.compilation.intrinsics import Address, Integers, count_trailing_zeros, int64, load_u8, load_u64, lshr

_HIGH_BITS: Final = -0x7F7F7F7F7F7F7F80
"""Mask for the high bit of each of eight bytes. This bit is clear in ASCII."""
_BLOCK: Final = 16
# The states of the decoder, as shifts in a word of `_NEXT`: error, start of a character, one to three more bytes from
# 80 to BF, and the states after E0, ED, F0 and F4, in which the next byte has a smaller range.
_BAD, _ANY, _ONE, _TWO, _THREE, _E0, _ED, _F0, _F4 = range(0, 54, 6)


def _transitions() -> Integers:
    """Return a word for each byte value. The 6 bits at the shift of a state are the next state."""
    ranges = (
        (_ANY, 0x00, 0x7F, _ANY),
        (_ANY, 0xC2, 0xDF, _ONE),
        (_ANY, 0xE0, 0xE0, _E0),
        (_ANY, 0xE1, 0xEF, _TWO),
        (_ANY, 0xED, 0xED, _ED),
        (_ANY, 0xF0, 0xF0, _F0),
        (_ANY, 0xF1, 0xF3, _THREE),
        (_ANY, 0xF4, 0xF4, _F4),
        (_ONE, 0x80, 0xBF, _ANY),
        (_TWO, 0x80, 0xBF, _ONE),
        (_THREE, 0x80, 0xBF, _TWO),
        (_E0, 0xA0, 0xBF, _ONE),
        (_ED, 0x80, 0x9F, _ONE),
        (_F0, 0x90, 0xBF, _TWO),
        (_F4, 0x80, 0x8F, _TWO),
    )
    words = np.zeros(256, np.int64)
    for state, low, high, after in ranges:
        words[low : high + 1] &= ~(63 << state)
        words[low : high + 1] |= after << state
    return words


_NEXT: Final = _transitions()


@inner
def is_utf8(base: Address, place: int, stop: int, end: int) -> bool:
    """Return whether the bytes from `place` to `stop` are UTF-8. Bytes up to `end` must be readable.

    Non-ASCII text costs one shift per byte, without a branch that could be mispredicted.
    """
    state = int64(_ANY)
    while place < stop:
        if state == _ANY and place + 8 <= end:
            high = load_u64(base + place) & _HIGH_BITS
            if high == 0:
                place += 8
                continue
            place += count_trailing_zeros(high) >> 3
        block = min(place + _BLOCK, stop)
        while place < block:
            state = lshr(_NEXT[load_u8(base + place)], state) & 63
            place += 1
        if state == _BAD:
            return False
    return state == _ANY
