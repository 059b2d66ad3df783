"""The parts that only a routing service has: the map, from a file or a coordinator, and the shards."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from hashlib import sha256
from importlib.util import find_spec
from ssl import SSLContext
from threading import Event
from time import monotonic
from typing import Final

from app.cluster.coordinator.coordinator_client import CoordinatorClient
from app.cluster.process_link import KeyedLink, ProcessLink
from app.cluster.router.fetch_rows import RowFetcher
from app.cluster.router.newest_map import NewestMap
from app.cluster.router.published_tensors import PublishedTensors
from app.cluster.router.router_files import RouterFiles
from app.cluster.router.sharded_tensors import ShardedTensors
from app.cluster.router.sharded_upload import Spool
from app.cluster.router.shards import Shards
from app.cluster.shard_map import BadShardMap, ShardMap
from app.telemetry.shared_counters import Counters, SlotHeader, unshared_counters
from app.tensors.shape_limits import Limits

COUNT_INTERVAL_S: Final = 0.25
_ASK_S: Final = 0.5
"""How often the coordinator is asked for a newer map."""
_REFRESH_S: Final = 1.0
"""How long a request whose map is too old waits for a newer one, before it tries again with what there is."""
_TAKE_S: Final = 10.0
_LOOK_S: Final = 0.01
"""How often a worker looks whether another one has a newer map."""
_WORKERS_S: Final = 2.0
"""How long a change waits for the other workers to serve by its map: one that hangs answers nobody."""
_MAX_LABEL: Final = 128
"""Most characters of a shard's address in the names of counters, which have `shared_counters.NAME_BYTES`."""
_LABEL_DIGITS: Final = 16
logger = logging.getLogger("gathernd")


def is_ray(cluster: str) -> bool:
    """Whether this value of GATHERND_CLUSTER is the address of a Ray cluster, and not a map's file."""
    return cluster == "auto" or cluster.startswith("ray://")


def ray_link(cluster: str) -> KeyedLink:
    """The link to the coordinator of a Ray cluster. Raises BadShardMap where Ray is not installed."""
    if find_spec("ray") is None:
        raise BadShardMap("Ray is not installed: pip install ./clients/python '.[cluster]' in a checkout")
    return ProcessLink([sys.executable, "-m", "app.cluster.ray_link", cluster])


class ShardedService:
    """The tables of a static map and the shards that have them; `late_after` is in seconds."""

    def __init__(self, shard_map: ShardMap, late_after: float, files: RouterFiles) -> None:
        """`shard_map` is what the file of `files` says."""
        self._files = files
        self._newest = shard_map.generation
        self.routed = RoutedTables(ShardedTensors(shard_map), late_after, files.key, files.tls)

    def connect(self) -> None:
        """There is nothing to wait for: the map has been read."""

    async def watch(self) -> None:
        """Take changes of the files into use. Runs until it is cancelled."""
        await self._files.watch(self._use, self.routed.fetcher.use_key, self.routed.shards.use_tls)

    def _use(self, found: ShardMap) -> None:
        # A file need not count its generations: what it says now is newer than what it said before.
        self._newest = max(found.generation, self._newest + 1)
        self.routed.use_map(replace(found, generation=self._newest))

    def close(self) -> None:
        """Close the connections to the shards."""
        self.routed.close()


