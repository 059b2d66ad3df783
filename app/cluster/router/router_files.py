"""The files of a router: a static map, the API key for shards, and the authorities of shards.

Each file is reloaded when it changes. If a file cannot be used, its last good version stays in use.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from ssl import SSLContext
from typing import Any, Final, TypeVar

from app.cluster.shard_map import BadShardMap, ShardMap
from app.cluster.shard_tls import client_context
from app.security.file_watcher import LARGEST_FILE, FileWatcher, LastGood, read_small_file

MAX_MAP_BYTES: Final = 1 << 26
Loaded = TypeVar("Loaded")


class RouterFiles:
    """The files and their initial values: `shard_map`, `key` and `tls`, each None if there is no such file.

    If there are authorities, `tls` is used for calls to shards. `watchers` holds a watcher for each file. If a file is
    unusable while a worker is starting, the worker uses the version in `last_good`, which its parent read earlier.
    """

    def __init__(
        self, static_map: Path | None, key: Path | None, authorities: Path | None, last_good: LastGood | None = None
    ) -> None:
        """Read the files. Raises BadShardMap."""
        self._map = None if static_map is None else _map_watcher(static_map)
        self._key = None if key is None else _key_watcher(key)
        self._authorities = None if authorities is None else _authorities_watcher(authorities)
        self.watchers: list[FileWatcher[Any]] = [
            watcher for watcher in (self._map, self._key, self._authorities) if watcher is not None
        ]
        self.shard_map = None if self._map is None else self._map.read_first(last_good)
        self.key = None if self._key is None else self._key.read_first(last_good)
        self.tls = None if self._authorities is None else self._authorities.read_first(last_good)

    async def watch(
        self,
        use_map: Callable[[ShardMap], object],
        use_key: Callable[[str], object],
        use_tls: Callable[[SSLContext], object],
    ) -> None:
        """Pass the new value of each changed file to these functions.

        Runs until canceled. Returns if there are no files.
        """
        async with asyncio.TaskGroup() as group:
            if self._map is not None:
                group.create_task(self._map.watch(use_map))
            if self._key is not None:
                group.create_task(self._key.watch(use_key))
            if self._authorities is not None:
                group.create_task(self._authorities.watch(use_tls))


def _map_watcher(path: Path) -> FileWatcher[ShardMap]:
    kept = "keeping the last good map"
    return _watcher(path, "the file", MAX_MAP_BYTES, ShardMap.from_json, f"the map of shards {path}", kept)


def _key_watcher(path: Path) -> FileWatcher[str]:
    def load(content: bytes) -> str:
        key = content.strip()
        if not re.fullmatch(b"[!-~]{1,1024}", key):
            raise BadShardMap(f"{path} holds no key: it is one line of visible characters")
        return key.decode()

    kept = "keeping the previous key"
    return _watcher(path, f"the key in {path}", LARGEST_FILE, load, "the key of shards", kept)


def _authorities_watcher(path: Path) -> FileWatcher[SSLContext]:
    def load(content: bytes) -> SSLContext:
        try:
            return client_context(path, content)
        except OSError as error:
            raise BadShardMap(str(error)) from None

    what = f"the authorities of shards in {path}"
    return _watcher(path, what, LARGEST_FILE, load, "the authorities of shards", "keeping the previous ones")


def _watcher(
    path: Path, what: str, largest: int, load: Callable[[bytes], Loaded], name: str, kept: str
) -> FileWatcher[Loaded]:
    return FileWatcher(
        lambda: {path: _read(path, what, largest)}, lambda contents: load(contents[path]), BadShardMap, name, kept
    )


def _read(path: Path, what: str, largest: int) -> bytes:
    try:
        return read_small_file(path, largest)
    except OSError as error:
        raise BadShardMap(f"{what} cannot be read: {error.strerror}") from None
