"""The parts that exist only in a shard: its routes, its open ranges, and its registration in the catalogue."""

from __future__ import annotations

import logging
import logging.config
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Event, Thread
from typing import Final

from app import __version__
from app.api.asgi_request import Handler
from app.api.disk_threads import DiskThreads
from app.cluster.catalogue.client import CatalogueClient
from app.cluster.catalogue.etcd import open_database
from app.cluster.catalogue.records import Catalogue, Node
from app.cluster.shard.catalogue_follower import CatalogueFollower
from app.cluster.shard.peers import Peers
from app.cluster.shard.range_joins import Joins
from app.cluster.shard.range_keeper import RangeKeeper
from app.cluster.shard.range_log import RangeLog
from app.cluster.shard.range_metrics import RangeCounts, range_gauges
from app.cluster.shard.range_primary import Primaries
from app.cluster.shard.range_routes import RangeRoutes
from app.cluster.shard.read_gate import GatedStore, ReadGate
from app.cluster.shard.registration import Registration, capacity_of
from app.cluster.shard.segment_routes import SegmentRoutes
from app.cluster.shard.shard_folder import Fence, ShardFolder
from app.cluster.shard_tls import client_context
from app.errors import GatherError
from app.imports.source_urls import AllowedSources
from app.server.readiness import Readiness
from app.settings import Settings
from app.telemetry import logs
from app.telemetry.shared_counters import Counters

_AGAIN_S: Final = 1.0
_TELL_S: Final = 30.0
_UNLIMITED: Final = {
    "max_upload_bytes": 1 << 50,
    "max_tensors": 1 << 31,
    "body_timeout": 1200.0,
    "min_body_rate": 0,
    "answer_timeout": 3600.0,
    "min_answer_rate": 0,
}
"""Settings whose defaults assume untrusted callers. A shard's callers have the cluster's key.

A router pauses within a body while its own client or another replica pauses: it sends 1 MiB at a time, and its client
may send only 1 KiB a second. In a download of a table, the snapshots of later ranges wait for the earlier ones.
"""
logger = logging.getLogger("gathernd")


class Shard:
    """The parts of a shard in addition to its store. `address` is the address at which others connect to the shard, or
    "" until it listens.

    segment_routes        requests of reconcilers and routers for segments
    catalogue_follower    the catalogue as this process knows it, and the read lease
    read_gate             decides which reads are served
    range_routes          requests of routers and other shards for open ranges
    range_primary         scatters, shipped to the replicas by `range_shipping`
    range_log             the logs and rows in the store, on primaries and replicas
    range_keeper          background work of one process: takeovers, `range_joins`, commit notices
    """

    def __init__(
        self,
        settings: Settings,
        store: GatedStore,
        disk_threads: DiskThreads,
        allowed: AllowedSources,
        readiness: Readiness,
        counters: Counters,
    ) -> None:
        self.address = settings.advertise or ""
        self._settings = settings
        self._store = store
        self._readiness = readiness
        self._folder = folder = ShardFolder(settings.store_dir)
        node, authorities = settings.node, settings.cluster_ca
        self._segments = SegmentRoutes(
            store, disk_threads, Fence(folder.fence), folder.read_key, authorities, allowed, self._is_stopping
        )
        changed, counts, log = Event(), RangeCounts(counters), RangeLog(store)
        self._follower = follower = CatalogueFollower(open_database(str(settings.cluster), authorities), changed.set)
        self._peers = Peers(
            lambda: follower.catalogue,
            folder.read_key,
            lambda: None if authorities is None else client_context(authorities),
        )
        self._primaries = Primaries(node, log, follower, self._peers, counts)
        joins = Joins(node, store, log, self._peers, counts, self._is_stopping)
        self._keeper = RangeKeeper(node, folder.keeper, log, follower, self._primaries, joins, changed)
        self._ranges = RangeRoutes(store, self._primaries, log, follower, int(settings.max_body_bytes), counts)
        self._gate = store.gate = ReadGate(node, follower)
        self._registration = Registration(
            follower.client, node, self._node, folder.registration, self._keep_options, folder.record_problem
        )

    @property
    def handlers(self) -> Mapping[str, Handler]:
        """The handlers of its routes, by operation name."""
        return {**self._segments.handlers, **self._ranges.handlers}

    def gauges(self) -> dict[str, float]:
        """The gauges that are the same in every process of the shard."""
        return range_gauges(self._settings.node, self._follower.open_ranges().values())

    def lag(self) -> float:
        """See `RangeKeeper.lag`. Returns 0 in processes that do not maintain the ranges."""
        return self._keeper.lag()

    def catalogue_age(self) -> float:
        """Return the seconds since etcd last confirmed the catalogue to this process."""
        return time.monotonic() - self._follower.confirmed_at

    def begin(self, stop: Event) -> None:
        """Register the shard and maintain its ranges, in threads, until `stop` is set."""
        self._store.replicated.replication = self._primaries
        self._follower.begin(stop, self._apply_catalogue)
        for name, run in (("registration", self._registration.run), ("ranges", self._keeper.run)):
            Thread(target=run, args=(lambda: self._readiness.ready, stop), name=name, daemon=True).start()

    def _apply_catalogue(self) -> None:
        """Update everything that depends on the catalogue, after each read of it."""
        self._gate.note_tails(self._store)
        self._primaries.forget()
        self._peers.forget()

    def close(self) -> None:
        """Close the shard, after `stop` was set and no request is in flight."""
        for part in (self._keeper, self._primaries, self._ranges, self._peers):
            part.close()

    def _is_stopping(self) -> bool:
        return self._readiness.draining

    def _node(self) -> Node:
        most: int | None = self._settings.max_store_bytes
        if most is None:
            most = self._store.usage()[1] + shutil.disk_usage(self._settings.store_dir).free
        return Node(self.address, capacity_of(most), self._settings.zone, __version__)

    def _keep_options(self, catalogue: Catalogue) -> None:
        keep_options(catalogue, self._folder)


