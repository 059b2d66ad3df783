"""Plan upserts and removals by key: find the keys' rows, the new keys, and the rows that move.

Plans are made while holding the tensor's lock, before anything is logged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from app.keys.key_column import KeyColumn
from app.keys.key_index import build, new_seed
from app.keys.row_changes import fill_gaps, number_new_keys
from app.store.catalogue.catalogue_rows import RowCounts
from app.store.files.key_files import wanted_column
from app.store.files.mapped_tensor import MappedContent
from app.store.files.tensor_file import HeaderWord
from app.store.scatters.log_frames import NO_KEYS, NO_ROWS, Record, key_bytes, string_bytes
from app.store.scatters.pending_scatter import KeyedChange
from app.store.scatters.scatter_reductions import new_rows
from app.store.scatters.writable_tensor import WritableTensor
from app.tensors.string_tensor import PackedStrings

_COPIES_MOVED: Final = 4
"""Number of copies of a moved row in memory: its values, the log record, the frame for the replicas, the data read
back.
"""


class TableFull(Exception):
    """A table has no room for `rows` rows in total, or for `heap` more bytes of string keys."""

    def __init__(self, rows: int, heap: int) -> None:
        super().__init__(rows, heap)
        self.rows = rows
        self.heap = heap


@dataclass(frozen=True, slots=True)
class PlannedChange:
    """A change's new rows and keys, in the form of a record, and the row counts afterwards."""

    rows: NDArray[np.uint64]
    values: NDArray[np.uint8]
    counts: RowCounts | None = None
    key_rows: NDArray[np.uint64] = field(default_factory=lambda: NO_ROWS)
    keys: KeyColumn = NO_KEYS

    def members(self) -> dict[str, Any]:
        """Return the members of the log entry that describe keys."""
        if self.counts is None:
            return {}
        keys = self.keys
        return {
            "size": self.counts.rows, "key_count": len(keys), "key_type": keys.dtype, "key_bytes": key_bytes(keys),
            "counts": tuple(self.counts),
        }  # fmt: skip


def bytes_moved(content: MappedContent, change: KeyedChange) -> int:
    """Return the approximate maximum memory in bytes for the rows and keys that a removal moves.

    Only rows beyond the new end move. Their number is at most the number of keys, and at most half the number of rows.
    Returns 0 for an upsert.
    """
    if change.updates is not None:
        return 0
    about, rows = content.description, content.words[HeaderWord.ROWS]
    row_bytes = about.size // max(about.shape[0], 1) + 8
    key_bytes = 16 + content.words[HeaderWord.HEAP_END] // max(rows, 1)
    return _COPIES_MOVED * min(change.keys.array.size, rows // 2) * (row_bytes + key_bytes)


def rows_after(writable: WritableTensor, records: Sequence[Record]) -> int:
    """Return the number of rows that a keyed table will have after `records`, which have not been applied yet."""
    sizes = [record.entry.size for record in records if record.entry.size is not None]
    return sizes[-1] if sizes else writable.words[HeaderWord.ROWS]


def plan_change(writable: WritableTensor, change: KeyedChange, unapplied: Sequence[Record]) -> PlannedChange:
    """Plan a change to a table as if the records `unapplied` had been applied. Raises TableFull.

    None of the records in `unapplied` may remove rows. To plan a removal, `unapplied` must be empty.
    """
    keys = change.keys
    wanted = wanted_column(keys if isinstance(keys, PackedStrings) else keys.array)
    if change.updates is None:
        assert not unapplied
        return _plan_removal(writable, wanted)
    return _plan_upsert(writable, change, wanted, unapplied)


def _plan_upsert(
    writable: WritableTensor, change: KeyedChange, wanted: KeyColumn, unapplied: Sequence[Record]
) -> PlannedChange:
    assert change.updates is not None
    before, present = rows_after(writable, unapplied), writable.words[HeaderWord.ROWS]
    rows = writable.keys.index.find(writable.keys.column(present), wanted)
    _find_unapplied(wanted, rows, present, unapplied)
    places = number_new_keys(wanted, rows, before)
    size, keys = before + len(places), wanted.take(places)
    _check_room(writable, size, keys, unapplied)
    new, values = new_rows(
        writable.items, rows, change.updates.array, change.width, change.reduction, unapplied, present
    )
    key_rows = np.arange(before, size).astype(np.uint64)
    return PlannedChange(new, values, RowCounts(size, inserted=len(places)), key_rows, keys)


def _find_unapplied(wanted: KeyColumn, rows: NDArray[np.int64], present: int, unapplied: Sequence[Record]) -> None:
    """Fill in missing entries of `rows` for keys that the records in `unapplied` append after the `present` rows."""
    if not any(len(record.key_rows) for record in unapplied) or not (rows < 0).any():
        return
    parts = [record.keys for record in unapplied if len(record.key_rows)]
    appended = _join_columns(parts)
    index, _ = build(appended, new_seed())
    missing = np.flatnonzero(rows < 0)
    found = index.find(appended, wanted.take(missing))
    rows[missing] = np.where(found < 0, -1, present + found)


def _join_columns(parts: Sequence[KeyColumn]) -> KeyColumn:
    if parts[0].dtype != "string":
        return KeyColumn.integers(np.concatenate([part.keys for part in parts]))
    packed = [part.packed() for part in parts]
    sizes = np.concatenate([np.diff(part.offsets) for part in packed])
    offsets = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    return KeyColumn.strings(offsets, np.concatenate([part.keys for part in packed]))


def _plan_removal(writable: WritableTensor, wanted: KeyColumn) -> PlannedChange:
    count = writable.words[HeaderWord.ROWS]
    column = writable.keys.column(count)
    rows = writable.keys.index.find(column, wanted)
    removed = np.unique(rows[rows >= 0])
    missing = len(number_new_keys(wanted, rows, count))
    sources, targets = fill_gaps(count, removed)
    keys, size = column.take(sources), count - len(removed)
    _check_room(writable, size, keys, ())
    items = writable.rows()
    counts, moved = RowCounts(size, removed=len(removed), missing=missing), targets.astype(np.uint64)
    width = items.shape[1] * items.itemsize
    if not width:
        return PlannedChange(NO_ROWS, np.empty((0, 0), np.uint8), counts, moved, keys)
    values = items[sources].reshape(-1).view(np.uint8).reshape(len(sources), width)
    return PlannedChange(moved, values, counts, moved, keys)


def _check_room(writable: WritableTensor, size: int, keys: KeyColumn, unapplied: Sequence[Record]) -> None:
    """Raise TableFull unless the table has room for `size` rows and the new keys."""
    layout, more = writable.keys.layout, string_bytes(keys)
    heap_end = writable.words[HeaderWord.HEAP_END] + sum(string_bytes(record.keys) for record in unapplied)
    if size > layout.capacity or heap_end + more > layout.heap:
        raise TableFull(size, more)
