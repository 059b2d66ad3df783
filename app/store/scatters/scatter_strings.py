"""Stream a tensor of strings with some strings replaced; only the new strings and one piece are in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from app.store.files.tensor_file import PAGE
from app.store.scatters.pending_scatter import ScatterChange
from app.store.scatters.writable_tensor import WritableTensor
from app.tensors.string_frames import HEAD
from app.tensors.string_tensor import PackedStrings

_CHUNK_BYTES: Final = 1 << 20


def replaced_strings(writable: WritableTensor, change: ScatterChange) -> Iterator[bytearray]:
    """Yield the framed strings of a tensor after a scatter without reduction; the last update of a row wins."""
    piece = bytearray()
    for part in _parts(writable, change):
        piece += part
        if len(piece) >= _CHUNK_BYTES:
            yield piece
            piece = bytearray()
    yield piece


def _parts(writable: WritableTensor, change: ScatterChange) -> Iterator[bytes]:
    assert isinstance(change.updates, PackedStrings)
    description = writable.description
    starts = (
        np.frombuffer(writable.mapping, np.uint64, description.item_count, description.offsets_at)
        if description.item_count
        else np.empty(0)
    )
    place = 0
    unique, last = np.unique(change.rows[::-1], return_index=True)
    for row, reverse in zip(unique.tolist(), last.tolist(), strict=True):
        update = (len(change.rows) - 1 - reverse) * change.width
        for column in range(change.width):
            begin = int(starts[row * change.width + column])
            yield from _pieces(writable, place, begin)
            yield bytes(change.updates.frame(update + column))
            place = begin + HEAD + int.from_bytes(writable.mapping[PAGE + begin : PAGE + begin + HEAD], "little")
    yield from _pieces(writable, place, description.size)


def _pieces(writable: WritableTensor, begin: int, end: int) -> Iterator[bytes]:
    for place in range(begin, end, _CHUNK_BYTES):
        yield writable.mapping[PAGE + place : PAGE + min(place + _CHUNK_BYTES, end)]
