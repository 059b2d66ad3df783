"""What a router learns from a primary's answer."""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import cast

import numpy as np
import pytest

from app.cluster.range_scatter import RangeScatter, RangeScattered, ScatterOrder
from app.cluster.router.ask_primary import PrimaryAsks
from app.cluster.router.fetch_rows import RowFetcher
from app.cluster.router.shards import Shards
from app.cluster.shard_map import Primary, RowRange, ShardMap
from app.tensors.dtypes import DTYPES
from tests.served import served


@pytest.mark.parametrize("is_repeated", [False, True])
def test_reads_after_an_acknowledged_scatter_are_not_older(*, is_repeated: bool) -> None:
    """Also after one that another router had made, or that is asked for again after a lost answer."""
    body = RangeScattered(7, 1, is_repeated).to_json()

    class Answering(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.transport = cast("asyncio.Transport", transport)

        def data_received(self, data: bytes) -> None:
            del data
            self.transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))

    async def work() -> None:
        server = await asyncio.get_running_loop().create_server(Answering, "127.0.0.1", 0)
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        shards = Shards()
        fetcher = RowFetcher(shards, ShardMap(), 1.0)
        one = RowRange(0, 4, "x.0-4", (), Primary("a", address, 1))
        order = ScatterOrder(1, DTYPES["int64"], 1, 1, "add", "key", "digest")
        now = perf_counter()
        answer = await PrimaryAsks(fetcher).ask(
            one, RangeScatter(order, np.zeros(1, np.int64), np.ones(1, np.int64)), served(None, now, now + 20)
        )
        assert answer == RangeScattered(7, 1, is_repeated)
        assert fetcher.sequences.lowest_accepted("x.0-4") == 7
        shards.close()
        server.close()

    asyncio.run(work())
