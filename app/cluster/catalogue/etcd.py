"""The database of a cluster's catalogue: etcd, accessed through its JSON gateway.

`Database` blocks and is thread-safe. It reads records, commits changes as single transactions, watches for changes, and
keeps one lease for its process. It handles only bytes and revisions; `records` interprets them.
"""

from __future__ import annotations

import ssl
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Lock, Thread
from time import monotonic
from typing import Any, Final, TypeAlias

from app.cluster.catalogue.etcd_errors import EtcdFailed, parsing
from app.cluster.catalogue.records import Catalogue, Change, to_json
from app.cluster.shard_map import BadShardMap
from app.cluster.shard_tls import client_context

LEASE_S: Final = 15
"""Seconds without a renewal after which etcd removes the keys under a process's lease."""
_RENEWALS: Final = 3
"""Number of renewals per lifetime of a lease."""
DEFAULT_PREFIX: Final = "gathernd"

Written: TypeAlias = Mapping[str, tuple[bytes, int] | None]
"""Records by key: the bytes and the revision that wrote them, or None if the key was removed."""


class BadAddress(BadShardMap):
    """A string is not a valid address of a database."""


class Compacted(Exception):
    """etcd has compacted the revision at which the watch should start, so everything must be read again."""


@dataclass(frozen=True, slots=True)
class DatabaseAddress:
    """The URLs of etcd's members (`endpoints`), and the prefix of all keys."""

    endpoints: tuple[str, ...]
    prefix: str = DEFAULT_PREFIX

    @staticmethod
    def parse(text: str) -> DatabaseAddress:
        """Parse etcd://HOST:PORT[,HOST:PORT...][/PREFIX], or etcds:// for TLS. Raises BadAddress."""
        scheme, found, rest = text.partition("://")
        if not found or scheme not in ("etcd", "etcds"):
            raise BadAddress(f"{text!r} does not begin with etcd:// or etcds://")
        hosts, _, prefix = rest.partition("/")
        http = "https" if scheme == "etcds" else "http"
        for host in hosts.split(","):
            name, _, port = host.rpartition(":")
            if not name or not port.isdecimal() or not 1 <= int(port) <= 65535:
                raise BadAddress(f"{host!r} in {text!r} is not HOST:PORT")
        return DatabaseAddress(
            tuple(f"{http}://{host}" for host in hosts.split(",")), prefix.strip("/") or DEFAULT_PREFIX
        )


def is_database(cluster: str) -> bool:
    """Return whether this value of GATHERND_CLUSTER is the address of a database rather than the path of a map file."""
    return cluster.startswith(("etcd://", "etcds://"))


class Lease:
    """A lease held by this process.

    `is_held` uses this machine's clock and measures from before the last renewal was sent.
    """

    def __init__(self, number: str, until: float) -> None:
        self.number = number
        self._until = until
        self._lost = False

    @property
    def is_held(self) -> bool:
        """Whether it is certain that etcd still holds the lease."""
        return not self._lost and monotonic() < self._until

    def record_renewal(self, until: float) -> None:
        """Record a renewal: etcd keeps the lease until `until` or longer."""
        self._until = until

    def mark_lost(self) -> None:
        """Record that the lease is gone."""
        self._lost = True


