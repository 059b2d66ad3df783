"""The keys of a column in compiled code: where they are, their hashes, and whether two are equal.

A column is the addresses of its offsets, 0 for integers, and of its keys, and the size of the keys in bytes.
"""

from __future__ import annotations

from app.compilation.decorators import inlined, inner
from app.compilation.intrinsics import Address, Bytes, address_of, int64, load_u64, memcmp
from app.keys.compiled.siphash import hash_integer, hash_string


@inlined
def offsets_of(offsets: Bytes) -> Address:
    """The address of the offsets of strings, 0 for integers, which have none."""
    return address_of(offsets) if offsets.size > 0 else int64(0)


@inlined
def string_size(offsets: Address, size: int, row: int) -> int:
    """Bytes of a string, or -1 if its offsets do not lie within the `size` bytes of the column."""
    start, stop = load_u64(offsets + 8 * row), load_u64(offsets + 8 * row + 8)
    return stop - start if 0 <= start <= stop <= size else -1


@inlined
def is_torn(offsets: Address, size: int, row: int) -> bool:
    """Whether a row has a string whose offsets do not lie within the column."""
    return offsets != 0 and string_size(offsets, size, row) < 0


@inlined
def hash_key(offsets: Address, keys: Address, size: int, row: int, low: int, high: int) -> int:
    """The hash of a key under the two words of a seed, 0 if it is torn."""
    if offsets == 0:
        return hash_integer(load_u64(keys + 8 * row), low, high)
    length = string_size(offsets, size, row)
    if length < 0:
        return 0
    return hash_string(keys + load_u64(offsets + 8 * row), length, low, high)


@inner
def _equal_strings(
    offsets: Address, keys: Address, size: int, row: int,
    other_offsets: Address, other_keys: Address, other_size: int, other: int,
) -> bool:  # fmt: skip
    start, stop = load_u64(offsets + 8 * row), load_u64(offsets + 8 * row + 8)
    begin, end = load_u64(other_offsets + 8 * other), load_u64(other_offsets + 8 * other + 8)
    if not 0 <= start <= stop <= size or not 0 <= begin <= end <= other_size or stop - start != end - begin:
        return False
    return memcmp(keys + start, other_keys + begin, stop - start) == 0


@inlined
def equal_keys(
    offsets: Address, keys: Address, size: int, row: int,
    other_offsets: Address, other_keys: Address, other_size: int, other: int,
) -> bool:  # fmt: skip
    """Whether a row of one column and one of another, of the same type, have the same key; a torn one has none."""
    if offsets == 0:
        return load_u64(keys + 8 * row) == load_u64(other_keys + 8 * other)
    return _equal_strings(offsets, keys, size, row, other_offsets, other_keys, other_size, other)
