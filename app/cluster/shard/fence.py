"""The fence of a shard: it refuses orders from reconcilers that are no longer the leader.

A reconciler's fencing token is the revision at which it became the leader, so a later leader has a higher token. The
highest token that the shard has seen is kept in a file, which outlives the process and is shared by all workers.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from app.errors import GatherError
from app.store.files.whole_file import write_whole_file


class Fence:
    """The highest fencing token that a shard has seen, kept in the file `path`. Methods do blocking I/O."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock_path = path.with_suffix(".lock")

    def highest(self) -> int:
        """Return the highest token seen, or 0 before the first. Raises OSError."""
        try:
            return int(self._path.read_bytes())
        except FileNotFoundError:
            return 0

    def raise_to(self, token: int) -> None:
        """Refuse lower tokens from now on, durably. Waits until all contexts of `held` have ended.

        Raises precondition_failed if a higher token was seen before, and OSError.
        """
        with self._locked(fcntl.LOCK_EX):
            self._check(token)
            if token > self.highest():
                write_whole_file(self._path, b"%d" % token)

    @contextmanager
    def held(self, token: int) -> Iterator[None]:
        """Accept no higher token within this context. Raises the errors of `raise_to`."""
        self.raise_to(token)
        with self._locked(fcntl.LOCK_SH):
            self._check(token)
            yield

    def _check(self, token: int) -> None:
        highest = self.highest()
        if token < highest:
            raise GatherError(
                "precondition_failed",
                f"the fencing token is {token}, but this shard has seen {highest}",
                hint="Leave the shards to the current leader of the reconcilers.",
            )

    @contextmanager
    def _locked(self, how: int) -> Iterator[None]:
        fd = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, how)
            yield
        finally:
            os.close(fd)
