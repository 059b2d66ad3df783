"""SipHash-1-3, the keyed hash of all keys; an integer is hashed as its eight little-endian bytes.

The hash determines which keys share a bucket, so a caller who could predict it could make every search slow. SipHash's
output is designed to be indistinguishable from random numbers for anyone who does not know the 16-byte seed. Python,
Rust and Ruby use the 1-3 variant for their own hash tables. Multiply-and-mix hashes (wyhash, xxh3) are faster for long
strings, but there are known sets of inputs that collide with many or all seeds. Integers use the same function, because
it costs less than the cache miss that follows.
"""

from __future__ import annotations

from typing import Final

_MASK: Final = 2**64 - 1
START: Final = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)
"""The four words that are combined with the two words of the seed."""


def siphash(message: bytes, seed: bytes) -> int:
    """Return the 64-bit SipHash-1-3 of a message, using a 16-byte seed."""
    low, high = int.from_bytes(seed[:8], "little"), int.from_bytes(seed[8:16], "little")
    v = [START[0] ^ low, START[1] ^ high, START[2] ^ low, START[3] ^ high]
    whole = len(message) // 8 * 8
    words = [int.from_bytes(message[at : at + 8], "little") for at in range(0, whole, 8)]
    last = int.from_bytes(message[whole:], "little") | (len(message) & 255) << 56
    for word in (*words, last):
        v[3] ^= word
        _round(v)
        v[0] ^= word
    v[2] ^= 255
    for _ in range(3):
        _round(v)
    return v[0] ^ v[1] ^ v[2] ^ v[3]


def _round(v: list[int]) -> None:
    v[0] = (v[0] + v[1]) & _MASK
    v[1] = _rotate_left(v[1], 13) ^ v[0]
    v[0] = _rotate_left(v[0], 32)
    v[2] = (v[2] + v[3]) & _MASK
    v[3] = _rotate_left(v[3], 16) ^ v[2]
    v[0] = (v[0] + v[3]) & _MASK
    v[3] = _rotate_left(v[3], 21) ^ v[0]
    v[2] = (v[2] + v[1]) & _MASK
    v[1] = _rotate_left(v[1], 17) ^ v[2]
    v[2] = _rotate_left(v[2], 32)


def _rotate_left(word: int, bits: int) -> int:
    return (word << bits | word >> (64 - bits)) & _MASK
