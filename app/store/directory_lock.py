"""The lock on the store's folder: one process group at a time, and the state that its processes share.

The first process of a group claims the folder with an exclusive lock on `lock`, held as long as it lives, and writes a
random token there; its workers are given the token and compare it. All of them hold a shared lock on `members`, so that
workers that outlive their parent still keep a second group out. Both locks end with the processes, however those end.

`state` is a page of shared memory (see `StateWord`): a file that is written in full when the folder is made, so that a
full disk cannot get in its way.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import secrets
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import IntEnum
from pathlib import Path
from threading import Lock
from typing import Final

from app.store import disk_writes

_TOKEN_BYTES: Final = 32
STRIPES: Final = 64
"""Locks of tensors; tensors whose names hash alike share one."""


class StateWord(IntEnum):
    """The words of the page that the processes of a group share.

    GENERATION is twice the number of the catalogue's last change, odd while one is being committed: see
    `catalogue_cache`. VERIFIED is 1 once all contents were compared with their checksums. CLOCK is what the store's
    clock showed when the machine's showed BOOT: see `idempotency`. KEYS is an upper bound of the Idempotency-Keys in
    the catalogue. LEFTOVERS_REMOVED is when files left by dead processes were last removed, by the store's clock.
    """

    GENERATION = 0
    VERIFIED = 1
    CLOCK = 2
    BOOT = 3
    KEYS = 4
    LEFTOVERS_REMOVED = 5


class StoreRefused(Exception):
    """The store cannot be opened; the text says why and what to do."""


class StoreInUse(StoreRefused):
    """Another process group has the folder."""


class ProcessGroup:
    """This process's membership of the group that owns `folder`. `owner` says whether it is the first process."""

    def __init__(self, folder: Path, token: str | None = None) -> None:
        """Claim the folder, or join the group whose `token` this is. Raises StoreInUse and OSError."""
        self._folder = folder
        self._descriptors: list[int] = []
        self._catalogue_fd: int | None = None
        self._try_lock_mutex = Lock()
        self.token = token or ""
        try:
            self.owner = token is None or not self._join(token)
            if self.owner:
                self._claim()
            self.state = self._map_state()
        except BaseException:
            self.close()
            raise

    def _open(self, name: str) -> int:
        fd = disk_writes.open_or_create(self._folder / name)
        self._descriptors.append(fd)
        return fd

    def _join(self, token: str) -> bool:
        """Join the group of `token`; False where another group has claimed the folder since."""
        fd = self._open("lock")
        if os.pread(fd, _TOKEN_BYTES, 0).decode("latin-1") != token:
            return False
        fcntl.flock(self._open("members"), fcntl.LOCK_SH)
        if _try_lock(fd):
            # The lock of the claim is free: the first process of the group has ended.
            raise StoreInUse(f"the first process of the service that owns {self._folder} has ended; start it again")
        return True

    def _claim(self) -> None:
        fd = self._open("lock")
        if not _try_lock(fd):
            raise StoreInUse(
                f"another gathernd service has the store {self._folder}: stop it first, or give this one a folder of "
                "its own with GATHERND_STORE_DIR"
            )
        members = self._open("members")
        if not _try_lock(members):
            raise StoreInUse(
                f"worker processes of an earlier gathernd service still use the store {self._folder}: wait for them to "
                "end, or end them"
            )
        fcntl.flock(members, fcntl.LOCK_SH)
        self.token = secrets.token_hex(_TOKEN_BYTES // 2)
        disk_writes.write_at(fd, self.token.encode(), 0)
        state = self._open("state")
        if os.fstat(state).st_size < mmap.PAGESIZE:
            disk_writes.write_at(state, bytes(mmap.PAGESIZE), 0)
            disk_writes.fsync(state)
        os.pwrite(state, bytes(8), 8 * StateWord.VERIFIED)
        # All locks are made now, so that a tensor can be removed from a disk without room for a new file.
        locks = self._folder / "locks"
        locks.mkdir(exist_ok=True)
        names = ("catalogue", "incoming", "verify", *(f"{number:02d}" for number in range(STRIPES)))
        for path in {locks / name for name in names}.difference(locks.iterdir()):
            os.close(disk_writes.open_or_create(path))

    def _map_state(self) -> memoryview:
        fd = self._open("state")
        return memoryview(mmap.mmap(fd, mmap.PAGESIZE)).cast("Q")

    @contextmanager
    def lock_tensor(self, name: str) -> Iterator[None]:
        """Keep other threads and processes from changing the tensor `name`. Blocks."""
        with self._locked(f"{stripe(name):02d}"):
            yield

    @contextmanager
    def lock_catalogue(self) -> Iterator[None]:
        """Keep other threads and processes from writing to the catalogue; within `lock`. Blocks."""
        with self._locked("catalogue"):
            yield

    @contextmanager
    def lock_uploads(self) -> Iterator[None]:
        """Keep other threads and processes from beginning or removing uploads. Blocks, but briefly."""
        with self._locked("incoming"):
            yield

    @contextmanager
    def try_lock_catalogue(self) -> Iterator[bool]:
        """Try to take the lock of the catalogue; whether it was free. Never blocks."""
        if not self._try_lock_mutex.acquire(blocking=False):
            yield False
            return
        try:
            if self._catalogue_fd is None:
                self._catalogue_fd = disk_writes.open_or_create(self._folder / "locks" / "catalogue")
                self._descriptors.append(self._catalogue_fd)
            taken = _try_lock(self._catalogue_fd)
            try:
                yield taken
            finally:
                if taken:
                    fcntl.flock(self._catalogue_fd, fcntl.LOCK_UN)
        finally:
            self._try_lock_mutex.release()

    @contextmanager
    def _locked(self, name: str) -> Iterator[None]:
        fd = disk_writes.open_or_create(self._folder / "locks" / name)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    @contextmanager
    def claim_verification(self) -> Iterator[bool]:
        """Whether this process is to verify the contents: once for the group, and no other process is at it."""
        fd = disk_writes.open_or_create(self._folder / "locks" / "verify")
        try:
            yield _try_lock(fd) and not self.state[StateWord.VERIFIED]
        finally:
            os.close(fd)

    def mark_verified(self) -> None:
        """All contents have been verified."""
        self.state[StateWord.VERIFIED] = 1

    def close(self) -> None:
        """Leave the group."""
        for fd in self._descriptors:
            with suppress(OSError):
                os.close(fd)
        self._descriptors.clear()
        self._catalogue_fd = None


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def stripe(name: str) -> int:
    """The number of the lock of tensor `name`."""
    return zlib.crc32(name.encode("utf-8", "surrogatepass")) % STRIPES