def keep_options(catalogue: Catalogue, folder: ShardFolder) -> bool:
    """Store the cluster's key if the catalogue has options. Returns whether the key was stored.

    Raises GatherError if the store belongs to another cluster, because the reconciler of the catalogue's cluster would
    drop the store's segments.
    """
    if "options" not in catalogue.revisions:
        return False
    if not folder.belongs_to(catalogue.options.cluster):
        raise GatherError(
            "precondition_failed",
            f"{folder.path.parent} has the ranges of another cluster than the catalogue: restore etcd from a backup, "
            f"or remove {folder.path} to have the ranges dropped",
        )
    try:
        folder.store_options(catalogue.options)
    except OSError as error:
        logger.error("the cluster's key could not be written: %s", error)
        return False
    return True


def wait_for_cluster_key(settings: Settings) -> Settings:
    """Return the settings of a service. For a shard, block until the key of its cluster is known.

    Raises BadAddress if the cluster is not an address of etcd, and OSError if the authorities cannot be read.
    """
    if not settings.shard:
        return settings
    logging.config.dictConfig(logs.configuration(settings.log_format, settings.log_level))
    folder = ShardFolder(settings.store_dir)
    client = CatalogueClient(open_database(str(settings.cluster), settings.cluster_ca))
    told = float("-inf")
    while not folder.key.exists():
        why = "the catalogue has no options yet: run 'gathernd cluster init'"
        try:
            if keep_options(client.refresh(), folder):
                break
        except OSError as error:
            why = str(error)
        except GatherError as problem:
            why = problem.detail
        if time.monotonic() - told >= _TELL_S:
            logger.warning("the shard %s waits: %s", settings.node, why)
            folder.record_problem(why)
            told = time.monotonic()
        time.sleep(_AGAIN_S)
    client.database.close()
    given = settings.model_fields_set
    return settings.model_copy(update={name: value for name, value in _UNLIMITED.items() if name not in given})


def cluster_key_of(settings: Settings) -> Path | None:
    """Return the file with the key that a shard's callers need.

    Returns None for other services, and in a cluster without a key.
    """
    folder = ShardFolder(settings.store_dir)
    return folder.key if settings.shard and folder.read_key() is not None else None


def advertised_address(settings: Settings, port: Callable[[], int]) -> str:
    """Return the address at which others connect to a shard: the setting, or the host and port that it listens on."""
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return settings.advertise or f"{host}:{port()}"
