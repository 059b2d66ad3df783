"""The keys of a column in compiled code: their locations, hashes and equality.

A column is described by four values:

    offsets  address of the offsets of string keys
    step     stride in bytes from one row's offsets to the next; 0 for integer keys
    keys     address of the keys
    size     size of the keys in bytes

A string key is torn if its offsets are outside the column, for example while a writer changes it.
"""

from __future__ import annotations

from app.compilation.decorators import inlined, inner
from app.compilation.intrinsics import Address, load_u64, memcmp
from app.keys.compiled.siphash import hash_integer, hash_string


@inlined
def string_size(offsets: Address, step: int, size: int, row: int) -> int:
    """Return the size of a string in bytes, or -1 if its offsets are outside the `size` bytes of the column."""
    start, stop = load_u64(offsets + step * row), load_u64(offsets + step * row + 8)
    return stop - start if 0 <= start <= stop <= size else -1


@inlined
def is_torn(offsets: Address, step: int, size: int, row: int) -> bool:
    """Return whether the string of a row has offsets that are outside the column."""
    return step != 0 and string_size(offsets, step, size, row) < 0


@inlined
def hash_key(offsets: Address, step: int, keys: Address, size: int, row: int, low: int, high: int) -> int:
    """Return the hash of a key with the two-word seed `low`, `high`, or 0 if the key is torn."""
    if step == 0:
        return hash_integer(load_u64(keys + 8 * row), low, high)
    start, stop = load_u64(offsets + step * row), load_u64(offsets + step * row + 8)
    if not 0 <= start <= stop <= size:
        return 0
    return hash_string(keys + start, stop - start, low, high)


@inner
def _equal_strings(
    offsets: Address, step: int, keys: Address, size: int, row: int,
    other_offsets: Address, other_step: int, other_keys: Address, other_size: int, other: int,
) -> bool:  # fmt: skip
    start, stop = load_u64(offsets + step * row), load_u64(offsets + step * row + 8)
    begin, end = load_u64(other_offsets + other_step * other), load_u64(other_offsets + other_step * other + 8)
    if not 0 <= start <= stop <= size or not 0 <= begin <= end <= other_size or stop - start != end - begin:
        return False
    return memcmp(keys + start, other_keys + begin, stop - start) == 0


@inlined
def equal_keys(
    offsets: Address, step: int, keys: Address, size: int, row: int,
    other_offsets: Address, other_step: int, other_keys: Address, other_size: int, other: int,
) -> bool:  # fmt: skip
    """Return whether two rows, of two columns of the same type, have equal keys. A torn key equals no other key."""
    if step == 0:
        return load_u64(keys + 8 * row) == load_u64(other_keys + 8 * other)
    return _equal_strings(
        offsets, step, keys, size, row, other_offsets, other_step, other_keys, other_size, other
    )  # fmt: skip
