"""The parts that only a cluster's router has: the catalogue in etcd, and its tables and shards."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from ssl import SSLContext
from threading import Condition, Event, Lock, Thread
from time import monotonic
from typing import Final

from app.cluster.catalogue.client import CatalogueClient
from app.cluster.catalogue.etcd import Database
from app.cluster.catalogue.records import Catalogue
from app.cluster.catalogue.serving_map import ServingMap
from app.cluster.router.published_tensors import PublishedTensors
from app.cluster.router.router_files import RouterFiles
from app.cluster.router.sharded_service import RoutedTables
from app.cluster.router.sharded_upload import Spool
from app.cluster.router.table_etags import TableEtags
from app.cluster.router.table_snapshot import TableSnapshots
from app.cluster.shard_map import ShardMap
from app.telemetry.shared_counters import Counters, SlotHeader, unshared_counters
from app.tensors.shape_limits import Limits

_ASK_S: Final = 0.5
_REFRESH_S: Final = 1.0
"""Maximum seconds that a request with an outdated map waits for a newer one before it retries with the current map."""
_TAKE_S: Final = 10.0
_LOOK_S: Final = 0.01
"""Seconds between checks whether other workers have a newer map."""
_WORKERS_S: Final = 2.0
"""Maximum seconds that a change waits for the other workers to use its map. A worker that hangs sends no responses
anyway.
"""
logger = logging.getLogger("gathernd")


class CatalogueService(RoutedTables):
    """The tables of a cluster whose catalogue is in `database`. The generation of a map is the catalogue's revision."""

    def __init__(
        self,
        database: Database,
        late_after: float,
        limits: Limits,
        keep: int,
        spool: Spool,
        files: RouterFiles,
        counters: Counters | None = None,
    ) -> None:
        """Set up the service.

        A router's workers share `counters`, so that a change is acknowledged only after all of them use its map.
        """
        self._database = database
        self._files = files
        self._counters = counters or unshared_counters()
        self._client = CatalogueClient(database, self._apply_catalogue)
        self._maps = ServingMap()
        self._maps_lock = Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watching: Thread | None = None
        self._closing = Event()
        self._is_served = Condition()
        self._tables = PublishedTensors(self._client, self, limits, keep, spool)
        super().__init__(self._tables, late_after, None, files.tls)
        if files.tls is not None:
            self._use_tls(files.tls)
        self._tables.etags, self._tables.snapshots = TableEtags(self.fetcher), TableSnapshots(self.fetcher)
        self.fetcher.refresh = self._refresh
        self._refreshed: list[Callable[[], None]] = []
        self._refreshing: asyncio.Task[None] | None = None

    def connect(self) -> None:
        is_told = False
        while not self._closing.is_set():
            try:
                self._client.refresh()
                # From now on, changes wait for this worker. Read again to include the changes that were made before
                # that.
                found = self._client.refresh()
            except OSError as error:
                why = str(error)
            else:
                if "options" in found.revisions:
                    return
                why = "the cluster is not set up: run `gathernd cluster init`"
            if not is_told:
                is_told = True
                logger.warning("waiting for the cluster's catalogue: %s", why)
            self._closing.wait(_ASK_S)

    async def watch(self) -> None:
        self._loop = self._tables.etags.loop = asyncio.get_running_loop()
        if self._watching is None:
            self._watching = Thread(target=self._client.watch, args=(self._closing,), name="catalogue", daemon=True)
            self._watching.start()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow_workers())
            # The map and the key come from the catalogue; only the authorities may come from a file.
            group.create_task(self._files.watch(lambda _: None, self.fetcher.use_key, self._use_tls))

    async def _follow_workers(self) -> None:
        """Read the catalogue whenever another worker of this router uses a newer one."""
        asked_for = 0
        while self._counters.shared:
            await asyncio.sleep(_LOOK_S)
            newest = max(self._counters.map_generations(), default=0)
            if newest > self.tables.shard_map.generation and newest != asked_for:
                asked_for = newest
                await self._read()

    async def _read(self) -> None:
        with suppress(OSError):  # `CatalogueClient.watch` reports it
            await asyncio.to_thread(self._client.refresh)

    def _refresh(self, then: Callable[[], None]) -> None:
        """Read the catalogue for a request whose map is outdated.

        Calls `then` afterwards, or at the latest after _REFRESH_S seconds.
        """
        self._refreshed.append(then)
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.get_running_loop().create_task(self._refresh_all())

    async def _refresh_all(self) -> None:
        reading = asyncio.ensure_future(self._read())
        await asyncio.wait((reading,), timeout=_REFRESH_S)
        await asyncio.sleep(0)  # let the event loop switch to the catalogue that was read
        waiting, self._refreshed = self._refreshed, []
        for then in waiting:
            then()

    # Switching to newer catalogues

    def map_of(self, catalogue: Catalogue) -> ShardMap:
        """Return the map of a catalogue."""
        with self._maps_lock:
            return self._maps.of(catalogue)

    def serve(self, catalogue: Catalogue) -> ShardMap:
        """Wait until all workers use this catalogue or a newer one, and return its map."""
        wanted = catalogue.revision
        with self._is_served:
            self._is_served.wait_for(lambda: self.tables.shard_map.generation >= wanted, _TAKE_S)
        end = monotonic() + _WORKERS_S
        while min(self._counters.map_generations(), default=wanted) < wanted:
            if monotonic() >= end:
                logger.warning("a worker does not use map %d yet: its answers may be older", wanted)
                break
            self._closing.wait(_LOOK_S / 2)
        return self.map_of(catalogue)

    def _apply_catalogue(self, catalogue: Catalogue) -> None:
        """Switch to a newer catalogue. Called from any thread, one call at a time."""
        found = self.map_of(catalogue)
        loop = self._loop
        if loop is None:
            self._use(found, catalogue)
            return
        with suppress(RuntimeError):  # the service is shutting down
            loop.call_soon_threadsafe(self._use, found, catalogue)

    def _use(self, found: ShardMap, catalogue: Catalogue) -> None:
        """Switch to the map of a catalogue, unless a newer one is in use."""
        if found.generation <= self.tables.shard_map.generation:
            return
        key = catalogue.options.key
        if key != self._tables.access.key:
            self._tables.access = self._tables.access._replace(key=key)
            self.fetcher.use_key(key)
        self.use_map(found, frozenset(node.address for node in catalogue.nodes.values()))
        self._counters.header[SlotHeader.MAP] = found.generation
        with self._is_served:
            self._is_served.notify_all()

    def _use_tls(self, tls: SSLContext) -> None:
        self._tables.access = self._tables.access._replace(tls=tls)
        self.shards.use_tls(tls)

    async def close(self) -> None:
        """Stop watching, and close the connections to shards and etcd."""
        self._closing.set()
        self._counters.header[SlotHeader.MAP] = 0
        await super().close()
        await asyncio.to_thread(self._tables.close)
        await asyncio.to_thread(self._database.close)
