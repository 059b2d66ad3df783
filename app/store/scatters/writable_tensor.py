"""A tensor's file, mapped for writing. Scatters change it in place under a seqlock, and checkpoints make it durable
later.

The content changes only while the tensor's lock is held, in this order: append the new rows to the log and fsync it;
make the version odd; change the rows; make the version even. If a process takes the lock and finds an odd version, or a
log that is ahead of the version, it completes the work of a process that died. A checkpoint removes the log's records
after the content and its checksums are on disk.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from app.store.catalogue.catalogue_rows import Row
from app.store.files import disk_writes, download_snapshots
from app.store.files.key_files import KeyLayout, key_type
from app.store.files.regular_file import open_regular
from app.store.files.tensor_file import DAMAGED, PAGE, BadFile, Description, HeaderWord, decode_page
from app.store.processes import memory_barrier
from app.store.scatters.log_frames import Record, changed_key_parts, changed_parts, dirty_blocks, dirty_table_blocks
from app.store.scatters.scatter_log import ScatterLog, all_records
from app.store.scatters.writable_keys import WritableKeys
from app.store.store_errors import damaged
from app.tensors.dtypes import DTYPES

_FLUSH_BYTES: Final = 1 << 21


class WritableTensor:
    """A tensor's file, mapped for writing, and its log.

    Use it while holding the tensor's lock; only `checkpoint_lock` and `make_durable` do not require the lock.
    """

    def __init__(self, folder: Path, row: Row, log: ScatterLog, *, private: bool = False) -> None:
        """Map the content of the version `row` from `folder`, the tensors folder.

        If `private` is true, writes stay in this object's memory and never reach the files or other readers. Raises
        BadFile and OSError.
        """
        self.log = log
        self.row = row
        self._folder = folder
        self._snapshots = folder.with_name(download_snapshots.FOLDER)
        self._bare = None if row.keys is None else KeyLayout(key_type(row), row.shape[0])
        self._fd = open_regular(folder / row.file, os.O_RDWR)
        try:
            size = os.fstat(self._fd).st_size
            self.description: Description = decode_page(os.pread(self._fd, PAGE, 0), size)
            self.mapping = mmap.mmap(self._fd, size, mmap.MAP_PRIVATE if private else mmap.MAP_SHARED)
        except BaseException:
            os.close(self._fd)
            raise
        self.words = memoryview(self.mapping)[:PAGE].cast("Q")
        self._keys: WritableKeys | None = None
        self._private = private
        if private:
            self.words[HeaderWord.SNAPSHOTS] = 0

    def close(self) -> None:
        """Close the files. The memory is unmapped when no array refers to it anymore."""
        os.close(self._fd)
        if self._keys is not None:
            self._keys.close()

    @property
    def keys(self) -> WritableKeys:
        """The keys of a keyed table. Raises tensor_damaged and OSError."""
        if self._keys is None:
            try:
                self._keys = WritableKeys(self._folder, self.row, private=self._private)
            except BadFile as problem:
                raise damaged(self.row.name, str(problem)) from None
        return self._keys

    @property
    def applied(self) -> int:
        """The sequence of the last record that has been applied completely."""
        return self.version >> 1

    @property
    def version(self) -> int:
        """The version word without the damage flag."""
        return self.words[HeaderWord.VERSION] & ~DAMAGED

    def logged(self) -> Iterator[Record]:
        """Yield the records of the log that are newer than the file (see the header word RENEWED)."""
        renewed = self.words[HeaderWord.RENEWED]
        return (record for record in all_records(self.log.path) if record.entry.sequence > renewed)

    def applied_records(self) -> Iterator[Record]:
        """Yield the records of `logged` that have been applied. This excludes a replicated version's tail."""
        applied = self.applied
        return (record for record in self.logged() if record.entry.sequence <= applied)

    def items(self) -> NDArray[Any]:
        """Return all items of the content as a flat array."""
        description = self.description
        return np.frombuffer(self.mapping, DTYPES[description.dtype].numpy, description.item_count, PAGE)

    def rows(self) -> NDArray[Any]:
        """Return the items as an array of rows, including the rows of unused capacity."""
        capacity, *rest = self.description.shape
        return self.items().reshape(capacity, prod(rest))

    def save_snapshots(self, records: Sequence[Record]) -> None:
        """Copy the pages that `records` will change into the snapshots of running downloads. Raises OSError."""
        if not self.words[HeaderWord.SNAPSHOTS]:
            return
        places = download_snapshots.Pages(self.description, self._bare)
        items = self.mapping, changed_parts(records, PAGE)
        keys = self._changed_key_pages if any(len(record.key_rows) for record in records) else None
        if not download_snapshots.save_pages(
            places, self._snapshots, self.row.file, items, None if keys is None else partial(keys, records)
        ):
            self._set_word(HeaderWord.SNAPSHOTS, 0)

    def _changed_key_pages(self, records: Sequence[Record]) -> download_snapshots.Changed:
        return self.keys.mapping, changed_key_parts(records, self.keys.layout.width, PAGE)

    def apply(self, records: Iterable[Record], *, snapshots_saved: bool = False) -> None:
        """Make the version odd, write the rows and keys of `records`, and make the version even. At least one record is
        required.

        Any exception from the iterator `records` propagates. Unless `snapshots_saved` is true, the pages changed by
        each record are saved to snapshots before its rows are written, which may raise OSError. After an error, the
        version stays odd.
        """
        self._apply(records, snapshots_saved=snapshots_saved)

    def repair(self, records: Callable[[], Iterable[Record]]) -> None:
        """Apply `records()`, whether or not they have already been applied, wholly or partly.

        May raise everything that `apply` raises, and BrokenLog.
        """
        words, heap_end = self.words, None
        if self.row.keys is not None and any(record.changes_keys for record in records()):
            tail = (placed.entry for placed in self.log.tail)
            before = words[HeaderWord.HEAP_BEFORE if self.version & 1 else HeaderWord.HEAP_END]
            heap_end = self.keys.heap_start(records(), tail, words[HeaderWord.ROWS], before)
        self._apply(records(), repaired_from=heap_end)

    def _apply(
        self, records: Iterable[Record], *, snapshots_saved: bool = False, repaired_from: int | None = None
    ) -> None:
        """Apply records.

        In a repair, `repaired_from` is the heap offset at which to start writing, and the index is rebuilt.
        """
        words = self.words
        rows, heap_end = words[HeaderWord.ROWS], words[HeaderWord.HEAP_END]
        if repaired_from is not None:
            heap_end = repaired_from
            self._set_word(HeaderWord.HEAP_CHECKED, min(words[HeaderWord.HEAP_CHECKED], heap_end))
        if self.row.keys is not None:
            self._set_word(HeaderWord.HEAP_BEFORE, heap_end)
        # The odd version counts only the earlier scatters, so if this process dies here, these scatters are replayed.
        self._set_word(HeaderWord.VERSION, words[HeaderWord.VERSION] | 1)
        memory_barrier.fence()
        for record in records:
            if not snapshots_saved:
                self.save_snapshots([record])
            if len(record.rows):
                self._write_rows(record)
            if record.entry.size is not None:
                if repaired_from is None:
                    heap_end = self.keys.change(record, rows, heap_end)
                else:
                    heap_end = self.keys.write(record, heap_end)
                rows = record.entry.size
        if repaired_from is not None:
            self.keys.rebuild(rows)
        if self.row.keys is not None:
            self.set_words({HeaderWord.HEAP_END: heap_end, HeaderWord.ROWS: rows})
        last = record.entry
        self._set_word(HeaderWord.MODIFIED, last.time)
        if self.words[HeaderWord.EPOCH]:
            self._set_word(HeaderWord.APPLIED_EPOCH, last.epoch)
        memory_barrier.fence()
        self.set_applied(last.sequence)

    def set_applied(self, sequence: int) -> None:
        """Set the version to show that all records up to `sequence` have been applied."""
        self._set_word(HeaderWord.VERSION, self.words[HeaderWord.VERSION] & DAMAGED | 2 * sequence)

    def rewrite(self, records: Iterable[Record]) -> set[int]:
        """Write the current values of all rows in `records` again. Returns the dirty blocks.

        All records must have been applied. Readers see no change, but the kernel marks the pages dirty and writes them
        at the next fsync. The values are assembled in a private copy, because `records` may contain several values of
        one row.
        """
        with mmap.mmap(self._fd, 0, access=mmap.ACCESS_COPY) as copy:
            blocks: set[int] = set()
            for record in records:
                if len(record.rows):
                    self._rows_of(copy, record)[record.rows.astype(np.int64)] = record.values
                    blocks |= dirty_blocks([record])
            for block in blocks:
                span = slice(*self.description.block_span(block))
                disk_writes.store_words(
                    self.mapping,
                    lambda mapping, at=span, values=copy[span]: mapping.__setitem__(at, values),  # type: ignore[misc]
                )
        self._set_word(HeaderWord.MODIFIED, self.words[HeaderWord.MODIFIED])
        return blocks

    def set_words(self, words: Mapping[HeaderWord, int]) -> None:
        """Set words of the header, in the given order."""
        for word, value in words.items():
            self._set_word(word, value)

    def set_epoch(self, epoch: int) -> None:
        """Durably set the word EPOCH, and then set DURABLE_EPOCH.

        Raises OSError; the two words are then unchanged, and UNWRITTEN is set.
        """
        before = self.words[HeaderWord.EPOCH]
        self._set_word(HeaderWord.EPOCH, epoch)
        try:
            # fsync the whole file: the page records what has been applied, and must not become durable before the rows.
            disk_writes.fsync(self._fd)
        except OSError:
            self.set_words({HeaderWord.EPOCH: before, HeaderWord.UNWRITTEN: 1})
            raise
        self._set_word(HeaderWord.DURABLE_EPOCH, epoch)

    def _set_word(self, word: HeaderWord, value: int) -> None:
        def change(_: mmap.mmap) -> None:
            self.words[word] = value

        disk_writes.store_words(self.mapping, change)

    def _write_rows(self, record: Record) -> None:
        octets = self._rows_of(self.mapping, record)
        rows = record.rows.astype(np.int64)
        half = len(rows) // 2
        # Write in two steps, so that a test can stop the process between them.
        for part in (slice(0, half), slice(half, None)):

            def change(_: object, part: slice = part) -> None:
                octets[rows[part]] = record.values[part]

            disk_writes.store_words(self.mapping, change)

    def _rows_of(self, mapping: mmap.mmap, record: Record) -> NDArray[np.uint8]:
        """Return the items as bytes, in rows of the same width as those in `record`."""
        return np.frombuffer(mapping, np.uint8, self.description.size, PAGE).reshape(-1, record.entry.width)

    def mark_damaged(self) -> None:
        """Mark the content as damaged for all processes, until it is replaced."""
        self._set_word(HeaderWord.VERSION, self.words[HeaderWord.VERSION] | DAMAGED)

    @contextmanager
    def checkpoint_lock(self, *, wait: bool = True) -> Iterator[None]:
        """Lock the content against other checkpoints.

        Unless `wait` is true, raises BlockingIOError if the lock is held.
        """
        fcntl.flock(self._fd, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            yield
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    def make_durable(self, records: Iterable[Record]) -> None:
        """Make the content durable, along with the checksums of the blocks that `records` have changed.

        Call this inside `checkpoint_lock`. Scatters may change the content at the same time: their records come after
        `records` in the log, and the next checkpoint computes their checksums. However, if UNWRITTEN is set, `records`
        must contain all records since the last success, and no scatter may be running. Raises OSError; exceptions from
        the iterator `records` propagate.
        """
        description = self.description
        heap_end, checked, key_blocks = self.words[HeaderWord.HEAP_END], self.words[HeaderWord.HEAP_CHECKED], None
        if self.words[HeaderWord.UNWRITTEN]:
            blocks = sorted(self.rewrite(records))
        elif self._bare is not None:
            found, key_blocks = dirty_table_blocks(records, self._bare, checked, heap_end)
            blocks = sorted(found)
        else:
            blocks = sorted(dirty_blocks(records))
        with memoryview(self.mapping) as view:
            checksums = [zlib.crc32(view[slice(*description.block_span(block))]) for block in blocks]
        if blocks:
            table = np.frombuffer(self.mapping, np.uint32, description.block_count, description.checksums_at)
            disk_writes.store_words(self.mapping, lambda _: table.__setitem__(blocks, checksums))
        try:
            if key_blocks is not None:
                self.keys.make_durable(key_blocks)
            # Flush in portions, so that the fsyncs of other logs get their turn in between.
            for begin in range(0, description.file_size, _FLUSH_BYTES):
                disk_writes.flush_range(self._fd, begin, _FLUSH_BYTES)
            disk_writes.fsync(self._fd)
        except OSError:
            self._set_word(HeaderWord.UNWRITTEN, 1)
            raise
        if key_blocks is not None and self.words[HeaderWord.HEAP_CHECKED] == checked:  # no repair has lowered it
            self._set_word(HeaderWord.HEAP_CHECKED, heap_end)
        if self.words[HeaderWord.UNWRITTEN]:
            self._set_word(HeaderWord.UNWRITTEN, 0)
