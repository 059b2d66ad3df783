"""The index from key to row, in a buffer of the caller's, such as a mapped file.

One process changes an index while others read it. The caller brackets each change with a sequence, and a reader repeats
a search during which the sequence moved: what a search returns meanwhile may be wrong, but is always -1 or a row of the
column that it was given.
"""

from __future__ import annotations

import secrets
import struct
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.keys import probe
from app.keys.index_layout import LINE, MAGIC, SEED_BYTES, capacity_of, index_bytes
from app.keys.key_column import KEY_TYPES, KeyColumn, KeyType

_HEADER: Final = struct.Struct("<8sQ16sQ24x")
_MOST_INSERTED_PLAIN: Final = 1 << 11
"""Keys that the plain function inserts, in some 0.1 s; more of them wait for the compiled one while that is made."""


class IndexDamaged(ValueError):
    """A buffer is not a key index, or not one of its size and type of keys."""


class IndexFull(ValueError):
    """An index has no room for a row: build a larger one aside, from the whole column."""


@dataclass(frozen=True, slots=True)
class Duplicates:
    """Rows that repeat the key of an earlier row: how many, and the first ten, ascending."""

    total: int = 0
    first: tuple[int, ...] = ()

    def __add__(self, later: Duplicates) -> Duplicates:
        """Return those of a slice of rows and of a later slice together."""
        return Duplicates(self.total + later.total, (self.first + later.first)[: probe.FIRST_DUPLICATES])


def new_seed() -> bytes:
    """Return a random seed: 16 bytes, one for each content, and secret."""
    return secrets.token_bytes(SEED_BYTES)


def build(
    column: KeyColumn, seed: bytes, capacity: int | None = None, buffer: NDArray[np.uint8] | None = None
) -> tuple[KeyIndex, Duplicates]:
    """Return the index of a whole column, and the rows that repeat a key; these are not in the index.

    `capacity` is the number of keys that it has room for (default: those of the column). `buffer` is uint8 of
    `index_bytes(capacity)` and is overwritten; without it the memory is allocated.
    """
    room = len(column) if capacity is None else capacity
    index = KeyIndex.create(aligned_buffer(index_bytes(room)) if buffer is None else buffer, column.dtype, seed)
    return index, index.insert(column, 0, len(column))


def aligned_buffer(size: int) -> NDArray[np.uint8]:
    """Return `size` zeros that begin at a cache line, so that each bucket has one."""
    room = np.zeros(size + LINE, np.uint8)
    start = -room.ctypes.data % LINE
    return room[start : start + size]


def hash_keys(column: KeyColumn, seed: bytes) -> NDArray[np.uint64]:
    """Return the 64-bit hash of each key of a column under a 16-byte seed."""
    out = np.empty(len(column), np.int64)
    probe.hash_keys.run(*column.arrays, _seed_array(seed), out, 0, len(column))
    return out.view(np.uint64)


class KeyIndex:
    """An index over `buffer` (uint8): `create` makes an empty one, `open` takes one that is there.

    Columns are of its `dtype`, else a method raises ValueError. A method that changes the index needs a buffer that can
    be written, and no other may run meanwhile.
    """

    __slots__ = ("buffer", "capacity", "dtype")

    def __init__(self, buffer: NDArray[np.uint8], dtype: KeyType) -> None:
        self.buffer = buffer
        self.dtype: KeyType = dtype
        self.capacity = capacity_of(len(buffer) // LINE - 1)

    @classmethod
    def create(cls, buffer: NDArray[np.uint8], dtype: KeyType, seed: bytes) -> KeyIndex:
        """Make an empty index of all of `buffer`, whose size is `index_bytes` of some capacity.

        Raises ValueError if the buffer has no such size.
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
        """Return the index that is in `buffer`. Raises IndexDamaged if its header does not fit its size."""
        if len(buffer) < 2 * LINE or buffer.dtype != np.uint8 or not buffer.flags.c_contiguous:
            raise IndexDamaged(f"{len(buffer)} bytes are too few for a key index")
        magic, kind, _, buckets = _HEADER.unpack(buffer[:LINE].tobytes())
        if magic != MAGIC or kind >= len(KEY_TYPES) or len(buffer) != LINE + LINE * buckets:
            raise IndexDamaged("the header of a key index does not fit its size, or is of another version")
        return cls(buffer, KEY_TYPES[kind])

    def seed(self) -> bytes:
        """Return the seed of the index."""
        return self.buffer[16:32].tobytes()

    def find(
        self, column: KeyColumn, wanted: KeyColumn, out: NDArray[np.int64], start: int = 0, stop: int | None = None
    ) -> int:
        """Write the row of each wanted key to `out`, -1 for a missing key; returns how many are missing.

        With `start` and `stop`, only these places of `wanted` and `out`, so that threads can share the work. The GIL is
        released. Only rows of `column` are returned. Raises ValueError if `out` is not int64 with a place for each key.
        """
        stop = len(wanted) if stop is None else stop
        self._check(column)
        self._check(wanted)
        if out.dtype != np.int64 or out.shape != (len(wanted),) or not out.flags.c_contiguous:
            raise ValueError(f"the rows of {len(wanted)} keys are int64[{len(wanted)}], not {out.dtype}{out.shape}")
        if not 0 <= start <= stop <= len(wanted):
            raise ValueError(f"{start} to {stop} is not within {len(wanted)} keys")
        return probe.find.run(
            self.buffer, *column.arrays, len(column),
            *wanted.arrays, out, start, stop,
        )  # fmt: skip

    def insert(self, column: KeyColumn, start: int, stop: int) -> Duplicates:
        """Insert rows `start` to `stop` of a column that holds all rows before them; returns those that repeat a key.

        These are not in the index. At a first start more than 2048 rows wait for the compiled function: only threads
        that may wait insert as many. Raises IndexFull if `stop` is above the capacity; rows before the one that found
        no room may be in the index then.
        """
        self._check(column)
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
        """Remove the keys of `rows`; returns how many were in the index.

        The column still holds the keys of all rows: change the index first, and the column after it.
        """
        self._check(column)
        return probe.remove.run(self.buffer, *column.arrays, len(column), _int64(rows))

    def move(self, column: KeyColumn, sources: NDArray[np.int64], targets: NDArray[np.int64]) -> int:
        """Have the key of each row of `sources` found at that of `targets`; returns how many were in the index.

        The column still holds the keys at `sources`. Raises ValueError if the two differ in length, or a target is no
        row of the column.
        """
        self._check(column)
        sources, targets = _int64(sources), _int64(targets)
        if len(sources) != len(targets) or (len(targets) and not 0 <= targets.min() <= targets.max() < len(column)):
            raise ValueError(f"{len(sources)} keys do not move to {len(targets)} rows of {len(column)}")
        return probe.move.run(self.buffer, *column.arrays, len(column), sources, targets)

    def _check(self, column: KeyColumn) -> None:
        if column.dtype != self.dtype:
            raise ValueError(f"an index of {self.dtype} keys has no {column.dtype} ones")


def _int64(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.ascontiguousarray(rows, np.int64)


def _seed_array(seed: bytes) -> NDArray[np.uint8]:
    if len(seed) != SEED_BYTES:
        raise ValueError(f"a seed has {SEED_BYTES} bytes, not {len(seed)}")
    return np.frombuffer(seed, np.uint8)
