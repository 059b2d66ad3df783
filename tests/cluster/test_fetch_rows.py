"""The driver of reads: a round that is due begins, whatever the clock says when its timer fires."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np
import pytest

from app.cluster.fetch_rows import RowFetcher, TableReads
from app.cluster.range_requests import Output, as_rows, row_requests
from app.cluster.shard_map import Replica, RowRange, ShardedTable, ShardedVersion, ShardMap
from app.cluster.shards import Shards
from app.errors import GatherError
from app.telemetry.server_timing import RequestTimings
from app.tensors.dtypes import DTYPES

NOBODY = "127.0.0.1:1"
FLOAT = DTYPES["float32"]


class EarlyLoop(asyncio.SelectorEventLoop):
    """An event loop whose timers fire 3 ms before the time that they are set to, by its own clock."""

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> Any:  # type: ignore[override]
        return super().call_at(when - 0.003, callback, *args, context=context)


def fetched(loop: asyncio.AbstractEventLoop, rows: list[int], seconds: float) -> list[int]:
    """The ranges that are lost, of rows 0 to 9 in ranges of 5, each at an address where nobody listens."""
    ranges = tuple(RowRange(start, start + 5, f"t.{start}@1", (Replica(NOBODY),)) for start in (0, 5))
    version = ShardedVersion(1, "c", FLOAT, (10, 2), ranges)
    shard_map = ShardMap(1, {"t": ShardedTable((version,), 1)})

    async def work() -> list[int]:
        shards = Shards()
        fetcher = RowFetcher(shards, shard_map, 1.0)
        out = np.empty(2 * len(rows), np.uint32)
        output = Output(FLOAT, as_rows(out, 8), 2, lambda _: None, 1 << 20)
        requests = row_requests(version, np.array(rows, np.int64).reshape(-1, 1), output, (2,))
        now = perf_counter()
        wanted = [TableReads("t", version, {request.number: request for request in requests})]
        lost = await fetcher.fetch(wanted, RequestTimings(now, now + seconds))
        assert shards.down == {NOBODY}
        shards.close()
        return [one.number for one in lost]

    try:
        return loop.run_until_complete(work())
    finally:
        loop.close()


@pytest.mark.parametrize("make", [asyncio.SelectorEventLoop, EarlyLoop])
def test_all_rounds_are_tried_and_then_the_ranges_are_lost(make: Callable[[], asyncio.AbstractEventLoop]) -> None:
    begun = perf_counter()
    assert fetched(make(), [7, 8], 20.0) == [1]
    assert perf_counter() - begun < 10


def test_the_deadline_ends_the_rounds() -> None:
    with pytest.raises(GatherError, match="deadline_exceeded"):
        fetched(asyncio.SelectorEventLoop(), [1, 7], 0.02)
