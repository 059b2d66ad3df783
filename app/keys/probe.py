"""Reading and changing the buckets of a key index; see `app.keys.index_layout` for their layout.

The functions here are the plain ones, in whose place the compiled ones are used once they are ready; what searches for
many keys leaves the rest to the compiled one then. Arrays of bytes stand for everything: `index` is a whole index;
`offsets`, `step` and `keys` are the `arrays` of a column, and `rows` says how many rows it has. No content of these
arrays makes a function raise, read outside them or search through more than MOST_PROBES buckets: an entry counts only
if its row is one of the column's and has the key.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.compilation.until_compiled import UntilCompiled
from app.keys.index_layout import LINE, MOST_PROBES, ROW_BITS, ROW_MASK, WORDS
from app.keys.siphash import siphash

Bytes = NDArray[np.uint8]
Integers = NDArray[np.int64]
FIRST_DUPLICATES: Final = 10
"""Rows of duplicates that `insert` names."""


@UntilCompiled
def hash_keys(offsets: Bytes, step: int, keys: Bytes, seed: Bytes, out: Integers, start: int, stop: int) -> None:
    """Write the hashes of rows `start` to `stop` to `out`, as the int64 with the same bits; 0 for a torn string."""
    for row in range(start, stop):
        if hash_keys.is_overtaken:
            hash_keys.run(offsets, step, keys, seed, out, row, stop)
            return
        key = _key(offsets, step, keys, row)
        hashed = 0 if key is None else siphash(key, seed.tobytes())
        out[row] = hashed - 2**64 if hashed >= 2**63 else hashed


@UntilCompiled
def find(
    index: Bytes, offsets: Bytes, step: int, keys: Bytes, rows: int,
    wanted_offsets: Bytes, wanted_step: int, wanted_keys: Bytes, out: Integers, start: int, stop: int,
) -> int:  # fmt: skip
    """Write the rows of wanted keys `start` to `stop` to the same places of `out`, -1 for a missing key.

    Returns how many are missing.
    """
    missing = 0
    for number in range(start, stop):
        if find.is_overtaken:
            return missing + find.run(
                index, offsets, step, keys, rows, wanted_offsets, wanted_step, wanted_keys, out, number, stop
            )
        key = _key(wanted_offsets, wanted_step, wanted_keys, number)
        row = -1 if key is None else _find(index, offsets, step, keys, rows, key)
        missing += row < 0
        out[number] = row
    return missing


@UntilCompiled
def insert(
    index: Bytes, offsets: Bytes, step: int, keys: Bytes, start: int, stop: int, duplicates: Integers
) -> tuple[int, int]:  # fmt: skip
    """Insert rows `start` to `stop`: how many of them repeat the key of an earlier row, and where it ended.

    Rows that repeat a key are left out of the index, and `duplicates` has the first FIRST_DUPLICATES of them. It ends
    before `stop` if a row finds no free entry.
    """
    repeated = 0
    for row in range(start, stop):
        key = _key(offsets, step, keys, row)
        if key is None:
            continue
        if _find(index, offsets, step, keys, row, key) >= 0:
            if repeated < len(duplicates):
                duplicates[repeated] = row
            repeated += 1
        elif not _place(index, key, row):
            return repeated, row
    return repeated, stop


@UntilCompiled
def remove(index: Bytes, offsets: Bytes, step: int, keys: Bytes, rows: int, removed: Integers) -> int:
    """Remove the entries of the rows `removed`: how many were found.

    The column still holds the keys of all rows of the index. Keys that passed a removed one on their way move back.
    """
    found = 0
    for row in removed.tolist():
        at = _entry_of_row(index, offsets, step, keys, rows, row)
        if at is None:
            continue
        found += 1
        words, passed, place = at
        words[place] = 0
        _add_to_passed(words, passed, -1)
        _fill_hole(index, offsets, step, keys, rows, place)
    return found


@UntilCompiled
def move(
    index: Bytes, offsets: Bytes, step: int, keys: Bytes, rows: int, sources: Integers, targets: Integers
) -> int:  # fmt: skip
    """Have the keys of the rows `sources`, which are still there in the column, found at `targets`.

    Returns how many entries were found.
    """
    found = 0
    for source, target in zip(sources.tolist(), targets.tolist(), strict=True):
        at = _entry_of_row(index, offsets, step, keys, rows, source)
        if at is None:
            continue
        found += 1
        words, _, place = at
        words[place] = int(words[place]) & ~ROW_MASK | (target + 1)
    return found


def _key(offsets: Bytes, step: int, keys: Bytes, row: int) -> bytes | None:
    """The bytes of a key; None if its offsets are not within the bytes."""
    if step == 0:
        return keys[8 * row : 8 * row + 8].tobytes()
    start, stop = struct.unpack("<qq", offsets[step * row : step * row + 16].tobytes())
    return keys[start:stop].tobytes() if 0 <= start <= stop <= len(keys) else None


def _way(index: Bytes, key: bytes) -> tuple[NDArray[np.uint64], int, Iterator[int]]:
    """The buckets, the fingerprint of a key, and the numbers of the buckets that it may be in."""
    words = index[LINE:].view("<u8").reshape(-1, WORDS)
    hashed = siphash(key, index[16:32].tobytes())
    home = hashed * len(words) >> 64
    way = ((home + step) % len(words) for step in range(min(len(words), MOST_PROBES)))
    return words, hashed & (1 << 64 - ROW_BITS) - 1, way


def _find(index: Bytes, offsets: Bytes, step: int, keys: Bytes, rows: int, key: bytes) -> int:
    words, fingerprint, way = _way(index, key)
    for bucket in way:
        for entry in words[bucket, 1:]:
            row = (int(entry) & ROW_MASK) - 1
            if int(entry) >> ROW_BITS == fingerprint and 0 <= row < rows and _key(offsets, step, keys, row) == key:
                return row
        if words[bucket, 0] == 0:
            return -1
    return -1


def _place(index: Bytes, key: bytes, row: int) -> bool:
    """Write the entry of a key that is not there; False if there is no room for it."""
    words, fingerprint, way = _way(index, key)
    passed: list[int] = []
    for bucket in way:
        for place in range(1, WORDS):
            if words[bucket, place] == 0:
                _add_to_passed(words, passed, 1)
                words[bucket, place] = fingerprint << ROW_BITS | (row + 1)
                return True
        passed.append(bucket)
    return False


def _add_to_passed(words: NDArray[np.uint64], buckets: Iterable[int], change: int) -> None:
    for bucket in buckets:
        words[bucket, 0] = (int(words[bucket, 0]) + change) % 2**64


def _fill_hole(
    index: Bytes, offsets: Bytes, step: int, keys: Bytes, rows: int, hole: tuple[int, int]
) -> None:  # fmt: skip
    """Move the nearest entry whose way passes a free one there, and go on with the entry that this frees."""
    words = index[LINE:].view("<u8").reshape(-1, WORDS)
    count = len(words)
    at = hole[0]
    for _ in range(min(count, MOST_PROBES) - 1):
        if words[at, 0] == 0:
            return
        at = (at + 1) % count
        for place in range(1, WORDS):
            home = _home(index, offsets, step, keys, rows, int(words[at, place]))
            if home is not None and (at - home) % count >= (at - hole[0]) % count:
                words[hole] = words[at, place]
                words[at, place] = 0
                _add_to_passed(words, ((hole[0] + way) % count for way in range((at - hole[0]) % count)), -1)
                hole = at, place
                break


def _home(index: Bytes, offsets: Bytes, step: int, keys: Bytes, rows: int, entry: int) -> int | None:
    """The home of an entry, None if it is free or not one of the column's."""
    row = (entry & ROW_MASK) - 1
    key = _key(offsets, step, keys, row) if 0 <= row < rows else None
    if key is None:
        return None
    _, fingerprint, way = _way(index, key)
    return next(way) if entry >> ROW_BITS == fingerprint else None


def _entry_of_row(
    index: Bytes, offsets: Bytes, step: int, keys: Bytes, rows: int, row: int
) -> tuple[NDArray[np.uint64], list[int], tuple[int, int]] | None:
    """The buckets, those that were passed, and the place of the entry with this row and its key's fingerprint."""
    key = _key(offsets, step, keys, row) if 0 <= row < rows else None
    if key is None:
        return None
    words, fingerprint, way = _way(index, key)
    passed: list[int] = []
    for bucket in way:
        for place in range(1, WORDS):
            if words[bucket, place] == fingerprint << ROW_BITS | (row + 1):
                return words, passed, (bucket, place)
        if words[bucket, 0] == 0:
            return None
        passed.append(bucket)
    return None
