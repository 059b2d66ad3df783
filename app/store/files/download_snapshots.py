"""Keeps one version of a content for a download, which may take longer than a scatter can wait.

A snapshot is a file beside the content: before a scatter changes a page it copies the page there, once; the reader
takes copied pages from the snapshot and all others from the content itself. A snapshot never shares blocks with the
content (reflink): a store to a shared block of a mapping needs room, and a full disk then ends the process (SIGBUS).

    <content id>.<random>   one byte for each page of the items, 1 where the page was copied; then the pages, each in
                            its own place. The file is sparse, and has its full length from the start. It is truncated
                            to nothing where the disk had no room for a page: the scatter goes on, the download ends.

The reader holds a lock (flock) on the file as long as it reads, so that files of dead readers are recognized. The word
SNAPSHOTS of the content says whether such files may exist; if not, a scatter does not look for any.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from mmap import mmap
from pathlib import Path
from typing import Final
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from app.errors import GatherError
from app.store.files import disk_writes
from app.store.files.mapped_tensor import MappedContent
from app.store.files.regular_file import NotRegular, open_regular, read_at
from app.store.files.tensor_file import PAGE, Description, HeaderWord, decode_page, is_settled
from app.store.scatters.log_frames import Record, changed_parts
from app.store.store_errors import unreadable, unsettled

FOLDER: Final = "snapshots"


class Snapshot:
    """A content at the version at which this was made, within its tensor's lock. All methods block on the disk."""

    def __init__(self, content: MappedContent, folder: Path) -> None:
        """Raises tensor_damaged, overloaded and OSError."""
        resident = content.resident()
        if not is_settled(content.words):
            raise unsettled()
        if not resident.is_consistent:
            raise GatherError("overloaded", "a change that was cut short could not be finished yet", retry_after=1)
        self.etag = resident.etag
        self._content = content
        self._fd = -1
        self._path: Path | None = None
        self._size = 0
        try:
            source = open_regular(content.path, os.O_RDWR)
        except FileNotFoundError:
            return  # the content has been replaced: no scatter changes it any more
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
        self._path = folder / f"{self._content.description.id}.{uuid4().hex}"
        self._fd = _create_locked(self._path)
        pages = _pages_at(self._content.description)
        self._size = pages + self._content.description.size
        disk_writes.truncate(self._fd, self._size)
        disk_writes.write_at(source, (1).to_bytes(8, "little"), 8 * HeaderWord.SNAPSHOTS)

    def read(self, begin: int, end: int) -> bytes:
        """Bytes `begin` to `end` of the items. Raises tensor_damaged, and insufficient_storage for a lost page."""
        self._content.resident()  # raises for a file that was cut, before anything is read
        piece = self._content.read(begin, end)
        if self._fd < 0:
            return piece
        # A scatter copies and flags a page before it changes it, so the flags are read after the content.
        first = begin // PAGE
        flags = np.frombuffer(os.pread(self._fd, -(-end // PAGE) - first, first), np.uint8)
        if flags.any():
            whole = bytearray(piece)
            pages_at = _pages_at(self._content.description)
            for start, stop in _runs(first + np.flatnonzero(flags)):
                low, high = max(start * PAGE, begin), min(stop * PAGE, end)
                whole[low - begin : high - begin] = _read(self._fd, pages_at + low, high - low)
            piece = bytes(whole)
        # Last, since flags and pages may be lost at any time.
        if os.fstat(self._fd).st_size != self._size:
            raise GatherError("insufficient_storage", "the disk had no room for what was to be read before it changed")
        return piece

    def close(self) -> None:
        """Remove the file and unlock it."""
        if self._fd >= 0:
            if self._path is not None:
                with suppress(OSError):
                    disk_writes.unlink(self._path)
            os.close(self._fd)
            self._fd = -1


def _create_locked(path: Path) -> int:
    """A new file that this process has locked; its descriptor."""
    while True:
        fd = disk_writes.create(path)
        fcntl.flock(fd, fcntl.LOCK_EX)
        if os.fstat(fd).st_nlink:
            return fd
        os.close(fd)  # `remove_abandoned` found it before it was locked


def save_pages(mapping: mmap, description: Description, folder: Path, records: Sequence[Record]) -> bool:
    """Copy the pages that `records` will change into the snapshots of the content; False where there are none.

    Within the lock of the tensor.
    """
    living = list(_open_snapshots(folder, description.id))
    if not living:
        return False
    pages = changed_parts(records, PAGE)
    for fd in living:
        try:
            _save_into(mapping, description, fd, pages)
        except OSError:
            # The scatter goes on, and the reader sees the empty file. To truncate needs no room.
            disk_writes.truncate(fd, 0)
        finally:
            os.close(fd)
    return True


def _save_into(mapping: mmap, description: Description, fd: int, pages: NDArray[np.int64]) -> None:
    pages_at = _pages_at(description)
    if not len(pages) or not os.fstat(fd).st_size:
        return
    first, last = int(pages[0]), int(pages[-1]) + 1
    flags = np.frombuffer(_read(fd, first, last - first), np.uint8)
    for start, stop in _runs(pages[flags[pages - first] == 0]):
        begin, end = start * PAGE, min(stop * PAGE, description.size)
        with memoryview(mapping) as view:
            disk_writes.write_at(fd, view[PAGE + begin : PAGE + end], pages_at + begin)
        disk_writes.write_at(fd, b"\1" * (stop - start), start)


def _open_snapshots(folder: Path, content: str) -> Iterator[int]:
    """Descriptors of a content's snapshots that are being read; files of dead readers are removed."""
    for path in folder.glob(f"{content}.*"):
        fd = _open_if_read(path)
        if fd >= 0:
            yield fd


def _open_if_read(path: Path) -> int:
    """A descriptor of the file if its reader is alive; else -1, and the file is removed."""
    try:
        fd = open_regular(path, os.O_RDWR)
    except FileNotFoundError:
        return -1
    except NotRegular:
        with suppress(OSError):  # a folder stays
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


def _runs(pages: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Where runs of successive numbers begin, and the numbers behind their ends."""
    if len(pages):
        breaks = np.flatnonzero(np.diff(pages) != 1)
        starts = pages[np.concatenate(([0], breaks + 1))]
        ends = pages[np.concatenate((breaks, [len(pages) - 1]))] + 1
        yield from zip(starts.tolist(), ends.tolist(), strict=True)


def _pages_at(description: Description) -> int:
    """Where the pages begin: behind one byte for each, from a multiple of the page size."""
    flags = -(-description.size // PAGE)
    return flags + -flags % PAGE


def _read(fd: int, offset: int, size: int) -> bytes:
    """Exactly `size` bytes; zeros where the file ends early."""
    return read_at(fd, offset, size).ljust(size, b"\0")
