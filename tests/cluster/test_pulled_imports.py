"""Imports whose rows the shards read themselves from where they are imported."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.cluster.clustered import Clustered, clustered, until
from tests.cluster.shard_nodes import client_of
from tests.http.conftest import Start, start
from tests.http.tensors import RAW, npy
from tests.imports.range_server import Handler, RangeServer, range_server

__all__ = ["start"]

TABLE = np.arange(300_000 * 8, dtype=np.int32).reshape(300_000, 8)
MIDDLE = TABLE.nbytes // 2


@pytest.fixture(scope="module")
def only_origin() -> Iterator[RangeServer]:
    with range_server() as running:
        yield running


@pytest.fixture
def origin(only_origin: RangeServer) -> RangeServer:
    """Where the table is imported from; nothing has been asked for yet."""
    only_origin.files = {"/tables/a.npy": npy(TABLE)}
    only_origin.respond = lambda handler: False
    only_origin.sent = 0
    return only_origin


@contextmanager
def importing(
    start: Start, warmed: Path, folder: Path, origin: RangeServer, count: int, *, shards_may: bool = True
) -> Iterator[Clustered]:
    """A cluster whose router may import from `origin`, and its shards too unless told otherwise."""
    allowed = "--import-from", f"{origin.url}/tables/"
    with clustered(start, warmed, folder, count, flags=allowed, shard_flags=allowed if shards_may else ()) as cluster:
        until(lambda: cluster.catalogue.reconciler is not None, "a reconciler is in office")
        yield cluster


@pytest.fixture(scope="module")
def shared_cluster(
    start: Start, warmed: Path, tmp_path_factory: pytest.TempPathFactory, only_origin: RangeServer
) -> Iterator[Clustered]:
    with importing(start, warmed, tmp_path_factory.mktemp("cluster"), only_origin, 3) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared_cluster: Clustered) -> Iterator[Clustered]:
    """A cluster of three shards without a table."""
    yield shared_cluster
    shared_cluster.router.shared_client().delete("/tensors/items")


def bring(cluster: Clustered, origin: RangeServer) -> dict[str, Any]:
    """Import the table: what has become of it."""
    client = cluster.router.shared_client()
    answer = client.post("/tensors/items/import", json={"url": f"{origin.url}/tables/a.npy"})
    assert answer.status_code == 202, answer.text
    place = answer.headers["location"]
    until(lambda: client.get(place).json()["state"] != "running", "the import has ended")
    found: dict[str, Any] = client.get(place).json()
    return found


def content(cluster: Clustered) -> bytes:
    return cluster.router.shared_client().get("/tensors/items/content", headers={"accept": RAW}).content


def digest_of_one_machine(cluster: Clustered) -> str:
    with client_of(cluster.shards["s0"]) as shard:
        alone: httpx.Response = shard.put("/tensors/alone", content=npy(TABLE))
        shard.delete("/tensors/alone")
    return str(alone.json()["sha256"])


def test_shards_read_the_rows_and_the_router_only_where_they_are(cluster: Clustered, origin: RangeServer) -> None:
    found = bring(cluster, origin)
    assert (found["state"], found["bytes_done"]) == ("done", TABLE.nbytes), found
    assert found["metadata"]["sha256"] == digest_of_one_machine(cluster)
    assert content(cluster) == TABLE.tobytes()
    assert all(len(set(one.nodes)) == 2 for one in cluster.segments("items"))
    assert cluster.wanted() <= cluster.stored()
    assert origin.sent < 1.5 * TABLE.nbytes, "each row is read once there, and the head by each reader"
    assert cluster.table("items").versions[0].origin == f"{origin.url}/tables/a.npy"


@pytest.mark.slow
def test_a_shard_that_is_killed_midway_costs_its_segments_alone(
    start: Start, warmed: Path, tmp_path: Path, origin: RangeServer
) -> None:
    lost = ""
    with importing(start, warmed, tmp_path, origin, 4) as four:

        def kill(handler: Handler) -> bool:
            nonlocal lost
            first = int((handler.headers["Range"] or "bytes=0-").partition("=")[2].partition("-")[0])
            with origin.lock:
                if not lost and first > MIDDLE:
                    (record,) = four.catalogue.uploads.values()
                    lost = record.segments[-1].nodes[0]
                    four.kill(lost)
            return False

        origin.respond = kill
        found = bring(four, origin)
        assert found["state"] == "done", found
        assert lost
        assert content(four) == TABLE.tobytes()
        until(lambda: all(lost not in one.nodes for one in four.segments("items")), "others have its segments")
        assert origin.sent < 1.9 * TABLE.nbytes, "the other segments are not read again"


def test_a_file_that_changes_while_shards_read_it_is_refused(cluster: Clustered, origin: RangeServer) -> None:
    def change(handler: Handler) -> bool:
        if int((handler.headers["Range"] or "bytes=0-").partition("=")[2].partition("-")[0]) > MIDDLE:
            origin.files = {"/tables/a.npy": npy(TABLE + 1)}
        return False

    origin.respond = change
    found = bring(cluster, origin)
    assert (found["state"], found["error"]["code"]) == ("failed", "import_failed"), found
    assert cluster.router.shared_client().get("/tensors/items").status_code == 404
    until(lambda: not cluster.catalogue.uploads, "the upload is given up")
    until(lambda: not cluster.stored(), "what was pulled is dropped")


def test_the_router_reads_a_file_without_ranges(cluster: Clustered, origin: RangeServer) -> None:
    origin.respond = lambda handler: handler.answer_whole(npy(TABLE))
    assert "the shards do not read" not in what_the_router_says(cluster, origin)


@pytest.mark.slow
def test_the_router_reads_what_shards_may_not_read(
    start: Start, warmed: Path, tmp_path: Path, origin: RangeServer
) -> None:
    with importing(start, warmed, tmp_path, origin, 2, shards_may=False) as cluster:
        assert "the shards do not read" in what_the_router_says(cluster, origin)


def what_the_router_says(cluster: Clustered, origin: RangeServer) -> str:
    """Import the table, whose rows the router has to read: what its log says meanwhile."""
    before = len(cluster.router.log_text())
    found = bring(cluster, origin)
    assert found["state"] == "done", found
    assert found["metadata"]["sha256"] == digest_of_one_machine(cluster)
    assert content(cluster) == TABLE.tobytes()
    return cluster.router.log_text()[before:]
