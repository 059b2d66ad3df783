"""The key file and the index of a keyed table, mapped for writing by upserts and removals.

Use this module while holding the tensor's lock and while the version is odd. A record says which rows get which keys,
and how many rows the table has afterwards. The changes to the index follow from the record and the previous keys. A
process that finds an interrupted change cannot tell how much of the index was updated, so it writes the keys of all
records again and rebuilds the index in place.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.keys.key_column import KeyColumn
from app.keys.key_index import IndexFull, KeyIndex, new_seed
from app.store.catalogue.catalogue_rows import Row
from app.store.files import disk_writes
from app.store.files.key_files import ROWS_AT_ONCE, Access, describe_keys, map_index, map_key_file, open_index
from app.store.files.regular_file import open_regular
from app.store.scatters.log_frames import BrokenLog, Entry, Record, string_bytes

_FLUSH_BYTES: Final = 1 << 21


class WritableKeys:
    """The key file and the index of one version of a keyed table."""

    def __init__(self, folder: Path, row: Row, *, private: bool = False) -> None:
        """Open and map the files. The parameters are the same as for `WritableTensor`. Raises BadFile and OSError."""
        self._fds: list[int] = []
        access = Access.PRIVATE if private else Access.WRITE
        self.mapping, self.layout = map_key_file(folder, row, access)
        self._index_mapping = map_index(folder, row, access)
        self.index = open_index(self._index_mapping, self.layout)
        try:
            self._fds += [open_regular(folder / name, os.O_RDWR) for name in row.files[1:]]
            self._description = describe_keys(self._fds[0], row)[0]
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the files. The memory is unmapped when no array refers to it anymore."""
        for fd in self._fds:
            os.close(fd)
        self._fds.clear()

    def column(self, count: int) -> KeyColumn:
        """Return the keys of the first `count` rows."""
        return self.layout.column(self.mapping, count)

    def change(self, record: Record, before: int, heap_end: int) -> int:
        """Apply a record to the keys and the index of a table that has `before` rows.

        `heap_end` is the end of the string heap before the change. Returns the heap's end after the change.
        """
        size = record.entry.size
        assert size is not None
        old, rows = self.column(before), record.key_rows.astype(np.int64)
        # A record without keys does not specify their type.
        sources = self.index.find(old, record.keys) if len(rows) else np.empty(0, np.int64)
        moves = sources >= 0
        # Remove the keys of rows beyond the new end and of rows that get a different key, except for keys that just
        # move.
        gone = np.setdiff1d(np.concatenate((np.arange(size, before), rows[rows < before])), sources[moves])
        self._store_index(lambda: self.index.remove(old, gone))
        self._store_index(lambda: self.index.move(old, sources[moves], rows[moves]))
        heap_end = self.write(record, heap_end)
        if np.array_equal(rows[~moves], np.arange(before, size)):
            try:
                self._insert(self.column(size), min(before, size), size)
                return heap_end
            except IndexFull:  # the hash seed was unlucky
                pass
        self.rebuild(size)
        return heap_end

    def write(self, record: Record, heap_end: int) -> int:
        """Write the keys of a record without touching the index. Returns the new end of the heap. Raises BrokenLog."""
        rows = record.key_rows.astype(np.int64)
        if not len(rows):
            return heap_end
        if int(rows.max()) >= self.layout.capacity or heap_end + string_bytes(record.keys) > self.layout.heap:
            raise BrokenLog
        keys = record.keys.packed()
        whole = self.column(self.layout.capacity)
        if keys.dtype == "string":
            end = heap_end + len(keys.keys)
            self._store(lambda: whole.keys.__setitem__(slice(heap_end, end), keys.keys))
            entries: NDArray[np.int64] = np.stack(keys.bounds(), axis=1) + heap_end
            table = whole.offsets
        else:
            end, entries, table = heap_end, keys.keys, whole.keys
        half = len(rows) // 2
        # Write in two steps, so that a test can stop the process between them.
        for part in (slice(0, half), slice(half, None)):
            self._store(lambda part=part: table.__setitem__(rows[part], entries[part]))  # type: ignore[misc]
        return end

    def rebuild(self, count: int) -> None:
        """Rebuild the index from the keys of the first `count` rows."""
        column = self.column(count)
        buffer = np.frombuffer(self._index_mapping, np.uint8)
        self._store_index(lambda: KeyIndex.create(buffer, self.layout.dtype, new_seed()))
        for start in range(0, count, ROWS_AT_ONCE):
            self._insert(column, start, min(start + ROWS_AT_ONCE, count))

    def _insert(self, column: KeyColumn, start: int, stop: int) -> None:
        self._store_index(lambda: self.index.insert(column, start, stop))

    def _store(self, change: Callable[[], object]) -> None:
        disk_writes.store_words(self.mapping, lambda _: _ignore(change()))

    def _store_index(self, change: Callable[[], object]) -> None:
        disk_writes.store_words(self._index_mapping, lambda _: _ignore(change()))

    def heap_start(self, records: Iterable[Record], tail: Iterable[Entry], rows: int, heap_end: int) -> int:
        """Return the heap offset at which to start writing when `records` are applied again to a table of `rows` rows.

        Normally, this offset is after all keys that the records leave unchanged, and at least `heap_end`, which was the
        end of the heap when the file's header was written. If the records and the later entries in `tail` do not fit
        after it, the offset is lower:

        - `heap_end`. After a power loss, the keys may be newer than the header. Rows changed by the tail may then have
          keys beyond `heap_end`, which the tail will write again.
        - The end of the unchanged keys before `heap_end`, if the header already includes the records.
        """
        if self.layout.dtype != "string":
            return heap_end
        touched: list[NDArray[np.int64]] = [np.empty(0, np.int64)]
        total = last = 0
        for record in records:
            last = record.entry.sequence
            if record.entry.size is not None:
                total += string_bytes(record.keys)
                touched.append(record.key_rows.astype(np.int64))
                rows = record.entry.size
        total += sum(one.string_bytes for one in tail if one.sequence > last)
        others = np.ones(min(rows, self.layout.capacity), np.bool_)
        changed = np.concatenate(touched)
        others[changed[changed < len(others)]] = False
        starts, stops = (bounds[others] for bounds in self.column(len(others)).bounds())
        behind_all = int(stops.max(initial=heap_end))
        before_end = min(heap_end, int(stops[starts < heap_end].max(initial=0)))
        fitting = (start for start in (behind_all, heap_end) if start + total <= self.layout.heap)
        return next(fitting, before_end)

    def make_durable(self, blocks: Collection[int]) -> None:
        """Make the keys, the index and the checksums of these blocks of the key file durable. Raises OSError."""
        description, dirty = self._description, sorted(blocks)
        with memoryview(self.mapping) as view:
            checksums = [zlib.crc32(view[slice(*description.block_span(block))]) for block in dirty]
        if dirty:
            table = np.frombuffer(self.mapping, np.uint32, description.block_count, description.checksums_at)
            self._store(lambda: table.__setitem__(dirty, checksums))
        for fd in self._fds:
            for begin in range(0, os.fstat(fd).st_size, _FLUSH_BYTES):
                disk_writes.flush_range(fd, begin, _FLUSH_BYTES)
            disk_writes.fsync(fd)


def _ignore(_: object) -> None:
    pass
