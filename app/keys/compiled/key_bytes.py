"""The keys of a column in compiled code: where they are, their hashes, and whether two are equal.

A column is the address of its offsets, the bytes from one row's offsets to the next one's (`step`, 0 for integers), the
address of its keys, and the size of the keys in bytes.
"""

from __future__ import annotations

from app.compilation.decorators import inlined, inner
from app.compilation.intrinsics import Address, load_u64, memcmp
from app.keys.compiled.siphash import hash_integer, hash_string


@inlined
def string_size(offsets: Address, step: int, size: int, row: int) -> int:
    """Bytes of a string, or -1 if its offsets do not lie within the `size` bytes of the column."""
    start, stop = load_u64(offsets + step * row), load_u64(offsets + step * row + 8)
    return stop - start if 0 <= start <= stop <= size else -1


@inlined
def is_torn(offsets: Address, step: int, size: int, row: int) -> bool:
    """Whether a row has a string whose offsets do not lie within the column."""
    return step != 0 and string_size(offsets, step, size, row) < 0


@inlined
def hash_key(offsets: Address, step: int, keys: Address, size: int, row: int, low: int, high: int) -> int:
    """The hash of a key under the two words of a seed, 0 if it is torn."""
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
    """Whether a row of one column and one of another, of the same type, have the same key; a torn one has none."""
    if step == 0:
        return load_u64(keys + 8 * row) == load_u64(other_keys + 8 * other)
    return _equal_strings(
        offsets, step, keys, size, row, other_offsets, other_step, other_keys, other_size, other
    )  # fmt: skip
