"""The parts that only a shard has: its routes for the reconciler, and its registration in the catalogue."""

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
from app.cluster.shard.fence import Fence
from app.cluster.shard.range_metrics import RangeCounts
from app.cluster.shard.ranges import Ranges
from app.cluster.shard.read_gate import GatedStore
from app.cluster.shard.registration import Registration, capacity_of
from app.cluster.shard.segment_routes import SegmentRoutes
from app.cluster.shard.shard_folder import ShardFolder
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
    """The parts of a shard in addition to its store. `address` is where others reach it, "" until it listens."""

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
        self._segments = SegmentRoutes(
            store,
            disk_threads,
            Fence(folder.fence),
            folder.read_key,
            settings.cluster_ca,
            allowed,
            lambda: readiness.draining,
        )
        database = open_database(str(settings.cluster), settings.cluster_ca)
        self.ranges = Ranges(
            settings.node,
            store,
            database,
            folder,
            settings.cluster_ca,
            int(settings.max_body_bytes),
            lambda: readiness.draining,
            RangeCounts(counters),
        )
        self._registration = Registration(
            self.ranges.client, settings.node, self._node, folder.registration, self._take, folder.tell
        )

    @property
    def handlers(self) -> Mapping[str, Handler]:
        """The handlers of its routes, by operation name."""
        return {**self._segments.handlers, **self.ranges.handlers}

    def begin(self, stop: Event) -> None:
        """Register the shard and maintain its ranges, in threads, until `stop` is set."""
        run = self._registration.run
        Thread(target=run, args=(lambda: self._readiness.ready, stop), name="registration", daemon=True).start()
        self.ranges.begin(lambda: self._readiness.ready, stop)

    def close(self) -> None:
        """Close the shard, after `stop` was set and no request is in flight."""
        self.ranges.close()

    def _node(self) -> Node:
        most: int | None = self._settings.max_store_bytes
        if most is None:
            most = self._store.usage()[1] + shutil.disk_usage(self._settings.store_dir).free
        return Node(self.address, capacity_of(most), self._settings.zone, __version__)

    def _take(self, catalogue: Catalogue) -> None:
        keep_options(catalogue, self._folder)


def keep_options(catalogue: Catalogue, folder: ShardFolder) -> bool:
    """Store the cluster's key if the catalogue has options. Returns whether the key was stored.

    Raises GatherError if the store belongs to another cluster, whose reconciler would drop its segments.
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
        folder.keep(catalogue.options)
    except OSError as error:
        logger.error("the cluster's key could not be written: %s", error)
        return False
    return True


def prepared(settings: Settings) -> Settings:
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
            folder.tell(why)
            told = time.monotonic()
        time.sleep(_AGAIN_S)
    client.database.close()
    given = settings.model_fields_set
    return settings.model_copy(update={name: value for name, value in _UNLIMITED.items() if name not in given})


def cluster_key_of(settings: Settings) -> Path | None:
    """Return the file of the key that a shard's callers need.

    Returns None for other services, and in a cluster without a key.
    """
    folder = ShardFolder(settings.store_dir)
    return folder.key if settings.shard and folder.read_key() is not None else None


def advertised(settings: Settings, port: Callable[[], int]) -> str:
    """Return the address at which others reach a shard: the setting, or the host and port that it listens on."""
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return settings.advertise or f"{host}:{port()}"
