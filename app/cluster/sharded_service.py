"""What a service that routes has beside the parts of others: the map and its file, the shards, and what is counted."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from app.cluster.fetch_rows import RowFetcher
from app.cluster.shard_map import BadShardMap, ShardMap
from app.cluster.sharded_tensors import ShardedTensors
from app.cluster.shards import Shards
from app.security.file_watcher import FileWatcher

MAX_FILE_BYTES: Final = 1 << 26
COUNT_INTERVAL_S: Final = 0.25


class MapFile:
    """A static map: a file, read again when it changes. One that cannot be used leaves the last good map in force."""

    def __init__(self, path: Path) -> None:
        """Raises BadShardMap where the file cannot be read or is no sound map."""
        self._path = path
        self._watcher = FileWatcher(
            self._read, self._load, BadShardMap, f"the map of shards {path}", "the last good map stays in force"
        )
        self.shard_map = self._watcher.first()

    def _read(self) -> dict[Path, bytes]:
        try:
            with self._path.open("rb") as file:
                content = file.read(MAX_FILE_BYTES + 1)
        except OSError as error:
            raise BadShardMap(f"the file cannot be read: {error.strerror}") from None
        if len(content) > MAX_FILE_BYTES:
            raise BadShardMap(f"the file has more than {MAX_FILE_BYTES} bytes")
        return {self._path: content}

    def _load(self, contents: object) -> ShardMap:
        assert isinstance(contents, dict)
        return ShardMap.from_json(contents[self._path])

    async def watch(self, take: Callable[[ShardMap], None]) -> None:
        """Hand what the file says to `take` when it changes. Runs until it is cancelled."""

        def newer(found: ShardMap) -> None:
            # A file need not count its generations: what it says now is newer than what it said before.
            if found.generation <= self.shard_map.generation:
                found = replace(found, generation=self.shard_map.generation + 1)
            self.shard_map = found
            take(found)

        await self._watcher.watch(newer)


def read_key(path: Path | None) -> str | None:
    """The key in a file, None without one. Raises BadShardMap where the file cannot be read or has no key."""
    if path is None:
        return None
    try:
        key = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise BadShardMap(f"the key in {path} cannot be read: {error}") from None
    if not re.fullmatch("[!-~]{1,1024}", key):
        raise BadShardMap(f"{path} holds no key: it is one line of visible characters")
    return key


class ShardedService:
    """The tables of a map file and the shards that have them; `late_after` is in seconds."""

    def __init__(self, path: Path, late_after: float, key_file: Path | None = None) -> None:
        """`key_file` has the key that shards are asked with. Raises BadShardMap."""
        self.file = MapFile(path)
        self.tables = ShardedTensors(self.file.shard_map)
        self.shards = Shards()
        self.fetcher = RowFetcher(self.shards, self.file.shard_map, late_after, read_key(key_file))
        self._counted: dict[str, float] = {}

    def use_map(self, shard_map: ShardMap) -> None:
        """Serve `shard_map` from now on."""
        self.fetcher.shard_map = shard_map
        self.tables.use_map(shard_map)
        self.shards.keep_only(shard_map.addresses)

    async def watch(self) -> None:
        """Take changes of the file into use. Runs until it is cancelled."""
        await self.file.watch(self.use_map)

    async def count(self, add: Callable[[str, float], None]) -> None:
        """Tell `add` at intervals what was counted of each shard. Runs until it is cancelled."""
        while True:
            await asyncio.sleep(COUNT_INTERVAL_S)
            for shard in self.shards.known():
                numbers = {f"gathernd_shard_requests|{shard.address}|{key}": n for key, n in shard.outcomes.items()}
                for name, number in (numbers | {f"gathernd_shard_seconds|{shard.address}": shard.seconds}).items():
                    before = self._counted.get(name, 0.0)
                    if number > before:
                        add(name, number - before)
                    self._counted[name] = number

    def close(self) -> None:
        """Close the connections to the shards."""
        self.shards.close()
