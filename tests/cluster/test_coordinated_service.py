"""What a router makes of a coordinator that begins anew: a newer map, and with it perhaps another key."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Event
from time import monotonic

import pytest

from app.cluster.coordinator.message_json import message_from_json, message_to_json
from app.cluster.coordinator.messages import Change, Changed, MapAnswer, MapRequest
from app.cluster.router.router_files import RouterFiles
from app.cluster.router.sharded_service import CoordinatedService, RoutedTables
from app.cluster.router.sharded_tensors import ShardedTensors
from app.cluster.shard_map import Replica, RowRange, ShardedTable, ShardedVersion, ShardMap
from app.store import LocalStore
from app.telemetry.shared_counters import CounterGroup, join, unshared_counters
from app.tensors.dtypes import DTYPES
from app.tensors.shape_limits import Limits

NO_FILES = RouterFiles(None, None, None)


class Link:
    """A link to a coordinator with an empty map."""

    def __init__(self) -> None:
        self.generation = 1
        self.its_key = "first"

    def exchange(self, sender: str, texts: Sequence[bytes], wait_s: float) -> list[bytes]:
        (asked,) = map(message_from_json, texts)
        assert isinstance(asked, MapRequest)
        is_newer = self.generation > asked.known
        return [message_to_json(MapAnswer(ShardMap(self.generation)))] if is_newer else []

    def key(self) -> str | None:
        return self.its_key

    def close(self) -> None:
        pass


def test_the_key_of_a_cluster_that_was_started_anew_is_taken(tmp_path: Path) -> None:
    link = Link()
    service = CoordinatedService(link, 1.0, Limits(), 1, LocalStore(tmp_path, Limits()).upload, NO_FILES)
    service.connect()
    assert service.routed.fetcher.fields == b"authorization: Bearer first\r\n"
    link.its_key, link.generation = "second", 2
    asyncio.run(service._ask())
    assert service.routed.fetcher.fields == b"authorization: Bearer second\r\n"
    assert service.routed.tables.shard_map.generation == 2
    service.close()


class ChangingLink:
    """A link to a coordinator that removes a version of the table `t` each time it is asked to change something."""

    def __init__(self) -> None:
        replica = (Replica("127.0.0.1:1"),)
        versions = [
            ShardedVersion(number, f"c{number}", DTYPES["float32"], (5,), (RowRange(0, 5, f"t@{number}", replica),))
            for number in range(1, 40)
        ]
        self.maps = [
            ShardMap(generation, {"t": ShardedTable(tuple(versions[generation - 1 :]), 39)})
            for generation in range(1, 39)
        ]
        self.current = self.maps[0]

    def exchange(self, sender: str, texts: Sequence[bytes], wait_s: float) -> list[bytes]:
        (asked,) = map(message_from_json, texts)
        if isinstance(asked, Change):
            self.current = self.maps[self.current.generation]
            return [message_to_json(Changed(asked.request_id, self.current))]
        assert isinstance(asked, MapRequest)
        return [message_to_json(MapAnswer(self.current))] if self.current.generation > asked.known else []

    def key(self) -> str | None:
        return None

    def close(self) -> None:
        pass


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[list[CoordinatedService]]:
    """Two workers of one router, each with a loop of its own."""
    link, group = ChangingLink(), CounterGroup(2)
    found = []
    for number in range(2):
        spool = LocalStore(tmp_path / str(number), Limits()).upload
        one = CoordinatedService(link, 1.0, Limits(), 1, spool, NO_FILES, join(group.fd, number))
        one.connect()
        found.append(one)
    ends = Event()

    def run(one: CoordinatedService) -> None:
        async def work() -> None:
            watching = asyncio.create_task(one.watch())
            await asyncio.to_thread(ends.wait, 60)
            watching.cancel()
            await asyncio.wait((watching,))
            one.close()

        asyncio.run(work())

    with ThreadPoolExecutor(2) as pool:
        running = [pool.submit(run, one) for one in found]
        yield found
        ends.set()
        for work in running:
            work.result(10)


def test_what_one_worker_has_acknowledged_all_workers_of_the_router_serve(workers: list[CoordinatedService]) -> None:
    tables = [one.routed.tables for one in workers]
    for number in range(1, 31):
        one, other = tables if number % 2 else reversed(tables)
        one.delete(f"t@{number}")
        assert other.get(f"t@{number}") is None
        assert other.version_numbers("t")[0] == number + 1


def test_an_alias_that_already_names_the_version_is_acknowledged_when_all_workers_know_it(
    workers: list[CoordinatedService],
) -> None:
    """Another router has moved it, and only the worker that is asked has heard of that."""
    link = workers[0]._link
    assert isinstance(link, ChangingLink)
    link.current = replace(link.maps[1], aliases={"live": "t@2"})
    workers[0]._use_on_loop(link.current)
    _, is_new = workers[0].routed.tables.put_alias("live", "t@2")
    assert not is_new
    assert workers[1].routed.tables.resolve("live") == "t@2"


def test_a_worker_that_hangs_does_not_keep_the_others_from_their_changes(
    workers: list[CoordinatedService], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("app.cluster.router.sharded_service._WORKERS_S", 0.1)

    async def hangs() -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(workers[1], "_ask", hangs)
    workers[0].routed.tables.delete("t@1")
    assert workers[0].routed.tables.get("t@1") is None
    assert "may be 0.5 s late" in caplog.text


def test_a_worker_that_has_ended_is_not_waited_for(
    workers: list[CoordinatedService], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.cluster.router.sharded_service._WORKERS_S", 200.0)
    workers[1].close()
    begun = monotonic()
    workers[0].routed.tables.delete("t@1")
    assert monotonic() - begun < 100


def test_a_shard_that_leaves_the_map_and_comes_back_is_counted_on() -> None:
    address = "127.0.0.1:1"
    ranges = (RowRange(0, 5, "t@1", (Replica(address),)),)
    version = ShardedVersion(1, "c", DTYPES["float32"], (5,), ranges)
    full = {"t": ShardedTable((version,), 1)}
    routed = RoutedTables(ShardedTensors(ShardMap(1, full)), 1.0, None)
    counted: dict[str, float] = {}

    def add(name: str, number: float) -> None:
        counted[name] = counted.get(name, 0.0) + number

    async def work() -> None:
        counting = asyncio.create_task(routed.count(add))
        for generation, number in ((2, 7), (3, 0), (4, 3)):
            routed.use_map(ShardMap(generation, full if number else {}))
            if number:
                routed.shards.get(address).outcomes["ok"] = number
            await asyncio.sleep(0.03)
        counting.cancel()

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("app.cluster.router.sharded_service.COUNT_INTERVAL_S", 0.01)
        asyncio.run(work())
    assert counted == {f"gathernd_shard_requests|{address}|ok": 10.0}


def test_shards_with_long_addresses_are_counted_each_by_itself() -> None:
    """As the pods of Kubernetes may have: a name of DNS has up to 253 characters."""
    host = ".".join(["shards-of-the-recommendations" * 2] * 4)
    addresses = [f"{host}:{port}" for port in (8080, 8081)]
    ranges = (RowRange(0, 5, "t@1", tuple(map(Replica, addresses))),)
    shard_map = ShardMap(1, {"t": ShardedTable((ShardedVersion(1, "c", DTYPES["float32"], (5,), ranges),), 1)})
    counters = unshared_counters()

    async def work() -> None:
        routed = RoutedTables(ShardedTensors(shard_map), 1.0, None)
        for number, address in enumerate(addresses, 1):
            routed.shards.get(address).outcomes["starting"] = number
        counting = asyncio.create_task(routed.count(counters.add))
        await asyncio.sleep(0.03)
        assert not counting.done(), counting.exception()
        counting.cancel()

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("app.cluster.router.sharded_service.COUNT_INTERVAL_S", 0.01)
        asyncio.run(work())
    counted = {name.split("|")[1]: number for name, number in counters.totals().items()}
    assert sorted(counted.values()) == [1.0, 2.0]
    assert all(name.startswith(host[:100]) and len(name) <= 128 for name in counted), counted


def test_a_lookup_in_a_thread_that_meets_a_newer_map_leaves_nothing_of_the_older_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    version = ShardedVersion(1, "c", DTYPES["float32"], (5,), (RowRange(0, 5, "t@1", (Replica("127.0.0.1:1"),)),))
    older = ShardMap(1, {"t": ShardedTable((version,), 1)}, {"live": "t@1"})
    tables = ShardedTensors(older)
    real = ShardMap.find

    def find(self: ShardMap, reference: str) -> tuple[str, ShardedVersion] | None:
        """The table is removed, with its alias, just when the older map has been asked."""
        found = real(self, reference)
        tables.use_map(ShardMap(2))
        return found

    for reference in ("t", "t@1", "live"):
        tables.use_map(older)
        with monkeypatch.context() as patch:
            patch.setattr(ShardMap, "find", find)
            tables.get(reference)
        assert tables.get(reference) is None
