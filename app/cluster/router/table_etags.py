"""The ETags of tables that take scatters, as they are now: each range is asked how far it is."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from time import perf_counter
from typing import Final

from app.cluster.router.fetch_rows import LostRange, RowFetcher, TableReads
from app.cluster.router.range_requests import probes
from app.cluster.router.shard_resources import NeedingPlaces, unavailable
from app.cluster.router.sharded_tensors import ShardedResident
from app.errors import GatherError
from app.memory.budget import Budget, MemoryReservation
from app.telemetry.served_request import ServedRequest

SOON_S: Final = 2.0
"""How long an answer that can do without waits for shards."""
_BLOCKED_S: Final = 10.0
_NOWHERE: Final = NeedingPlaces((), 0)
_BUDGET: Final = Budget(0)


class TableEtags:
    """Finds the ETags of tables by asking shards with `fetcher`, on one event loop."""

    def __init__(self, fetcher: RowFetcher) -> None:
        self._fetcher = fetcher
        self.loop: asyncio.AbstractEventLoop | None = None
        """The loop that `now` has it done on; set before it is called."""

    async def read(self, resident: ShardedResident, request: ServedRequest) -> str:
        """The ETag of a table. Raises shard_unavailable if a range does not answer, and deadline_exceeded."""
        reads = _probing(resident)
        if not reads.requests:
            return resident.etag
        lost = await self._fetcher.fetch([reads], request)
        if lost:
            raise unavailable(resident, lost, [_NOWHERE] * len(lost))
        return self._fetcher.etag_of(resident, reads.read)

    async def read_soon(self, residents: Sequence[ShardedResident]) -> list[str]:
        """The ETags of tables; a range that does not answer soon counts with the sequence that is known."""
        wanted = [one for one in map(_probing, residents) if one.requests]
        await self._fetch_soon(wanted)
        read = {id(one.resident): one.read for one in wanted}
        return [self._fetcher.etag_of(one, read.get(id(one))) for one in residents]

    async def after(self, resident: ShardedResident, changed: Mapping[str, int]) -> str:
        """The ETag of a table after a scatter that has left the ranges `changed` at these sequences."""
        reads = _probing(resident, changed.keys())
        if reads.requests:
            await self._fetch_soon([reads])
        return self._fetcher.etag_of(resident, {**(reads.read or {}), **changed})

    def now(self, resident: ShardedResident) -> str:
        """As `read`, from a thread."""
        if not resident.version_in_map.is_open:
            return resident.etag
        assert self.loop is not None, "the service serves"
        reading: Future[str] = asyncio.run_coroutine_threadsafe(self.read(resident, _request_of(_BLOCKED_S)), self.loop)
        return reading.result()

    async def _fetch_soon(self, wanted: Sequence[TableReads]) -> Sequence[LostRange]:
        if wanted:
            try:
                return await self._fetcher.fetch(wanted, _request_of(SOON_S))
            except GatherError:
                pass
        return ()


def _probing(resident: ShardedResident, but: Collection[str] = ()) -> TableReads:
    """Reads that say how far each open range is, but for those whose tensors are in `but`."""
    ranges = resident.version_in_map.ranges
    numbers = [number for number, one in enumerate(ranges) if one.primary is not None and one.tensor not in but]
    return TableReads(resident, probes(resident.version_in_map, numbers))


def _request_of(seconds: float) -> ServedRequest:
    now = perf_counter()
    return ServedRequest(now, now + seconds, MemoryReservation(_BUDGET))
