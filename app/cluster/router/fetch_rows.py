"""Asks shards for what requests need, side by side: `range_reads` decides whom, connections carry it.

There is one future for a whole request, and no task for an ask: what a shard answers goes on from its connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil
from time import perf_counter
from typing import Final

from app.cluster.router.range_reads import AskReplica, FetchMap, RangeReads, ReadAction, Wake
from app.cluster.router.range_requests import RangeRequest
from app.cluster.router.shard_connection import Failure
from app.cluster.router.shards import Ask, Shards
from app.cluster.shard_map import Replica, RowRange, ShardedVersion, ShardMap
from app.dispatch.request_thread_pool import ClientGone
from app.errors import GatherError
from app.telemetry.served_request import ServedRequest
from app.tensors.buffer_type import Buffer

BYTES_PER_SECOND: Final = 1 << 27
"""So slow may a shard be with a large answer before it counts as late."""
BEGUN_ANEW: Final = 2
"""How often a request whose version goes away begins anew."""


@dataclass(slots=True)
class TableReads:
    """What is needed of one version of a table as the map `known` has it, by number of range."""

    table: str
    known: ShardMap
    version: ShardedVersion
    requests: Mapping[int, RangeRequest]


class VersionGone(GatherError):
    """The newest map does not have the version that was read: the request begins anew, of the version that it has.

    The error shard_unavailable where that happens again and again.
    """

    def __init__(self, one: TableReads) -> None:
        detail = f"version {one.version.number} of {one.table!r} was removed while it was read"
        super().__init__("shard_unavailable", detail, retry_after=1)


@dataclass(slots=True)
class LostRange:
    """A range of which no replica answered: the number of its reads among those asked for, and why."""

    reads: int
    number: int
    failures: Sequence[Failure]


class RowFetcher:
    """Fetches rows by the newest map. `late_after` is how long a shard may take to begin its answer, in seconds; `key`
    is the API key that shards are asked with.
    """

    def __init__(self, shards: Shards, shard_map: ShardMap, late_after: float, key: str | None = None) -> None:
        self.shards = shards
        self.shard_map = shard_map
        self.late_after = late_after
        self.fields = b""
        """Header lines of every request."""
        self.use_key(key)
        self.refresh: Callable[[Callable[[], None]], object] = lambda then: asyncio.get_running_loop().call_soon(then)
        """Have a newer map fetched if there is one, then call what is given. A static map is the newest one at once."""
        self.handed_on: Callable[[ServedRequest], bytes] = lambda request: request.handed_on
        """The header lines of a request to a shard that say for the sake of which request it is sent."""

    def use_key(self, key: str | None) -> None:
        """Ask shards with this API key from now on."""
        self.fields = b"" if key is None else b"authorization: Bearer %b\r\n" % key.encode()

    async def fetch(self, wanted: Sequence[TableReads], request: ServedRequest) -> list[LostRange]:
        """Have all requests answered to their sinks; what no replica answers is returned.

        Raises deadline_exceeded, ClientGone, VersionGone, and the errors that shards may decide.
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

    def pieces(self, request: RangeRequest, one: RowRange, replica: Replica, fields: bytes) -> list[Buffer]:
        """The bytes of a request to a replica; `fields` are further lines of its header."""
        head = (
            b"POST /%b?tensor=%b%b HTTP/1.1\r\nhost: %b\r\ncontent-type: application/x-safetensors\r\naccept: %b\r\n"
            b"%bcontent-length: %d\r\n\r\n"
        ) % (
            request.operator.encode(), one.tensor.encode(), request.query, replica.address.encode(), request.accept,
            fields, request.body_bytes,
        )  # fmt: skip
        if len(request.body) == 1:
            return [head + request.body[0]]
        return [head, *request.body]


