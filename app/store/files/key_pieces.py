"""Produce a table's keys in the form that downloads send, in pieces of limited size."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.keys.key_column import KeyColumn, KeyType
from app.store.files.tensor_file import BadFile
from app.tensors.keys_spec import KeysSpec
from app.tensors.string_frames import frames_of

PIECE_BYTES: Final = 1 << 20
"""Maximum bytes of keys read at once. A single string may be longer."""
_KEYS_AT_ONCE: Final = PIECE_BYTES // 16
ReadKeys = Callable[[int, int], KeyColumn]
"""A function that returns the keys from one row up to another."""


def keys_spec(read: ReadKeys, dtype: KeyType, first: int, last: int) -> KeysSpec:
    """Return the number of keys in rows `first` to `last` - 1, and the total size of their strings in bytes.

    Raises BadFile if a string lies outside the heap, which only happens if the file is damaged.
    """
    size = 0
    if dtype == "string":
        for part in _read_runs(read, first, last):
            if part.first_bad_offset() >= 0:
                raise BadFile("its key file has keys that do not lie within it")
            size += int(_sizes(part).sum())
    return KeysSpec(dtype, last - first, size)


def key_pieces(read: ReadKeys, dtype: KeyType, first: int, last: int) -> Iterator[bytes]:
    """Yield the keys in the form that uploads use: integers, or offsets starting at 0 followed by the UTF-8 bytes."""
    if dtype != "string":
        for part in _read_runs(read, first, last):
            yield part.keys.tobytes()
        return
    end = 0
    yield bytes(8)
    for part in _read_runs(read, first, last):
        yield (np.cumsum(_sizes(part)) + end).tobytes()
        end += int(_sizes(part).sum())
    for part in string_parts(read, first, last):
        if len(part.keys):
            yield part.keys.tobytes()


def framed_pieces(read: ReadKeys, first: int, last: int) -> Iterator[NDArray[np.uint8]]:
    """Yield string keys in BYTES framing (see `app.tensors.string_frames`), several whole keys at a time.

    Raises BadFile for strings that lie outside the heap.
    """
    for part in string_parts(read, first, last):
        (framed,) = frames_of([(part.offsets, part.keys)])
        if framed.made < len(part):
            raise BadFile("its key file has keys that do not lie within it")
        yield framed.frames


def string_parts(read: ReadKeys, first: int, last: int) -> Iterator[KeyColumn]:
    """Yield the keys as columns of several whole strings each. The bytes of each column are contiguous."""
    for part in _read_runs(read, first, last):
        ends = np.cumsum(_sizes(part))
        stop = 0
        while stop < len(part):
            start, before = stop, int(ends[stop - 1]) if stop else 0
            stop = max(int(ends.searchsorted(before + PIECE_BYTES, side="right")), start + 1)
            yield part.rows(start, stop).packed()


def _read_runs(read: ReadKeys, first: int, last: int) -> Iterator[KeyColumn]:
    for start in range(first, last, _KEYS_AT_ONCE):
        yield read(start, min(start + _KEYS_AT_ONCE, last))


def _sizes(column: KeyColumn) -> NDArray[np.int64]:
    starts, stops = column.bounds()
    return stops - starts
