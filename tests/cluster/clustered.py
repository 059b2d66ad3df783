"""A cluster for the tests: a database, shards, a reconciler and a router, each a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from ssl import SSLContext
from typing import Any

from app.cluster.catalogue import transitions
from app.cluster.catalogue.client import CatalogueClient
from app.cluster.catalogue.records import Catalogue, Change, Mark, Node, Options, Segment, Table
from tests.cluster.databases import RunningDatabase, running_database
from tests.cluster.running import PATIENT
from tests.cluster.shard_nodes import KEY, address_of, shard
from tests.cluster.waiting import until
from tests.http.conftest import Start
from tests.http.server import Server

OPTIONS = Options(ranges=4, replicas=2, key=KEY)
KERNEL = "--kernel", "numpy"
RECONCILE = """
import logging, sys
from app.cluster.catalogue.etcd import Database, DatabaseAddress
from app.cluster.reconciler.plan import Planner
from app.cluster.reconciler.run_reconciler import reconcile

logging.basicConfig(level=logging.INFO)
logging.getLogger("httpx").setLevel(logging.WARNING)
database = Database(DatabaseAddress.parse(sys.argv[1]), lease_seconds=3)
metrics = ("127.0.0.1", int(sys.argv[2])) if len(sys.argv) > 2 else None
reconcile(database, metrics=metrics, planner=lambda: Planner(drop_after=0.5))
"""


@dataclass
class Clustered:
    """A running cluster. `client` is the tests' own, for the catalogue."""

    database: RunningDatabase
    client: CatalogueClient
    shards: dict[str, Server]
    router: Server
    reconciler: subprocess.Popen[bytes]
    begin: Callable[..., None]
    """Start a shard, and wait until it is registered unless `registered` is false."""
    killed: set[str]
    folder: Path
    source: str = ""
    """Where imports come from."""

    def kill(self, node: str) -> None:
        """Kill a shard's process."""
        self.killed.add(node)
        os.killpg(self.shards[node].process.pid, signal.SIGKILL)
        self.shards[node].process.wait()

    @property
    def catalogue(self) -> Catalogue:
        """The newest catalogue."""
        return self.client.refresh()

    def table(self, name: str) -> Table:
        return self.catalogue.tables[name]

    def segments(self, name: str) -> Sequence[Segment]:
        """Those of the current version."""
        return self.table(name).versions[-1].segments

    def stored(self) -> set[tuple[str, str]]:
        """The segments that shards hold, each with its shard."""
        found = set()
        for node, one in self.shards.items():
            if node in self.killed:
                continue
            answer = one.shared_client().get("/shard/segments", headers={"authorization": f"Bearer {KEY}"})
            found |= {(node, segment["tensor"]) for segment in answer.json()["segments"]}
        return found

    def wanted(self) -> set[tuple[str, str]]:
        """The segments that shards are to hold by the catalogue, each with its shard."""
        return {
            (node, version.tensor(segment))
            for table in self.catalogue.tables.values()
            for version in table.versions
            for segment in version.segments
            for node in segment.nodes
        }

    def drain(self, node: str) -> None:
        self.client.transact(lambda catalogue: transitions.drain(catalogue, node))


@contextmanager
def clustered(
    start: Start,
    warmed: Path,
    folder: Path,
    count: int = 3,
    options: Options = OPTIONS,
    *,
    flags: Sequence[str] = (),
    shard_flags: Sequence[str] = (),
    tls: SSLContext | None = None,
) -> Iterator[Clustered]:
    """A cluster of `count` shards s0, s1 and so on, asked over `tls`; `flags` are the router's."""
    with ExitStack() as stack:
        database = stack.enter_context(running_database(folder / "database"))
        client = stack.enter_context(catalogue_client(database))
        client.transact(lambda _: Change({"options": options}))
        shards: dict[str, Server] = {}
        killed: set[str] = set()

        def begin(name: str, *, registered: bool = True) -> None:
            served = shard(warmed, folder / name, *shard_flags, cluster=database.cluster, tls=tls)
            own = shards[name] = stack.enter_context(_mortal(served, name, killed))
            until(
                lambda: not registered or _is_registered(client.refresh(), name, own), f"the shard {name} is registered"
            )

        for number in range(count):
            begin(f"s{number}")
        reconciler = stack.enter_context(reconciling(database))
        router = stack.enter_context(routing(start, database, *flags))
        yield Clustered(database, client, shards, router, reconciler, begin, killed, folder)


def _is_registered(catalogue: Catalogue, name: str, own: Server) -> bool:
    """Whether a shard is registered where it answers now: one of before is alive until its lease has run out."""
    node = catalogue.nodes.get(name)
    return node is not None and node.address == address_of(own) and name in catalogue.alive


@contextmanager
def _mortal(shard: AbstractContextManager[Server], name: str, killed: Collection[str]) -> Iterator[Server]:
    """A shard that must end well unless it was killed."""
    try:
        with shard as running:
            yield running
    except AssertionError:
        if name not in killed:
            raise


@contextmanager
def catalogue_client(database: RunningDatabase) -> Iterator[CatalogueClient]:
    """A client of the catalogue for the tests."""
    client = CatalogueClient(database.connect())
    try:
        yield client
    finally:
        client.database.close()


@contextmanager
def registered(database: RunningDatabase, name: str, node: Node) -> Iterator[None]:
    """A shard in the catalogue."""
    with catalogue_client(database) as client:
        alive = f"alive/{name}"
        client.transact(lambda _: Change({f"nodes/{name}": node, alive: Mark()}, leased=frozenset({alive})))
        yield


@contextmanager
def reconciling(database: RunningDatabase, *metrics_port: str) -> Iterator[subprocess.Popen[bytes]]:
    """A reconciler, which may be killed."""
    process = subprocess.Popen([sys.executable, "-c", RECONCILE, database.cluster, *metrics_port])
    try:
        yield process
    finally:
        process.terminate()
        # SIGTERM ends it at once if it comes before the process handles it.
        assert process.wait(60) in (0, -signal.SIGTERM, -signal.SIGKILL)


def routing(start: Start, database: RunningDatabase, *flags: str, **options: Any) -> AbstractContextManager[Server]:
    """A router of the cluster."""
    return start("--cluster", database.cluster, *PATIENT, *KERNEL, *flags, **options)


__all__ = ["OPTIONS", "Clustered", "catalogue_client", "clustered", "registered", "routing", "until"]
