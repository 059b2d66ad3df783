"""Find the current ETags and row counts of open tables by requesting them from the shards of each range.

For a reader, the response may come from any in-sync replica. A condition on a change is checked only with the
primaries, because a replica learns slightly later that a scatter has been committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from time import perf_counter
from typing import Final, NamedTuple

from app.cluster.router.ask_primary import PrimaryAsks, RangeFailed, has_new_primary
from app.cluster.router.fetch_rows import LostRange, RowFetcher, TableReads
from app.cluster.router.range_requests import ExtentBody, ExtentRequest
from app.cluster.router.sequences import NOTHING_READ
from app.cluster.router.shard_connection import Failure
from app.cluster.router.shard_resources import NeedingPlaces, unavailable
from app.cluster.router.sharded_tensors import ShardedResident
from app.cluster.shard_map import RowRange
from app.errors import GatherError
from app.memory.budget import Budget, MemoryReservation
from app.telemetry.served_request import ServedRequest

SOON_S: Final = 2.0
"""Maximum seconds that a response waits for shards that it can do without."""
BLOCKED_S: Final = 10.0
"""Maximum seconds that a thread waits for the ETag on which a change depends."""
_NOWHERE: Final = NeedingPlaces((), 0)
_BUDGET: Final = Budget(0)


class Measured(NamedTuple):
    """The ETag of a table, and the row count of each of its ranges."""

    etag: str
    rows: Sequence[int]


class TableEtags:
    """Find the ETags of tables by sending requests to shards through `fetcher`, in one event loop."""

    def __init__(self, fetcher: RowFetcher) -> None:
        self._fetcher = fetcher
        self._asks = PrimaryAsks(fetcher)
        self.loop: asyncio.AbstractEventLoop | None = None
        """The event loop in which `current_etag` runs its requests; set it before the first call."""

    async def measure(
        self,
        residents: Sequence[ShardedResident],
        request: ServedRequest | None,
        changed: Mapping[str, int] = NOTHING_READ,
    ) -> list[Measured]:
        """Return the ETags of tables, and the row counts of their ranges.

        No request is sent for ranges whose tensors are in `changed`, because `changed` holds their sequences. If
        `request` is None, known values are used for ranges that do not respond soon. Otherwise, such ranges raise
        shard_unavailable or deadline_exceeded.
        """
        wanted = [TableReads(one, _extents(one, changed)) for one in residents]
        asked = [one for one in wanted if one.requests]
        try:
            lost = await self._fetcher.fetch(asked, request or _request_of(SOON_S)) if asked else []
        except GatherError:
            if request is not None:
                raise
        else:
            if lost and request is not None:
                first = min(one.reads for one in lost)
                own = [one for one in lost if one.reads == first]
                raise unavailable(asked[first].resident, own, [_NOWHERE] * len(own))
        return [self._measure(one, changed) for one in wanted]

    def _measure(self, reads: TableReads, changed: Mapping[str, int]) -> Measured:
        sequences, version, read = self._fetcher.sequences, reads.resident.version_in_map, reads.read or {}
        rows = sequences.rows(version)
        for number, request in reads.requests.items():
            tensor = version.ranges[number].tensor
            if tensor in read and isinstance(request.sink, ExtentBody):
                rows[number] = request.sink.rows
                sequences.record_rows(tensor, read[tensor], rows[number])
        return Measured(self._fetcher.etag_of(reads.resident, {**read, **changed}), rows)

    def current_etag(self, resident: ShardedResident) -> str:
        """Return the ETag on which a change of the table depends.

        It includes every scatter that was acknowledged before this call.

        Blocks; call it from a thread. Raises shard_unavailable if a primary does not respond.
        """
        if not resident.version_in_map.is_open:
            return resident.etag
        assert self.loop is not None, "the service serves"
        asking: Future[str] = asyncio.run_coroutine_threadsafe(
            self.committed_etag(resident, _request_of(BLOCKED_S)), self.loop
        )
        return asking.result()

    async def committed_etag(self, resident: ShardedResident, request: ServedRequest) -> str:
        """Like `current_etag`, but runs in the event loop and waits until the request's deadline."""
        version = resident.version_in_map
        numbers = [number for number, one in enumerate(version.ranges) if one.primary is not None]
        found = await asyncio.gather(*(self._sequence(resident, number, request) for number in numbers))
        lost = [
            LostRange(0, number, [Failure("lost", answer.why)])
            for number, answer in zip(numbers, found, strict=True)
            if isinstance(answer, RangeFailed)
        ]
        if lost:
            raise unavailable(resident, lost, [_NOWHERE] * len(lost))
        return version.etag_at(sum(answer for answer in found if not isinstance(answer, RangeFailed)))

    async def _sequence(self, resident: ShardedResident, number: int, request: ServedRequest) -> int | RangeFailed:
        """Return the number of committed scatters of a range, as reported by its primary.

        If the range gets a new primary, that one is tried, until the deadline.
        """
        pauses, failure = self._asks.pauses(request.deadline), RangeFailed("the range has no primary")
        tensor, asked = resident.version_in_map.ranges[number].tensor, 0
        while True:
            one = self._newest(resident, tensor)
            if one is None or one.primary is None:  # the version was removed
                return self._fetcher.sequences.lowest_accepted(tensor)
            if one.primary.address:
                asked = one.primary.epoch
                answer = await self._asks.sequence(one, request)
                if not isinstance(answer, RangeFailed):
                    return answer
                failure = answer
            if not await pauses.wait(lambda: has_new_primary(self._newest(resident, tensor), asked)):  # noqa: B023
                return failure

    def _newest(self, resident: ShardedResident, tensor: str) -> RowRange | None:
        version = self._fetcher.shard_map.find_content(resident.version_in_map.content_id)
        return None if version is None else next((one for one in version.ranges if one.tensor == tensor), None)


def _extents(resident: ShardedResident, but: Collection[str]) -> dict[int, ExtentRequest]:
    """Return a request to each open range, except for ranges whose tensors are in `but`."""
    ranges = enumerate(resident.version_in_map.ranges)
    return {
        number: ExtentRequest(ExtentBody())
        for number, one in ranges
        if one.primary is not None and one.tensor not in but
    }


def _request_of(seconds: float) -> ServedRequest:
    now = perf_counter()
    return ServedRequest(now, now + seconds, MemoryReservation(_BUDGET))
