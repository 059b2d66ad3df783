"""The internal routes of open ranges. The rows of these routes are in `app.api.route_rows.shard_segments`.

Scatters and joins wait for other shards, but records from a primary are processed without waiting for any. Each kind of
request has its own threads, so shards that ship records to each other cannot block each other.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from typing import Final, TypeVar

import orjson

from app.api.asgi_request import Handler, RequestContext
from app.api.error_responses import JSON
from app.api.request_body import read_body
from app.api.routes.tensors import read_flag
from app.cluster.range_scatter import RangeScatter, RangeScattered
from app.cluster.shard.catalogue_follower import CatalogueFollower
from app.cluster.shard.range_errors import SequenceDiffers, unavailable
from app.cluster.shard.range_log import RangeLog
from app.cluster.shard.range_messages import append_answer_json, keys_json, read_append, read_join
from app.cluster.shard.range_metrics import RangeCounts
from app.cluster.shard.range_primary import Primaries
from app.cluster.shard.range_scatters import make_change
from app.cluster.shard.read_gate import GatedStore
from app.cluster.shard.segment_routes import segment_of
from app.errors import GatherError
from app.formats.body_formats import RAW
from app.memory.budget import Memory
from app.store import Resident
from app.store.files.tensor_file import sequence_in
from app.store.scatters.key_changes import bytes_moved
from app.store.scatters.pending_scatter import ContentReplaced, KeyedChange, Scattered
from app.telemetry.tensor_change_log import SCATTERED, Change

T = TypeVar("T")
_PRIMARY_THREADS: Final = 32
_REPLICA_THREADS: Final = 16
_JOIN_THREADS: Final = 8
_MOST_JSON: Final = 1 << 14


class RangeRoutes:
    """Routes for the scatters, records, joins, state and keys of ranges."""

    def __init__(
        self,
        store: GatedStore,
        primaries: Primaries,
        log: RangeLog,
        follower: CatalogueFollower,
        most_bytes: int,
        counts: RangeCounts,
    ) -> None:
        """Create the thread pools. `most_bytes` is the maximum size of a scatter's body."""
        self._store = store
        self._primaries = primaries
        self._log = log
        self._follower = follower
        self._most_bytes = most_bytes
        self._counts = counts
        self._scatters = ThreadPoolExecutor(_PRIMARY_THREADS, "primary")
        self._records = ThreadPoolExecutor(_REPLICA_THREADS, "replica")
        self._joins = ThreadPoolExecutor(_JOIN_THREADS, "joins")
        self._others = ThreadPoolExecutor(_REPLICA_THREADS, "range")
        self._tasks: set[asyncio.Task[Scattered]] = set()

    @property
    def handlers(self) -> Mapping[str, Handler]:
        """The handlers, by operation name."""
        return {
            "scatterRange": self.scatter,
            "appendRecords": self.append,
            "joinRange": self.join,
            "rangeState": self.state,
            "rangeKeys": self.keys,
        }

    async def scatter(self, context: RequestContext) -> None:
        """Handle `POST /shard/ranges/{tensor}/scatter`, which a router sends to the primary."""
        try:
            outcome = await self._scatter(context, segment_of(context))
        except GatherError as error:
            self._counts.count_scatter(error.code)
            raise
        self._counts.count_scatter(outcome)

    async def _scatter(self, context: RequestContext, tensor: str) -> str:
        """Run a scatter and send the response. Returns its outcome for `RangeCounts`."""
        body = await read_body(context, self._most_bytes)
        scatter = RangeScatter.from_body(body)
        context.memory.charge(64 * scatter.order.change_count + 3 * (scatter.updates.nbytes + scatter.order.key_bytes))
        await self._refresh_if_older(scatter.order.epoch, tensor)
        outcome = "changed"
        try:
            found = await self._carry_out(tensor, scatter, context.memory)
        except SequenceDiffers as refusal:
            answer = RangeScattered(refusal.sequence, scatter.order.epoch, refused=True)
        else:
            one = self._follower.open_ranges().get(tensor)
            epoch = scatter.order.epoch if one is None or one.opened is None else one.opened.epoch
            answer = RangeScattered(sequence_in(found.etag), epoch, found.repeated, counts=found.counts)
            outcome = "repeated" if found.repeated else "ok"
            if not found.repeated:
                context.changes = [Change(SCATTERED, tensor, found.version, len(body))]
        await context.send(200, JSON, answer.to_json())
        return outcome

    async def _refresh_if_older(self, epoch: int, tensor: str) -> None:
        """Read the newest catalogue if the known one does not list the range as open, or if the router's epoch is
        newer.
        """
        one = self._follower.open_ranges().get(tensor)
        if one is None or one.opened is None or one.opened.epoch < epoch:
            try:
                await _run(self._others, self._follower.refresh)
            except OSError as error:
                raise unavailable(f"etcd does not answer: {error}") from None

    async def _carry_out(self, tensor: str, scatter: RangeScatter, memory: Memory) -> Scattered:
        """Run a scatter and return its result. While it waits for other scatters to the range, it occupies no thread.

        The bytes of rows that a removal moves are charged to `memory`.
        """
        loop = asyncio.get_running_loop()
        turn = asyncio.Event()

        def wake() -> None:
            loop.call_soon_threadsafe(turn.set)

        if not self._log.is_replicated(tensor):
            await _run(self._scatters, lambda: self._primaries.begin(tensor))
        content = self._log.content(tensor)
        change, conditions = make_change(content, scatter)
        if isinstance(change, KeyedChange):
            memory.charge(bytes_moved(content, change))
        pending = self._store.queue_scatter(tensor, change, conditions, wake)

        async def finish() -> Scattered:
            if not pending.is_leader:
                await turn.wait()
            if pending.done:
                return self._store.complete_scatter(tensor, pending)
            return await _run(self._scatters, lambda: self._store.complete_scatter(tensor, pending))

        # This runs as a separate task: other scatters may rely on this one to execute them, even if its own request is
        # canceled.
        task = loop.create_task(finish())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            return await asyncio.shield(task)
        except ContentReplaced:
            raise unavailable(f"the rows of {tensor} have just been copied again") from None
        except SequenceDiffers:
            # a deposed primary would decide based on old rows
            await _run(self._scatters, lambda: self._primaries.confirm(tensor))
            raise

    async def append(self, context: RequestContext) -> None:
        """Handle `POST /shard/ranges/{tensor}/records`, which the primary sends to a replica.

        Only memory limits the size of the records, because the primary has already accepted the scatters under its own
        limit.
        """
        tensor = segment_of(context)
        message, frames = read_append(await read_body(context, sys.maxsize))
        context.memory.charge(len(frames))
        answer = await _run(self._records, lambda: self._log.append(tensor, message, frames))
        await context.send(200, JSON, append_answer_json(answer))

    async def join(self, context: RequestContext) -> None:
        """Handle `POST /shard/ranges/{tensor}/join`, which a replica sends to the primary."""
        tensor = segment_of(context)
        wish = read_join(await read_body(context, _MOST_JSON, name="small_body_bytes"))
        found = await _run(self._joins, lambda: self._primaries.join(tensor, wish))
        context.memory.charge(len(found.frames))
        await context.send(200, RAW.media_type.encode(), found.pieces())

    async def state(self, context: RequestContext) -> None:
        """Handle `GET /shard/ranges/{tensor}`: respond with the epoch, the applied sequence and the last sequence.

        With `confirmed`, the response covers everything that was acknowledged before the request. With `rows`, it
        instead contains the number of rows that a reader may see, and their sequence.
        """
        tensor = segment_of(context)
        fields = context.query_fields()
        if read_flag(fields, "rows"):
            resident = self._store.get(tensor)
            if resident is None:
                raise GatherError("tensor_not_found", f"this shard has no range {tensor}")
            if resident.version & 1:  # a change is in progress
                resident = await _run(self._others, partial(_consistent, resident))
            extent = {"applied": resident.version >> 1, "rows": resident.tensor.shape[0]}
            await context.send(200, JSON, orjson.dumps(extent))
            return
        if read_flag(fields, "confirmed"):
            await _run(self._scatters, lambda: self._primaries.confirm(tensor))
        found = await _run(self._others, lambda: self._log.state(tensor))
        if found is None:
            raise GatherError("tensor_not_found", f"this shard has no range {tensor}")
        shown = {"epoch": found.epoch, "applied": found.applied, "last": found.last}
        await context.send(200, JSON, orjson.dumps(shown))

    async def keys(self, context: RequestContext) -> None:
        """Handle `GET /shard/ranges/{tensor}/keys`: respond with the Idempotency-Keys of committed records."""
        tensor = segment_of(context)
        found = await _run(self._others, lambda: keys_json(self._log.keys(tensor)))
        context.memory.charge(len(found))
        await context.send(200, JSON, found)

    def close(self) -> None:
        """Start no more work."""
        for pool in (self._scatters, self._records, self._joins, self._others):
            pool.shutdown(wait=False, cancel_futures=True)


def _consistent(resident: Resident) -> Resident:
    """Return the resident tensor in a state between two changes."""
    with resident.exclude_writers():
        return resident.refreshed()


async def _run(pool: Executor, work: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(pool, work)
