"""Downloads of tables that take scatters, whose later ranges wait while the client reads the ones before."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from time import perf_counter

import pytest

from app.cluster.router import table_snapshot
from app.cluster.router.fetch_rows import RowFetcher
from app.cluster.router.sharded_tensors import ShardedResident
from app.cluster.router.shards import Shards
from app.cluster.router.table_snapshot import TableSnapshots
from app.cluster.shard_map import Primary, Replica, RowRange, ShardedTable, ShardedVersion, ShardMap
from app.tensors.dtypes import DTYPES
from tests.served import served

ROWS = 1 << 24
PIECE = 1 << 16


class Shard:
    """Answers a download with rows that are all `value`, as fast as they are taken."""

    def __init__(self, value: int) -> None:
        self.piece = bytes([value]) * PIECE
        self.sent = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b'HTTP/1.1 200 OK\r\netag: "y-7"\r\ncontent-length: %d\r\nx-gathernd-shape: 1\r\n\r\n' % ROWS)
        while self.sent < ROWS:
            writer.write(self.piece)
            await writer.drain()
            self.sent += PIECE
        writer.close()

    async def is_stuck(self) -> None:
        """Wait until nobody takes more."""
        before = -1
        while before != self.sent:
            before = self.sent
            await asyncio.sleep(0.2)


def test_a_range_that_waits_is_read_a_little_so_that_its_shard_does_not_give_it_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(table_snapshot, "TOUCH_S", 0.0)

    async def work() -> None:
        made = [Shard(1), Shard(2)]
        async with AsyncExitStack() as stack:
            ranges = []
            for number, one in enumerate(made):
                server = await asyncio.start_server(one.serve, "127.0.0.1", 0)
                stack.callback(server.close)
                address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
                bounds = number * ROWS, (number + 1) * ROWS
                ranges.append(RowRange(*bounds, "", (Replica(address, "a"),), Primary("a", address, 2)))
            version = ShardedVersion(1, "x", DTYPES["uint8"], (2 * ROWS,), tuple(ranges))
            known = ShardMap(1, {"t": ShardedTable((version,))})
            shards = Shards()
            stack.callback(shards.close)
            opening = TableSnapshots(RowFetcher(shards, known, 2.0))
            now = perf_counter()
            found = await opening.open(ShardedResident(known, "t", version), 0, 2 * ROWS, served(None, now, now + 60))
            stack.callback(found.close)
            assert found.etag == '"x-14"'
            await made[1].is_stuck()
            waited, came = made[1].sent, bytearray()
            assert waited < ROWS
            async for piece in found.pieces:
                came += piece
                if len(came) == ROWS:
                    await made[1].is_stuck()
                    assert waited < made[1].sent
            assert came == b"\1" * ROWS + b"\2" * ROWS

    asyncio.run(work())
