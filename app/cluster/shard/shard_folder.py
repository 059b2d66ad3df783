"""The folder of a shard in its store, and the locks in it that the shard's workers share.

cluster         the identity of the cluster that the store belongs to, see `records.Options`
fence           the highest fencing token seen, see `Fence`
key             the cluster's key as it is sent, empty if the cluster has none
problem         why the shard is not registered, for the operator; the file does not exist while it is registered
registration    locked by the worker that registers the shard, see `registration`
keeper          locked by the worker that maintains the shard's ranges, see `range_keeper`
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Final

from app.cluster.catalogue.records import Options
from app.errors import GatherError
from app.store.files.whole_file import write_whole_file

_LOOK_S: Final = 0.2


class ShardFolder:
    """The folder `shard` in the store's folder. Methods may raise OSError."""

    def __init__(self, store: Path) -> None:
        self.path = store / "shard"
        self.cluster = self.path / "cluster"
        self.fence = self.path / "fence"
        self.key = self.path / "key"
        self.problem = self.path / "problem"
        self.registration = self.path / "registration"
        self.keeper = self.path / "keeper"

    def read_key(self) -> str | None:
        """Return the API key that is required for calls to this and other shards, or None if the cluster has none."""
        return self.key.read_text().strip() or None

    def read_problem(self) -> str:
        """Return the reason why the shard is not registered, or "" if unknown."""
        return self.problem.read_text() if self.problem.exists() else ""

    def record_problem(self, problem: str) -> None:
        """Record the reason why the shard is not registered, or "" once it is registered."""
        if problem:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_whole_file(self.problem, problem.encode())
        else:
            self.problem.unlink(missing_ok=True)

    def belongs_to(self, cluster: str) -> bool:
        """Return whether the store belongs to this cluster, or does not yet belong to any."""
        return not self.cluster.exists() or self.cluster.read_text() == cluster

    def store_options(self, options: Options) -> None:
        """Store the cluster's identity and key, for workers and for a startup without access to the catalogue."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if options.cluster and not self.cluster.exists():
            write_whole_file(self.cluster, options.cluster.encode())
        if not self.key.exists() or self.read_key() != options.key:
            write_whole_file(self.key, (options.key or "").encode())


class Fence:
    """The fence of a shard: it refuses orders from reconcilers that are no longer the leader. Methods do blocking I/O.

    A reconciler's fencing token is the revision at which it became the leader, so a later leader has a higher token.
    The file `path` holds the highest token that the shard has seen. It outlives the process, and all workers share it.
    """

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
        """Durably refuse lower tokens from now on. Waits until all contexts of `held` have ended.

        Raises precondition_failed if a higher token was seen before, and OSError.
        """
        with self._lock(fcntl.LOCK_EX):
            self._check(token)
            if token > self.highest():
                write_whole_file(self._path, b"%d" % token)

    @contextmanager
    def held(self, token: int) -> Iterator[None]:
        """Accept no higher token within this context. Raises the errors of `raise_to`."""
        self.raise_to(token)
        with self._lock(fcntl.LOCK_SH):
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
    def _lock(self, how: int) -> Iterator[None]:
        with _open_lock(self._lock_path) as fd:
            fcntl.flock(fd, how)
            yield


@contextmanager
def only_worker(lock: Path, is_ready: Callable[[], bool], stop: Event) -> Iterator[bool]:
    """Elect the worker that acts for all workers of a shard: the one that holds the lock on a file.

    Waits until the service is ready and this process holds the lock, then keeps the lock within the context. Yields
    True, or False if `stop` was set first.
    """
    with _open_lock(lock) as fd:
        while not (is_ready() and _is_locked(fd)):
            if stop.wait(_LOOK_S):
                yield False
                return
        yield True


@contextmanager
def _open_lock(lock: Path) -> Iterator[int]:
    fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        yield fd
    finally:
        os.close(fd)


def _is_locked(fd: int) -> bool:
    """Acquire the lock if it is free. Returns whether this process now holds it."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
