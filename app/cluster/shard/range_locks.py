"""The locks of replicated ranges on one shard: each range has its own, for threads and processes alike.

A primary holds `primary` of a range while it waits for replicas. It must not hold a lock of the store meanwhile: there
tensors share locks, and two shards that ship to each other would each wait for the other. What replicas do within
`state` never waits for another shard.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from struct import Struct
from typing import Final

_FLOCK: Final = Struct("hhqqi4x")
"""The system's `struct flock`: type, whence, start, length, process."""


class RangeLocks:
    """Locks on single bytes of the file `path`, where each range has its own by its hash. Methods block."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @contextmanager
    def primary(self, tensor: str) -> Iterator[None]:
        """Be the only one that acts as the primary of a range, also while it waits for other shards."""
        with self._locked(2 * _place(tensor)):
            yield

    @contextmanager
    def state(self, tensor: str) -> Iterator[None]:
        """Be the only one that judges and changes the log of a range. Within it nobody waits for another shard."""
        with self._locked(2 * _place(tensor) + 1):
            yield

    @contextmanager
    def _locked(self, byte: int) -> Iterator[None]:
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            # A lock of this open file: it keeps threads apart too, and ends when the file is closed.
            fcntl.fcntl(fd, fcntl.F_OFD_SETLKW, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0))
            yield
        finally:
            os.close(fd)


def _place(tensor: str) -> int:
    """A number below 2**61 that no two ranges share."""
    return int.from_bytes(hashlib.blake2b(tensor.encode(), digest_size=8).digest()) >> 3
