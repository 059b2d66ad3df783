"""The lock on the store's folder. It admits one process group at a time.

The first process of a group claims the folder: it takes an exclusive lock on the file `lock`, holds it for its
lifetime, and writes a random token to the file. The workers are given the token and compare it with the file. All
processes hold a shared lock on `members`, so that workers that outlive their parent still keep other groups out. The
system releases both locks when the processes end, however they end.

A session is one process group during one boot of the machine. Within a session, no write to shared memory is lost,
however the processes end. Between two sessions, the power may have failed, or the disk may have been replaced.

`state` is a page of shared memory (see `StateWord`), backed by a file. The file is written in full when the folder is
created, so that a full disk cannot interfere later.
"""

from __future__ import annotations

import fcntl
import hashlib
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
from app.store.files.regular_file import read_regular
from app.store.processes.store_locks import StoreLocks, try_lock

_TOKEN_BYTES: Final = 32
WORKERS_END_WITHIN = 10.0
"""Maximum seconds that a new group waits for the workers of a killed one, which may still be ending after a quick
restart.
"""
logger = logging.getLogger("gathernd")


class StateWord(IntEnum):
    """The index of each word in the page of memory that the processes of a group share.

    GENERATION is twice the number of the catalogue's last change, and is odd while a change is being committed; see
    `catalogue_cache`. VERIFIED is 1 after all versions have been compared with their checksums. CLOCK is the value of
    the store's clock when the machine's clock showed BOOT; see `idempotency`. KEYS is an upper bound on the number of
    Idempotency-Keys in the catalogue. LEFTOVERS_REMOVED is when the files of dead processes were last removed, on the
    store's clock.
    """

    GENERATION = 0
    VERIFIED = 1
    CLOCK = 2
    BOOT = 3
    KEYS = 4
    LEFTOVERS_REMOVED = 5


class StoreRefused(Exception):
    """The store cannot be opened. The message says why and what to do."""


class StoreInUse(StoreRefused):
    """Another process group owns the folder."""


class ProcessGroup:
    """This process's membership in the group that owns `folder`.

    `owner` says whether it is the group's first process.
    """

    def __init__(self, folder: Path, token: str | None = None) -> None:
        """Claim the folder, or join the group with this `token`. Raises StoreInUse and OSError."""
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
        """Join the group with this token. Returns False if another group has since claimed the folder."""
        fd = self._open("lock")
        if os.pread(fd, _TOKEN_BYTES, 0).decode("latin-1") != token:
            return False
        fcntl.flock(self._open("members"), fcntl.LOCK_SH)
        if try_lock(fd):
            # The lock on `lock` is free, so the first process of the group has ended.
            raise StoreInUse(f"the first process of the service that owns {self._folder} has ended; start it again")
        return True

    def _claim(self) -> None:
        fd = self._open("lock")
        if not try_lock(fd):
            raise StoreInUse(
                f"another gathernd service is using the store {self._folder}: stop it first, or give this one a folder "
                "of its own with GATHERND_STORE_DIR"
            )
        members = self._open("members")
        began = time.monotonic()
        is_free = try_lock(members)
        if not is_free:
            logger.info("waiting at most %g s for the workers of an earlier service to end", WORKERS_END_WITHIN)
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


_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """Return the ID of the machine's current boot, or "" if the system does not provide one."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


def session_of(token: str) -> int:
    """Return the session of the process group with this token. It is never 0."""
    return int.from_bytes(hashlib.sha256(f"{boot_id()} {token}".encode()).digest()[:8], "little") | 1


def session_in(folder: Path) -> int:
    """Return the session of the last process group that owned the store in `folder`. Raises OSError."""
    return session_of(read_regular(folder / "lock").decode("latin-1"))
