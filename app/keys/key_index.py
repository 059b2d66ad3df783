"""The index that maps keys to rows, in a buffer that the caller owns, such as a mapped file.

One process changes an index while others read it. The caller increments a sequence before and after each change, and a
reader repeats a search if the sequence has changed. A search during a change may return a wrong result, but the result
is always -1 or a row of the given column.
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.keys import probe
from app.keys.index_layout import LINE, MAGIC, SEED_BYTES, capacity_of, index_bytes
from app.keys.key_column import KEY_TYPES, KeyColumn, KeyType
from app.keys.probe import FRAMES, Search
from app.tensors.string_tensor import PackedStrings

_HEADER: Final = struct.Struct("<8sQ16sQ24x")
_MOST_INSERTED_PLAIN: Final = 1 << 11
"""Maximum number of keys for the plain insert, which takes about 0.1 s; longer inserts wait for the compiled one."""


class IndexDamaged(ValueError):
    """The buffer is not a key index, or does not match the size or key type in its header."""


class IndexFull(ValueError):
    """The index has no room for a row. Build a larger index from the whole column."""


@dataclass(frozen=True, slots=True)
class Duplicates:
    """Rows that repeat the key of an earlier row: their number, and the first ten in ascending order."""

    total: int = 0
    first: tuple[int, ...] = ()

    def __add__(self, later: Duplicates) -> Duplicates:
        """Combine the duplicates of a slice of rows with those of a later slice."""
        return Duplicates(self.total + later.total, (self.first + later.first)[: probe.FIRST_DUPLICATES])


def new_seed() -> bytes:
    """Return a random 16-byte seed. Use a new seed for each version, and keep it secret."""
    return secrets.token_bytes(SEED_BYTES)


def build(
    column: KeyColumn, seed: bytes, capacity: int | None = None, buffer: NDArray[np.uint8] | None = None
) -> tuple[KeyIndex, Duplicates]:
    """Return the index of a whole column, and the rows that repeat a key. These rows are not in the index.

    `capacity` is the number of keys to make room for; it defaults to the size of the column. The index overwrites
    `buffer`, a uint8 array of `index_bytes(capacity)` bytes; by default, a buffer is allocated.
    """
    room = len(column) if capacity is None else capacity
    index = KeyIndex.create(aligned_buffer(index_bytes(room)) if buffer is None else buffer, column.dtype, seed)
    return index, index.insert(column, 0, len(column))


def aligned_buffer(size: int) -> NDArray[np.uint8]:
    """Return `size` zero bytes aligned to a cache line, so that no bucket spans two lines."""
    room = np.zeros(size + LINE, np.uint8)
    start = -room.ctypes.data % LINE
    return room[start : start + size]


def hash_keys(column: KeyColumn, seed: bytes) -> NDArray[np.uint64]:
    """Return the 64-bit hash of each key of a column, using a 16-byte seed."""
    out = np.empty(len(column), np.int64)
    probe.hash_keys.run(*column.arrays, _seed_array(seed), out, 0, len(column))
    return out.view(np.uint64)


def find(searches: Sequence[Search], instead: Sequence[int]) -> list[int]:
    """Run all searches in one call, without the GIL. Returns the number of missing keys for each search.

    For each search, `instead` holds the row to return for missing keys. All other returned rows are rows of the column.
    """
    given = [(one.step, one.wanted_step, row) for one, row in zip(searches, instead, strict=True)]
    numbers = np.array(given, np.int64).reshape(-1, 3)
    probe.find.run(tuple(searches), numbers)
    missing: list[int] = numbers[:, 2].tolist()
    return missing


class KeyIndex:
    """An index over `buffer` (uint8): `create` makes an empty index, and `open` uses an existing one.

    Columns must have the index's `dtype`; otherwise methods raise ValueError. Methods that change the index need a
    writable buffer, and must not run concurrently with any other method.
    """

    __slots__ = ("buffer", "capacity", "dtype")

    def __init__(self, buffer: NDArray[np.uint8], dtype: KeyType) -> None:
        self.buffer = buffer
        self.dtype: KeyType = dtype
        self.capacity = capacity_of(len(buffer) // LINE - 1)

    @classmethod
    def create(cls, buffer: NDArray[np.uint8], dtype: KeyType, seed: bytes) -> KeyIndex:
        """Create an empty index that fills `buffer`. The size of the buffer must be a value that `index_bytes` can
        return.

        Raises ValueError for any other size.
        """
        buckets = len(buffer) // LINE - 1
        if buckets < 1 or len(buffer) % LINE or buffer.dtype != np.uint8 or not buffer.flags.c_contiguous:
            raise ValueError(f"no index has {len(buffer)} bytes of {buffer.dtype}: see `index_bytes`")
        buffer[LINE:] = 0
        header = _HEADER.pack(MAGIC, KEY_TYPES.index(dtype), _seed_array(seed).tobytes(), buckets)
        buffer[:LINE] = np.frombuffer(header, np.uint8)
        return cls(buffer, dtype)

    @classmethod
    def open(cls, buffer: NDArray[np.uint8]) -> KeyIndex:
        """Return the index in `buffer`. Raises IndexDamaged if its header does not match its size."""
        if len(buffer) < 2 * LINE or buffer.dtype != np.uint8 or not buffer.flags.c_contiguous:
            raise IndexDamaged(f"{len(buffer)} bytes are too few for a key index")
        magic, kind, _, buckets = _HEADER.unpack(buffer[:LINE].tobytes())
        if magic != MAGIC or kind >= len(KEY_TYPES) or len(buffer) != LINE + LINE * buckets:
            raise IndexDamaged("the header of a key index does not fit its size, or is of another version")
        return cls(buffer, KEY_TYPES[kind])

    def seed(self) -> bytes:
        """Return the seed of the index."""
        return self.buffer[16:32].tobytes()

    def find(self, column: KeyColumn, wanted: KeyColumn) -> NDArray[np.int64]:
        """Return the row of each wanted key, or -1 if it is missing. Only rows of `column` are returned.

        The GIL is released.
        """
        search = self.search(column, wanted)
        find([search], [-1])
        return search.rows

    def search(self, column: KeyColumn, wanted: KeyColumn | PackedStrings) -> Search:
        """Return a search for the wanted keys, to be passed to `find`. Framed strings must have one dimension."""
        self._check(column.dtype)
        if isinstance(wanted, PackedStrings):
            self._check("string")
            count, offsets, keys, step = wanted.array.size, wanted.array, wanted.octets, FRAMES
        else:
            self._check(wanted.dtype)
            count, offsets, keys, step = wanted.count, wanted.offsets, wanted.keys, wanted.step
        rows, lacks = np.empty(count, np.int64), np.empty(count, np.bool_)
        return Search(self.buffer, column.offsets, column.keys, offsets, keys, rows, lacks, column.step, step)

    def insert(self, column: KeyColumn, start: int, stop: int) -> Duplicates:
        """Insert rows `start` to `stop` of a column that contains all earlier rows. Returns the rows that repeat a key.

        These rows are not in the index. If the compiled function is still being built, inserting more than 2048 rows
        waits for it, so only do this on a thread that may block. Raises IndexFull if `stop` exceeds the capacity or a
        row finds no free entry; earlier rows may then be in the index.
        """
        self._check(column.dtype)
        if not 0 <= start <= stop <= len(column):
            raise ValueError(f"{start} to {stop} is not within {len(column)} rows")
        if stop > self.capacity:
            raise IndexFull(f"{stop} keys do not fit an index for {self.capacity}")
        if stop - start > _MOST_INSERTED_PLAIN:
            probe.insert.wait()
        first = np.empty(probe.FIRST_DUPLICATES, np.int64)
        total, end = probe.insert.run(self.buffer, *column.arrays, start, stop, first)
        if end < stop:
            raise IndexFull(f"row {end} finds no free entry within reach of its bucket")
        return Duplicates(total, tuple(first[:total].tolist()))

    def remove(self, column: KeyColumn, rows: NDArray[np.int64]) -> int:
        """Remove the keys of `rows`. Returns how many of them were in the index.

        The column must still hold the keys of all rows: change the index before the column.
        """
        self._check(column.dtype)
        return probe.remove.run(self.buffer, *column.arrays, len(column), _int64(rows))

    def move(self, column: KeyColumn, sources: NDArray[np.int64], targets: NDArray[np.int64]) -> int:
        """Make the index map the key of each row in `sources` to the corresponding row in `targets`.

        Returns the number of keys found. The column must still hold the keys at `sources`. Raises ValueError if the two
        arrays differ in length, or if a target is not a row of the column.
        """
        self._check(column.dtype)
        sources, targets = _int64(sources), _int64(targets)
        if len(sources) != len(targets) or (len(targets) and not 0 <= targets.min() <= targets.max() < len(column)):
            raise ValueError(f"{len(sources)} keys do not move to {len(targets)} rows of {len(column)}")
        return probe.move.run(self.buffer, *column.arrays, len(column), sources, targets)

    def _check(self, dtype: KeyType) -> None:
        if dtype != self.dtype:
            raise ValueError(f"an index of {self.dtype} keys has no {dtype} ones")


def _int64(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.ascontiguousarray(rows, np.int64)


def _seed_array(seed: bytes) -> NDArray[np.uint8]:
    if len(seed) != SEED_BYTES:
        raise ValueError(f"a seed has {SEED_BYTES} bytes, not {len(seed)}")
    return np.frombuffer(seed, np.uint8)
