"""Send scatters to the primaries of ranges, request the state of ranges from them, and pause between attempts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from time import perf_counter
from typing import Final
from urllib.parse import quote

from app.api.own_header_fields import NODE_FIELD
from app.cluster.range_scatter import RangeScatter, RangeScattered
from app.cluster.router.fetch_rows import RowFetcher
from app.cluster.router.row_sinks import BadAnswer, WholeBody
from app.cluster.router.shard_connection import Failure
from app.cluster.router.shards import Ask
from app.cluster.shard_map import RowRange
from app.errors import Code, GatherError
from app.telemetry.served_request import ServedRequest
from app.tensors.buffer_type import Buffer

LATE_S: Final = 6.0
"""Seconds without a response after which a primary is late.

By then, the primary has removed unresponsive replicas from the in-sync set.
"""
SLOWEST: Final = 1 << 24
"""Lowest expected rate at which a primary makes data durable on all its replicas, in bytes per second."""
FIRST_PAUSE: Final = 0.02
LONGEST_PAUSE: Final = 0.5
_MOST_ANSWER: Final = 1 << 12
_FINAL: Final[frozenset[Code]] = frozenset(
    {"invalid_field", "unsupported_dtype", "insufficient_storage", "limit_exceeded", "payload_too_large"}
)
"""Codes of errors that would recur on a retry."""


@dataclass(frozen=True, slots=True)
class RangeFailed:
    """Why a range has not applied its part, as far as is known."""

    why: str


class PrimaryAsks:
    """Calls to primaries over the connections of `fetcher`, made from the event loop."""

    def __init__(self, fetcher: RowFetcher) -> None:
        self._fetcher = fetcher

    async def ask(self, one: RowRange, scatter: RangeScatter, request: ServedRequest) -> RangeScattered | RangeFailed:
        """Send a scatter once to the primary of a range. Raises errors that would recur on a retry."""
        body = scatter.pieces()
        size = sum(map(len, body))
        fields = b"content-type: application/octet-stream\r\nx-gathernd-timeout: %d\r\ncontent-length: %d\r\n" % (
            max(1, ceil(request.deadline - perf_counter())), size,
        )  # fmt: skip
        sink = WholeBody(_MOST_ANSWER)
        failure = await self._send(one, b"POST", b"/scatter", fields, body, sink, request)
        if failure is not None:
            if failure.code in _FINAL:
                raise GatherError(failure.code, failure.said)
            return _range_failure(one, failure.said or failure.detail)
        try:
            found = RangeScattered.from_json(sink.body)
        except ValueError as error:
            return _range_failure(one, f"the answer cannot be read: {error}")
        sequences = self._fetcher.sequences
        sequences.record(one.tensor, found.sequence)
        if found.counts is not None and not found.repeated:
            sequences.record_rows(one.tensor, found.sequence, found.counts.rows)
        return found

    async def sequence(self, one: RowRange, request: ServedRequest) -> int | RangeFailed:
        """Send one request to the primary of a range for the number of its committed scatters.

        The range's replicas confirm that it is the primary.
        """
        sink = WholeBody(_MOST_ANSWER)
        failure = await self._send(one, b"GET", b"?confirmed=true", b"", [], sink, request)
        if failure is not None:
            return _range_failure(one, failure.said or failure.detail)
        try:
            found = int(sink.document()["applied"])
        except (BadAnswer, KeyError, TypeError, ValueError) as error:
            return _range_failure(one, f"the answer cannot be read: {error}")
        self._fetcher.sequences.record(one.tensor, found)
        return found

    async def _send(
        self,
        one: RowRange,
        method: bytes,
        path: bytes,
        fields: bytes,
        body: list[Buffer],
        sink: WholeBody,
        request: ServedRequest,
    ) -> Failure | None:
        """Send a request for `path` below a range to its primary.

        Returns the failure if `sink` did not get the response.
        """
        primary, fetcher = one.primary, self._fetcher
        assert primary is not None
        head = b"%b /shard/ranges/%b%b HTTP/1.1\r\nhost: %b\r\n%b: %b\r\n%b%b%b\r\n" % (
            method, quote(one.tensor).encode(), path, primary.address.encode(), NODE_FIELD, primary.node.encode(),
            fields, fetcher.fields, fetcher.forwarded_lines(request),
        )  # fmt: skip
        patience = min(max(request.deadline - perf_counter(), 0.1), LATE_S + sum(map(len, body)) / SLOWEST)
        answered: asyncio.Future[Failure | None] = asyncio.get_running_loop().create_future()
        shard, pieces = fetcher.shards.get(primary.address), [head, *body]
        ask = Ask(
            shard, pieces, sink, None, patience, lambda _, failure: answered.set_result(failure), _ignore_beginning
        )
        ask.start()
        try:
            return await answered
        except asyncio.CancelledError:
            ask.drop()
            raise

    async def refresh_map(self) -> None:
        """Switch to a newer map if there is one. Waits for at most one second."""
        read: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._fetcher.refresh(lambda: None if read.done() else read.set_result(None))
        await read

    def pauses(self, deadline: float) -> Pauses:
        """Return the pauses between attempts for one range, until a deadline in seconds of `perf_counter`."""
        return Pauses(self, deadline)


class Pauses:
    """Pauses between attempts. Each one reads the newest map, and waits only if the map shows nothing new."""

    def __init__(self, asks: PrimaryAsks, deadline: float) -> None:
        self._asks = asks
        self._deadline = deadline
        self._pause = FIRST_PAUSE

    async def wait(self, is_new: Callable[[], bool]) -> bool:
        """Pause, unless `is_new` returns True after the newest map was read.

        Returns False if the deadline has passed.
        """
        await self._asks.refresh_map()
        left = self._deadline - perf_counter()
        if left > 0 and not is_new():
            await asyncio.sleep(min(self._pause, left))
            self._pause = min(2 * self._pause, LONGEST_PAUSE)
        return perf_counter() < self._deadline


def _range_failure(one: RowRange, why: str) -> RangeFailed:
    """Return the failure of a range's primary."""
    assert one.primary is not None
    return RangeFailed(f"{one.primary.address}: {why}")


def _ignore_beginning(ask: Ask) -> None:
    """Ignore the beginning of a response."""


def has_new_primary(one: RowRange | None, epoch: int) -> bool:
    """Return whether a range has a reachable primary at an epoch other than `epoch`, or no longer exists (None)."""
    return one is None or (one.primary is not None and bool(one.primary.address) and one.primary.epoch != epoch)
