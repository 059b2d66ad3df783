"""Changing a tensor in place: new values computed, logged, applied between two stamps, and at times written through.

A content is changed within its tensor's lock only, in this order: the log takes the new values and is durable; the
stamp turns odd, the rows change, the stamp turns even. Whoever finds an odd stamp within the lock, or a log that is
ahead of the stamp, finishes the work of a process that died. The log is emptied at a checkpoint, after the content and
its checksums have reached the disk.
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
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from app.store import disk_writes, download_snapshots, memory_barrier
from app.store.scatter_log import Record, ScatterLog
from app.store.tensor_file import BLOCK, DAMAGED, PAGE, Description, HeaderWord, decode_page
from app.tensors.dtypes import DTYPES
from app.tensors.scatter_call import Reduction

_UFUNCS: Final[dict[Reduction, Any]] = {
    "add": np.add,
    "mul": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
}
_FLUSH_BYTES: Final = 1 << 21
_NO_CHECKSUMS: Final[Mapping[int, int]] = {}


class WritableTensor:
    """A tensor's file, mapped for writing, and its log.

    Within the tensor's lock, and no longer than that, but for `sums_of` and `write_back`.
    """

    def __init__(self, path: Path, log: ScatterLog) -> None:
        """Raises BadFile and OSError."""
        self.log = log
        self._snapshots = path.parent.with_name(download_snapshots.FOLDER)
        self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            size = os.fstat(self._fd).st_size
            self.description: Description = decode_page(os.pread(self._fd, PAGE, 0), size)
            self.mapping = mmap.mmap(self._fd, size)
        except BaseException:
            os.close(self._fd)
            raise
        self.words = memoryview(self.mapping)[:PAGE].cast("Q")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # The mapping goes with the last array that looks into it.
        os.close(self._fd)

    @property
    def version(self) -> int:
        """The stamp without the mark of damage."""
        return self.words[HeaderWord.VERSION] & ~DAMAGED

    def new_rows(
        self,
        rows: NDArray[np.int64],
        updates: NDArray[Any],
        width: int,
        reduction: Reduction,
        unapplied: Sequence[Record] = (),
    ) -> tuple[NDArray[np.uint64], NDArray[np.uint8]]:
        """The rows that a scatter changes, each once, and the bytes of their new values; `width` items a row.

        `before` are records that come before it and are not applied yet; where there is a reduction, their rows are as
        wide. Updates of one row count in their order: the last one wins, or they are reduced one after the other, each
        result rounded to the type, as NumPy does it (NaN wins in min and max; integers wrap).
        """
        if not len(rows) or not width:
            return np.empty(0, np.uint64), np.empty((0, 0), np.uint8)
        values = updates.reshape(len(rows), width)
        if reduction == "none":
            unique, last = np.unique(rows[::-1], return_index=True)
            new = values[len(rows) - 1 - last]
        else:
            unique, place = np.unique(rows, return_inverse=True)
            about = self.description
            items = np.frombuffer(self.mapping, DTYPES[about.dtype].numpy, about.item_count, PAGE)
            new = items.reshape(-1, width)[unique]
            for record in unapplied:
                _overlay(new, unique, record)
            with np.errstate(all="ignore"):
                if len(unique) == len(rows):
                    ordered = np.empty_like(new)
                    ordered[place] = values
                    new = _UFUNCS[reduction](new, ordered)
                else:
                    _UFUNCS[reduction].at(new, place, values)
        octets: NDArray[np.uint8] = np.ascontiguousarray(new).view(np.uint8).reshape(len(unique), -1)
        return unique.astype(np.uint64), octets

    def apply(self, records: Iterable[Record]) -> None:
        """Bring the content to what `records` say, in their order, with an odd stamp meanwhile."""
        changes = [record for record in records if record.entry.sequence is not None]
        if not changes:
            return
        asked = self.words[HeaderWord.SNAPSHOTS]
        if asked and not download_snapshots.save_pages(self.mapping, self.description, self._snapshots, changes):
            self._set_word(HeaderWord.SNAPSHOTS, 0)
        # An odd stamp still counts the scatters before these, for that is what a failed one leaves to replay.
        mark = self.words[HeaderWord.VERSION] & DAMAGED
        self._set_word(HeaderWord.VERSION, self.words[HeaderWord.VERSION] | 1)
        memory_barrier.fence()
        for record in changes:
            if len(record.rows):
                self._write_rows(record)
        last = changes[-1].entry
        self._set_word(HeaderWord.MODIFIED, last.time)
        memory_barrier.fence()
        assert last.sequence is not None
        self._set_word(HeaderWord.VERSION, mark | 2 * last.sequence)

    def rewrite(self, records: Sequence[Record]) -> None:
        """Store the values that the content has by `records`, all of which are applied, once more.

        No reader sees a change; the system takes the pages for changed, and writes them to the disk at the next fsync.
        """
        changes = [record for record in records if record.entry.sequence is not None and len(record.rows)]
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
        for part in (slice(0, half), slice(half, None)):
            # In two steps, so that a test can stop the process between them.
            def change(_: object, part: slice = part) -> None:
                octets[rows[part]] = record.values[part]

            disk_writes.store_words(self.mapping, change)

    def mark_damaged(self) -> None:
        """Mark the content as damaged, for every process and for good."""
        self._set_word(HeaderWord.VERSION, self.words[HeaderWord.VERSION] | DAMAGED)

    def checksums_of(self, blocks: Iterable[int]) -> dict[int, int]:
        """The checksums of these blocks."""
        end = self.description.checksums_at
        with memoryview(self.mapping) as view:
            return {
                block: zlib.crc32(view[PAGE + block * BLOCK : min(PAGE + (block + 1) * BLOCK, end)])
                for block in sorted(blocks)
            }

    def make_durable(self, records: Sequence[Record], checksums: Mapping[int, int] = _NO_CHECKSUMS) -> None:
        """Make the content durable, with the checksums of the blocks that `records` have changed. Raises OSError.

        `records` are all that have changed it since this was done last. Where it was done well then, those may be left
        out of which `sums` has the checksums of the blocks.
        """
        about = self.description
        with self._fsync_lock():
            if self.words[HeaderWord.UNWRITTEN]:
                self.rewrite(records)
            found = {**checksums, **self.checksums_of(set().union(*map(dirty_blocks, records)))}
            if found:
                table = np.frombuffer(self.mapping, np.uint32, about.block_count, about.checksums_at)
                disk_writes.store_words(self.mapping, lambda _: table.__setitem__(list(found), list(found.values())))
            with self._unwritten_on_error():
                disk_writes.fsync(self._fd)
            if self.words[HeaderWord.UNWRITTEN]:
                self._set_word(HeaderWord.UNWRITTEN, 0)

    def flush(self) -> None:
        """Make durable what has been changed so far, without the lock: a later `write_through` waits the less.

        Raises OSError.
        """
        with self._fsync_lock(), self._unwritten_on_error():
            # Part by part, so that the logs of other changes get to the disk between them.
            for begin in range(0, self.description.file_size, _FLUSH_BYTES):
                disk_writes.flush_range(self._fd, begin, _FLUSH_BYTES)
            disk_writes.fsync(self._fd)

    @contextmanager
    def _fsync_lock(self) -> Iterator[None]:
        # One at a time: between an fsync that failed and its mark another one would succeed, and take the mark away.
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    @contextmanager
    def _unwritten_on_error(self) -> Iterator[None]:
        """Mark the content where the disk refuses to make it durable."""
        try:
            yield
        except OSError:
            self._set_word(HeaderWord.UNWRITTEN, 1)
            raise


def _overlay(new: NDArray[Any], rows: NDArray[np.int64], record: Record) -> None:
    """Put the values of `record` over those of `new`, whose row i is row `rows[i]` of the content. Both are sorted."""
    if len(record.rows):
        place = np.searchsorted(record.rows, rows.astype(np.uint64)).clip(max=len(record.rows) - 1)
        hit = record.rows[place] == rows.astype(np.uint64)
        new[hit] = record.values[place[hit]].view(new.dtype)


def dirty_blocks(record: Record) -> set[int]:
    """The numbers of the 64 KiB blocks that a record writes to."""
    width = record.entry.width
    if not len(record.rows):
        return set()
    first = record.rows.astype(np.int64) * width
    last = (first + width - 1) // BLOCK
    first //= BLOCK
    found = set(first.tolist())
    for begin, end in {*zip(first.tolist(), last.tolist(), strict=True)}:
        if end > begin:
            found.update(range(begin, end + 1))
    return found
