"""The ETags of tables that take scatters: what a change is judged by is what the primaries say."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

import pytest

from app.cluster.router import table_etags
from app.cluster.router.fetch_rows import RowFetcher
from app.cluster.router.sharded_tensors import ShardedResident
from app.cluster.router.shards import Shards
from app.cluster.router.table_etags import TableEtags
from app.cluster.shard_map import Primary, Replica, RowRange, ShardedTable, ShardedVersion, ShardMap
from app.errors import GatherError
from app.tensors.dtypes import DTYPES
from tests.cluster.answering import Handler, answering


class Shard(Handler):
    """Has committed so many scatters, of which its rows have 3. Without a number it is no primary."""

    committed: int | None = None

    def respond(self) -> None:
        self.read_body()
        if self.committed is None:
            self.answer(412, b'{"code": "precondition_failed", "detail": "this shard is not the primary"}')
            return
        body = b""
        if self.path.startswith("/shard/ranges/"):
            assert "confirmed=true" in self.path
            body = b'{"epoch": 2, "applied": %d, "last": %d}' % (self.committed, self.committed)
        self.answer(200, body, X_Gathernd_Data_ETag='"y-3"')


def judged(*committed: int | None) -> str:
    """The ETag that changes of a table are judged by: each range has its primary, and one more replica in sync at 3."""
    with ExitStack() as stack:
        kinds = [type("One", (Shard,), {"committed": number}) for number in (3, *committed)]
        other, *addresses = [stack.enter_context(answering(kind)) for kind in kinds]
        ranges = tuple(
            RowRange(4 * turn, 4 * turn + 4, "", (Replica(other, "b"),), Primary("a", address, 2))
            for turn, address in enumerate(addresses)
        )
        version = ShardedVersion(1, "x", DTYPES["int64"], (4 * len(ranges), 2), ranges)
        known = ShardMap(1, {"t": ShardedTable((version,))})

        async def work() -> str:
            shards = Shards()
            found = TableEtags(RowFetcher(shards, known, 2.0))
            found.loop = asyncio.get_running_loop()
            try:
                return await asyncio.to_thread(found.current_etag, ShardedResident(known, "t", version))
            finally:
                shards.close()

        return asyncio.run(work())


def test_a_change_is_judged_by_the_primaries_and_not_by_replicas_that_lag() -> None:
    assert judged(7, 4) == '"x-11"'


def test_no_replica_stands_in_for_a_primary_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_etags, "BLOCKED_S", 0.2)
    with pytest.raises(GatherError, match="shard_unavailable"):
        judged(7, None)
