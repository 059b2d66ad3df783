"""Room that is kept for when the disk is full, when a store must still start and its tensors can be removed.

It is two files of nothing in the store's folder, so that it is room for bytes and for two names. They are removed where
the room is needed, and made again once there is some. Nothing depends on what is in them, nor that they are there.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from app.store import disk_writes

SIZES: Final = {"reserve.0": 832 << 10, "reserve.1": 128 << 10}
"""The files and their bytes: the first for a start, which takes as much for SQLite's log, the other for the database.

Both are less than that log, whose room they take when the store is closed.
"""
FULL: Final = (errno.ENOSPC, errno.EDQUOT)


class DiskReserve:
    """The reserve in one folder. Any number of processes may use it."""

    def __init__(self, folder: Path) -> None:
        self._files = {folder / name: size for name, size in SIZES.items()}
        self._whole = False

    def fill(self) -> None:
        """Make what is missing of it, unless the disk has no room for that."""
        with suppress(OSError):
            for path, size in self._files.items():
                if not path.exists() or path.stat().st_size < size:
                    self._make(path, size)
            self._whole = True

    def _make(self, path: Path, size: int) -> None:
        disk_writes.unlink(path)  # of a process that died while it made it
        fd = disk_writes.create(path)
        try:
            disk_writes.write(fd, bytes(size))  # not a hole, and no block that a later write would have to split
            disk_writes.fsync(fd)
        except OSError:
            disk_writes.unlink(path)
            raise
        finally:
            os.close(fd)

    def refill(self) -> None:
        """`keep`, where this process has given it up."""
        if not self._whole:
            self.fill()

    def _release_one(self) -> bool:
        """Give the room of one file back to the disk; False if there is none."""
        self._whole = False
        for path in self._files:
            if path.exists():
                disk_writes.unlink(path)
                return True
        return False

    def retry_with(self, work: Callable[[], None], *, any_error: bool = False) -> None:
        """Do `work`, again and again with less of the reserve where the disk was full, or with `any_error`.

        Raises OSError.
        """
        while True:
            try:
                work()
                return
            except OSError as error:
                if not (any_error or error.errno in FULL) or not self._release_one():
                    raise
