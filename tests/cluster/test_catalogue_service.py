"""What the workers of a router make of the catalogue: newer maps, the key of shards, and each other's changes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest

from app.catalogue.aliases import AliasMove
from app.catalogue.records import Alias
from app.cluster.catalogue import transitions
from app.cluster.catalogue.client import CatalogueClient
from app.cluster.catalogue.records import Change, Node, Options, Segment, Table, Version
from app.cluster.router.catalogue_service import CatalogueService
from app.cluster.router.router_files import RouterFiles
from app.store import LocalStore
from app.telemetry.shared_counters import CounterGroup, join
from app.tensors.dtypes import DTYPES
from app.tensors.shape_limits import Limits
from tests.cluster.clustered import catalogue_client
from tests.cluster.databases import RunningDatabase, running_database
from tests.cluster.waiting import until

NO_FILES = RouterFiles(None, None, None)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[RunningDatabase]:
    """With a table `t` of 39 versions."""
    with running_database(tmp_path / "database") as running, catalogue_client(running) as client:
        versions = tuple(
            Version(number, f"c{number}", DTYPES["float32"], (5,), (Segment(0, 5, 20, ("a",)),), 1, "", 20)
            for number in range(1, 40)
        )
        table = Table(versions, 39, 1)
        client.transact(
            lambda _: Change({"options": Options(key="first"), "nodes/a": Node("127.0.0.1:1", 1), "tables/t": table})
        )
        yield running


@pytest.fixture
def client(database: RunningDatabase) -> Iterator[CatalogueClient]:
    """Another process that changes the catalogue."""
    with catalogue_client(database) as found:
        yield found


@pytest.fixture
def workers(database: RunningDatabase, tmp_path: Path) -> Iterator[list[CatalogueService]]:
    """Two workers of one router, each with a loop of its own."""
    group = CounterGroup(2)
    found = []
    for number in range(2):
        spool = LocalStore(tmp_path / str(number), Limits()).upload
        counters = join(group.fd, number)
        one = CatalogueService(database.connect(), 1.0, Limits(), 1, spool, NO_FILES, counters)
        one.connect()
        found.append(one)
    ends = Event()

    def run(one: CatalogueService) -> None:
        async def work() -> None:
            watching = asyncio.create_task(one.watch())
            await asyncio.to_thread(ends.wait, 60)
            watching.cancel()
            await asyncio.wait((watching,))
            await one.close()

        asyncio.run(work())

    with ThreadPoolExecutor(2) as pool:
        running = [pool.submit(run, one) for one in found]
        yield found
        ends.set()
        for work in running:
            work.result(60)


def test_a_router_waits_until_the_cluster_is_set_up(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with running_database(tmp_path / "database") as running, catalogue_client(running) as client:
        spool = LocalStore(tmp_path, Limits()).upload
        service = CatalogueService(running.connect(), 1.0, Limits(), 1, spool, NO_FILES)
        with ThreadPoolExecutor(1) as pool:
            connecting = pool.submit(service.connect)
            until(lambda: "gathernd cluster init" in caplog.text, "it says what it waits for")
            assert not connecting.done()
            client.transact(lambda _: Change({"options": Options()}))
            connecting.result(60)
        asyncio.run(service.close())


def test_the_key_that_the_catalogue_says_is_that_of_requests_to_shards(
    workers: list[CatalogueService], client: CatalogueClient
) -> None:
    service = workers[0]
    assert service.fetcher.fields == b"authorization: Bearer first\r\n"
    client.transact(lambda found: Change({"options": replace(found.options, key="second")}))
    until(lambda: service.fetcher.fields == b"authorization: Bearer second\r\n", "the key is taken")
    until(lambda: service.tables.shard_map.generation == client.catalogue.revision, "and the map")


def test_what_one_worker_has_acknowledged_all_workers_of_the_router_serve(workers: list[CatalogueService]) -> None:
    tables = [one.tables for one in workers]
    for number in range(1, 31):
        one, other = tables if number % 2 else reversed(tables)
        one.delete(f"t@{number}")
        assert other.get(f"t@{number}") is None
        assert other.version_numbers("t")[0] == number + 1


def test_an_alias_that_already_names_the_version_is_acknowledged_when_all_workers_know_it(
    workers: list[CatalogueService], client: CatalogueClient
) -> None:
    """Another router has moved it."""
    client.transact(lambda _: transitions.put_aliases([Alias("live", "t", 2, '"etag"', 1, 1)]))
    ((_, is_new),) = workers[0].tables.put_aliases([AliasMove("live", "t@2")])
    assert not is_new
    assert workers[1].tables.resolve("live") == "t@2"