class _Fetch:
    """The asks of one request, until all are answered, lost, or too late."""

    def __init__(self, fetcher: RowFetcher, wanted: Sequence[TableReads], request: ServedRequest) -> None:
        self.fetcher = fetcher
        self.wanted = wanted
        loop = asyncio.get_running_loop()
        self.loop = loop
        self.future: asyncio.Future[None] = loop.create_future()
        left = request.deadline - perf_counter()
        now = loop.time()
        self.deadline = now + left
        self.timer = loop.call_later(left, self._too_late)
        self.fields = fetcher.fields + fetcher.handed_on(request) + b"x-gathernd-timeout: %d\r\n" % max(1, ceil(left))
        self.lost: list[LostRange] = []
        self.reads = [
            RangeReads(one.known, one.version, fetcher.shards.choice, self.deadline, fetcher.late_after)
            for one in wanted
        ]
        self.failures: dict[tuple[int, int], list[Failure]] = {}
        self.asks: dict[tuple[int, int], Ask] = {}
        self.timers: list[asyncio.TimerHandle] = []
        self.over: set[int] = set()

    def start(self) -> None:
        """Send all requests."""
        now = self.loop.time()
        for place, reads in enumerate(self.reads):
            self._do(place, reads.start(self.wanted[place].requests, now))
            self._look(place)

    def close(self) -> None:
        """Nobody waits any more."""
        self.timer.cancel()
        for timer in self.timers:
            timer.cancel()
        for ask in tuple(self.asks.values()):
            if ask.is_silent:
                self.fetcher.shards.doubt(ask.address)
            ask.drop()
        self.asks.clear()

    def client_has_gone(self) -> None:
        """The client of the request is gone."""
        self._raise(ClientGone())

    def _too_late(self) -> None:
        detail = "the shards had not answered when the request's deadline had passed"
        self._raise(GatherError("deadline_exceeded", detail, retry_after=1))

    def _raise(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)

    def _do(self, place: int, actions: Sequence[ReadAction]) -> None:
        for action in actions:
            if isinstance(action, AskReplica):
                self._ask(place, action)
            elif isinstance(action, FetchMap):
                self.fetcher.refresh(partial(self._fetched, place))
            else:
                assert isinstance(action, Wake)
                self.timers.append(self.loop.call_at(action.at, self._woken, place, action.at))

    def _ask(self, place: int, action: AskReplica) -> None:
        fetcher, number, replica = self.fetcher, action.number, action.replica
        request = self.wanted[place].requests[number]
        one = self.reads[place].version.ranges[number]
        own = action.late_at - self.loop.time()
        done = partial(self._answered, place, number, replica, own < fetcher.late_after / 2)
        patience = max(own, 0.0) + request.answer_bytes / BYTES_PER_SECOND
        pieces = fetcher.pieces(request, one, replica, self.fields)
        ask = Ask(fetcher.shards.get(replica.address), pieces, request.sink, replica.etag, patience, done)
        self.asks[place, number] = ask
        ask.start()

    def _answered(
        self, place: int, number: int, replica: Replica, in_haste: bool, _: Ask, failure: Failure | None
    ) -> None:
        """A shard was asked; `in_haste` because the request's deadline is near, so that to be late says little."""
        reads, shards = self.reads[place], self.fetcher.shards
        self.asks.pop((place, number), None)
        is_doubtful = in_haste and failure is not None and failure.kind == "late"
        if is_doubtful:
            shards.doubt(replica.address)
        else:
            shards.note(replica.address, failure)
        if failure is None:
            reads.answered(number, replica)
        elif failure.error is not None:
            self._raise(failure.error)
            return
        else:
            self.failures.setdefault((place, number), []).append(failure)
            now = self.loop.time()
            if is_doubtful or failure.kind in ("busy", "starting", "stale", "deadline"):
                self._do(place, reads.no_range(number, replica, now))
            else:
                self._do(place, reads.failed(number, replica, now))
        self._look(place)

    def _fetched(self, place: int) -> None:
        if not self.future.done():
            self._do(place, self.reads[place].fetched(self.fetcher.shard_map, self.loop.time()))
            self._look(place)

    def _woken(self, place: int, at: float) -> None:
        if not self.future.done():
            # The clock of an event loop may have been rounded down when a timer fires, to before the time it is set to.
            self._do(place, self.reads[place].woken(max(self.loop.time(), at)))
            self._look(place)

    def _look(self, place: int) -> None:
        """See whether the reads at `place` are over."""
        reads = self.reads[place]
        if reads.outcome is None or self.future.done() or place in self.over:
            return
        self.over.add(place)
        if reads.outcome == "deadline_exceeded":
            self._too_late()
            return
        if reads.outcome == "shard_unavailable":
            for number in reads.unavailable:
                self.lost.append(LostRange(place, number, self.failures.get((place, number), ())))
        elif reads.outcome == "version_gone":
            self._raise(VersionGone(self.wanted[place]))
            return
        if len(self.over) == len(self.reads):
            self.future.set_result(None)
