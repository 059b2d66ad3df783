"""SipHash-1-3 in compiled code; see `app.keys.siphash`."""

from __future__ import annotations

from typing import Final

from app.compilation.decorators import inlined, inner
from app.compilation.intrinsics import Address, load_u8, load_u64, lshr, signed
from app.keys.siphash import START

_START_0, _START_1, _START_2, _START_3 = (signed(word) for word in START)
_EIGHT_BYTES: Final = 8 << 56
"""The last word of a message of eight bytes."""


@inlined
def _rotate_left(word: int, bits: int) -> int:
    return word << bits | lshr(word, 64 - bits)


@inlined
def _round(v0: int, v1: int, v2: int, v3: int) -> tuple[int, int, int, int]:
    v0 += v1
    v1 = _rotate_left(v1, 13) ^ v0
    v0 = _rotate_left(v0, 32)
    v2 += v3
    v3 = _rotate_left(v3, 16) ^ v2
    v0 += v3
    v3 = _rotate_left(v3, 21) ^ v0
    v2 += v1
    v1 = _rotate_left(v1, 17) ^ v2
    v2 = _rotate_left(v2, 32)
    return v0, v1, v2, v3


@inlined
def _finalize(v0: int, v1: int, v2: int, v3: int, last: int) -> int:
    v0, v1, v2, v3 = _round(v0, v1, v2, v3 ^ last)
    v0, v1, v2, v3 = _round(v0 ^ last, v1, v2 ^ 255, v3)
    v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    return v0 ^ v1 ^ v2 ^ v3


@inlined
def hash_integer(number: int, low: int, high: int) -> int:
    """Return the hash of eight bytes with the two-word seed `low`, `high`."""
    v0, v1, v2, v3 = _round(_START_0 ^ low, _START_1 ^ high, _START_2 ^ low, _START_3 ^ high ^ number)
    return _finalize(v0 ^ number, v1, v2, v3, _EIGHT_BYTES)


@inner
def hash_string(address: Address, size: int, low: int, high: int) -> int:
    """Return the hash of `size` bytes at an address with the two-word seed `low`, `high`."""
    v0, v1, v2, v3 = _START_0 ^ low, _START_1 ^ high, _START_2 ^ low, _START_3 ^ high
    end = address + size
    while address + 8 <= end:
        word = load_u64(address)
        v0, v1, v2, v3 = _round(v0, v1, v2, v3 ^ word)
        v0 ^= word
        address += 8
    last = size << 56
    if size >= 8 and address < end:
        last |= lshr(load_u64(end - 8), 64 - 8 * (end - address))
    else:
        shift = 0
        while address < end:
            last |= load_u8(address) << shift
            address += 1
            shift += 8
    return _finalize(v0, v1, v2, v3, last)
