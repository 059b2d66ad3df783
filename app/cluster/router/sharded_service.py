"""The parts that only a routing service has: the map (in this module, from a file) and the shards."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from ssl import SSLContext
from typing import Final

from app.cluster.router.fetch_rows import RowFetcher
from app.cluster.router.router_files import RouterFiles
from app.cluster.router.sharded_tensors import ShardedTensors
from app.cluster.router.shards import Shards
from app.cluster.shard_map import ShardMap

COUNT_INTERVAL_S: Final = 0.25
_MAX_LABEL: Final = 128
"""Maximum length of a shard's address in counter names, which are limited to `shared_counters.NAME_BYTES`."""
_LABEL_DIGITS: Final = 16


def address_label(address: str) -> str:
    """Return the name of a shard in metrics: its address.

    If the address is too long for a counter, it is shortened; digits of its SHA-256 digest distinguish addresses that
    begin alike.
    """
    if len(address) <= _MAX_LABEL:
        return address
    digits = sha256(address.encode()).hexdigest()[:_LABEL_DIGITS]
    return f"{address[: _MAX_LABEL - _LABEL_DIGITS - 1]}~{digits}"


class RoutedTables(ABC):
    """The tables of the newest map, their shards, and the shards' counters."""

    def __init__(
        self, tables: ShardedTensors, late_after: float, key: str | None, tls: SSLContext | None = None
    ) -> None:
        self.tables = tables
        self.shards = Shards(tls)
        self.fetcher = RowFetcher(self.shards, tables.shard_map, late_after, key)
        self._counted: dict[str, float] = {}

    @abstractmethod
    def connect(self) -> None:
        """Wait for the first map. Blocks. Returns early if the service is closed."""

    @abstractmethod
    async def watch(self) -> None:
        """Switch to newer maps and changed files. Runs until canceled."""

    def use_map(self, shard_map: ShardMap, addresses: frozenset[str]) -> None:
        """Start using `shard_map`. `addresses` are the addresses of its shards, and possibly of others."""
        self.fetcher.use_map(shard_map)
        self.tables.use_map(shard_map)
        self.shards.keep_only(addresses)

    async def count(self, add: Callable[[str, float], None]) -> None:
        """Report the counts of each shard to `add` at intervals. Runs until canceled."""
        while True:
            await asyncio.sleep(COUNT_INTERVAL_S)
            for shard in self.shards.known():
                label = address_label(shard.address)
                numbers = {f"gathernd_shard_requests|{label}|{key}": n for key, n in shard.outcomes.items()}
                for name, number in (numbers | {f"gathernd_shard_seconds|{label}": shard.seconds}).items():
                    before = self._counted.get(name, 0.0)
                    if number < before:  # the shard left the map and came back
                        before = 0.0
                    if number > before:
                        add(name, number - before)
                    self._counted[name] = number

    async def close(self) -> None:
        """Close the connections to the shards."""
        self.shards.close()


class ShardedService(RoutedTables):
    """The tables of a static map, and their shards. `late_after` is in seconds."""

    def __init__(self, shard_map: ShardMap, late_after: float, files: RouterFiles) -> None:
        """Set up the service. `shard_map` is the map read from the map file in `files`."""
        super().__init__(ShardedTensors(shard_map), late_after, files.key, files.tls)
        self._files = files
        self._newest = shard_map.generation

    def connect(self) -> None:
        """Do nothing, because the map has already been read."""

    async def watch(self) -> None:
        await self._files.watch(self._use, self.fetcher.use_key, self.shards.use_tls)

    def _use(self, found: ShardMap) -> None:
        # A file may change without a new generation, so each version of the file counts as newer than the previous one.
        self._newest = max(found.generation, self._newest + 1)
        self.use_map(replace(found, generation=self._newest), found.addresses)
