"""`POST /tensors/{name}/scatter`, `/upsert` and `/remove`: from a request's bytes to a durable change."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, NamedTuple, Protocol

import numpy as np
import orjson

from app.api.asgi_request import RequestContext
from app.api.conditional_requests import etag_field, read_conditions, version_field
from app.api.disk_threads import DiskThreads
from app.api.error_responses import JSON
from app.api.exchange import BodyLimits, format_of
from app.api.request_body import inflate, read_body
from app.errors import GatherError
from app.formats.body_formats import FORMATS, Codec
from app.formats.fields_in_query import refuse_query
from app.memory.budget import UNCOUNTED, Memory
from app.operators.scatters import plan_scatter, row_items
from app.server.readiness import Readiness
from app.services.find_rows import check_keys
from app.store import Conditions, LocalStore
from app.store.catalogue.catalogue_rows import RowCounts
from app.store.idempotency import read_key
from app.store.scatters.key_changes import bytes_moved
from app.store.scatters.pending_scatter import ContentReplaced, KeyedChange, PendingScatter, ScatterChange, Scattered
from app.telemetry.served_request import ServedRequest
from app.telemetry.tensor_change_log import ROWS_REMOVED, SCATTERED, UPSERTED, Change
from app.tensors.buffer_type import Buffer
from app.tensors.dtypes import DTYPES
from app.tensors.operator_signature import Signature
from app.tensors.scatter_call import REMOVE, TABLE_SCATTER, UPSERT, KeyedCall, ScatterCall
from app.tensors.shape_limits import Limits
from app.tensors.string_tensor import PackedStrings
from app.tensors.tensor import Tensor
from app.tensors.tensor_name import split_reference

_ATTEMPTS: Final = 8
"""Maximum number of attempts for a scatter whose tensor is concurrently replaced."""
_ROW_BYTES: Final = 64
"""Bytes of memory per row of a scatter while the row numbers are computed and sorted."""
_COPIES_OF_STRINGS: Final = 5
"""Number of copies of string keys in a router: all keys, split by range, framed, joined, and being sent."""


class ScatterOutcome(NamedTuple):
    """The response to a change: the tensor's ETag afterwards, and the number of the version that changed.

    `repeated` is True if an earlier request with the same Idempotency-Key had already made the change. `ranges` is the
    number of row ranges that were changed, or None if the tensor has no ranges. `counts` is set for changes by key.
    """

    etag: str
    version: int
    repeated: bool = False
    ranges: int | None = None
    counts: RowCounts | None = None


@dataclass(frozen=True, slots=True)
class SentScatter:
    """A requested change to the tensor or alias `name`.

    `read` parses the body. It returns the call, and a digest that distinguishes this request from others with the same
    Idempotency-Key `key`. Call it from a worker thread; it may raise any error of the formats.
    """

    name: str
    read: Callable[[], tuple[ScatterCall | KeyedCall, str]]
    conditions: Conditions
    key: str | None


class ScatterTarget(Protocol):
    """Validates and executes changes, either in this machine's store or on the shards of a cluster."""

    async def carry_out(self, sent: SentScatter, request: ServedRequest) -> ScatterOutcome:
        """Read and validate a change, and make it durably. May raise any error of the route."""


class ScatterRoute:
    """The handler for one kind of change to the tensors of `target`; `row` is the signature of its requests."""

    def __init__(
        self,
        row: Signature,
        target: ScatterTarget,
        limits: Limits,
        threads: DiskThreads,
        readiness: Readiness,
        body_limits: BodyLimits,
    ) -> None:
        self.row = row
        self.target = target
        self.limits = limits
        self.threads = threads
        self.readiness = readiness
        self.body_limits = body_limits

    async def __call__(self, context: RequestContext, name: str) -> None:
        """Read the request, make the change, and respond. Raises GatherError for every refusal."""
        codec = format_of(context.headers.get(b"content-type"), FORMATS)
        if not codec.binary:
            refuse_query(context.query, self.row)
        if codec.compiled and self.readiness.waiting_for:
            raise self.readiness.error()
        conditions = read_conditions(context.headers)
        key = read_key(context.headers.get(b"idempotency-key"))
        limit = self.body_limits.binary if codec.binary else self.body_limits.json
        body = await read_body(context, limit)
        encoding = context.headers.get(b"content-encoding")
        if encoding is not None:
            raw = body
            body = await self.threads.change(name, lambda: inflate(raw, encoding, limit, context.memory))
        read = partial(
            read_request,
            body,
            context.query,
            self.row,
            codec=codec,
            key=key,
            limits=self.limits,
            memory=context.memory,
        )
        outcome = await self.target.carry_out(SentScatter(name, read, conditions, key), context)
        etag, version = outcome.etag, outcome.version
        if not outcome.repeated:
            what, _ = _KINDS[self.row]
            context.changes = [Change(what, split_reference(name)[0], version, len(body))]
        answer = {"name": name, "etag": etag} | _answer_counts(self.row, outcome)
        await context.send(200, JSON, orjson.dumps(answer), etag_field(etag), version_field(version))


