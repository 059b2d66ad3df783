"""Register a shard in the catalogue: its address, its capacity and, under a lease, the fact that it is running.

In a group of workers, the worker that holds the lock in the shard's folder registers the shard. When a shard stops, its
lease is left to expire, so that a restart before then goes unnoticed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Final

from app.cluster.catalogue.client import CatalogueClient
from app.cluster.catalogue.records import Catalogue, Change, Mark, Node
from app.cluster.shard.shard_folder import only_worker
from app.errors import GatherError

_LOOK_S: Final = 1.0
"""Seconds between checks of the catalogue and the lease."""
logger = logging.getLogger("gathernd")


class Registration:
    """Register the shard `name` as described by `node`. Methods block.

    `client` provides the catalogue, which other code keeps up to date. `take` is called with the catalogue once per
    second, and raises GatherError if the shard must not be registered in it. `tell` is called with the reason when the
    shard cannot be registered, and with "" once it is registered.
    """

    def __init__(
        self,
        client: CatalogueClient,
        name: str,
        node: Callable[[], Node],
        lock: Path,
        take: Callable[[Catalogue], object],
        tell: Callable[[str], object] = lambda _: None,
    ) -> None:
        self._client = client
        self._name = name
        self._node_of_now = node
        self._lock = lock
        self._take = take
        self._tell = tell
        self._lease: str | None = None
        """The ID of the lease under which the shard was last registered."""
        self.problem = ""

    def run(self, is_ready: Callable[[], bool], stop: Event) -> None:
        """Keep the shard registered until `stop` is set.

        Begins once the service is ready and this worker holds the lock.
        """
        with only_worker(self._lock, is_ready, stop) as is_only:
            if not is_only:
                return
            node = self._node_of_now()
            while not stop.is_set():
                try:
                    self._register_if_needed(node)
                except Exception:
                    logger.exception("the shard %s could not be registered", self._name)
                stop.wait(_LOOK_S)

    def _register_if_needed(self, node: Node) -> None:
        """Register the shard, unless it is already registered under a lease that it still holds."""
        catalogue, lease = self._client.catalogue, self._client.database.lease
        is_held = lease is not None and lease.is_held and lease.number == self._lease
        try:
            self._take(catalogue)
            if is_held and self._name in catalogue.alive and catalogue.nodes.get(self._name) == node:
                return
            self._client.transact(lambda at: self._registration(at, node))
        except GatherError as problem:
            if problem.detail != self.problem:
                logger.warning("the shard %s is not registered: %s", self._name, problem.detail)
                self._tell(problem.detail)
            self.problem = problem.detail
            return
        lease = self._client.database.lease
        self._lease = None if lease is None else lease.number
        self.problem = ""
        self._tell("")
        logger.info("the shard %s is registered at %s", self._name, node.address)

    def _registration(self, catalogue: Catalogue, node: Node) -> Change:
        self._take(catalogue)
        known = catalogue.nodes.get(self._name)
        if known is not None and known.address != node.address and self._name in catalogue.alive:
            raise GatherError(
                "name_conflict",
                f"a shard with this name is already running at {known.address}; this one is at {node.address}",
            )
        alive = f"alive/{self._name}"
        return Change({f"nodes/{self._name}": node, alive: Mark()}, leased=frozenset({alive}))


def capacity_of(max_bytes: int) -> int:
    """Return how many bytes of rows fit in a store of `max_bytes`, allowing for each file's page and checksums."""
    return max(0, max_bytes - max_bytes // 64 - (1 << 16))
