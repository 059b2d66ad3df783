"""The locks inside a store: for tensors, the catalogue, uploads, and the verification of checksums.

The locks exclude threads as well as processes. Each is a flock on a file, so a lock is released when the process that
holds it ends.
"""

from __future__ import annotations

import fcntl
import os
import zlib
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from hashlib import blake2b
from pathlib import Path
from struct import Struct
from typing import Final

from app.store.files import disk_writes

STRIPES: Final = 64
"""Number of tensor locks. Tensors whose names have the same hash share a lock."""
_FLOCK: Final = Struct("hhqqi4x")


class StoreLocks:
    """The locks. Their files are in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def make_files(self) -> None:
        """Create all lock files now, so that tensors can be removed even when the disk is too full for a new file."""
        self._folder.mkdir(exist_ok=True)
        names = ("catalogue", "incoming", "primaries", "verify", *(f"{number:02d}" for number in range(STRIPES)))
        for path in {self._folder / name for name in names}.difference(self._folder.iterdir()):
            os.close(disk_writes.open_or_create(path))

    def tensor(self, name: str) -> AbstractContextManager[bool]:
        """Keep other threads and processes from changing the tensor `name`. Blocks."""
        return self.tensors_of(stripe(name))

    @contextmanager
    def tensors(self, names: Iterable[str]) -> Iterator[None]:
        """Keep other threads and processes from changing any of these tensors. Blocks."""
        with ExitStack() as stack:
            for number in sorted({stripe(name) for name in names}):  # in a fixed order, to avoid deadlocks
                stack.enter_context(self.tensors_of(number))
            yield

    def tensors_of(self, number: int) -> AbstractContextManager[bool]:
        """Take lock number `number`. It covers all tensors whose names hash to that number. Blocks."""
        return self._hold_lock(f"{number:02d}")

    def catalogue(self) -> AbstractContextManager[bool]:
        """Keep other threads and processes from writing to the catalogue. Blocks. Take tensor locks before this one."""
        return self._hold_lock("catalogue")

    def uploads(self) -> AbstractContextManager[bool]:
        """Keep other threads and processes from starting or removing uploads. Blocks, but only briefly."""
        return self._hold_lock("incoming")

    @contextmanager
    def primary(self, content: str) -> Iterator[None]:
        """Keep others from acting as the primary of a replicated version. Blocks. Take this lock before `tensor`.

        Each version locks one byte of a shared file; the hash of its content ID selects the byte. The version's own
        files cannot be used, because table growth replaces them.
        """
        place = int.from_bytes(blake2b(content.encode(), digest_size=7).digest())
        fd = disk_writes.open_or_create(self._folder / "primaries")
        try:
            fcntl.fcntl(fd, fcntl.F_OFD_SETLKW, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, place, 1, 0))
            yield
        finally:
            os.close(fd)

    def try_catalogue(self) -> AbstractContextManager[bool]:
        """Try to take the catalogue's lock. Yields whether it was free. Never blocks."""
        return self._hold_lock("catalogue", fcntl.LOCK_NB)

    def try_verification(self) -> AbstractContextManager[bool]:
        """Try to take the lock for verifying checksums. Yields whether it was free. Never blocks."""
        return self._hold_lock("verify", fcntl.LOCK_NB)

    @contextmanager
    def _hold_lock(self, name: str, flags: int = 0) -> Iterator[bool]:
        """Hold a lock. With LOCK_NB in `flags`, yields whether it was free."""
        fd = disk_writes.open_or_create(self._folder / name)
        try:
            yield try_lock(fd, flags)
        finally:
            os.close(fd)


def try_lock(fd: int, flags: int = fcntl.LOCK_NB) -> bool:
    """Take the flock on `fd`, and return whether it was free. Without LOCK_NB in `flags`, waits until it is free."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | flags)
    except BlockingIOError:
        return False
    return True


def stripe(name: str) -> int:
    """Return the number of the lock for tensor `name`."""
    return zlib.crc32(name.encode("utf-8", "surrogatepass")) % STRIPES
