"""The driver of reads: a round that is due begins, whatever the clock says when its timer fires."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import perf_counter
from typing import Any, cast

import numpy as np
import pytest

from app.cluster.router.fetch_rows import RowFetcher, TableReads
from app.cluster.router.range_requests import Output, as_rows, row_requests
from app.cluster.router.sharded_tensors import ShardedResident
from app.cluster.router.shards import Shards
from app.cluster.shard_map import Replica, RowRange, ShardedTable, ShardedVersion, ShardMap
from app.errors import GatherError
from app.formats.safetensors.header import write_header
from app.memory.budget import UNCOUNTED
from app.tensors.dtypes import DTYPES
from tests.served import served

NOBODY = "127.0.0.1:1"
FLOAT = DTYPES["float32"]


class EarlyLoop(asyncio.SelectorEventLoop):
    """An event loop whose timers fire 3 ms before the time that they are set to, by its own clock."""

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> Any:  # type: ignore[override]
        return super().call_at(when - 0.003, callback, *args, context=context)


def map_of(address: str, generation: int, node: str = "") -> ShardMap:
    """Rows 0 to 9 in ranges of 5, at one address; with `node` as the map of a catalogue has it."""
    tensors = ("", "") if node else ("t.0@1", "t.5@1")
    ranges = tuple(
        RowRange(start, start + 5, tensor, (Replica(address, node),))
        for start, tensor in zip((0, 5), tensors, strict=True)
    )
    return ShardMap(generation, {"t": ShardedTable((ShardedVersion(1, "c", FLOAT, (10, 2), ranges),), 1)})


async def fetch(fetcher: RowFetcher, known: ShardMap, rows: list[int], seconds: float) -> tuple[list[int], Any]:
    """The numbers of the ranges that are lost of those that `rows` need, as `known` has them, and the output."""
    version = known.tables["t"].current
    out = np.zeros(2 * len(rows), np.uint32)
    output = Output(FLOAT, as_rows(out, 8), 2, UNCOUNTED, 1 << 20)
    requests = row_requests(version, np.array(rows, np.int64), (version.rows,), output, (2,))
    now = perf_counter()
    wanted = [TableReads(ShardedResident(known, "t", version), requests)]
    lost = await fetcher.fetch(wanted, served(None, now, now + seconds))
    return [one.number for one in lost], out.view(np.float32).reshape(-1, 2)


def fetched(loop: asyncio.AbstractEventLoop, rows: list[int], seconds: float) -> list[int]:
    """The ranges that are lost where nobody listens."""
    known = map_of(NOBODY, 1)

    async def work() -> list[int]:
        shards = Shards()
        lost, _ = await fetch(RowFetcher(shards, known, 1.0), known, rows, seconds)
        assert set(shards.get(NOBODY).outcomes) == {"refused"}
        shards.close()
        return lost

    try:
        return loop.run_until_complete(work())
    finally:
        loop.close()


class Shard(asyncio.Protocol):
    """Answers each request with rows of ones, and with `closes` ends the connection after an answer, as an idle one."""

    closes = False
    sequence: int | None = None
    """That of its rows; None for a shard that says of no content what it is of."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        length = int(data.split(b"content-length: ")[1].split(b"\r")[0])
        rows = (length - 8 - int.from_bytes(data[-length:][:8], "little")) // 8
        body = write_header("output", FLOAT, (rows, 2), 8 * rows) + np.ones(2 * rows, np.float32).tobytes()
        etag = b"" if self.sequence is None else b'x-gathernd-data-etag: "y-%d"\r\n' % self.sequence
        self.transport.write(b"HTTP/1.1 200 OK\r\n%bcontent-length: %d\r\n\r\n%b" % (etag, len(body), body))
        if self.closes:
            asyncio.get_running_loop().call_later(0.01, self.transport.close)


def test_a_request_that_began_with_an_older_map_finds_a_range_that_has_moved() -> None:
    async def work() -> None:
        server = await asyncio.get_running_loop().create_server(Shard, "127.0.0.1", 0)
        shards = Shards()
        newer = map_of(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", 2)
        lost, out = await fetch(RowFetcher(shards, newer, 1.0), map_of(NOBODY, 1), [3, 9, 4], 20.0)
        assert lost == []
        assert (out == 1).all()
        shards.close()
        server.close()

    asyncio.run(work())


def test_a_connection_that_the_shard_has_closed_as_idle_is_no_failure() -> None:
    class Closing(Shard):
        closes = True

    async def work() -> None:
        server = await asyncio.get_running_loop().create_server(Closing, "127.0.0.1", 0)
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        shards, known = Shards(), map_of(address, 1)
        fetcher = RowFetcher(shards, known, 1.0)
        for pause in (0.0, 0.0099, 0.01, 0.0101, 0.05, 0.0):
            assert (await fetch(fetcher, known, [1, 8], 20.0))[0] == []
            await asyncio.sleep(pause)
        assert shards.get(address).outcomes == {"ok": 12}
        end = perf_counter() + 60
        while shards.get(address).open and perf_counter() < end:  # noqa: ASYNC110  (nothing tells)
            await asyncio.sleep(0.01)
        assert (shards.get(address).open, shards.get(address).idle) == (0, [])
        shards.close()
        server.close()

    asyncio.run(work())


def test_rows_older_than_what_was_read_are_not_taken_though_the_map_has_no_scatters() -> None:
    """A router may learn of the first scatter to a table from a shard, before it learns from etcd."""

    class AtThree(Shard):
        sequence = 3

    class AtNone(Shard):
        sequence = 0

    async def work() -> None:
        loop = asyncio.get_running_loop()
        servers = [await loop.create_server(kind, "127.0.0.1", 0) for kind in (AtThree, AtNone)]
        first, second = (
            map_of(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", number, "a")
            for number, server in enumerate(servers, 1)
        )
        shards = Shards()
        fetcher = RowFetcher(shards, first, 1.0)
        resident = ShardedResident(first, "t", first.tables["t"].current)
        assert fetcher.etag_of(resident) == '"c-0"'
        assert (await fetch(fetcher, first, [1], 20.0))[0] == []
        assert fetcher.etag_of(resident) == '"c-3"'
        fetcher.use_map(second)
        assert (await fetch(fetcher, second, [1], 20.0))[0] == [0]
        assert (await fetch(fetcher, second, [7], 20.0))[0] == []
        shards.close()
        for server in servers:
            server.close()

    asyncio.run(work())


@pytest.mark.parametrize("make", [asyncio.SelectorEventLoop, EarlyLoop])
def test_all_rounds_are_tried_and_then_the_ranges_are_lost(make: Callable[[], asyncio.AbstractEventLoop]) -> None:
    begun = perf_counter()
    assert fetched(make(), [7, 8], 20.0) == [1]
    assert perf_counter() - begun < 19  # and not the whole deadline


def test_the_deadline_ends_the_rounds() -> None:
    with pytest.raises(GatherError, match="deadline_exceeded"):
        fetched(asyncio.SelectorEventLoop(), [1, 7], 0.02)
