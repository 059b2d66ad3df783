"""Bind each Idempotency-Key of a cluster to a content ID, as one etcd key outside the catalogue.

A router binds the key of a scatter before it contacts a range. Any later attempt to bind the same key, from any router,
returns the first binding. So a retry goes to the same version even if the name refers to another version by then.

Concurrent bindings share a transaction. Bindings live for 24 hours: all bindings that a process makes within an hour
are under one lease, which etcd lets expire. A transaction with an unknown outcome can be repeated safely, because the
second attempt finds the bindings of the first.
"""

from __future__ import annotations

from base64 import b64decode, b64encode, urlsafe_b64encode
from collections.abc import Collection, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from time import monotonic, sleep
from typing import Any, Final

import orjson

from app.cluster.catalogue.client import ANSWER_S
from app.cluster.catalogue.etcd import Database
from app.cluster.catalogue.etcd_errors import EtcdFailed, parsing
from app.cluster.catalogue.transitions import unavailable
from app.errors import GatherError

LIFETIME_S: Final = 24 * 3600
MAXIMUM: Final = 1_000_000
"""Maximum number of live bindings in a cluster."""
AT_ONCE: Final = 60
"""Maximum number of bindings per transaction. etcd's default limit is 128 operations, across all branches."""
_USE_S: Final = 3600
"""Seconds during which new bindings use the same lease."""
_SPARE_S: Final = 300
_SHARE: Final = 64
"""A process recounts all bindings after it has made 1/64 of the bindings that were still possible at the last count."""
_PAUSE_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Binding:
    """The content ID that a key is bound to, and the digest of the request that bound it."""

    content_id: str
    digest: str


@dataclass(frozen=True, slots=True)
class _BindRequest:
    key: str
    binding: Binding
    answer: Future[Binding] = field(default_factory=Future)


