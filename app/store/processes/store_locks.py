"""The locks within the store: of tensors, of the catalogue, of uploads, and of the comparison with checksums.

They keep threads apart as well as processes. Each is a file that is locked with flock, so that a lock ends with the
process that had it.
"""

from __future__ import annotations

import fcntl
import os
import zlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final

from app.store.files import disk_writes

STRIPES: Final = 64
"""Locks of tensors; tensors whose names hash alike share one."""


class StoreLocks:
    """The locks, whose files are in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def make_files(self) -> None:
        """Make all files, so that a tensor can be removed from a disk without room for a new one."""
        self._folder.mkdir(exist_ok=True)
        names = ("catalogue", "incoming", "verify", *(f"{number:02d}" for number in range(STRIPES)))
        for path in {self._folder / name for name in names}.difference(self._folder.iterdir()):
            os.close(disk_writes.open_or_create(path))

    def tensor(self, name: str) -> AbstractContextManager[None]:
        """Keep other threads and processes from changing the tensor `name`. Blocks."""
        return self.tensors_of(stripe(name))

    def tensors_of(self, number: int) -> AbstractContextManager[None]:
        """The same for all tensors whose lock has this number."""
        return self._locked(f"{number:02d}")

    def catalogue(self) -> AbstractContextManager[None]:
        """Keep other threads and processes from writing to the catalogue; within `tensor`. Blocks."""
        return self._locked("catalogue")

    def uploads(self) -> AbstractContextManager[None]:
        """Keep other threads and processes from beginning or removing uploads. Blocks, but briefly."""
        return self._locked("incoming")

    def try_catalogue(self) -> AbstractContextManager[bool]:
        """Try to take the lock of the catalogue; whether it was free. Never blocks."""
        return self._tried("catalogue")

    def try_verification(self) -> AbstractContextManager[bool]:
        """Try to take the lock of whoever compares contents with their checksums; whether it was free."""
        return self._tried("verify")

    @contextmanager
    def _tried(self, name: str) -> Iterator[bool]:
        fd = disk_writes.open_or_create(self._folder / name)
        try:
            yield try_lock(fd)
        finally:
            os.close(fd)

    @contextmanager
    def _locked(self, name: str) -> Iterator[None]:
        fd = disk_writes.open_or_create(self._folder / name)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)


def try_lock(fd: int) -> bool:
    """Take the flock on `fd` without waiting; whether it was free."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def stripe(name: str) -> int:
    """The number of the lock of tensor `name`."""
    return zlib.crc32(name.encode("utf-8", "surrogatepass")) % STRIPES
