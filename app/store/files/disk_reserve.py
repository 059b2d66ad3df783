"""Disk space kept in reserve for a full disk, on which a store must still start and tensors can be removed.

It is two files of zeros in the store's folder: space for bytes, and for two names, which SQLite's log and index take.
They are removed where the space is needed, and made again once the disk has some. Nothing depends on their contents,
nor on their being there.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from app.store.files import disk_writes
from app.store.files.regular_file import is_regular

SIZES: Final = {"reserve.0": 832 << 10, "reserve.1": 128 << 10}
"""The files and their bytes: the first for SQLite's log at a start, the other for the database.

Together they are smaller than that log, whose space they take when the store is closed.
"""
FULL: Final = (errno.ENOSPC, errno.EDQUOT)


class DiskReserve:
    """The reserve in one folder, for any number of processes."""

    def __init__(self, folder: Path) -> None:
        self._files = {folder / name: size for name, size in SIZES.items()}
        self._whole = False

    def fill(self) -> None:
        """Make what is missing. On a full disk both names are kept all the same, and what bytes there is room for."""
        is_whole = True
        for path, size in self._files.items():
            try:
                self._make(path, size)
            except OSError:
                is_whole = False
        self._whole = is_whole

    def _make(self, path: Path, size: int) -> None:
        """Make a file, or lengthen one that found no room before, or whose process died while it made it."""
        if not is_regular(path):
            disk_writes.unlink(path)
        elif path.stat().st_size >= size:
            return
        fd = disk_writes.open_or_create(path)
        try:
            length = os.fstat(fd).st_size
            # Not a hole, and no block that a later write would have to split.
            disk_writes.write_at(fd, bytes(size - length), length)
            disk_writes.fsync(fd)
        finally:
            os.close(fd)

    def refill(self) -> None:
        """`fill`, if this process has used some of it."""
        if not self._whole:
            self.fill()

    def _release_one(self) -> bool:
        """Remove one file; False if there is none left."""
        self._whole = False
        for path in self._files:
            if is_regular(path):
                disk_writes.unlink(path)
                return True
        return False

    def retry_with(self, work: Callable[[], None], *, any_error: bool = False) -> None:
        """Do `work`; where the disk is full, or at `any_error`, remove a file of the reserve and try again.

        Raises OSError.
        """
        while True:
            try:
                work()
                return
            except OSError as error:
                if not (any_error or error.errno in FULL) or not self._release_one():
                    raise
