"""The rounds of a reconciler, whose catalogue and shards are made up: a change may arrive when nobody waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
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
from app.cluster.reconciler import failover, reconciler
from app.cluster.reconciler.cluster_view import HeldSegment
from app.cluster.reconciler.plan import Drop, Planner, Pull
from app.cluster.reconciler.reconciler import Reconciler
from app.cluster.reconciler.shard_calls import ShardCalls
from app.tensors.dtypes import DTYPES
from tests.cluster.catalogue.applying import CataloguesInMemory, stands
from tests.cluster.waiting import until

TENSOR = "x.0-10"
TURNS = 20
"""Turns of the event loop, more than a round out of office takes."""


class Catalogues(CataloguesInMemory):
    """While `is_silent`, changes of tables have no answer; they are in `late`."""

    def __init__(self, catalogue: Catalogue) -> None:
        super().__init__(catalogue)
        self.is_silent = False
        self.late: list[tuple[Catalogue, Change]] = []

    async def transact(self, transition: Transition) -> None:
        change = transition(self.catalogue)
        if change is not None and self.is_silent and "tables/items" in change.puts:
            self.late.append((self.catalogue, change))
            raise unavailable("etcd does not answer")
        self.commit(change)


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


def cluster(nodes: str = "ab") -> Catalogue:
    """Shards a to c, of which a is lost, and a table on `nodes`."""
    segment = Segment(0, 10, 40, tuple(nodes), "d")
    version = Version(1, "x", DTYPES["float32"], (10,), (segment,), 1, "", 40)
    records = {name: Node(f"{name}:80", 1000) for name in "abc"}
    table = Table((version,), 1, 1)
    return Catalogue(9, Options(), {"items": table}, {}, records, frozenset("bc"), revisions={"options": 1})


def run(one: Reconciler, work: Callable[[], Awaitable[None]]) -> None:
    """Do `work` while a reconciler runs."""

    async def running() -> None:
        task = asyncio.create_task(one.run())
        await work()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    asyncio.run(running())


def test_nothing_is_dropped_that_a_change_without_an_answer_may_still_list() -> None:
    """The change that lists shard c gets no answer. When c is drained, c drops its copy; then the change arrives."""
    catalogues = Catalogues(cluster())
    shards = Shards(b={TENSOR}, c=set())

    async def work() -> None:
        catalogues.is_silent = True
        await asyncio.to_thread(until, lambda: catalogues.late, "the flip has no answer")
        assert shards.held["c"] == {TENSOR}
        catalogues.commit(Change({"drained/c": Mark()}))
        await asyncio.to_thread(until, lambda: not shards.held["c"], "the copy is dropped")
        judged, change = catalogues.late[0]
        assert not stands(judged, change, catalogues.catalogue)

    run(Reconciler(catalogues, shards, planner=lambda: Planner(drop_after=0)), work)


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

    catalogues = Slow(replace(cluster("bc"), ranges={TENSOR: RangeRecord(1, "b", ("b", "c"))}))

    async def work() -> None:
        await asyncio.to_thread(until, lambda: catalogues.catalogue.ranges[TENSOR].primary == "c", "c is primary", 10)

    run(Reconciler(catalogues, Gone(b={TENSOR}, c={TENSOR})), work)


def test_it_ends_though_a_newer_catalogue_comes_in_the_same_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told to end while another reconciler is in office."""
    monkeypatch.setattr(reconciler, "REST", 0.0)
    monkeypatch.setattr(reconciler, "LEAST_REST_S", 0.0)
    catalogues = Catalogues(replace(cluster(), reconciler=Mark("other"), revisions={"reconciler": 1}))

    async def end() -> bool:
        running = asyncio.create_task(Reconciler(catalogues, Shards()).run())
        for _ in range(TURNS):
            await asyncio.sleep(0)
        catalogues.taken()
        running.cancel()
        for _ in range(TURNS):
            await asyncio.sleep(0)
        return running.done()

    assert asyncio.run(end())
