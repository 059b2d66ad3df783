"""The keys of a table as downloads send them, in pieces of bounded memory."""

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
"""Bytes of keys that are read at once, but for a longer string."""
_KEYS_AT_ONCE: Final = PIECE_BYTES // 16
ReadKeys = Callable[[int, int], KeyColumn]
"""Gives the keys from one row to another."""


def keys_spec(read: ReadKeys, dtype: KeyType, first: int, last: int) -> KeysSpec:
    """How many keys there are from row `first` to `last`, and their bytes.

    Raises BadFile for strings that do not lie in the heap, which a damaged file may have.
    """
    size = 0
    if dtype == "string":
        for part in _runs(read, first, last):
            if part.first_bad_offset() >= 0:
                raise BadFile("its key file has keys that do not lie within it")
            size += int(_sizes(part).sum())
    return KeysSpec(dtype, last - first, size)


def key_pieces(read: ReadKeys, dtype: KeyType, first: int, last: int) -> Iterator[bytes]:
    """The keys as an upload has them: integers, or offsets from 0 and then UTF-8."""
    if dtype != "string":
        for part in _runs(read, first, last):
            yield part.keys.tobytes()
        return
    end = 0
    yield bytes(8)
    for part in _runs(read, first, last):
        yield (np.cumsum(_sizes(part)) + end).tobytes()
        end += int(_sizes(part).sum())
    for part in string_parts(read, first, last):
        if len(part.keys):
            yield part.keys.tobytes()


def framed_pieces(read: ReadKeys, first: int, last: int) -> Iterator[NDArray[np.uint8]]:
    """Keys that are strings, in BYTES framing (see `app.tensors.string_frames`), some whole ones at a time."""
    for part in string_parts(read, first, last):
        yield frames_of(part.offsets, part.keys)[0]


def string_parts(read: ReadKeys, first: int, last: int) -> Iterator[KeyColumn]:
    """Columns of some whole keys at a time, whose bytes lie one behind the other."""
    for part in _runs(read, first, last):
        ends = np.cumsum(_sizes(part))
        stop = 0
        while stop < len(part):
            start, before = stop, int(ends[stop - 1]) if stop else 0
            stop = max(int(ends.searchsorted(before + PIECE_BYTES, side="right")), start + 1)
            yield part.rows(start, stop).packed()


def _runs(read: ReadKeys, first: int, last: int) -> Iterator[KeyColumn]:
    for start in range(first, last, _KEYS_AT_ONCE):
        yield read(start, min(start + _KEYS_AT_ONCE, last))


def _sizes(column: KeyColumn) -> NDArray[np.int64]:
    starts, stops = column.bounds()
    return stops - starts
