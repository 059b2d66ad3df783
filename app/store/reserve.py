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

from app.store import disk

NAMES: Final = ("reserve.0", "reserve.1")
SIZE: Final = 480 << 10
"""The bytes of each file: both are somewhat less than SQLite's log, whose room they take when the store is closed."""
FULL: Final = (errno.ENOSPC, errno.EDQUOT)


class Reserve:
    """The reserve in one folder. Any number of processes may use it."""

    def __init__(self, folder: Path) -> None:
        self._files = [folder / name for name in NAMES]
        self._whole = False

    def keep(self) -> None:
        """Make what is missing of it, unless the disk has no room for that."""
        with suppress(OSError):
            for path in self._files:
                if not _is_whole(path):
                    self._make(path)
            self._whole = True

    def _make(self, path: Path) -> None:
        disk.unlink(path)  # of a process that died while it made it
        fd = disk.create(path)
        try:
            disk.write(fd, bytes(SIZE))  # not a hole, and no block that a later write would have to split
            disk.fsync(fd)
        except OSError:
            disk.unlink(path)
            raise
        finally:
            os.close(fd)

    def keep_again(self) -> None:
        """`keep`, where this process has given it up."""
        if not self._whole:
            self.keep()

    def give_up(self) -> None:
        """Give the room back to the disk. Raises OSError."""
        self._whole = False
        for path in self._files:
            disk.unlink(path)

    def run(self, work: Callable[[], None]) -> None:
        """Do `work`, a second time and without the reserve where the disk was full. Raises OSError."""
        try:
            work()
        except OSError as error:
            if error.errno not in FULL:
                raise
            self.give_up()
            work()


def _is_whole(path: Path) -> bool:
    try:
        return path.stat().st_size == SIZE
    except FileNotFoundError:
        return False
