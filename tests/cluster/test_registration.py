"""A shard registers itself in the catalogue, and is there for as long as it runs."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from app import __version__
from app.cluster.catalogue.client import CatalogueClient
from app.cluster.catalogue.etcd import Database
from app.cluster.catalogue.records import Catalogue, Change, Node, Options
from app.cluster.catalogue.transitions import mark_lost
from app.cluster.shard.registration import Registration, capacity_of
from app.cluster.shard.shard_folder import ShardFolder
from app.settings import Settings
from app.shard_from_settings import keep_options, wait_for_cluster_key
from tests.cluster.databases import RunningDatabase, running_database
from tests.cluster.shard_nodes import KEY, address_of, client_of, segments
from tests.cluster.waiting import until
from tests.http.server import serving

NODE = Node("127.0.0.1:1000", 1 << 30)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[RunningDatabase]:
    with running_database(tmp_path / "database") as found:
        yield found


@pytest.fixture
def client(running: RunningDatabase) -> Iterator[CatalogueClient]:
    database = running.connect()
    yield CatalogueClient(database)
    database.close()


@contextmanager
def registering(
    database: Database,
    name: str,
    node: Node,
    lock: Path,
    take: Callable[[Catalogue], object] = lambda _: None,
    tell: Callable[[str], object] = lambda _: None,
) -> Iterator[Registration]:
    client, stop = CatalogueClient(database), Event()
    registration = Registration(client, name, lambda: node, lock, take, tell)
    Thread(target=client.watch, args=(stop,), daemon=True).start()
    thread = Thread(target=registration.run, args=(lambda: True, stop))
    thread.start()
    yield registration
    stop.set()
    thread.join(60)


def test_a_shard_that_was_given_up_comes_back(
    running: RunningDatabase, client: CatalogueClient, tmp_path: Path
) -> None:
    own = running.connect(lease_seconds=1)
    with registering(own, "a", NODE, tmp_path / "lock"):
        until(lambda: client.refresh().alive, "it is registered")
        before = client.refresh().revisions["alive/a"]
        client.transact(lambda at: mark_lost(at, "a") if at.revisions.get("alive/a") == before else None)
        until(lambda: client.refresh().revisions.get("alive/a", before) > before, "it is registered again")
        lease = own.lease
        assert lease is not None
        lease.mark_lost()
        until(lambda: own.lease is not lease and client.refresh().alive == {"a"}, "it has another lease")
        running.stop()
        running.begin()
        until(lambda: client.refresh().alive == {"a"}, "it is there after a loss of the database")
    own.close()


def test_one_worker_of_several_registers(running: RunningDatabase, client: CatalogueClient, tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    first, second = running.connect(), running.connect()
    with ExitStack() as stack:
        with registering(first, "a", NODE, lock):
            until(lambda: client.refresh().alive, "it is registered")
            stack.enter_context(registering(second, "a", NODE, lock))
            assert second.lease is None
        until(lambda: second.lease is not None, "the other one takes over")
    first.close()
    second.close()


def test_a_name_is_not_taken_from_a_shard_that_is_alive(
    running: RunningDatabase, client: CatalogueClient, tmp_path: Path
) -> None:
    first, second = running.connect(), running.connect()
    other = Node("127.0.0.1:2000", 1 << 30)
    with ExitStack() as stack:
        with registering(first, "a", NODE, tmp_path / "lock"):
            until(lambda: client.refresh().alive, "it is registered")
            folder = ShardFolder(tmp_path / "store")
            stack.enter_context(registering(second, "a", other, tmp_path / "other", tell=folder.record_problem))
            until(lambda: "is already running at 127.0.0.1:1000" in folder.read_problem(), "it is refused")
            assert client.refresh().nodes == {"a": NODE}
        first.close()
        until(lambda: client.refresh().nodes == {"a": other}, "it takes the name of one that has gone")
        until(lambda: not folder.read_problem(), "it has no problem any more")
    second.close()


def test_a_shard_whose_ranges_are_of_another_cluster_is_not_registered(
    running: RunningDatabase, client: CatalogueClient, tmp_path: Path
) -> None:
    """There its ranges would be dropped. Its operator removes what says whose they are, if that is meant."""
    folder, own = ShardFolder(tmp_path / "store"), running.connect()
    folder.store_options(Options(key="another", cluster="one"))
    client.transact(lambda _: Change({"options": Options(key=KEY, cluster="two")}))
    with registering(own, "a", NODE, tmp_path / "lock", lambda found: keep_options(found, folder)) as registration:
        until(lambda: "the ranges of another cluster" in registration.problem, "it is refused")
        assert (client.refresh().nodes, folder.read_key()) == ({}, "another")
        shutil.rmtree(folder.path)
        until(lambda: client.refresh().alive == {"a"}, "it is registered")
    assert folder.read_key() == KEY
    assert not folder.belongs_to("one")
    own.close()


def test_a_service_waits_for_the_catalogue_registers_and_takes_the_key(
    warmed: Path, tmp_path: Path, running: RunningDatabase, client: CatalogueClient
) -> None:
    folder = tmp_path / "a"
    folder.mkdir()

    def tell() -> None:
        log = folder / "log.txt"
        until(lambda: log.exists() and "gathernd cluster init" in log.read_text(), "it says what it waits for")
        client.transact(lambda _: Change({"options": Options(key=KEY)}))

    thread = Thread(target=tell)
    thread.start()
    own = "--kernel", "numpy", "--cluster", running.cluster, "--shard", "--node", "a"
    flags = "--zone", "rack-1", "--max-store-bytes", "1GiB", "--workers", "2"
    with serving(warmed, folder, *own, *flags) as server:
        thread.join(60)
        with client_of(server) as asking:
            assert segments(asking) == []
        assert ShardFolder(folder / "store").read_key() == KEY
        assert (folder / "store" / "shard").stat().st_mode & 0o077 == 0
        until(lambda: client.refresh().alive == {"a"}, "it is registered")
        assert client.catalogue.nodes == {"a": Node(address_of(server), capacity_of(1 << 30), "rack-1", __version__)}


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({}, "needs GATHERND_CLUSTER"),
        ({"cluster": "map.json"}, "needs GATHERND_CLUSTER"),
        ({"cluster": "etcd://a"}, "'a' in 'etcd://a' is not HOST:PORT"),
        ({"cluster": "etcd://a:1", "host": "0.0.0.0"}, "advertise\n.*is required"),
        ({"cluster": "etcd://a:1", "node": "a/b"}, "node\n"),
        ({"cluster": "etcd://a:1", "advertise": "a"}, "advertise\n"),
    ],
)
def test_wrong_settings_are_named(given: dict[str, Any], problem: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=problem):
        wait_for_cluster_key(Settings(shard=True, store_dir=tmp_path, **given))