def _answer_counts(row: Signature, outcome: ScatterOutcome) -> dict[str, int]:
    """Return the counts in the response."""
    _, counted = _KINDS[row]
    counts = {} if outcome.counts is None else outcome.counts._asdict()
    ranges = {} if outcome.ranges is None else {"ranges": outcome.ranges}
    return {name: counts[name] for name in counted} | ranges


_KINDS: Final[Mapping[Signature, tuple[str, tuple[str, ...]]]] = {
    TABLE_SCATTER: (SCATTERED, ()),
    UPSERT: (UPSERTED, ("rows", "inserted")),
    REMOVE: (ROWS_REMOVED, ("rows", "removed", "missing")),
}
"""For each request signature, the name of the change in the log, and the `RowCounts` fields in the response."""


class StoreScatters:
    """Executes changes to tensors in this machine's store."""

    def __init__(self, store: LocalStore, threads: DiskThreads) -> None:
        self._store = store
        self._threads = threads
        self._tasks: set[asyncio.Task[Scattered]] = set()

    async def carry_out(self, sent: SentScatter, request: ServedRequest) -> ScatterOutcome:
        """Read, check and make a change. Occupies no thread while it waits for other changes to the tensor."""
        loop = asyncio.get_running_loop()
        turn = asyncio.Event()
        lock = self._store.lock_name(sent.name)

        def wake() -> None:
            loop.call_soon_threadsafe(turn.set)

        def begin() -> tuple[ScatterAttempt, Scattered | None]:
            call, digest = sent.read()
            attempt = ScatterAttempt(
                self._store, sent.name, call, sent.conditions, sent.key, digest, wake, request.memory
            )
            return attempt, attempt.advance()

        async def finish(attempt: ScatterAttempt) -> Scattered:
            while True:
                await turn.wait()
                turn.clear()
                scattered = attempt.outcome() or await self._threads.change(lock, attempt.advance)
                if scattered is not None:
                    return scattered

        attempt, scattered = await self._threads.change(lock, begin)
        if scattered is None:
            # This is a separate task, because it may have to execute other requests' changes even if its own request is
            # canceled.
            task = loop.create_task(finish(attempt))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            scattered = await asyncio.shield(task)
        return ScatterOutcome(scattered.etag, scattered.version, scattered.repeated, counts=scattered.counts)


