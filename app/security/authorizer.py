"""Authorization: which requests need a key, and the rule for a service that requires none.

A request sends its key as `Authorization: Bearer KEY`. The key is looked up by its SHA-256. The duration of the lookup
reveals nothing about any key, because nobody can construct a key whose digest is close to another key's digest.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Final

from app.errors import GatherError
from app.security.api_keys import BadKeysFile, Key, Scope, decode, decode_cluster_key, read_bytes
from app.security.file_watcher import FileWatcher, LastGood

logger = logging.getLogger("gathernd")

_MOST_LABELS: Final = 10
"""Maximum number of key labels in a log line."""
_READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})


class Access(Enum):
    """What a route requires of its callers if the service has keys."""

    PUBLIC = "nothing"
    ANY_KEY = "a key of any scope"
    GATHER = "a key with the scope `gather`"
    TENSORS = "a key with the scope `gather` to read, one with the scope `tensors` for all other methods"
    CHANGES = "a key with the scope `tensors`, for any method"


def needed_scope(method: str, access: Access) -> Scope | None:
    """Return the scope that a key needs for a request, or None if any key is sufficient."""
    if access is Access.TENSORS:
        return "gather" if method in _READING else "tensors"
    if access is Access.CHANGES:
        return "tensors"
    return "gather" if access is Access.GATHER else None


class ReadOnlyAuthorizer:
    """Allows everything except changes to tensors, for a service without keys that is reachable from other machines.

    A caller's address is not considered because it proves nothing: behind a proxy, all callers have the proxy's
    address. See `KeyAuthorizer`.
    """

    keys_version: object = "there are no keys to change"

    def check(self, method: str, access: Access, credential: bytes | None) -> None:
        """Raise forbidden for a request that would change a tensor."""
        if needed_scope(method, access) == "tensors":
            raise GatherError(
                "forbidden",
                "without keys, tensors cannot be changed on an address that others can reach: set "
                "GATHERND_API_KEYS_FILE to a keys file ('gathernd keys add' creates one), or have the service listen "
                "on a loopback address",
                hint="Have the operator set GATHERND_API_KEYS_FILE to a keys file, and send a key of it with the scope "
                "'tensors'.",
            )


class KeyAuthorizer:
    """Allows requests with a key from the last valid version of the keys file.

    `on_change` is called whenever the keys in force change. A shard also accepts the key of its cluster; the file
    `cluster_key` contains that key as it is sent in requests. The files are read every second, independently of
    requests. While the service is running, a key can therefore be added and tried before its predecessor is removed.
    After a gather has been allowed, gathers with the same header are allowed as long as `keys_version` is the same
    object.
    """

    def __init__(
        self,
        path: Path | None,
        last_good: LastGood | None = None,
        on_change: Callable[[], None] = lambda: None,
        cluster_key: Path | None = None,
    ) -> None:
        """Read the files. Raises BadKeysFile: a service that requires keys does not start without them.

        If a file is broken when a worker starts, the worker uses the contents in `last_good`, which its parent read
        earlier.
        """
        self.keys_version = object()
        self._keys: dict[bytes, Key] = {}
        self._on_change = on_change
        readers = {path: decode, cluster_key: decode_cluster_key}

        def load(contents: Mapping[Path, bytes]) -> list[Key]:
            return [key for place, content in contents.items() for key in readers[place](content)]

        self.watcher = FileWatcher(
            lambda: {place: read_bytes(place) for place in readers if place is not None},
            load,
            BadKeysFile,
            "keys file",
            "keeping the previous keys",
        )
        self.take(self.watcher.read_first(last_good))

    def check(self, method: str, access: Access, credential: bytes | None) -> None:
        """Raise unauthorized if a request has no known key, and forbidden if its key does not have the required scope.

        `access` is what the request's route requires. `credential` is the SHA-256 of the key that was sent, b"" if the
        Authorization field has a different form, or None if there is no Authorization field.
        """
        if access is Access.PUBLIC:
            return
        key = None if credential is None else self._keys.get(credential)
        if key is None:
            raise _unauthorized(credential)
        scope = needed_scope(method, access)
        if scope is not None and scope not in key.scopes:
            raise GatherError(
                "forbidden",
                f"this route requires a key with the scope {scope!r}",
                hint=f"Send a key with the scope '{scope}', created with 'gathernd keys add'.",
            )

    def label(self, credential: bytes | None) -> str | None:
        """Return the label of the key with this SHA-256, or None if that key is not in force."""
        key = None if credential is None else self._keys.get(credential)
        return None if key is None else key.label

    async def watch(self, interval: float = 1.0) -> None:
        """Watch the files, and put their keys in force whenever they change. Runs until it is canceled."""
        await self.watcher.watch(self.take, interval)

    def take(self, found: Sequence[Key]) -> None:
        """Put exactly these keys in force."""
        keys = {key.digest: key for key in found}
        if keys != self._keys:
            logger.info("keys file: %d keys in force", len(keys), extra={"fields": _changed_labels(self._keys, keys)})
            self._keys = keys
            self.keys_version = object()
            self._on_change()


Authorizer = KeyAuthorizer | ReadOnlyAuthorizer
"""Allows or refuses each request before it runs."""


def _changed_labels(before: Mapping[bytes, Key], now: Mapping[bytes, Key]) -> dict[str, list[str]]:
    """Return the labels of the first keys that were added, changed or removed.

    There are none at startup.
    """
    if not before:
        return {}
    added = [key.label for digest, key in now.items() if before.get(digest) != key]
    removed = [key.label for digest, key in before.items() if digest not in now]
    return {"added": added[:_MOST_LABELS], "removed": removed[:_MOST_LABELS]}


def _unauthorized(credential: bytes | None) -> GatherError:
    if credential is None:
        return GatherError("unauthorized", "this service requires an API key: send 'Authorization: Bearer KEY'")
    if not credential:
        return GatherError("unauthorized", "the Authorization field is not of the form 'Bearer KEY'")
    return GatherError("unauthorized", "the key is not known to this service")


def make_authorizer(
    path: Path | None,
    *,
    loopback: bool,
    last_good: LastGood | None = None,
    on_change: Callable[[], None] = lambda: None,
    cluster_key: Path | None = None,
) -> Authorizer | None:
    """Return the authorizer of a service with the keys file `path`, or None if everything is allowed (on loopback).

    `KeyAuthorizer` describes `last_good`, which is for workers, and `cluster_key`. Raises BadKeysFile.
    """
    if path is not None or cluster_key is not None:
        return KeyAuthorizer(path, last_good, on_change, cluster_key)
    return None if loopback else ReadOnlyAuthorizer()