class KeyBindings:
    """The bindings of one cluster, made in a dedicated thread. Thread-safe."""

    def __init__(self, database: Database, maximum: int = MAXIMUM, lifetime: int = LIFETIME_S) -> None:
        """Set up the bindings; the thread starts on first use. `lifetime` is in seconds."""
        self._gateway = database.gateway
        self._folder = f"keys-of/{database.prefix}"
        self._maximum = maximum
        self._lifetime = lifetime
        self._queue: SimpleQueue[_BindRequest | None] = SimpleQueue()
        self._thread: Thread | None = None
        self._lock = Lock()
        self._lease = ""
        self._lease_until = 0.0
        """When new bindings will need a new lease, in seconds of `monotonic`."""
        self._left = 0
        """Number of bindings that can still be made, as last known."""
        self._until_count = 0
        """Number of bindings to make before counting again."""

    def bind(self, scope: str, key: str, content_id: str, digest: str) -> Binding:
        """Bind a request's key to a content ID, unless it is already bound, and return its binding. Blocks.

        `scope` is the name that the request refers to.

        Raises insufficient_storage, or shard_unavailable if etcd does not respond; in that case, the key may have been
        bound.
        """
        return self.submit(scope, key, content_id, digest).result()

    def find(self, scope: str, key: str) -> Binding | None:
        """Return the binding of a key, or None. Blocks. Raises shard_unavailable if etcd does not respond."""
        try:
            found = self._gateway.ask("/v3/kv/range", {"key": _base64(self._key(scope, key))})
            with parsing():
                return next((_decode_binding(one["value"]) for one in found.get("kvs", ())), None)
        except EtcdFailed:
            raise unavailable("etcd does not answer") from None

    def submit(self, scope: str, key: str, content_id: str, digest: str) -> Future[Binding]:
        """Like `bind`, but returns a future of the binding."""
        asked = _BindRequest(self._key(scope, key), Binding(content_id, digest))
        with self._lock:
            if self._thread is None:
                self._thread = Thread(target=self._run, name="key-bindings", daemon=True)
                self._thread.start()
        self._queue.put(asked)
        return asked.answer

    def close(self) -> None:
        """End the thread after it has handled all requests. No requests may follow."""
        with self._lock:
            thread = self._thread
        if thread is not None:
            self._queue.put(None)
            thread.join()

    # The thread

    def _run(self) -> None:
        is_open = True
        while is_open:
            group: dict[str, list[_BindRequest]] = {}
            one = self._queue.get()
            with suppress(Empty):
                while one is not None:
                    group.setdefault(one.key, []).append(one)
                    if len(group) == AT_ONCE:
                        break
                    one = self._queue.get_nowait()
            is_open = one is not None
            self._answer(group)

    def _answer(self, group: Mapping[str, list[_BindRequest]]) -> None:
        """Complete a group of requests. If several have the same key, the first one is bound."""
        found: Mapping[str, Binding] = {}
        problem: BaseException = self._full_error()
        try:
            found = self._find_or_create({key: asked[0].binding for key, asked in group.items()})
        except Exception as error:  # noqa: BLE001  (it is raised in the threads that wait)
            problem = error
        for key, asked in group.items():
            for one in asked:
                if not one.answer.set_running_or_notify_cancel():
                    continue
                if key in found:
                    one.answer.set_result(found[key])
                else:
                    one.answer.set_exception(problem)

    def _find_or_create(self, wanted: Mapping[str, Binding]) -> Mapping[str, Binding]:
        """Return the bindings of these keys, creating missing ones. Keys that exceed the capacity are left out."""
        end = monotonic() + ANSWER_S
        while wanted:
            try:
                with parsing():
                    return self._transact(self._limit_to_room(wanted))
            except EtcdFailed as error:
                if "lease not found" in str(error):
                    self._lease_until = 0.0
                if monotonic() > end:
                    raise unavailable("etcd does not answer: whether the Idempotency-Key is bound is unknown") from None
                sleep(_PAUSE_S)
        return {}

    def _transact(self, wanted: Mapping[str, Binding]) -> Mapping[str, Binding]:
        lease = self._hold_lease()
        operations = [{"request_txn": _binding_transaction(key, binding, lease)} for key, binding in wanted.items()]
        answer = self._gateway.ask("/v3/kv/txn", {"success": operations})
        parts = [one["response_txn"] for one in answer.get("responses", ())]
        made = sum(bool(part.get("succeeded")) for part in parts)
        self._left -= made
        self._until_count -= made
        return {
            key: binding if part.get("succeeded") else _binding_in(part)
            for (key, binding), part in zip(wanted.items(), parts, strict=True)
        }

    # Capacity

    def _limit_to_room(self, wanted: Mapping[str, Binding]) -> Mapping[str, Binding]:
        """Return the keys that are already bound, plus others up to the capacity."""
        if self._until_count < len(wanted):
            self._left = self._maximum - self._count()
            self._until_count = self._left // _SHARE
        if self._left >= len(wanted):
            return wanted
        known = self._find_bound(wanted)
        absent = [key for key in wanted if key not in known]
        refused = set(absent[max(self._left, 0) :])
        return {key: binding for key, binding in wanted.items() if key not in refused}

    def _count(self) -> int:
        until = self._folder[:-1] + chr(ord(self._folder[-1]) + 1)
        asked = {"key": _base64(self._folder), "range_end": _base64(until), "count_only": True}
        return int(self._gateway.ask("/v3/kv/range", asked).get("count", 0))

    def _find_bound(self, keys: Collection[str]) -> set[str]:
        """Return which of these keys are bound."""
        operations = [{"request_range": {"key": _base64(key)}} for key in keys]
        answer = self._gateway.ask("/v3/kv/txn", {"success": operations})
        parts = (one["response_range"] for one in answer.get("responses", ()))
        return {key for key, part in zip(keys, parts, strict=True) if part.get("kvs")}

    def _full_error(self) -> GatherError:
        return GatherError(
            "insufficient_storage",
            f"the cluster remembers {self._maximum} Idempotency-Keys of the last 24 hours, which is its limit",
            facts={"limit": "idempotency_keys", "maximum": self._maximum},
        )

    # Keys and leases

    def _key(self, scope: str, key: str) -> str:
        """Return the etcd key. All keys have the same short length, because etcd keeps every key in memory."""
        digest = sha256(scope.encode() + b"\0" + key.encode()).digest()
        return self._folder + urlsafe_b64encode(digest).decode().rstrip("=")

    def _hold_lease(self) -> str:
        """Return a lease that outlasts a binding made now."""
        now = monotonic()
        if now >= self._lease_until:
            ttl = self._lifetime + _USE_S + _SPARE_S
            self._lease = self._gateway.ask("/v3/lease/grant", {"TTL": str(ttl)})["ID"]
            self._lease_until = now + _USE_S
        return self._lease


def _binding_transaction(key: str, binding: Binding, lease: str) -> dict[str, Any]:
    """Return a transaction that creates a binding, or reads the existing one."""
    at = {"key": _base64(key)}
    value = b64encode(orjson.dumps([binding.content_id, binding.digest])).decode()
    return {
        "compare": [{**at, "target": "MOD", "result": "EQUAL", "mod_revision": "0"}],
        "success": [{"request_put": {**at, "value": value, "lease": lease}}],
        "failure": [{"request_range": at}],
    }


def _binding_in(part: Mapping[str, Any]) -> Binding:
    """Return the binding in a transaction's result."""
    return _decode_binding(part["responses"][0]["response_range"]["kvs"][0]["value"])


def _decode_binding(value: str) -> Binding:
    content_id, digest, *_ = orjson.loads(b64decode(value))
    return Binding(content_id, digest)


def _base64(text: str) -> str:
    return b64encode(text.encode()).decode()