class ScatterAttempt:
    """The change of one request, executed in a batch with others that wait for the same tensor.

    If a request with the same Idempotency-Key has already been answered, this returns the earlier response and changes
    nothing, even if the tensor has been replaced since.
    """

    def __init__(
        self,
        store: LocalStore,
        name: str,
        call: ScatterCall | KeyedCall,
        conditions: Conditions,
        key: str | None,
        digest: str,
        wake: Callable[[], None],
        memory: Memory = UNCOUNTED,
    ) -> None:
        """`digest` distinguishes the request from others with the same key; `wake` may be called from any thread.

        `memory` is charged for the rows that a removal moves.
        """
        self._store, self._name, self._call, self._conditions = store, name, call, conditions
        self._key, self._digest, self._wake = key, digest, wake
        self._memory: Memory | None = memory
        self._attempts = _ATTEMPTS
        self._queued: PendingScatter | None = None

    def advance(self) -> Scattered | None:
        """Return the response, or None if other changes must run first; in that case, call again after `wake` has been
        called.

        Blocks on disk I/O. May raise any error of the routes.
        """
        try:
            while self._queued is not None or self._attempts:
                if self._queued is None:
                    self._attempts -= 1
                    change = self._make_change()
                    self._queued = self._store.queue_scatter(self._name, change, self._conditions, self._wake)
                    if not self._queued.is_leader:
                        return None
                try:
                    return self._store.complete_scatter(self._name, self._queued)
                except ContentReplaced:
                    self._queued = None
        except GatherError:
            # The tensor may have been replaced by one that the request does not fit. A known Idempotency-Key still gets
            # the original response.
            answered = None
            if self._key is not None:
                answered = self._store.find_answer(self._name, self._key, self._digest)
            if answered is None:
                raise
            return answered
        raise GatherError(
            "overloaded", f"{self._name!r} was replaced during every attempt to apply this scatter", retry_after=1
        )

    def outcome(self) -> Scattered | None:
        """Return the response if another request's batch included this change; None if `advance` must be called."""
        return None if self._queued is None else self._queued.scattered

    def _make_change(self) -> ScatterChange | KeyedChange:
        content, call = self._store.content(self._name), self._call
        about, resident = content.description, content.resident()
        dtype, shape = resident.tensor.dtype, resident.tensor.shape
        if isinstance(call, KeyedCall):
            check_keys(call.keys, resident, self._name, "/name")
            width = row_items(dtype, shape, call)
            keys = _as_int64_keys(call.keys)
            change = KeyedChange(about.id, keys, call.updates, width, call.reduction, self._key, self._digest)
            if self._memory is not None:  # charge only once: a later attempt may outlive the request
                self._memory.charge(bytes_moved(content, change))
                self._memory = None
            return change
        plan = plan_scatter(dtype, shape, call)
        indices = call.indices
        from_end = resident.keys is not None and (not indices.shape[-1] or bool((indices.array < 0).any()))
        of_rows = shape[0] if from_end else None
        return ScatterChange(
            about.id, plan.rows, call.updates, plan.slice_items, call.reduction, self._key, self._digest, of_rows
        )


def _as_int64_keys(keys: Tensor) -> Tensor:
    """Convert int32 keys to int64, and return other keys unchanged."""
    if keys.dtype.name != "int32":
        return keys
    return replace(keys, dtype=DTYPES["int64"], array=keys.array.astype(np.int64))


def read_request(
    body: Buffer, query: bytes, row: Signature, *, codec: Codec, key: str | None, limits: Limits, memory: Memory
) -> tuple[ScatterCall | KeyedCall, str]:
    """Parse a body. Returns the call, and a digest that distinguishes this request from others with the same key.

    Charges `memory` for what the request needs in addition to `body`. May raise any charging error, and any error of
    the two formats.
    """
    digest = ""
    if key is not None:
        hashed = hashlib.sha256(b"%d?%b\n" % (codec.binary, query))
        hashed.update(body)
        digest = hashed.hexdigest()
    call: ScatterCall | KeyedCall = codec.read(body, query, row, limits, memory)[0]
    memory.charge(working_bytes(call))
    return call, digest


def working_bytes(call: ScatterCall | KeyedCall) -> int:
    """Estimate the bytes that a change needs in addition to its call.

    The estimate covers the change's row numbers while they are computed and sorted, the values that it writes, and the
    log record of both. The rows that a removal moves are charged later, when they are known.
    """
    if isinstance(call, KeyedCall):
        keys, values = _nbytes(call.keys), 0 if call.updates is None else _nbytes(call.updates)
        copies = _COPIES_OF_STRINGS if isinstance(call.keys, PackedStrings) else 3
        return _ROW_BYTES * call.keys.array.size + copies * keys + 3 * values
    depth = call.indices.shape[-1] if call.indices.shape else 1
    return _ROW_BYTES * (call.indices.array.size // max(depth, 1)) + 3 * _nbytes(call.updates)


def _nbytes(tensor: Tensor) -> int:
    return tensor.array.nbytes + (tensor.nbytes if isinstance(tensor, PackedStrings) else 0)
