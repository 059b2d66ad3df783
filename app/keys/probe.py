"""Read and change the buckets of a key index; see `app.keys.index_layout` for their layout.

These are the plain functions. They are replaced by compiled ones when those are ready (see
`app.compilation.until_compiled`); running calls of `hash_keys` and `find` then hand their remaining work to the
compiled function. Except in a `Search`, everything is represented by arrays of bytes: `index` is a whole index;
`offsets`, `step` and `keys` are the `arrays` of a column, and `rows` is its number of rows. Whatever these arrays
contain, no function raises, reads outside them, or searches more than MOST_PROBES buckets. An entry counts only if its
row is in the column and has the key.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.compilation.until_compiled import UntilCompiled
from app.keys.index_layout import LINE, MOST_PROBES, ROW_BITS, ROW_MASK, WORDS
from app.keys.siphash import siphash
from app.tensors.string_frames import frame_text

Bytes = NDArray[np.uint8]
Integers = NDArray[np.int64]
FIRST_DUPLICATES: Final = 10
"""Maximum number of duplicate rows that `insert` reports."""
FRAMES: Final = -8
"""Given instead of a stride if the offsets are those of frames (see `app.tensors.string_frames`)."""


class Search(NamedTuple):
    """A search for n wanted keys in the index of a column. Create it with `KeyIndex.search`.

    `buckets` is the whole index. `offsets` and `keys` belong to the column, and `wanted_offsets` and `wanted_keys` to
    the wanted keys. `step` and `wanted_step` are the strides in bytes between the offsets of two rows, 0 for integers,
    or FRAMES. The results are `rows` (n) and `lacks` (n), which says for each key whether it is missing from the
    column.
    """

    buckets: Bytes
    offsets: Integers
    keys: NDArray[Any]
    wanted_offsets: Integers
    wanted_keys: NDArray[Any]
    rows: Integers
    lacks: NDArray[np.bool_]
    step: int
    wanted_step: int

    def after(self, number: int) -> Search:
        """Return a search for the wanted keys from index `number` on."""
        return self._replace(
            wanted_offsets=self.wanted_offsets[number:],
            wanted_keys=self.wanted_keys if self.wanted_step else self.wanted_keys[number:],
            rows=self.rows[number:],
            lacks=self.lacks[number:],
        )


@UntilCompiled
def hash_keys(offsets: Bytes, step: int, keys: Bytes, seed: Bytes, out: Integers, start: int, stop: int) -> None:
    """Write the hashes of rows `start` to `stop` to `out`, as int64 with the same bits. The hash of a torn string is 0.

    A string is torn if its offsets are outside the key bytes.
    """
    for row in range(start, stop):
        if hash_keys.is_overtaken:
            hash_keys.run(offsets, step, keys, seed, out, row, stop)
            return
        key = _key(offsets, step, keys, row)
        hashed = 0 if key is None else siphash(key, seed.tobytes())
        out[row] = hashed - 2**64 if hashed >= 2**63 else hashed


@UntilCompiled
def find(searches: tuple[Search, ...], numbers: Integers) -> None:
    """Run searches. `numbers` (int64[searches, 3]) holds the two strides of each search, and the row for missing keys.

    Each such row is replaced with the search's number of missing keys.
    """
    for at, search in enumerate(searches):
        done, missing = _run_search(search, int(numbers[at, 2]))
        if done < len(search.rows):
            find.run((search.after(done), *searches[at + 1 :]), numbers[at:])
            numbers[at, 2] += missing
            return
        numbers[at, 2] = missing


@UntilCompiled
def insert(
    index: Bytes, offsets: Bytes, step: int, keys: Bytes, start: int, stop: int, duplicates: Integers
) -> tuple[int, int]:  # fmt: skip
    """Insert rows `start` to `stop`. Returns the number of rows that repeat an earlier key, and the row where insertion
    ended.

    Repeating rows are not inserted; the first FIRST_DUPLICATES of them are written to `duplicates`. Insertion ends
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
    """Remove the entries of the rows in `removed`. Returns how many were found.

    The column must still hold the keys of all indexed rows. Keys that were placed farther from their home bucket
    because of a removed key move back.
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
    """Make the index map the keys of the rows in `sources` to the rows in `targets`. Returns the number of entries
    found.

    The column must still hold these keys at `sources`.
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


