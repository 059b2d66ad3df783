"""The lock on the store's folder: one process group at a time.

The first process of a group claims the folder with an exclusive lock on `lock`, held as long as it lives, and writes a
random token there; its workers are given the token and compare it. All of them hold a shared lock on `members`, so that
workers that outlive their parent still keep a second group out. Both locks end with the processes, however those end.

`state` is a page of shared memory (see `StateWord`): a file that is written in full when the folder is made, so that
a full disk cannot get in its way.
"""

from __future__ import annotations

import fcntl
import logging
import mmap
import os
import secrets
import time
from contextlib import suppress
from enum import IntEnum
from pathlib import Path
from typing import Final

from app.store.files import disk_writes
from app.store.processes.store_locks import StoreLocks, try_lock

_TOKEN_BYTES: Final = 32
WORKERS_END_WITHIN = 10.0
"""Seconds that a new group waits for the workers of a killed one: whoever restarts it at once finds them ending."""
logger = logging.getLogger("gathernd")


class StateWord(IntEnum):
    """The place of each word in the page of memory that the processes of a group share.

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
        self.locks = StoreLocks(folder / "locks")
        self.token = token or ""
        try:
            self.owner = token is None or not self._join(token)
            if self.owner:
                self._claim()
            self.state = memoryview(mmap.mmap(self._open("state"), mmap.PAGESIZE)).cast("Q")
        except BaseException:
            self.close()
            raise

    def _open(self, name: str) -> int:
        fd = disk_writes.open_or_create(self._folder / name)
        self._descriptors.append(fd)
        return fd

    def _join(self, token: str) -> bool:
        """Join the group of `token`; False if another group has claimed the folder since."""
        fd = self._open("lock")
        if os.pread(fd, _TOKEN_BYTES, 0).decode("latin-1") != token:
            return False
        fcntl.flock(self._open("members"), fcntl.LOCK_SH)
        if try_lock(fd):
            # The lock of the claim is free: the first process of the group has ended.
            raise StoreInUse(f"the first process of the service that owns {self._folder} has ended; start it again")
        return True

    def _claim(self) -> None:
        fd = self._open("lock")
        if not try_lock(fd):
            raise StoreInUse(
                f"another gathernd service has the store {self._folder}: stop it first, or give this one a folder of "
                "its own with GATHERND_STORE_DIR"
            )
        members = self._open("members")
        began = time.monotonic()
        is_free = try_lock(members)
        if not is_free:
            logger.info("waiting for the workers of an earlier service to end, %g s at most", WORKERS_END_WITHIN)
        while not is_free:
            if time.monotonic() - began > WORKERS_END_WITHIN:
                raise StoreInUse(
                    f"worker processes of an earlier gathernd service still use the store {self._folder}: wait for "
                    "them to end, or end them"
                )
            time.sleep(0.02)
            is_free = try_lock(members)
        fcntl.flock(members, fcntl.LOCK_SH)
        self.token = secrets.token_hex(_TOKEN_BYTES // 2)
        disk_writes.write_at(fd, self.token.encode(), 0)
        state = self._open("state")
        if os.fstat(state).st_size < mmap.PAGESIZE:
            disk_writes.write_at(state, bytes(mmap.PAGESIZE), 0)
            disk_writes.fsync(state)
        os.pwrite(state, bytes(8), 8 * StateWord.VERIFIED)
        self.locks.make_files()

    def close(self) -> None:
        """Leave the group."""
        for fd in self._descriptors:
            with suppress(OSError):
                os.close(fd)
        self._descriptors.clear()
