"""Fetch the rows of requests from shards in parallel. `range_reads` decides which shards to use.

Each request has a single future. Asks, which are requests to shards, are not tasks: a shard's connection calls back
when its response arrives.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil, inf
from time import perf_counter
from typing import Final

from app.api.own_header_fields import NODE_FIELD, SEQUENCE
from app.cluster.router.range_reads import AskReplica, FetchMap, RangeReads, ReadAction, Wake
from app.cluster.router.range_requests import ExtentRequest, RangeRequest
from app.cluster.router.sequences import NOTHING_READ, Sequences, etag_check, sequence_check
from app.cluster.router.shard_connection import Failure
from app.cluster.router.sharded_tensors import ShardedResident
from app.cluster.router.shards import Ask, Shards
from app.cluster.shard_map import Replica, ShardMap
from app.dispatch.request_thread_pool import ClientGone
from app.errors import GatherError
from app.telemetry.served_request import ServedRequest

BYTES_PER_SECOND: Final = 1 << 27
"""A large response from a shard counts as late if it arrives at less than this many bytes per second."""
MAX_RESTARTS: Final = 2
"""Maximum number of times that a request is restarted because its version was removed."""
READ_ANSWERS_S: Final = 0.001
"""Seconds that a hedge waits for responses that arrived while the event loop was busy."""
HEDGE_AGAIN_S: Final = 0.05
"""Seconds after which a slow read that could not be hedged is checked again."""


@dataclass(slots=True)
class TableReads:
    """The ranges of one version of a table that a request needs, by their index.

    After the fetch, `read` maps tensor names to sequences, for the ranges that come from a catalogue.
    """

    resident: ShardedResident
    requests: Mapping[int, RangeRequest] | Mapping[int, ExtentRequest]
    read: dict[str, int] | None = None


class VersionGone(GatherError):
    """The newest map no longer has the version that was being read.

    The request is restarted with the version that the map has.

    This is a shard_unavailable error. The caller gets it only if restarts keep failing.
    """

    def __init__(self, one: TableReads) -> None:
        detail = f"version {one.resident.data_version} of {one.resident.table!r} was removed while it was read"
        super().__init__("shard_unavailable", detail, retry_after=1)


@dataclass(slots=True)
class LostRange:
    """A range for which no replica responded.

    `reads` is the index of its read in the request, and `number` is the range's index.
    """

    reads: int
    number: int
    failures: Sequence[Failure]


class RowFetcher:
    """Fetch rows using the newest map.

    A shard is late if its response has not begun after `late_after` seconds. `key` is the API key for shards.
    """

    def __init__(self, shards: Shards, shard_map: ShardMap, late_after: float, key: str | None = None) -> None:
        self.shards = shards
        self.shard_map = shard_map
        self.sequences = Sequences()
        self.late_after = late_after
        self.fields = b""
        """Header lines that are part of every request to a shard."""
        self.use_key(key)
        self.refresh: Callable[[Callable[[], None]], object] = lambda then: asyncio.get_running_loop().call_soon(then)
        """A function that fetches a newer map if there is one, then calls its argument. A static map is always the
        newest.
        """
        self.forwarded_lines: Callable[[ServedRequest], bytes] = lambda request: request.forwarded_lines
        """A function that returns the header lines that tell a shard which request it is serving."""

    def use_key(self, key: str | None) -> None:
        """Start using this API key for calls to shards."""
        self.fields = b"" if key is None else b"authorization: Bearer %b\r\n" % key.encode()

    def use_map(self, shard_map: ShardMap) -> None:
        """Start using this map."""
        self.shard_map = shard_map
        self.sequences.keep_only(shard_map)

    def etag_of(self, resident: ShardedResident, read: Mapping[str, int] | None = None) -> str:
        """Return a table's ETag, using known sequences for the ranges whose sequences are not in `read`."""
        version = resident.version_in_map
        if not version.is_open and not self.sequences.knows(version.content_id):
            return resident.etag
        return self.sequences.etag(version, read or NOTHING_READ)

    async def fetch(self, wanted: Sequence[TableReads], request: ServedRequest) -> list[LostRange]:
        """Send all requests to shards. The responses go to the requests' sinks.

        Returns the ranges for which there was no response. Raises deadline_exceeded, ClientGone, VersionGone, and
        errors from shards that concern the whole request.
        """
        fetch = _Fetch(self, wanted, request)
        caller = request.caller
        if caller is not None:
            if caller.disconnected:
                raise ClientGone
            caller.on_disconnect = fetch.client_has_gone
        try:
            fetch.start()
            await fetch.future
        finally:
            if caller is not None:
                caller.on_disconnect = None
            fetch.close()
        return fetch.lost


