"""Preserve a tensor's content at one sequence while it is downloaded, because scatters cannot wait that long.

A snapshot is a separate file. Before a scatter changes a page for the first time, it copies the page into the snapshot.
The reader reads copied pages from the snapshot and all other pages from the content. A snapshot never shares blocks
with the content (reflink), because writing to a shared block of a mapping requires free space, and on a full disk the
process would be killed (SIGBUS).

    <file>.<random>         one byte for each page, 1 if the page was copied; then the pages, at fixed positions.
                            The pages are those of the items, then those of the key file, except its string heap,
                            whose bytes in use never change. The file is sparse, and has its full length from the
                            start. It is truncated to zero if the disk has no room for a page: the scatter continues
                            and the download ends.

The reader holds a lock (flock) on the file while it reads. The lock distinguishes its file from those of dead readers.
The word SNAPSHOTS in the content's header says whether snapshots may exist. If it is 0, scatters do not look for
snapshots.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from mmap import mmap
from pathlib import Path
from typing import Final, TypeAlias
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from app.errors import GatherError
from app.keys.key_column import KeyColumn
from app.store.files import disk_writes
from app.store.files.key_files import KeyLayout
from app.store.files.mapped_tensor import MappedContent
from app.store.files.regular_file import NotRegular, open_regular, read_at
from app.store.files.tensor_file import PAGE, Description, HeaderWord, decode_page, is_settled
from app.store.store_errors import unreadable, unsettled

FOLDER: Final = "snapshots"
Changed: TypeAlias = tuple[mmap, NDArray[np.int64]]
"""A mapped file, and the numbers of its pages that will change, in ascending order and counted after its first page."""


class Snapshot:
    """A tensor's content as of the creation of this object.

    Hold the tensor's lock while creating the object; its methods require no lock. All methods do blocking disk I/O.
    """

    def __init__(self, content: MappedContent, folder: Path) -> None:
        """Create the snapshot. Raises tensor_damaged, overloaded and OSError."""
        resident = content.resident()
        if not is_settled(content.words):
            raise unsettled()
        if not resident.is_consistent:
            raise GatherError("overloaded", "a change that was cut short could not be finished yet", retry_after=1)
        self.etag = resident.etag
        self.shape = resident.tensor.shape
        """The shape of the tensor at the snapshot's version."""
        self._content = content
        self._fd = -1
        self._path: Path | None = None
        self._places = Pages(content.description, None if content.keys is None else content.keys.layout)
        try:
            source = open_regular(content.path, os.O_RDWR)
        except FileNotFoundError:
            return  # the content has been replaced, so scatters no longer change it
        except NotRegular as problem:
            raise unreadable(content.description.name, problem) from None
        try:
            page = os.pread(source, PAGE, 0)
            if decode_page(page, os.fstat(source).st_size).id == content.description.id:
                self._make(source, folder)
        except BaseException:
            self.close()
            raise
        finally:
            os.close(source)

    def _make(self, source: int, folder: Path) -> None:
        self._path = folder / f"{self._content.path.name}.{uuid4().hex}"
        self._fd = _create_locked(self._path)
        disk_writes.truncate(self._fd, self._places.file_size)
        disk_writes.write_at(source, (1).to_bytes(8, "little"), 8 * HeaderWord.SNAPSHOTS)

    def read(self, begin: int, end: int) -> bytes:
        """Return bytes `begin` to `end` of the items.

        Raises tensor_damaged, and insufficient_storage if the disk was too full to save a page.
        """
        return self._read(self._content.read, 0, begin, end)

    def row_span(self, first: int, last: int) -> tuple[int, int]:
        """Return the offsets at which rows `first` and `last` begin."""
        return self._content.row_span(first, last)

    def keys(self, first: int, last: int) -> KeyColumn:
        """Return the keys of rows `first` to `last` of a keyed table. May raise everything that `read` raises."""
        keys = self._content.keys
        assert keys is not None
        width = keys.layout.width
        return keys.column_of(self._read(keys.read, self._places.of_items, width * first, width * last))

    def read_keys(self, begin: int, end: int) -> bytes:
        """Return bytes of the key file, counted after its first page. May raise everything that `read` raises.

        In the heap, only bytes that this version uses are valid.
        """
        keys = self._content.keys
        assert keys is not None
        cut = min(max(keys.layout.heap_at, begin), end)
        return self._read(keys.read, self._places.of_items, begin, cut) + keys.read(cut, end)

    def _read(self, read: Callable[[int, int], bytes], page: int, begin: int, end: int) -> bytes:
        """Return bytes `begin` to `end` of the file that `read` reads.

        `page` is the index of the file's first page within the snapshot.
        """
        self._content.resident()  # raises before anything is read if the file was truncated
        piece = read(begin, end)
        if self._fd < 0:
            return piece
        # A scatter copies and flags a page before changing it, so read the flags after the content.
        first = begin // PAGE
        flags = np.frombuffer(os.pread(self._fd, -(-end // PAGE) - first, page + first), np.uint8)
        if flags.any():
            whole = bytearray(piece)
            pages_at = self._places.begin + page * PAGE
            for start, stop in _consecutive_runs(first + np.flatnonzero(flags)):
                low, high = max(start * PAGE, begin), min(stop * PAGE, end)
                whole[low - begin : high - begin] = _read(self._fd, pages_at + low, high - low)
            piece = bytes(whole)
        # Check this last, because flags and pages may be lost at any time.
        if os.fstat(self._fd).st_size != self._places.file_size:
            raise GatherError(
                "insufficient_storage",
                "the tensor changed during the download, and the disk has no room for its old data",
            )
        return piece

    def close(self) -> None:
        """Remove the file and unlock it."""
        if self._fd >= 0:
            if self._path is not None:
                with suppress(OSError):
                    disk_writes.unlink(self._path)
            os.close(self._fd)
            self._fd = -1


class Pages:
    """The positions of the flags and the pages in a snapshot file."""

    def __init__(self, description: Description, keys: KeyLayout | None) -> None:
        self.of_items = -(-description.size // PAGE)
        """The number of pages of items. The pages of the key file come after them."""
        self.sizes = description.size, 0 if keys is None else keys.heap_at
        flags = self.of_items + -(-self.sizes[1] // PAGE)
        self.begin = flags + -flags % PAGE
        """The offset of the pages. They come after the flags, of which there is one byte for each page."""
        last = self.of_items * PAGE + self.sizes[1] if self.sizes[1] else description.size
        self.file_size = self.begin + last


def _create_locked(path: Path) -> int:
    """Create a file, lock it, and return its descriptor."""
    while True:
        fd = disk_writes.create(path)
        fcntl.flock(fd, fcntl.LOCK_EX)
        if os.fstat(fd).st_nlink:
            return fd
        os.close(fd)  # `remove_abandoned` deleted the file before it was locked


def save_pages(
    places: Pages, folder: Path, file: str, items: Changed, keys: Callable[[], Changed] | None = None
) -> bool:
    """Copy pages that are about to change into the snapshots of the content in `file`. Returns False if no snapshots
    exist.

    `keys` returns the pages of the key file that will change, if any. Call this while holding the tensor's lock.
    """
    living = list(_open_snapshots(folder, file))
    if not living:
        return False
    of_keys = None if keys is None else keys()
    for fd in living:
        try:
            if os.fstat(fd).st_size:
                _save_into(fd, places, 0, places.sizes[0], *items)
                if of_keys is not None:
                    _save_into(fd, places, places.of_items, places.sizes[1], *of_keys)
        except OSError:
            # The scatter continues, and the reader sees that the file is empty. Truncating requires no free space.
            disk_writes.truncate(fd, 0)
        finally:
            os.close(fd)
    return True


def _save_into(fd: int, places: Pages, page: int, size: int, mapping: mmap, pages: NDArray[np.int64]) -> None:
    """Save pages of a mapping. `page` is the index of the mapping's first page within the snapshot."""
    if not len(pages):
        return
    first, last = int(pages[0]), int(pages[-1]) + 1
    flags = np.frombuffer(_read(fd, page + first, last - first), np.uint8)
    pages_at = places.begin + page * PAGE
    for start, stop in _consecutive_runs(pages[flags[pages - first] == 0]):
        begin, end = start * PAGE, min(stop * PAGE, size)
        with memoryview(mapping) as view:
            disk_writes.write_at(fd, view[PAGE + begin : PAGE + end], pages_at + begin)
        disk_writes.write_at(fd, b"\1" * (stop - start), page + start)


def _open_snapshots(folder: Path, file: str) -> Iterator[int]:
    """Yield the descriptors of the content's snapshots that are in use, and remove the files of dead readers."""
    for path in folder.glob(f"{file}.*"):
        fd = _open_if_read(path)
        if fd >= 0:
            yield fd


def _open_if_read(path: Path) -> int:
    """Return a descriptor of the file if its reader is alive; otherwise remove the file and return -1."""
    try:
        fd = open_regular(path, os.O_RDWR)
    except FileNotFoundError:
        return -1
    except NotRegular:
        with suppress(OSError):  # a folder cannot be removed
            disk_writes.unlink(path)
        return -1
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return fd
    disk_writes.unlink(path)
    os.close(fd)
    return -1


def remove_abandoned(folder: Path) -> None:
    """Remove the files of dead readers. Raises OSError."""
    for path in folder.iterdir():
        fd = _open_if_read(path)
        if fd >= 0:
            os.close(fd)


def _consecutive_runs(pages: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Yield the start and the end (exclusive) of each run of consecutive numbers."""
    if len(pages):
        breaks = np.flatnonzero(np.diff(pages) != 1)
        starts = pages[np.concatenate(([0], breaks + 1))]
        ends = pages[np.concatenate((breaks, [len(pages) - 1]))] + 1
        yield from zip(starts.tolist(), ends.tolist(), strict=True)


def _read(fd: int, offset: int, size: int) -> bytes:
    """Return exactly `size` bytes, padded with zeros if the file ends early."""
    return read_at(fd, offset, size).ljust(size, b"\0")
