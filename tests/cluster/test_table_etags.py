"""The ETags of tables that take scatters: what a change is judged by is what the primaries say."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import cast

import pytest

from app.cluster.router import table_etags
from app.cluster.router.fetch_rows import RowFetcher
from app.cluster.router.sharded_tensors import ShardedResident
from app.cluster.router.shards import Shards
from app.cluster.router.table_etags import TableEtags
from app.cluster.shard_map import Primary, Replica, RowRange, ShardedTable, ShardedVersion, ShardMap
from app.errors import GatherError
from app.tensors.dtypes import DTYPES

INT64 = DTYPES["int64"]
Answer = Callable[[bytes], tuple[int, bytes]]
"""The status and the body that answer the first line of a request."""


READ = 3
"""The sequence of all rows that are read."""


def led(committed: int) -> Answer:
    """A primary that has committed so many scatters."""

    def answer(line: bytes) -> tuple[int, bytes]:
        if line.startswith(b"GET /shard/ranges/"):
            assert b"confirmed=true" in line
            return 200, b'{"epoch": 2, "applied": %d, "last": %d}' % (committed, committed)
        return 200, b""

    return answer


def refusing(line: bytes) -> tuple[int, bytes]:
    del line
    return 412, b'{"code": "precondition_failed", "detail": "this shard is not the primary"}'


class Serving(asyncio.Protocol):
    def __init__(self, answer: Answer) -> None:
        self.answer = answer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        status, body = self.answer(data.partition(b"\r\n")[0])
        head = b'HTTP/1.1 %d X\r\nx-gathernd-data-etag: "y-%d"\r\ncontent-length: %d\r\n\r\n'
        self.transport.write(head % (status, READ, len(body)) + body)


def judged(replica: Answer, *primaries: Answer) -> str:
    """The ETag that changes of a table are judged by: each range has its primary, and one more replica in sync."""

    async def serve(stack: AsyncExitStack, answer: Answer) -> str:
        server = await asyncio.get_running_loop().create_server(lambda: Serving(answer), "127.0.0.1", 0)
        stack.callback(server.close)
        return f"127.0.0.1:{server.sockets[0].getsockname()[1]}"

    async def work() -> str:
        async with AsyncExitStack() as stack:
            other = await serve(stack, replica)
            addresses = [await serve(stack, one) for one in primaries]
            ranges = tuple(
                RowRange(4 * turn, 4 * turn + 4, "", (Replica(other, "b"),), Primary("a", address, 2))
                for turn, address in enumerate(addresses)
            )
            version = ShardedVersion(1, "x", INT64, (4 * len(ranges), 2), ranges)
            known = ShardMap(1, {"t": ShardedTable((version,))})
            shards = Shards()
            stack.callback(shards.close)
            found = TableEtags(RowFetcher(shards, known, 2.0))
            found.loop = asyncio.get_running_loop()
            told: Awaitable[str] = asyncio.to_thread(found.current_etag, ShardedResident(known, "t", version))
            return await told

    return asyncio.run(work())


def test_a_change_is_judged_by_the_primaries_and_not_by_replicas_that_lag() -> None:
    assert judged(led(3), led(7), led(4)) == '"x-11"'


def test_no_replica_stands_in_for_a_primary_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_etags, "BLOCKED_S", 0.2)
    with pytest.raises(GatherError, match="shard_unavailable"):
        judged(led(3), led(7), refusing)
