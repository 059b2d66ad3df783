"""A tensor's file, mapped for writing: scatters change it in place, under a seqlock, and make it durable later.

A content is changed within its tensor's lock only, in this order: the log takes the new rows and is durable; the
version turns odd, the rows change, the version turns even. A process that finds an odd version within the lock, or a
log that is ahead of the version, finishes the work of one that died. The log is removed by a checkpoint, once the
content and its checksums have reached the disk.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import gcd
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from app.store.files import disk_writes, download_snapshots
from app.store.files.regular_file import open_regular
from app.store.files.tensor_file import BLOCK, DAMAGED, PAGE, Description, HeaderWord, decode_page
from app.store.processes import memory_barrier
from app.store.scatters.scatter_log import Record, ScatterLog
from app.tensors.dtypes import DTYPES

_FLUSH_BYTES: Final = 1 << 21
_NO_CHECKSUMS: Final[Mapping[int, int]] = {}


class WritableTensor:
    """A tensor's file, mapped for writing, and its log.

    Used within the tensor's lock only, but for `checksums_of` and `flush`.
    """

    def __init__(self, path: Path, log: ScatterLog, data_version: int = 1) -> None:
        """`data_version` is the number of the tensor's version that the content is. Raises BadFile and OSError."""
        self.log = log
        self.data_version = data_version
        self._snapshots = path.parent.with_name(download_snapshots.FOLDER)
        self._fd = open_regular(path, os.O_RDWR)
        try:
            size = os.fstat(self._fd).st_size
            self.description: Description = decode_page(os.pread(self._fd, PAGE, 0), size)
            self.mapping = mmap.mmap(self._fd, size)
        except BaseException:
            os.close(self._fd)
            raise
        self.words = memoryview(self.mapping)[:PAGE].cast("Q")

    def close(self) -> None:
        """Close the file; the memory is unmapped with the last array that refers to it."""
        os.close(self._fd)

    @property
    def version(self) -> int:
        """The version without the bit that marks damage."""
        return self.words[HeaderWord.VERSION] & ~DAMAGED

    def items(self) -> NDArray[Any]:
        """All items of the content, flat."""
        description = self.description
        return np.frombuffer(self.mapping, DTYPES[description.dtype].numpy, description.item_count, PAGE)

    def save_snapshots(self, records: Sequence[Record]) -> None:
        """Copy the pages that `records` will change into the snapshots that are being read. Raises OSError."""
        asked = self.words[HeaderWord.SNAPSHOTS]
        if asked and not download_snapshots.save_pages(self.mapping, self.description, self._snapshots, records):
            self._set_word(HeaderWord.SNAPSHOTS, 0)

    def apply(self, records: Sequence[Record], *, snapshots_saved: bool = False) -> None:
        """Write the rows of `records`, of which there is one at least, in their order, while the version is odd.

        Raises OSError, before anything is written, where snapshots are not saved yet.
        """
        if not snapshots_saved:
            self.save_snapshots(records)
        # The odd version counts the scatters before these, so that a process that dies here leaves them to be replayed.
        mark = self.words[HeaderWord.VERSION] & DAMAGED
        self._set_word(HeaderWord.VERSION, self.words[HeaderWord.VERSION] | 1)
        memory_barrier.fence()
        for record in records:
            if len(record.rows):
                self._write_rows(record)
        last = records[-1].entry
        self._set_word(HeaderWord.MODIFIED, last.time)
        memory_barrier.fence()
        self._set_word(HeaderWord.VERSION, mark | 2 * last.sequence)

    def rewrite(self, records: Sequence[Record]) -> None:
        """Store once more the values that the content has by `records`, all of which are applied.

        No reader sees a change; the system marks the pages as dirty, and writes them to the disk at the next fsync.
        """
        changes = [record for record in records if len(record.rows)]
        unit = gcd(*(record.entry.width for record in changes))
        if unit:
            octets = np.frombuffer(self.mapping, np.uint8, self.description.size, PAGE).reshape(-1, unit)
            stored = np.zeros(len(octets), bool)
            for record in reversed(changes):
                parts = record.entry.width // unit
                places = (record.rows.astype(np.int64)[:, None] * parts + np.arange(parts)).ravel()
                values = record.values.reshape(-1, unit)[~stored[places]]
                places = places[~stored[places]]
                disk_writes.store_words(self.mapping, lambda _, at=places, new=values: octets.__setitem__(at, new))  # type: ignore[misc]
                stored[places] = True
        self._set_word(HeaderWord.MODIFIED, self.words[HeaderWord.MODIFIED])

    def _set_word(self, word: HeaderWord, value: int) -> None:
        def change(_: mmap.mmap) -> None:
            self.words[word] = value

        disk_writes.store_words(self.mapping, change)

    def _write_rows(self, record: Record) -> None:
        width = record.entry.width
        octets = np.frombuffer(self.mapping, np.uint8, self.description.size, PAGE).reshape(-1, width)
        rows = record.rows.astype(np.int64)
        half = len(rows) // 2
        # In two steps, so that a test can stop the process between them.
        for part in (slice(0, half), slice(half, None)):

            def change(_: object, part: slice = part) -> None:
                octets[rows[part]] = record.values[part]

            disk_writes.store_words(self.mapping, change)

    def mark_damaged(self) -> None:
        """Mark the content as damaged, for every process, until it is replaced."""
        self._set_word(HeaderWord.VERSION, self.words[HeaderWord.VERSION] | DAMAGED)

    def checksums_of(self, blocks: Iterable[int]) -> dict[int, int]:
        """The checksums of these blocks as they are now, by their numbers."""
        with memoryview(self.mapping) as view:
            return {block: zlib.crc32(view[slice(*self.description.block_span(block))]) for block in sorted(blocks)}

    def make_durable(self, records: Sequence[Record], checksums: Mapping[int, int] = _NO_CHECKSUMS) -> None:
        """Make the content durable, and the checksums of the blocks that `records` have changed. Raises OSError.

        `records` are all that have changed it since this last succeeded, less those of whose blocks `checksums` has the
        checksums already.
        """
        description = self.description
        with self._fsync_lock():
            if self.words[HeaderWord.UNWRITTEN]:
                self.rewrite(records)
            found = {**checksums, **self.checksums_of(dirty_blocks(records))}
            if found:
                table = np.frombuffer(self.mapping, np.uint32, description.block_count, description.checksums_at)
                disk_writes.store_words(self.mapping, lambda _: table.__setitem__(list(found), list(found.values())))
            with self._unwritten_on_error():
                disk_writes.fsync(self._fd)
            if self.words[HeaderWord.UNWRITTEN]:
                self._set_word(HeaderWord.UNWRITTEN, 0)

    def flush(self) -> None:
        """Make durable what has been changed so far, without the lock, so that `make_durable` waits less.

        Raises OSError.
        """
        with self._fsync_lock(), self._unwritten_on_error():
            # In portions, so that the fsyncs of other logs get their turn between them.
            for begin in range(0, self.description.file_size, _FLUSH_BYTES):
                disk_writes.flush_range(self._fd, begin, _FLUSH_BYTES)
            disk_writes.fsync(self._fd)

    @contextmanager
    def _fsync_lock(self) -> Iterator[None]:
        # One fsync at a time: another one between a failed fsync and the setting of UNWRITTEN would clear that word.
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    @contextmanager
    def _unwritten_on_error(self) -> Iterator[None]:
        """Set UNWRITTEN where an fsync fails."""
        try:
            yield
        except OSError:
            self._set_word(HeaderWord.UNWRITTEN, 1)
            raise


def dirty_blocks(records: Iterable[Record]) -> set[int]:
    """The numbers of the 64 KiB blocks that records change."""
    found: set[int] = set()
    for record in records:
        width = record.entry.width
        if len(record.rows):
            first = record.rows.astype(np.int64) * width
            last = (first + width - 1) // BLOCK
            first //= BLOCK
            found.update(first.tolist())
            for begin, end in {*zip(first.tolist(), last.tolist(), strict=True)}:
                found.update(range(begin, end + 1))
    return found
