"""Two shards at each other's addresses: rows are read from the shard that is meant and written to it, or refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

from app.cluster.catalogue.records import Change, Node, Options, Segment, Table, Version
from app.tensors.dtypes import DTYPES
from tests.cluster.clustered import catalogue_client, registered, routing
from tests.cluster.databases import RunningDatabase, running_database
from tests.cluster.running import put
from tests.cluster.shard_nodes import KEY, address_of, client_of, digest_of, give, segments, shard
from tests.cluster.waiting import until
from tests.http.conftest import Start, start
from tests.http.forms import int64
from tests.http.server import Server
from tests.http.tensors import npy

__all__ = ["start"]

ROWS = np.arange(8, dtype=np.int32).reshape(4, 2)


@contextmanager
def two_shards(warmed: Path, folder: Path) -> Iterator[tuple[Server, Server]]:
    with shard(warmed, folder / "a") as first, shard(warmed, folder / "b") as second:
        yield first, second


@contextmanager
def at(database: RunningDatabase, **shards: Server) -> Iterator[None]:
    """These shards in the catalogue, at the addresses of these services."""
    with ExitStack() as stack:
        for name, one in shards.items():
            stack.enter_context(registered(database, name, Node(address_of(one), 1 << 20)))
        yield


def test_a_router_reads_and_writes_no_rows_at_the_shard_that_has_got_the_address(
    start: Start, warmed: Path, tmp_path: Path
) -> None:
    with (
        two_shards(warmed, tmp_path) as (first, second),
        client_of(first) as a,
        client_of(second) as b,
        running_database(tmp_path / "database") as database,
        catalogue_client(database) as catalogue,
    ):
        tensor = give(a, ROWS, "c1")
        put(b, tensor, ROWS + 1)  # no shard has other rows by this name: here they say who has answered
        segment = Segment(0, 4, ROWS.nbytes, ("a",), digest_of(ROWS))
        version = Version(1, "c1", DTYPES["int32"], ROWS.shape, (segment,), 1, digest_of(ROWS), ROWS.nbytes)
        options = Options(ranges=1, replicas=1, key=KEY)
        catalogue.transact(lambda _: Change({"options": options, "tables/t": Table((version,), 1, 1)}))
        body = {"data": {"tensor": "t"}, "indices": int64([1], [0])}
        with routing(start, database, "--deadline", "5") as router:
            client = router.shared_client()
            with at(database, a=second, b=first):
                until(lambda: "t" in client.get("/tensors").text, "the table is served")
                assert client.post("/gather", json=body).json()["code"] == "shard_unavailable"
                assert client.put("/tensors/new", content=npy(ROWS)).json()["code"] == "shard_unavailable"
                assert segments(a) == segments(b) == [tensor]
            with at(database, a=first, b=second):
                until(lambda: client.post("/gather", json=body).is_success, "the shards are where they say")
                assert client.post("/gather", json=body).json()["output"]["values"] == ROWS[0].tolist()
                assert client.put("/tensors/new", content=npy(ROWS)).status_code == 201
