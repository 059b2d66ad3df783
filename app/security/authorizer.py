"""Who may do what: which requests need a key, and the rule for a service that asks for none.

A request carries its key as `Authorization: Bearer KEY`, and is looked up by the SHA-256 of what was sent. How long
that takes says nothing about any key, since nobody can steer a digest towards another.
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
"""Most labels of keys in a line of the log."""
_READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})


class Access(Enum):
    """What a route asks of its callers in a service that asks for keys."""

    PUBLIC = "nothing"
    ANY_KEY = "a key of any scope"
    GATHER = "a key with the scope `gather`"
    TENSORS = "a key with the scope `gather` to read, one with the scope `tensors` for all other methods"
    CHANGES = "a key with the scope `tensors`, for any method"


def needed_scope(method: str, access: Access) -> Scope | None:
    """The scope that a key needs for a request, None where any will do."""
    if access is Access.TENSORS:
        return "gather" if method in _READING else "tensors"
    if access is Access.CHANGES:
        return "tensors"
    return "gather" if access is Access.GATHER else None


class ReadOnlyAuthorizer:
    """For a service without keys that others can reach: allows everything but changes to tensors.

    Which address a caller has proves nothing: behind a proxy everybody has the proxy's. See `KeyAuthorizer`.
    """

    keys_version: object = "there are no keys to change"

    def check(self, method: str, access: Access, credential: bytes | None) -> None:
        """Raises forbidden for what would change a tensor."""
        if needed_scope(method, access) == "tensors":
            raise GatherError(
                "forbidden",
                "tensors cannot be changed on an address that others reach without keys: set GATHERND_API_KEYS_FILE to "
                "a keys file ('gathernd keys add' makes one), or have the service listen on a loopback address",
                hint="Have the operator set GATHERND_API_KEYS_FILE to a keys file, and send a key of it with the scope "
                "'tensors'.",
            )


class KeyAuthorizer:
    """Allows requests with a key of a file, as the file said when it was last good. `on_change` is called whenever
    other keys are in force.

    A shard also takes the key of its cluster, which is in the file `cluster_key` as it is sent. The files are read once
    a second, away from requests, so a key can be added, tried and its predecessor removed while the service runs. A
    gather that was allowed once is allowed, with the same header, for as long as `keys_version` is the same object.
    """

    def __init__(
        self,
        path: Path | None,
        last_good: LastGood | None = None,
        on_change: Callable[[], None] = lambda: None,
        cluster_key: Path | None = None,
    ) -> None:
        """Read the files. Raises BadKeysFile: a service that is to ask for keys does not start without them.

        A worker that starts while the file is broken takes what its parent has read before, of `last_good`.
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
        self.take(self.watcher.first(last_good))

    def check(self, method: str, access: Access, credential: bytes | None) -> None:
        """Raises unauthorized for a request without a known key, forbidden if its key has not the scope.

        `access` is that of the request's route, and `credential` the SHA-256 of the key that came with it, b"" for a
        field Authorization of another form, None without one.
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
                f"this route needs a key with the scope {scope!r}",
                hint=f"Send a key with the scope '{scope}', which 'gathernd keys add' makes.",
            )

    def label(self, credential: bytes | None) -> str | None:
        """What people call the key with this SHA-256, None for a key that is not in force."""
        key = None if credential is None else self._keys.get(credential)
        return None if key is None else key.label

    async def watch(self, interval: float = 1.0) -> None:
        """Take the keys of the file whenever it changes. Runs until it is cancelled."""
        await self.watcher.watch(self.take, interval)

    def take(self, found: Sequence[Key]) -> None:
        """Put these keys in force and no others."""
        keys = {key.digest: key for key in found}
        if keys != self._keys:
            logger.info("keys file: %d keys in force", len(keys), extra={"fields": _differences(self._keys, keys)})
            self._keys = keys
            self.keys_version = object()
            self._on_change()


Authorizer = KeyAuthorizer | ReadOnlyAuthorizer
"""Allows or refuses each request before it is carried out."""


def _differences(before: Mapping[bytes, Key], now: Mapping[bytes, Key]) -> dict[str, list[str]]:
    """The labels of the first keys that were added, changed or removed; none when the service starts."""
    if not before:
        return {}
    added = [key.label for digest, key in now.items() if before.get(digest) != key]
    removed = [key.label for digest, key in before.items() if digest not in now]
    return {"added": added[:_MOST_LABELS], "removed": removed[:_MOST_LABELS]}


def _unauthorized(credential: bytes | None) -> GatherError:
    if credential is None:
        return GatherError("unauthorized", "this service asks for a key: send 'Authorization: Bearer KEY'")
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
    """The authorizer of a service with the keys file `path`, None where everything is allowed: on a loopback address.

    `last_good` is for workers; for it and `cluster_key` see `KeyAuthorizer`. Raises BadKeysFile.
    """
    if path is not None or cluster_key is not None:
        return KeyAuthorizer(path, last_good, on_change, cluster_key)
    return None if loopback else ReadOnlyAuthorizer()
