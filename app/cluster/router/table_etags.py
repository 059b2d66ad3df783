"""Find the current ETags of open tables, and the row counts of those with keys, by asking each range.

For a reader, any in-sync replica may answer. A condition on a change is checked with the primaries only, because a
replica learns slightly later that a scatter is committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from time import perf_counter
from typing import Final

from app.cluster.router.ask_primary import Extent, PrimaryAsks, RangeFailed, is_led_anew
from app.cluster.router.fetch_rows import LostRange, RowFetcher, TableReads
from app.cluster.router.range_requests import probes
from app.cluster.router.shard_connection import Failure
from app.cluster.router.shard_resources import NeedingPlaces, unavailable
from app.cluster.router.sharded_tensors import ShardedResident
from app.cluster.shard_map import RowRange
from app.errors import GatherError
from app.memory.budget import Budget, MemoryReservation
from app.telemetry.served_request import ServedRequest

SOON_S: Final = 2.0
"""Seconds that a response waits for shards if it can do without them."""
BLOCKED_S: Final = 10.0
"""Seconds that a thread waits for the ETag on which a change depends."""
_ROUNDS: Final = 3
_PAUSE_S: Final = 0.1
_NOWHERE: Final = NeedingPlaces((), 0)
_BUDGET: Final = Budget(0)


class TableEtags:
    """Finds the ETags of tables by asking shards with `fetcher`, in one event loop."""

    def __init__(self, fetcher: RowFetcher) -> None:
        self._fetcher = fetcher
        self._asks = PrimaryAsks(fetcher)
        self.loop: asyncio.AbstractEventLoop | None = None
        """The event loop in which `now` runs its requests; set before `now` is called."""

    async def read(self, resident: ShardedResident, request: ServedRequest) -> str:
        """Return the ETag of a table. Raises deadline_exceeded, and shard_unavailable if a range does not respond."""
        reads = _probing(resident)
        if not reads.requests:
            return resident.etag
        lost = await self._fetcher.fetch([reads], request)
        if lost:
            raise unavailable(resident, lost, [_NOWHERE] * len(lost))
        return self._fetcher.etag_of(resident, reads.read)

    async def read_soon(self, residents: Sequence[ShardedResident]) -> list[str]:
        """Return the ETags of tables. For a range that does not respond soon, the known sequence is used."""
        wanted = [one for one in map(_probing, residents) if one.requests]
        await self._fetch_soon(wanted)
        read = {id(one.resident): one.read for one in wanted}
        return [self._fetcher.etag_of(one, read.get(id(one))) for one in residents]

    async def measure(
        self, resident: ShardedResident, request: ServedRequest | None, but: Collection[str] = ()
    ) -> tuple[str, list[int]]:
        """Return the ETag of a table with keys, and the rows of each range. Ranges with tensors in `but` are not asked.

        Without a request, known values are used for ranges that do not respond soon. With a request, raises
        shard_unavailable instead.
        """
        version, wanted = resident.version_in_map, request or _request_of(SOON_S)
        asked = [
            (number, one)
            for number, one in enumerate(version.ranges)
            if one.primary is not None and one.tensor not in but
        ]
        answers = await asyncio.gather(*(self._extent(one, wanted) for _, one in asked))
        rows, read, lost = self._fetcher.sequences.rows(version), dict[str, int](), list[LostRange]()
        for (number, one), answer in zip(asked, answers, strict=True):
            if isinstance(answer, Extent):
                read[one.tensor], rows[number] = answer
            else:
                lost.append(LostRange(0, number, [Failure("lost", answer.why)]))
        if lost and request is not None:
            raise unavailable(resident, lost, [_NOWHERE] * len(lost))
        return self._fetcher.etag_of(resident, read), rows

    async def _extent(self, one: RowRange, request: ServedRequest) -> Extent | RangeFailed:
        """Return the number of rows of a range, from any replica that responds."""
        failure = RangeFailed("no replica is in sync")
        for turn in range(_ROUNDS):
            if turn:
                await asyncio.sleep(_PAUSE_S)
            for replica in self._fetcher.shards.choice.order(one.replicas, asyncio.get_running_loop().time()):
                if perf_counter() > request.deadline:
                    return failure
                answer = await self._asks.extent(one, replica, request)
                if isinstance(answer, Extent):
                    return answer
                failure = answer
        return failure

    async def after(self, resident: ShardedResident, changed: Mapping[str, int]) -> str:
        """Return the ETag of a table after a scatter that left the ranges in `changed` at these sequences."""
        reads = _probing(resident, changed.keys())
        if reads.requests:
            await self._fetch_soon([reads])
        return self._fetcher.etag_of(resident, {**(reads.read or {}), **changed})

    def known(self, resident: ShardedResident, changed: Mapping[str, int]) -> str:
        """Return the ETag of a table with the ranges in `changed` at these sequences, the others at the known ones."""
        return self._fetcher.etag_of(resident, changed)

    def now(self, resident: ShardedResident) -> str:
        """Return the ETag on which a change of the table depends.

        It counts every scatter acknowledged before this call.

        Blocks; call it from a thread. Raises shard_unavailable if a primary does not respond.
        """
        if not resident.version_in_map.is_open:
            return resident.etag
        assert self.loop is not None, "the service serves"
        asking: Future[str] = asyncio.run_coroutine_threadsafe(
            self.committed(resident, _request_of(BLOCKED_S)), self.loop
        )
        return asking.result()

    async def committed(self, resident: ShardedResident, request: ServedRequest) -> str:
        """Do the same as `now`, in the event loop and until the deadline of a request."""
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
        """Return the number of committed scatters of a range, from whichever primary it has before the deadline."""
        pauses, failure = self._asks.pauses(request.deadline), RangeFailed("the range has no primary")
        tensor, asked = resident.version_in_map.ranges[number].tensor, 0
        while True:
            one = self._newest(resident, tensor)
            if one is None or one.primary is None:  # the version was removed
                return self._fetcher.sequences.least(tensor)
            if one.primary.address:
                asked = one.primary.epoch
                answer = await self._asks.sequence(one, request)
                if not isinstance(answer, RangeFailed):
                    return answer
                failure = answer
            if not await pauses.wait(lambda: is_led_anew(self._newest(resident, tensor), asked)):  # noqa: B023
                return failure

    def _newest(self, resident: ShardedResident, tensor: str) -> RowRange | None:
        version = self._fetcher.shard_map.find_content(resident.version_in_map.content_id)
        return None if version is None else next((one for one in version.ranges if one.tensor == tensor), None)

    async def _fetch_soon(self, wanted: Sequence[TableReads]) -> Sequence[LostRange]:
        if wanted:
            try:
                return await self._fetcher.fetch(wanted, _request_of(SOON_S))
            except GatherError:
                pass
        return ()


def _probing(resident: ShardedResident, but: Collection[str] = ()) -> TableReads:
    """Return reads of the sequence of each open range, except those with tensors in `but`."""
    ranges = resident.version_in_map.ranges
    numbers = [number for number, one in enumerate(ranges) if one.primary is not None and one.tensor not in but]
    return TableReads(resident, probes(resident.version_in_map, numbers))


def _request_of(seconds: float) -> ServedRequest:
    now = perf_counter()
    return ServedRequest(now, now + seconds, MemoryReservation(_BUDGET))