class Database:
    """The records under one key prefix in etcd. Methods raise EtcdFailed, an OSError, if etcd does not respond."""

    def __init__(
        self, address: DatabaseAddress, tls: ssl.SSLContext | None = None, lease_seconds: int = LEASE_S
    ) -> None:
        """Set up the connections.

        `tls` holds the authorities for etcds://; the default is the machine's authorities.
        """
        self.prefix = f"{address.prefix}/"
        """The prefix of every record's key."""
        self._lease_seconds = lease_seconds
        self._lease: Lease | None = None
        self._lease_lock = Lock()
        self._keeper: Thread | None = None
        self._closing = Event()
        # Imported here because a service that does not belong to a cluster starts 50 ms faster without httpx.
        from app.cluster.catalogue.etcd_gateway import Gateway  # noqa: PLC0415

        self.gateway = Gateway(address.endpoints, tls)

    # Reading

    def read(self, known: Catalogue) -> tuple[int, Written]:
        """Read the current revision and the changes since the catalogue `known`. The read is linearizable.

        It is cheap if nothing has changed; otherwise etcd examines every record.
        """
        now = self.gateway.ask("/v3/kv/range", {"key": self._encode_key(""), "count_only": True})
        with parsing():
            return self._read(known, _revision(now))

    def _read(self, known: Catalogue, now: int) -> tuple[int, Written]:
        """Return the result of `read` when etcd is at revision `now`."""
        if now == known.revision:
            return known.revision, {}
        since = {"min_mod_revision": str(known.revision + 1)} if known.revision else {}
        found = self.gateway.ask("/v3/kv/range", {**self._all_keys, **since})
        revision = _revision(found)
        written: dict[str, tuple[bytes, int] | None] = {
            self._decode_key(one): (_value(one), int(one["mod_revision"])) for one in found.get("kvs", ())
        }
        if len(known.revisions.keys() | written.keys()) != int(found.get("count", 0)):
            at = {"keys_only": True, "revision": str(revision)}
            left = {
                self._decode_key(one)
                for one in self.gateway.ask("/v3/kv/range", {**self._all_keys, **at}).get("kvs", ())
            }
            written.update(dict.fromkeys(known.revisions.keys() - left))
        return revision, written

    def watch(self, after: int, stop: Event) -> Iterator[tuple[int, Written]]:
        """Yield the changes after revision `after`, each with its revision, until `stop` is set.

        Raises Compacted, and EtcdFailed if a member of etcd fails; the next watch then uses the next member. The watch
        may take several seconds to end after `stop` is set.
        """
        asked = {**self._all_keys}
        while not stop.is_set():
            asked["start_revision"] = str(after + 1)
            for found in self.gateway.stream("/v3/watch", {"create_request": asked}):
                if stop.is_set():
                    return
                with parsing():
                    if int(found.get("compact_revision", 0)):
                        raise Compacted
                    if found.get("canceled"):
                        raise EtcdFailed("etcd ended a watch")
                    events = found.get("events", ())
                    written = {self._decode_key(one["kv"]): _event(one) for one in events}
                    after = max((int(one["kv"]["mod_revision"]) for one in events), default=after)
                if written:
                    yield after, written

    # Changing

    def commit(self, change: Change, at: Catalogue) -> int:
        """Commit a change atomically and return its revision, or 0 if a record it depends on has changed since `at`.

        Raises TooLarge, and EtcdFailed if the outcome is unknown.
        """
        compares = [
            {
                "key": self._encode_key(key),
                "target": "MOD",
                "result": "EQUAL",
                "mod_revision": str(at.revisions.get(key, 0)),
            }
            for key in sorted({*change.puts, *change.unchanged})
        ]
        compares += [
            {
                **self._range_of_prefix(beginning),
                "target": "MOD",
                "result": "LESS",
                "mod_revision": str(at.revision + 1),
            }
            for beginning in change.no_newer
        ]
        leased = {"lease": self.hold_lease().number} if change.leased else {}
        operations: list[dict[str, Any]] = []
        for key, record in change.puts.items():
            if record is None:
                operations.append({"request_delete_range": {"key": self._encode_key(key)}})
            else:
                own = leased if key in change.leased else {}
                put = {"key": self._encode_key(key), "value": b64encode(to_json(record)).decode(), **own}
                operations.append({"request_put": put})
        body = {"compare": compares, "success": operations}
        try:
            answer = self.gateway.ask("/v3/kv/txn", body, may_repeat=False)
        except EtcdFailed as error:
            if "lease not found" in str(error) and self._lease is not None:
                self._lease.mark_lost()
            raise
        with parsing():
            return _revision(answer) if answer.get("succeeded") else 0

    # The lease

    @property
    def lease(self) -> Lease | None:
        """The lease of this process, or None before the first `hold_lease` and after `close`."""
        return self._lease

    def hold_lease(self) -> Lease:
        """Return the lease, acquiring a new one if there is none or it was lost. A thread renews it."""
        with self._lease_lock:
            if self._lease is not None and self._lease.is_held:
                return self._lease
            begun = monotonic()
            found = self.gateway.ask("/v3/lease/grant", {"TTL": str(self._lease_seconds)})
            with parsing():
                self._lease = Lease(found["ID"], begun + int(found["TTL"]))
            if self._keeper is None:
                self._keeper = Thread(target=self._renew_lease, name="etcd-lease", daemon=True)
                self._keeper.start()
            return self._lease

    def _renew_lease(self) -> None:
        while not self._closing.wait(self._lease_seconds / _RENEWALS):
            lease = self._lease
            if lease is None:
                continue
            begun = monotonic()
            try:
                found = self.gateway.ask("/v3/lease/keepalive", {"ID": lease.number})
                with parsing():
                    seconds = int(found["result"].get("TTL", 0))
            except EtcdFailed:
                continue  # if renewals keep failing, the lease expires by its own clock
            if seconds > 0:
                lease.record_renewal(begun + seconds)
            else:
                lease.mark_lost()

    def close(self) -> None:
        """Revoke the lease, so that its keys are removed immediately, and close the connections."""
        self._closing.set()
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.mark_lost()
            with suppress(EtcdFailed):  # the lease then expires on its own
                self.gateway.ask("/v3/lease/revoke", {"ID": lease.number})
        self.gateway.close()

    # Keys

    @property
    def _all_keys(self) -> dict[str, str]:
        return self._range_of_prefix("")

    def _range_of_prefix(self, beginning: str) -> dict[str, str]:
        """Return the range of keys with this prefix in etcd's form.

        The range ends before the next string of the same length.
        """
        first = (self.prefix + beginning).encode()
        until = first[:-1] + bytes([first[-1] + 1])
        return {"key": b64encode(first).decode(), "range_end": b64encode(until).decode()}

    def _encode_key(self, key: str) -> str:
        return b64encode((self.prefix + key).encode()).decode()

    def _decode_key(self, found: Mapping[str, str]) -> str:
        return b64decode(found["key"]).decode().removeprefix(self.prefix)


def open_database(cluster: str, authorities: Path | None) -> Database:
    """Return the database at this address. `authorities` is a PEM file for etcds://. Raises BadAddress and OSError."""
    return Database(DatabaseAddress.parse(cluster), None if authorities is None else client_context(authorities))


def _revision(answer: Mapping[str, Any]) -> int:
    return int(answer["header"]["revision"])


def _value(found: Mapping[str, str]) -> bytes:
    return b64decode(found.get("value", ""))


def _event(found: Mapping[str, Any]) -> tuple[bytes, int] | None:
    return None if found.get("type") == "DELETE" else (_value(found["kv"]), int(found["kv"]["mod_revision"]))
