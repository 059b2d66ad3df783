"""Failover: which primaries count as lost, by the catalogue and by real connections to shards that are made up."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterator
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
    Record,
    Segment,
    Table,
    Version,
)
from app.cluster.catalogue.transitions import mark_lost
from app.cluster.reconciler import failover
from app.cluster.reconciler.failover import Failover
from app.cluster.reconciler.shard_calls import ShardCalls
from app.tensors.dtypes import DTYPES
from tests.cluster.catalogue.applying import CataloguesInMemory, applied
from tests.cluster.waiting import until

NODES = "abc"
RANGES = 150


class Catalogues(CataloguesInMemory):
    """With RANGES ranges on a, b and c, whose primary is a."""

    def __init__(self, addresses: dict[str, str]) -> None:
        segments = tuple(Segment(row, row + 1, 4, tuple(NODES), "d") for row in range(RANGES))
        version = Version(1, "x", DTYPES["float32"], (RANGES,), segments, 1, "", 4 * RANGES)
        records: dict[str, Record | None] = {"options": Options(), "reconciler": Mark("me")}
        records |= {f"nodes/{node}": Node(address, 1000) for node, address in addresses.items()}
        records |= {f"alive/{node}": Mark() for node in NODES} | {"tables/items": Table((version,), 1, 1, 3)}
        records |= {f"ranges/x.{row}-{row + 1}": RangeRecord(2, "a", tuple(NODES)) for row in range(RANGES)}
        super().__init__(applied(Catalogue(), Change(records)))

    def commit(self, change: Change | None) -> None:
        assert change is None or len(change.puts) <= 100
        super().commit(change)

    @property
    def records(self) -> set[tuple[str, tuple[str, ...]]]:
        return {(one.primary, one.in_sync) for one in self.catalogue.ranges.values()}


@pytest.fixture
def listeners(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, socket.socket]]:
    """Where the shards listen, which take no connection from their queues."""
    monkeypatch.setattr(failover, "PROBE_S", 0.02)
    monkeypatch.setattr(failover, "GONE_AFTER_S", 0.1)
    found = {node: socket.create_server(("127.0.0.1", 0), backlog=512) for node in NODES}
    yield found
    for one in found.values():
        one.close()


def run(
    listeners: dict[str, socket.socket],
    work: Callable[[Catalogues, Failover], Awaitable[None]],
    *,
    is_in_office: bool = True,
) -> None:
    async def running() -> None:
        catalogues = Catalogues({node: f"127.0.0.1:{one.getsockname()[1]}" for node, one in listeners.items()})
        async with ShardCalls() as shards:
            found = Failover(catalogues, shards, lambda _: is_in_office)
            catalogues.taken = found.wake
            task = asyncio.create_task(found.run())
            await work(catalogues, found)
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    asyncio.run(running())


async def comes(look: Callable[[], bool], what: str) -> None:
    await asyncio.to_thread(until, look, what)


def test_a_primary_whose_process_is_gone_is_replaced_while_its_lease_lasts(
    listeners: dict[str, socket.socket],
) -> None:
    async def work(catalogues: Catalogues, found: Failover) -> None:
        await asyncio.sleep(0.3)
        assert catalogues.records == {("a", tuple(NODES))}
        listeners["a"].close()
        await comes(lambda: catalogues.records == {("b", tuple(NODES))}, "b is primary")
        assert catalogues.catalogue.alive == set(NODES)
        assert found.count == RANGES
        assert {one.epoch for one in catalogues.catalogue.ranges.values()} == {3}

    run(listeners, work)


def test_a_primary_whose_lease_has_ended_is_replaced_also_after_an_error_that_nobody_thought_of(
    listeners: dict[str, socket.socket], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(catalogues: Catalogues, _: Failover) -> None:
        transact, errors = catalogues.transact, [ValueError("odd")]

        async def failing(transition: Transition) -> None:
            if errors:
                raise errors.pop()
            await transact(transition)

        monkeypatch.setattr(catalogues, "transact", failing)
        catalogues.commit(mark_lost(catalogues.catalogue, "a"))
        await comes(lambda: catalogues.records == {("b", tuple(NODES))}, "b is primary")
        assert "odd" in caplog.text

    run(listeners, work)


def test_one_refusal_and_silence_do_not_make_a_shard_lost(
    listeners: dict[str, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failover, "GONE_AFTER_S", 3600.0)

    async def work(catalogues: Catalogues, _: Failover) -> None:
        listeners["a"].close()
        await asyncio.sleep(0.3)
        assert catalogues.records == {("a", tuple(NODES))}

    run(listeners, work)


def test_a_shard_that_is_gone_as_well_does_not_become_primary(listeners: dict[str, socket.socket]) -> None:
    async def work(catalogues: Catalogues, _: Failover) -> None:
        listeners["b"].close()
        await asyncio.sleep(0.3)
        assert catalogues.records == {("a", tuple(NODES))}, "its rows are as they were"
        listeners["a"].close()
        await comes(lambda: catalogues.records == {("c", tuple(NODES))}, "c is primary")

    run(listeners, work)


def test_out_of_office_nothing_is_done(listeners: dict[str, socket.socket]) -> None:
    async def work(catalogues: Catalogues, _: Failover) -> None:
        listeners["a"].close()
        catalogues.commit(mark_lost(catalogues.catalogue, "a"))
        await asyncio.sleep(0.3)
        assert catalogues.records == {("a", tuple(NODES))}

    run(listeners, work, is_in_office=False)


def test_what_is_judged_in_office_is_not_made_out_of_it() -> None:
    catalogue = Catalogues(dict.fromkeys(NODES, "a:1")).catalogue
    transition = failover.only_as_leader(lambda at: mark_lost(at, "a"), lambda at: at.reconciler == Mark("me"))
    made = transition(catalogue)
    assert made is not None
    assert "reconciler" in made.unchanged
    assert transition(replace(catalogue, reconciler=Mark("other"))) is None
