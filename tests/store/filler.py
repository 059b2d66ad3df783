"""Filling a disk, for tests of what happens when it is full."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

FEW_FILES = 20_000
SIZES = (1 << 20, 1 << 16, 1 << 12, 1 << 10)
"""Bytes taken at once, down to the smallest block of ext4."""


class Filler:
    """Files of somebody else, which take all the room there is."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._number = 0

    def fill(self) -> None:
        """Take what is free."""
        self._folder.mkdir(exist_ok=True)
        with suppress(OSError):
            (self._folder / "all").touch()  # first, for there may be fewer files left than blocks
        with suppress(OSError):
            while os.statvfs(self._folder).f_ffree <= FEW_FILES:
                self._new()
        with suppress(OSError):
            self._new()
        with suppress(OSError), (self._folder / "all").open("ab", buffering=0) as file:
            while self._grow(file.fileno()):
                os.fsync(file.fileno())  # which sets free what others have removed

    def give_back_a_file(self) -> None:
        """Make room for one empty file."""
        (self._folder / "0").unlink(missing_ok=True)

    def empty(self) -> None:
        """Remove them all."""
        self._folder.mkdir(exist_ok=True)
        for path in self._folder.iterdir():
            path.unlink()

    def _new(self) -> None:
        (self._folder / str(self._number)).touch(exist_ok=False)
        self._number += 1

    @staticmethod
    def _grow(fd: int) -> bool:
        """Take all blocks that are free now; whether there were any."""
        before = os.fstat(fd).st_size
        for size in SIZES:
            with suppress(OSError):
                while True:
                    os.posix_fallocate(fd, os.fstat(fd).st_size, size)
        return os.fstat(fd).st_size > before