def _run_search(search: Search, instead: int) -> tuple[int, int]:
    """Run a search until the compiled function is ready.

    Returns how many keys were searched, and how many of them are missing.
    """
    index, offsets, step, keys = search.buckets, _octets(search.offsets), search.step, _octets(search.keys)
    count = len(search.keys) if step == 0 else len(search.offsets) - (step == 8)
    missing = 0
    for number in range(len(search.rows)):
        if find.is_overtaken:
            return number, missing
        key = _wanted_key(search, number)
        row = -1 if key is None else _find(index, offsets, step, keys, count, key)
        search.lacks[number] = row < 0
        search.rows[number] = instead if row < 0 else row
        missing += row < 0
    return len(search.rows), missing


def _wanted_key(search: Search, number: int) -> bytes | None:
    if search.wanted_step != FRAMES:
        return _key(_octets(search.wanted_offsets), search.wanted_step, _octets(search.wanted_keys), number)
    text = frame_text(search.wanted_keys, int(search.wanted_offsets[number]))
    return None if text is None else bytes(text)


def _octets(array: NDArray[Any]) -> Bytes:
    return array.view(np.uint8).reshape(-1)


def _key(offsets: Bytes, step: int, keys: Bytes, row: int) -> bytes | None:
    """Return the bytes of a key, or None if its offsets are outside the key bytes."""
    if step == 0:
        return keys[8 * row : 8 * row + 8].tobytes()
    start, stop = struct.unpack("<qq", offsets[step * row : step * row + 16].tobytes())
    return keys[start:stop].tobytes() if 0 <= start <= stop <= len(keys) else None


def _probe_sequence(index: Bytes, key: bytes) -> tuple[NDArray[np.uint64], int, Iterator[int]]:
    """Return the buckets, the fingerprint of a key, and the indices of the buckets in which to search for it."""
    words = index[LINE:].view("<u8").reshape(-1, WORDS)
    hashed = siphash(key, index[16:32].tobytes())
    home = hashed * len(words) >> 64
    way = ((home + step) % len(words) for step in range(min(len(words), MOST_PROBES)))
    return words, hashed & (1 << 64 - ROW_BITS) - 1, way


def _find(index: Bytes, offsets: Bytes, step: int, keys: Bytes, rows: int, key: bytes) -> int:
    words, fingerprint, way = _probe_sequence(index, key)
    for bucket in way:
        for entry in words[bucket, 1:]:
            row = (int(entry) & ROW_MASK) - 1
            if int(entry) >> ROW_BITS == fingerprint and 0 <= row < rows and _key(offsets, step, keys, row) == key:
                return row
        if words[bucket, 0] == 0:
            return -1
    return -1


def _place(index: Bytes, key: bytes, row: int) -> bool:
    """Write the entry of a key that is not in the index. Returns False if there is no room."""
    words, fingerprint, way = _probe_sequence(index, key)
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
    """Fill a free entry with the nearest entry that was pushed past it, and repeat for the entry that this frees."""
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
    """Return the home bucket of an entry, or None if the entry is free or does not match the column."""
    row = (entry & ROW_MASK) - 1
    key = _key(offsets, step, keys, row) if 0 <= row < rows else None
    if key is None:
        return None
    _, fingerprint, way = _probe_sequence(index, key)
    return next(way) if entry >> ROW_BITS == fingerprint else None


def _entry_of_row(
    index: Bytes, offsets: Bytes, step: int, keys: Bytes, rows: int, row: int
) -> tuple[NDArray[np.uint64], list[int], tuple[int, int]] | None:
    """Return the buckets, the indices of the buckets passed, and the position of the entry for this row.

    Returns None if no entry has this row and its key's fingerprint.
    """
    key = _key(offsets, step, keys, row) if 0 <= row < rows else None
    if key is None:
        return None
    words, fingerprint, way = _probe_sequence(index, key)
    passed: list[int] = []
    for bucket in way:
        for place in range(1, WORDS):
            if words[bucket, place] == fingerprint << ROW_BITS | (row + 1):
                return words, passed, (bucket, place)
        if words[bucket, 0] == 0:
            return None
        passed.append(bucket)
    return None
