"""The rounds of a reconciler, whose catalogue and shards are made up: a change may arrive when nobody waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace

import pytest

from app.cluster.catalogue.client import Transition
from app.cluster.catalogue.records import (
    Catalogue,
    Change,
    Mark,
    Node,
    Options,
    RangeRecord,
    Segment,
    Table,
    Version,
)
from app.cluster.catalogue.transitions import unavailable
from app.cluster.reconciler import failover
from app.cluster.reconciler.catalogue_calls import CatalogueCalls
from app.cluster.reconciler.cluster_view import HeldSegment
from app.cluster.reconciler.plan import Drop, Planner, Pull
from app.cluster.reconciler.reconciler import Reconciler
from app.cluster.reconciler.shard_calls import ShardCalls
from app.tensors.dtypes import DTYPES
from tests.cluster.catalogue.applying import applied, stands
from tests.cluster.waiting import until

TENSOR = "x.0-10"


class Catalogues(CatalogueCalls):
    """A catalogue in memory. While `is_silent`, changes of tables have no answer; they are in `late`."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._now = catalogue
        self.taken: Callable[[], None] = lambda: None
        self.is_silent = False
        self.late: list[tuple[Catalogue, Change]] = []

    @property
    def catalogue(self) -> Catalogue:
        return self._now

    async def refresh(self) -> Catalogue:
        return self._now

    async def transact(self, transition: Transition) -> None:
        change = transition(self._now)
        if change is not None and self.is_silent and "tables/items" in change.puts:
            self.late.append((self._now, change))
            raise unavailable("etcd does not answer")
        self.commit(change)

    def commit(self, change: Change | None) -> None:
        self._now = applied(self._now, change)
        self.taken()


class Shards(ShardCalls):
    """Shards that do at once what they are asked to."""

    def __init__(self, **held: set[str]) -> None:
        self.held = held

    async def list(self, catalogue: Catalogue, node: str, fence: int | None = None) -> Mapping[str, HeldSegment]:
        return dict.fromkeys(self.held[node], HeldSegment(40, "d"))

    async def pull(self, catalogue: Catalogue, pull: Pull, fence: int) -> None:
        self.held[pull.node].add(pull.tensor)

    async def drop(self, catalogue: Catalogue, drop: Drop, fence: int) -> None:
        self.held[drop.node].discard(drop.tensor)


def cluster() -> Catalogue:
    """Shards a to c, of which a is lost, and a table on a and b."""
    segment = Segment(0, 10, 40, ("a", "b"), "d")
    version = Version(1, "x", DTYPES["float32"], (10,), (segment,), 1, "", 40)
    nodes = {name: Node(f"{name}:80", 1000) for name in "abc"}
    table = Table((version,), 1, 1)
    return Catalogue(9, Options(), {"items": table}, {}, nodes, frozenset("bc"), revisions={"options": 1})


def test_nothing_is_dropped_that_a_change_without_an_answer_may_still_list() -> None:
    """The change that lists shard c gets no answer. When c is drained, c drops its copy; then the change arrives."""

    async def run() -> None:
        catalogues = Catalogues(cluster())
        shards = Shards(b={TENSOR}, c=set())
        running = asyncio.create_task(Reconciler(catalogues, shards, planner=lambda: Planner(drop_after=0)).run())
        catalogues.is_silent = True
        await asyncio.to_thread(until, lambda: catalogues.late, "the flip has no answer")
        assert shards.held["c"] == {TENSOR}
        catalogues.commit(Change({"drained/c": Mark()}))
        await asyncio.to_thread(until, lambda: not shards.held["c"], "the copy is dropped")
        judged, change = catalogues.late[0]
        assert not stands(judged, change, catalogues.catalogue)
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running

    asyncio.run(run())


def test_a_primary_whose_process_is_gone_is_replaced_in_a_quiet_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing changes in the catalogue after this reconciler has come into office."""
    monkeypatch.setattr(failover, "PROBE_S", 0.02)
    monkeypatch.setattr(failover, "GONE_AFTER_S", 0.1)

    class Slow(Catalogues):
        """A change is known before its answer is."""

        async def transact(self, transition: Transition) -> None:
            await super().transact(transition)
            await asyncio.sleep(0.05)

    class Gone(Shards):
        async def refuses(self, catalogue: Catalogue, node: str) -> bool:
            return node == "b"

    async def run() -> None:
        nodes = frozenset("bc")
        segment = Segment(0, 10, 40, ("b", "c"), "d")
        table = Table((Version(1, "x", DTYPES["float32"], (10,), (segment,), 1, "", 40),), 1, 1)
        ranges = {TENSOR: RangeRecord(1, "b", ("b", "c"))}
        catalogues = Slow(replace(cluster(), tables={"items": table}, alive=nodes, ranges=ranges))
        running = asyncio.create_task(Reconciler(catalogues, Gone(b={TENSOR}, c={TENSOR})).run())
        await asyncio.to_thread(until, lambda: catalogues.catalogue.ranges[TENSOR].primary == "c", "c is primary", 10)
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running

    asyncio.run(run())
