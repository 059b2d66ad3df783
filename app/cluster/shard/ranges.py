"""The open ranges of a shard: wires the parts of `app.cluster.shard` together.

catalogue_follower    the catalogue as this process knows it, and the read lease
read_gate             decides which reads are served
range_routes          requests of routers and other shards
range_primary         scatters, shipped to the replicas by `range_shipping`
range_log             the logs and rows in the store, on primaries and replicas
range_keeper          background work of one process: takeovers, `range_joins`, commit notices
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from ssl import SSLContext
from threading import Event, Thread
from time import monotonic

from app.api.asgi_request import Handler
from app.cluster.catalogue.client import CatalogueClient
from app.cluster.catalogue.etcd import Database
from app.cluster.shard.catalogue_follower import CatalogueFollower
from app.cluster.shard.peers import Peers
from app.cluster.shard.range_joins import Joins
from app.cluster.shard.range_keeper import RangeKeeper
from app.cluster.shard.range_log import RangeLog
from app.cluster.shard.range_metrics import RangeCounts, range_gauges
from app.cluster.shard.range_primary import Primaries
from app.cluster.shard.range_routes import RangeRoutes
from app.cluster.shard.read_gate import GatedStore, ReadGate
from app.cluster.shard.shard_folder import ShardFolder
from app.cluster.shard_tls import trusting


class Ranges:
    """The open ranges of the shard `node` in one process. `begin` starts their maintenance."""

    def __init__(
        self,
        node: str,
        store: GatedStore,
        database: Database,
        folder: ShardFolder,
        authorities: Path | None,
        most_bytes: int,
        is_stopping: Callable[[], bool],
        counts: RangeCounts,
    ) -> None:
        """`most_bytes` is the maximum size of a scatter's body."""
        self._node = node
        self._changed = Event()
        self._follower = follower = CatalogueFollower(database, self._changed.set)
        self._peers = Peers(lambda: follower.catalogue, folder.read_key, partial(_tls, authorities))
        log = RangeLog(store)
        self._primaries = primaries = Primaries(node, log, follower, self._peers, counts)
        joins = Joins(node, store, log, self._peers, counts, is_stopping)
        self._keeper = RangeKeeper(node, folder.path / "keeper", log, follower, primaries, joins, self._changed)
        self._routes = RangeRoutes(store, primaries, log, follower, most_bytes, counts)
        self._store = store
        self._gate = store.gate = ReadGate(node, follower)

    @property
    def client(self) -> CatalogueClient:
        """The client that follows the catalogue."""
        return self._follower.client

    @property
    def handlers(self) -> Mapping[str, Handler]:
        """The handlers of its routes, by operation name."""
        return self._routes.handlers

    def gauges(self) -> dict[str, float]:
        """The gauges that are the same in every process of the shard."""
        return range_gauges(self._node, self._follower.open_ranges().values())

    def lag(self) -> float:
        """See `RangeKeeper.lag`. Returns 0 in processes that do not maintain the ranges."""
        return self._keeper.lag()

    def catalogue_age(self) -> float:
        """Return the seconds since etcd last confirmed the catalogue to this process."""
        return monotonic() - self._follower.confirmed_at

    def begin(self, is_ready: Callable[[], bool], stop: Event) -> None:
        """Follow the catalogue, and maintain the ranges once the service is ready, in threads until `stop` is set."""
        self._store.replicated.replication = self._primaries
        self._follower.begin(stop, self._look)
        Thread(target=self._keeper.run, args=(is_ready, stop), name="ranges", daemon=True).start()

    def _look(self) -> None:
        """Update everything that depends on the catalogue, after each read of it."""
        self._gate.note_tails(self._store)
        self._primaries.forget()
        self._peers.forget()

    def close(self) -> None:
        """Close everything, after `stop` was set and no request is in flight."""
        self._keeper.close()
        self._primaries.close()
        self._routes.close()
        self._peers.close()


def _tls(authorities: Path | None) -> SSLContext | None:
    return None if authorities is None else trusting(authorities)
