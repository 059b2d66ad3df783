"""A database, shards that tests register themselves, and reconcilers that are processes of their own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import httpx
import numpy as np

from app.cluster.catalogue.client import CatalogueClient
from app.cluster.catalogue.records import Catalogue, Change, Mark, Node, Options, Segment, Table, Version
from app.cluster.shard_map import shard_tensor
from app.tensors.dtypes import DTYPES
from tests.cluster.databases import RunningDatabase, running_database
from tests.cluster.shard_nodes import KEY, address_of, client_of, give, segments, shard
from tests.cluster.waiting import until
from tests.parity.items import Array, name_of

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
class ClusteredShards:
    """Shards by name, and a client of the catalogue."""

    database: RunningDatabase
    catalogue: CatalogueClient
    clients: dict[str, httpx.Client]
    nodes: dict[str, Node]
    _contents: Iterator[int] = field(default_factory=count)
    reconcilers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def newest(self) -> Catalogue:
        return self.catalogue.refresh()

    def write(self, **puts: object) -> None:
        """Write records: their keys have slashes where the names of arguments have two underscores."""
        change = Change({key.replace("__", "/"): record for key, record in puts.items()})  # type: ignore[misc]
        self.catalogue.transact(once(lambda _: change))

    def set_alive(self, *nodes: str) -> None:
        """Have these shards run, as far as the catalogue knows, and the others not."""
        self.write(**{f"alive__{node}": Mark() if node in nodes else None for node in self.nodes})

    def publish(self, table: str, rows: Array, *nodes: str, replicas: int | None = None) -> str:
        """Give shards the only segment of a table and publish it; its name on the shards."""
        content = f"{table}{next(self._contents)}"
        for node in nodes:
            give(self.clients[node], rows, content)
        listed = self.clients[nodes[0]].get("/shard/segments").json()["segments"]
        told = next(one for one in listed if one["tensor"] == shard_tensor(content, 0, len(rows)))
        segment = Segment(0, len(rows), told["size"], nodes, told["sha256"])
        dtype = DTYPES[name_of(rows)]
        version = Version(1, content, dtype, rows.shape, (segment,), 1, told["sha256"], told["size"])
        self.write(**{f"tables__{table}": Table((version,), 1, 1, replicas)})
        return shard_tensor(content, 0, len(rows))

    def nodes_of(self, table: str) -> list[tuple[int, int, set[str]]]:
        """The bounds and the shards of each segment of a table."""
        (version,) = self.newest.tables[table].versions
        return [(one.start, one.stop, set(one.nodes)) for one in version.segments]

    def held(self, tensor: str) -> set[str]:
        """The shards that have a segment."""
        return {node for node, client in self.clients.items() if tensor in segments(client)}

    def start_reconciler(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a reconciler, and wait until one is in office."""
        started = subprocess.Popen([sys.executable, "-c", RECONCILE, self.database.cluster, *arguments])
        self.reconcilers.append(started)
        until(lambda: self.newest.reconciler is not None, "a reconciler is in office")
        return started

    def stop_reconcilers(self) -> None:
        """End them all."""
        for one in self.reconcilers:
            one.terminate()
            assert one.wait(60) in (0, -9)
        self.reconcilers.clear()


def once(transition: Callable[[Catalogue], Change]) -> Callable[[Catalogue], Change | None]:
    """A transition that is made the first time only."""
    changes: list[Change] = []

    def judged(catalogue: Catalogue) -> Change | None:
        changes.append(transition(catalogue))
        return changes[0] if len(changes) == 1 else None

    return judged


@contextmanager
def clustered_shards(warmed: Path, folder: Path, *names: str) -> Iterator[ClusteredShards]:
    """A cluster of shards that are alive, without a reconciler."""
    with ExitStack() as stack:
        database = stack.enter_context(running_database(folder / "database"))
        connection = database.connect()
        stack.callback(connection.close)
        catalogue = CatalogueClient(connection)
        servers = {name: stack.enter_context(shard(warmed, folder / name)) for name in names}
        clients = {name: stack.enter_context(client_of(server)) for name, server in servers.items()}
        nodes = {name: Node(address_of(server), 1 << 30) for name, server in servers.items()}
        found = ClusteredShards(database, catalogue, clients, nodes)
        found.write(options=Options(key=KEY), **{f"nodes__{name}": node for name, node in nodes.items()})
        found.set_alive(*names)
        stack.callback(found.stop_reconcilers)
        yield found


def rows_of(count: int = 60) -> Array:
    """Rows that differ."""
    return np.arange(count * 4, dtype=np.float32).reshape(count, 4)