class CoordinatedService:
    """The tables of a cluster with a coordinator, which is reached by `link`."""

    def __init__(
        self,
        link: KeyedLink,
        late_after: float,
        limits: Limits,
        keep: int,
        spool: Spool,
        files: RouterFiles,
        counters: Counters | None = None,
    ) -> None:
        """`counters` are those that the workers of a router share: all serve a change when one acknowledges it."""
        self._link = link
        self._files = files
        self._counters = counters or unshared_counters()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing = Event()
        self._answers = True
        client = CoordinatorClient(link, self._take)
        self._tables = PublishedTensors(ShardMap(), client, limits, keep, None, spool, files.tls)
        self._newest = NewestMap(self._tables.shard_map)
        self._client = client
        self.routed = RoutedTables(self._tables, late_after, None, files.tls)
        self.routed.fetcher.refresh = self._refresh
        self._refreshed: list[Callable[[], None]] = []
        self._refreshing: asyncio.Task[None] | None = None

    def connect(self) -> None:
        """Wait for the coordinator and its first map. Blocks; returns early when the service is closed."""
        while not self._closing.is_set():
            try:
                key = self._link.key()
                found = self._client.newer_map(-1)
                if found is not None:
                    self._use_key(key)
                    self._use_on_loop(found)
                    # From now on changes wait for this worker; what others have acknowledged before it asks for.
                    if found.generation < self._newest_of_workers():
                        self._use_on_loop(self._client.newer_map(-1) or found)
                    return
            except OSError as error:
                self._silent(error)
            self._closing.wait(_ASK_S)

    async def watch(self) -> None:
        """Ask for newer maps, and take changes of files into use. Runs until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._ask_again())
            # Map and key are the coordinator's: of files there are the authorities at most.
            group.create_task(self._files.watch(self._use, self._use_key, self._use_tls))

    async def _ask_again(self) -> None:
        self._loop = asyncio.get_running_loop()
        pause = _LOOK_S if self._counters.shared else _ASK_S
        due, asked_for = 0.0, 0
        while True:
            await asyncio.sleep(pause)
            newest = self._newest_of_workers()
            is_behind = newest > self._newest.current.generation and newest != asked_for
            if is_behind or monotonic() >= due:
                asked_for = newest
                await self._ask()
                due = monotonic() + _ASK_S

    def _newest_of_workers(self) -> int:
        """The generation of the newest map that any worker of this router serves by."""
        return max(self._counters.map_generations(), default=0)

    async def _ask(self) -> None:
        try:
            found = await asyncio.to_thread(self._client.newer_map, self._newest.current.generation)
            if found is not None:  # of a cluster, perhaps, that was stopped and started with another key
                self._use_key(await asyncio.to_thread(self._link.key))
        except OSError as error:
            self._silent(error)
            return
        if not self._answers:
            self._answers = True
            logger.info("the cluster's coordinator answers again")
        if found is not None:
            self._use(found)

    def _use_key(self, key: str | None) -> None:
        self._tables.key = key
        self.routed.fetcher.use_key(key)

    def _use_tls(self, tls: SSLContext) -> None:
        self._tables.tls = tls
        self.routed.shards.use_tls(tls)

    def _silent(self, error: OSError) -> None:
        if self._answers:
            self._answers = False
            logger.warning("the last map stays in force, since the cluster's coordinator does not answer: %s", error)

    def _refresh(self, then: Callable[[], None]) -> None:
        """Ask for a newer map for a request that has found its own too old, and call `then`, which is never late."""
        self._refreshed.append(then)
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.get_running_loop().create_task(self._refresh_all())

    async def _refresh_all(self) -> None:
        asking = asyncio.ensure_future(self._ask())
        await asyncio.wait((asking,), timeout=_REFRESH_S)
        waiting, self._refreshed = self._refreshed, []
        for then in waiting:
            then()

    def _use(self, found: ShardMap) -> None:
        if self._newest.offer(found):
            self.routed.use_map(found)
            self._counters.header[SlotHeader.MAP] = found.generation

    def _take(self, found: ShardMap) -> None:
        """A map that a thread has been given: all workers serve by it, or by a newer one, when this returns."""
        self._use_on_loop(found)
        end = monotonic() + _WORKERS_S
        while min(self._counters.map_generations(), default=found.generation) < found.generation:
            if monotonic() >= end:
                logger.warning("a worker does not take map %d and may be %g s late", found.generation, _ASK_S)
                return
            self._closing.wait(_LOOK_S / 2)

    def _use_on_loop(self, found: ShardMap) -> None:
        loop = self._loop
        if loop is None:
            self._use(found)
            return
        done: Future[None] = Future()

        def use() -> None:
            self._use(found)
            done.set_result(None)

        loop.call_soon_threadsafe(use)
        done.result(_TAKE_S)

    def close(self) -> None:
        """Close the connections to the shards and the link."""
        self._closing.set()
        self._counters.header[SlotHeader.MAP] = 0
        self.routed.close()
        self._link.close()


def address_label(address: str) -> str:
    """How metrics name a shard: by its address; where that is too long for a counter, by its beginning and digits of
    its SHA-256, which tell apart those that begin alike.
    """
    if len(address) <= _MAX_LABEL:
        return address
    digits = sha256(address.encode()).hexdigest()[:_LABEL_DIGITS]
    return f"{address[: _MAX_LABEL - _LABEL_DIGITS - 1]}~{digits}"


class RoutedTables:
    """The tables of the newest map and the shards that have them, and what is counted of these."""

    def __init__(
        self, tables: ShardedTensors, late_after: float, key: str | None, tls: SSLContext | None = None
    ) -> None:
        self.tables = tables
        self.shards = Shards(tls)
        self.fetcher = RowFetcher(self.shards, tables.shard_map, late_after, key)
        self._counted: dict[str, float] = {}

    def use_map(self, shard_map: ShardMap) -> None:
        """Serve `shard_map` from now on."""
        self.fetcher.shard_map = shard_map
        self.tables.use_map(shard_map)
        self.shards.keep_only(shard_map.addresses)

    async def count(self, add: Callable[[str, float], None]) -> None:
        """Tell `add` at intervals what was counted of each shard. Runs until it is cancelled."""
        while True:
            await asyncio.sleep(COUNT_INTERVAL_S)
            for shard in self.shards.known():
                label = address_label(shard.address)
                numbers = {f"gathernd_shard_requests|{label}|{key}": n for key, n in shard.outcomes.items()}
                for name, number in (numbers | {f"gathernd_shard_seconds|{label}": shard.seconds}).items():
                    before = self._counted.get(name, 0.0)
                    if number < before:  # it left the map, and came back
                        before = 0.0
                    if number > before:
                        add(name, number - before)
                    self._counted[name] = number

    def close(self) -> None:
        """Close the connections to the shards."""
        self.shards.close()
