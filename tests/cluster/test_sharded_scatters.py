"""Scatters of a router whose etcd and shards are made up: what is told where they are silent, late or differ."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from threading import Event
from time import perf_counter
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from app.api.disk_threads import DiskThreads
from app.api.routes.tensors_scatter import ScatterOutcome, SentScatter
from app.catalogue.conditions import ALWAYS, Conditions
from app.cluster.catalogue.key_bindings import Binding
from app.cluster.range_scatter import RangeScatter, RangeScattered
from app.cluster.router.ask_primary import Pauses, PrimaryAsks, RangeFailed
from app.cluster.router.published_tensors import PublishedTensors
from app.cluster.router.sharded_scatters import ShardedScatters
from app.cluster.router.table_etags import Measured
from app.cluster.shard_map import Primary, RowRange, ShardedTable, ShardedVersion, ShardMap
from app.errors import GatherError
from app.telemetry.served_request import ServedRequest
from app.tensors.dtypes import DTYPES
from app.tensors.scatter_call import ScatterCall
from app.tensors.shape_limits import Limits
from app.tensors.tensor import Tensor
from tests.served import served

INT64 = DTYPES["int64"]


def map_of(ranges: int, *, is_open: bool = True) -> ShardMap:
    """A table of 12 rows."""
    primary = Primary("a", "a:1", 1) if is_open else None
    size = 12 // ranges
    parts = tuple(RowRange(at, at + size, f"x.{at}-{at + size}", (), primary) for at in range(0, 12, size))
    return ShardMap(1, {"t": ShardedTable((ShardedVersion(1, "x", INT64, (12,), parts),))})


class Asks(PrimaryAsks):
    """Primaries that answer what `answer` says of a range's tensor and the sequence that is asked for."""

    def __init__(self, answer: Callable[[str, int | None], RangeScattered]) -> None:
        self._answer = answer

    async def ask(self, one: RowRange, scatter: RangeScatter, request: ServedRequest) -> RangeScattered | RangeFailed:
        return self._answer(one.tensor, scatter.order.if_sequence)

    async def refresh_map(self) -> None:
        """There is none."""

    def pauses(self, deadline: float) -> Pauses:
        return Pauses(self, deadline)


class Tables(PublishedTensors):
    """Tables of a map; etcd does not answer, but for the key bindings."""

    def __init__(
        self, shard_map: ShardMap, read_etag: str = '"x-0"', binding: Binding | None = None, committed_etag: str = ""
    ) -> None:
        def refresh() -> None:
            raise OSError("etcd does not answer")

        client = SimpleNamespace(database=SimpleNamespace(gateway=None, prefix="p/"), refresh=refresh)
        super().__init__(cast("Any", client), cast("Any", None), Limits(), 1, cast("Any", None))
        self.use_map(shard_map)
        self.opened = 0
        self.answered = Event()
        self.answered_first = False
        self._binding = binding

        async def measure(residents: Any, request: object, changed: Any = None) -> list[Measured]:
            (version,) = (one.version_in_map for one in residents)
            etag = read_etag if changed is None else version.etag_at(sum(changed.values()))
            return [Measured(etag, [one.rows for one in version.ranges])]

        async def committed(resident: object, request: object) -> str:
            return committed_etag

        self.etags = cast("Any", SimpleNamespace(measure=measure, committed_etag=committed))

    async def bind(self, scope: str, key: str, content_id: str, digest: str) -> Binding:
        return self._binding or Binding(content_id, digest)

    def open_ranges(self, table: str, number: int) -> None:
        self.opened += 1
        self.answered_first = self.answered.wait(20)


def scatter(
    tables: Tables,
    answer: Callable[[str, int | None], RangeScattered],
    *,
    key: str | None = None,
    conditions: Conditions = ALWAYS,
    seconds: float = 1.0,
    rows: int = 12,
) -> ScatterOutcome:
    """Add 1 to the first rows, within some seconds."""
    updates = Tensor(INT64, (rows,), np.ones(rows, np.int64))
    call = ScatterCall(Tensor(INT64, (rows, 1), np.arange(rows)), updates, "add")

    async def work() -> ScatterOutcome:
        threads = DiskThreads()
        now = perf_counter()
        sent = SentScatter("t", lambda: (call, "d"), conditions, key)
        try:
            found = ShardedScatters(tables, Asks(answer), threads)
            return await found.carry_out(sent, served(None, now, now + seconds))
        finally:
            tables.answered.set()
            threads.shutdown()

    return asyncio.run(work())


def refused(code: str, *arguments: Any, **options: Any) -> GatherError:
    with pytest.raises(GatherError) as found:
        scatter(*arguments, **options)
    assert found.value.code == code
    return found.value


def test_a_content_is_gone_only_by_the_newest_catalogue() -> None:
    """The key is bound to a content that this router does not know: it may have been published just now."""
    tables = Tables(map_of(1), binding=Binding("published-just-now", "d"))
    refused("shard_unavailable", tables, lambda _, __: RangeScattered(1, 1), key="k")


def test_ranges_are_opened_once_for_all_parts_of_a_scatter_and_within_its_time() -> None:
    tables = Tables(map_of(6, is_open=False))
    error = refused("shard_unavailable", tables, lambda _, __: RangeScattered(1, 1), seconds=0.3)
    assert "unknown" in error.detail
    assert (tables.opened, tables.answered_first) == (1, True)


def test_a_condition_is_judged_by_the_primary_and_not_by_a_replica_that_is_behind() -> None:
    """The read was answered by a replica at 4, and the caller knows 5, by another router."""

    def primary(_: str, if_sequence: int | None) -> RangeScattered:
        return RangeScattered(6, 1) if if_sequence == 5 else RangeScattered(5, 1, refused=True)

    tables = Tables(map_of(1), read_etag='"x-4"')
    assert scatter(tables, primary, conditions=Conditions(match=('"x-5"',))).etag == '"x-6"'
    assert scatter(tables, primary, conditions=Conditions(none_match=('"x-4"',))).etag == '"x-6"'
    error = refused("precondition_failed", tables, primary, conditions=Conditions(match=('"x-4"',)))
    assert '"x-5"' in error.detail


def test_a_condition_of_a_scatter_without_updates_is_judged_by_the_primary() -> None:
    tables = Tables(map_of(1), read_etag='"x-4"', committed_etag='"x-5"')
    options: Any = {"rows": 0, "conditions": Conditions(match=('"x-5"',))}
    assert scatter(tables, lambda _, __: RangeScattered(9, 1), **options).ranges == 0
    refused("precondition_failed", tables, None, rows=0, conditions=Conditions(match=('"x-4"',)))


def test_an_error_tells_that_other_ranges_have_changed() -> None:
    def full(tensor: str, _: int | None) -> RangeScattered:
        if tensor == "x.8-12":
            return RangeScattered(1, 1)
        raise GatherError("insufficient_storage", f"there is no room for {tensor}")

    error = refused("insufficient_storage", Tables(map_of(3)), full)
    assert "1 of 3 row ranges" in error.detail

    def all_full(tensor: str, _: int | None) -> RangeScattered:
        raise GatherError("insufficient_storage", f"there is no room for {tensor}")

    assert refused("insufficient_storage", Tables(map_of(3)), all_full).detail == "there is no room for x.0-4"


def test_of_several_errors_the_one_counts_whose_outcome_is_not_known() -> None:
    def answer(tensor: str, _: int | None) -> RangeScattered:
        code: Any = "insufficient_storage" if tensor == "x.0-4" else "shard_unavailable"
        raise GatherError(code, tensor)

    refused("shard_unavailable", Tables(map_of(3)), answer)