@dataclass(slots=True)
class _AskTarget:
    """The target of an ask: a range of the reads at index `place`.

    The response may take `spare` extra seconds because of its size. The read counts as slow at `hedge_at`. `in_haste`
    means that the deadline is so close that a late response says little about the shard.
    """

    place: int
    number: int
    replica: Replica
    spare: float
    hedge_at: float
    in_haste: bool


class _Fetch:
    """The asks of one request, until each has received its response, has been lost, or is too late.

    A single timer serves both the hedges and the deadline.
    """

    def __init__(self, fetcher: RowFetcher, wanted: Sequence[TableReads], request: ServedRequest) -> None:
        self.fetcher = fetcher
        self.wanted = wanted
        loop = asyncio.get_running_loop()
        self.loop = loop
        self.future: asyncio.Future[None] = loop.create_future()
        left = request.deadline - perf_counter()
        now = loop.time()
        self.deadline = now + left
        self.timer: asyncio.TimerHandle | None = None
        self.alarm = inf
        """When the timer fires: at the next hedge or at the deadline."""
        self.is_hedged = False
        self.fields = (
            fetcher.fields + fetcher.forwarded_lines(request) + b"x-gathernd-timeout: %d\r\n" % max(1, ceil(left))
        )
        self.lost: list[LostRange] = []
        self.reads = [
            RangeReads(one.shard_map, one.version_in_map, fetcher.shards.choice, self.deadline, fetcher.late_after)
            for one in (each.resident for each in wanted)
        ]
        self.failures: dict[tuple[int, int], list[Failure]] = {}
        self.asks: dict[Ask, _AskTarget] = {}
        self.timers: list[asyncio.TimerHandle] = []
        self.over: set[int] = set()

    def start(self) -> None:
        """Send all requests."""
        now = self.loop.time()
        for place, reads in enumerate(self.reads):
            self._execute(place, reads.start(self.wanted[place].requests, now))
            self._check_reads(place)
        if self.timer is None:
            self._wake_at(self.deadline)

    def close(self) -> None:
        """Drop all asks and timers that are still in progress."""
        if self.timer is not None:
            self.timer.cancel()
        for timer in self.timers:
            timer.cancel()
        for ask in tuple(self.asks):
            self._drop(ask)

    def client_has_gone(self) -> None:
        """Handle the disconnect of the request's client."""
        self._fail(ClientGone())

    def _on_deadline(self) -> None:
        detail = "the shards did not answer before the request's deadline"
        self._fail(GatherError("deadline_exceeded", detail, retry_after=1))

    def _fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)

    def _execute(self, place: int, actions: Sequence[ReadAction]) -> None:
        for action in actions:
            if isinstance(action, AskReplica):
                self._ask(place, action)
            elif isinstance(action, FetchMap):
                self.fetcher.refresh(partial(self._on_map_fetched, place))
            else:
                assert isinstance(action, Wake)
                self.timers.append(self.loop.call_at(action.at, self._on_wake, place, action.at))

    def _ask(self, place: int, action: AskReplica) -> None:
        fetcher, number, replica = self.fetcher, action.number, action.replica
        request = self.wanted[place].requests[number]
        one = self.reads[place].version.ranges[number]
        own = action.late_at - self.loop.time()
        spare = request.answer_bytes / BYTES_PER_SECOND
        fields, check = self.fields, None
        # the range comes from a catalogue, so it may have been opened meanwhile
        if replica.node and replica.etag is None:
            wanted = self.wanted[place]
            if wanted.read is None:
                wanted.read = {}
            if least := fetcher.sequences.lowest_accepted(one.tensor):
                fields += b"%b: %d\r\n" % (SEQUENCE, least)
            check = sequence_check(fetcher.sequences, one, wanted.read)
        elif replica.etag is not None:
            check = etag_check(replica.etag)
        if replica.node:
            fields += b"%b: %b\r\n" % (NODE_FIELD, replica.node.encode())
        pieces = request.pieces(one.tensor, replica.address, fields)
        shard, patience = fetcher.shards.get(replica.address), max(own, 0.0) + spare
        ask = Ask(shard, pieces, request.sink, check, patience, self._on_response, self._on_response_begin)
        hedge_at = action.hedge_at + spare
        self.asks[ask] = _AskTarget(place, number, replica, spare, hedge_at, own < fetcher.late_after / 2)
        if hedge_at < self.alarm:
            self._wake_at(hedge_at)
        ask.start()

    def _on_response(self, ask: Ask, failure: Failure | None) -> None:
        """Handle the response or the failure of a shard."""
        asked = self.asks.pop(ask)
        place, number, replica = asked.place, asked.number, asked.replica
        reads = self.reads[place]
        if failure is None:
            reads.choice.record_duration(replica.address, ask.seconds - asked.spare)
            reads.on_rows(number, replica)
        elif failure.error is not None:
            self._fail(failure.error)
            return
        else:
            self.failures.setdefault((place, number), []).append(failure)
            now, is_late = self.loop.time(), failure.kind == "late"
            if is_late:
                reads.choice.record_drop(replica.address, ask.seconds - asked.spare, now)
            if (is_late and asked.in_haste) or failure.kind in ("busy", "starting", "stale", "deadline"):
                self._execute(place, reads.on_missing_range(number, replica, now, is_stale=failure.kind == "stale"))
            else:
                self._execute(place, reads.on_failure(number, replica, now, failure.detail))
        self._check_reads(place)

    def _on_response_begin(self, ask: Ask) -> None:
        """Handle the beginning of a response. If its read is hedged, drop the other asks."""
        if not self.is_hedged:
            return
        begun = self.asks[ask]
        for other, asked in tuple(self.asks.items()):
            if other is not ask and (asked.place, asked.number) == (begun.place, begun.number):
                self._drop(other)
        self.reads[begun.place].on_response_begin(begun.number, begun.replica)

    def _drop(self, ask: Ask) -> None:
        """Drop an ask. If its response has not begun, record how long the ask waited."""
        asked = self.asks.pop(ask)
        ask.drop()
        if not ask.has_begun:
            choice = self.fetcher.shards.choice
            choice.record_drop(asked.replica.address, ask.seconds - asked.spare, self.loop.time())

    def _wake_at(self, at: float) -> None:
        """Set the timer to fire at `at`, or at the deadline if that is earlier."""
        if self.timer is not None:
            self.timer.cancel()
        self.alarm = min(at, self.deadline)
        self.timer = self.loop.call_at(self.alarm, self._on_timer)

    def _on_timer(self) -> None:
        """Handle the timer: the deadline has passed, or a read is slow."""
        if self.alarm >= self.deadline:
            self._on_deadline()
        else:
            self.timer = self.loop.call_later(READ_ANSWERS_S, self._hedge)

    def _hedge(self) -> None:
        """Ask additional replicas for slow reads."""
        if self.future.done():
            return
        now = max(self.loop.time(), self.alarm)
        self._wake_at(self.deadline)
        for ask, asked in tuple(self.asks.items()):
            if ask.has_begun:
                continue
            if asked.hedge_at <= now:
                action = self.reads[asked.place].hedge(asked.number, now)
                asked.hedge_at = now + HEDGE_AGAIN_S if action is None else inf
                if action is not None:
                    self.is_hedged = True
                    self._ask(asked.place, action)
            if asked.hedge_at < self.alarm:
                self._wake_at(asked.hedge_at)

    def _on_map_fetched(self, place: int) -> None:
        if not self.future.done():
            self._execute(place, self.reads[place].on_map_fetched(self.fetcher.shard_map, self.loop.time()))
            self._check_reads(place)

    def _on_wake(self, place: int, at: float) -> None:
        if not self.future.done():
            # When a timer fires, the event loop's clock may have been rounded down to a time before the timer's.
            self._execute(place, self.reads[place].on_wake(max(self.loop.time(), at)))
            self._check_reads(place)

    def _check_reads(self, place: int) -> None:
        """Check whether the reads at `place` have ended."""
        reads = self.reads[place]
        if reads.outcome is None or self.future.done() or place in self.over:
            return
        self.over.add(place)
        if reads.outcome == "deadline_exceeded":
            self._on_deadline()
            return
        if reads.outcome == "shard_unavailable":
            for number in reads.unavailable:
                self.lost.append(LostRange(place, number, self.failures.get((place, number), ())))
        elif reads.outcome == "version_gone":
            self._fail(VersionGone(self.wanted[place]))
            return
        if len(self.over) == len(self.reads):
            self.future.set_result(None)
