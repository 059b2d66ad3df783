"""The folder of a shard in its store: its cluster, the highest fencing token, and its registration.

cluster         the identity of the cluster that the store belongs to, see `records.Options`
fence           the highest fencing token seen, see `fence`
key             the cluster's key as it is sent, empty if the cluster has none
problem         why the shard is not registered, for the operator; the file does not exist while it is registered
registration    locked by the worker that registers the shard, see `registration`
"""

from __future__ import annotations

from pathlib import Path

from app.cluster.catalogue.records import Options
from app.store.files.whole_file import write_whole_file


class ShardFolder:
    """The folder `shard` in the store's folder. Methods may raise OSError."""

    def __init__(self, store: Path) -> None:
        self.path = store / "shard"
        self.cluster = self.path / "cluster"
        self.fence = self.path / "fence"
        self.key = self.path / "key"
        self.problem = self.path / "problem"
        self.registration = self.path / "registration"

    def read_key(self) -> str | None:
        """Return the API key that callers of this shard and other shards need, or None if the cluster has none."""
        return self.key.read_text().strip() or None

    def read_problem(self) -> str:
        """Return why the shard is not registered, or "" if unknown."""
        return self.problem.read_text() if self.problem.exists() else ""

    def tell(self, problem: str) -> None:
        """Record why the shard is not registered, or "" once it is."""
        if problem:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_whole_file(self.problem, problem.encode())
        else:
            self.problem.unlink(missing_ok=True)

    def belongs_to(self, cluster: str) -> bool:
        """Return whether the store belongs to this cluster, or to none yet."""
        return not self.cluster.exists() or self.cluster.read_text() == cluster

    def keep(self, options: Options) -> None:
        """Store the cluster's identity and key, for workers and for a start without access to the catalogue."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if options.cluster and not self.cluster.exists():
            write_whole_file(self.cluster, options.cluster.encode())
        if not self.key.exists() or self.read_key() != options.key:
            write_whole_file(self.key, (options.key or "").encode())
