"""Tables of a cluster: put, imported, replaced and removed by a router, served from the shards."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from threading import Event, Thread

import httpx
import numpy as np
import pytest

from app.store.catalogue.catalogue_database import FILE
from tests.cluster.clustered import Clustered, clustered, routing, until
from tests.cluster.running import put
from tests.conftest import SOAK
from tests.http.conftest import Start, start
from tests.http.forms import int64
from tests.http.server import TWO_WORKERS
from tests.http.tensors import NPY, RAW, npy
from tests.imports.range_server import range_server
from tests.parity.items import Array, name_of
from tests.parity.messages import raw
from tests.workers.load import connected, one_of_each, request
from tests.workers.releases import (
    LOOK_UP,
    NAMES,
    VERSIONS,
    Moves,
    ReleaseReader,
    all_named,
    move_all,
    reading,
    releases_of,
    version_after,
)

__all__ = ["start"]

RELEASES = 1000 if SOAK else 8
TABLE = np.arange(1001 * 8, dtype=np.float32).reshape(1001, 8)


@pytest.fixture(scope="module")
def cluster(start: Start, warmed: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clustered]:
    with range_server() as source:
        source.files = {"/tables/a.npy": npy(TABLE)}
        flags = "--import-from", f"{source.url}/tables/", "--max-upload-bytes", "100000000"
        with clustered(start, warmed, tmp_path_factory.mktemp("cluster"), 3, flags=flags) as running:
            running.source = source.url
            yield running


@pytest.fixture
def client(cluster: Clustered) -> httpx.Client:
    return cluster.router.shared_client()


def content(client: httpx.Client, name: str, table: Array) -> Array:
    answer = client.get(f"/tensors/{name}/content", headers={"accept": RAW})
    assert answer.is_success, answer.text
    return np.frombuffer(answer.content, table.dtype).reshape(table.shape)


def test_an_upload_is_cut_written_to_the_shards_and_served(cluster: Clustered, client: httpx.Client) -> None:
    answer = put(client, "items", TABLE)
    assert answer.status_code == 201
    described = client.get("/tensors/items").json()
    ranges = described.pop("ranges")
    assert [(one["start"], one["stop"]) for one in ranges] == [(0, 250), (250, 500), (500, 750), (750, 1001)]
    assert described == answer.json()
    assert (described["version"], described["versions"], described["bytes"]) == (1, [1], TABLE.nbytes)
    assert np.array_equal(content(client, "items", TABLE), TABLE)
    body = {"data": {"tensor": "items"}, "indices": int64([2], [0, 1000])}
    explained = client.post("/gather?explain=true", json=body).json()["explanation"]
    assert [one["rows"] for one in explained["shards"]] == [[0, 250], [750, 1001]]
    segments = cluster.segments("items")
    assert [len(set(one.nodes)) for one in segments] == [2] * 4
    version = cluster.table("items").versions[0]
    assert {(node, version.tensor(one)) for one in segments for node in one.nodes} <= cluster.stored()


def test_columns_are_put_row_by_row_and_strings_in_ranges_of_very_different_sizes(client: httpx.Client) -> None:
    """Both have more bytes than are read at once."""
    rng = np.random.default_rng(3)
    columns = np.asarray(rng.standard_normal((3001, 130)), order="F")
    assert client.put("/tensors/columns", content=npy(columns), headers={"content-type": NPY}).status_code == 201
    assert np.array_equal(content(client, "columns", columns), columns)
    strings = np.empty((400, 2), object)
    strings[:] = [["ä" * int(size), ""] for size in rng.integers(0, 12, 400) ** 4]
    assert len(raw(strings)) > 2 << 20
    assert put(client, "strings", strings).json()["bytes"] == len(raw(strings))
    found = client.get("/tensors/strings/content", headers={"accept": RAW})
    assert found.content == raw(strings)


def test_versions_aliases_and_removal(client: httpx.Client, cluster: Clustered) -> None:
    query = {"dtype": name_of(TABLE), "shape": "1001,8", "keep": "2"}
    made = []
    for number in range(3):
        noted, body = query | {"note": f"run {number}"}, raw(TABLE + number)
        made.append(client.put("/tensors/many", params=noted, content=body, headers={"content-type": RAW}))
    first, last = made[0].json(), made[2].json()
    assert (last["created"], last["versions"]) == (first["created"], [2, 3])
    assert last["modified"] > first["modified"]
    assert [client.get(f"/tensors/many@{number}").json()["note"] for number in (2, 3)] == ["run 1", "run 2"]
    moved = client.put("/aliases", json={"aliases": {"live": "many@2", "next": "many@3"}})
    assert moved.status_code == 200, moved.text
    assert moved.json() == client.get("/aliases").json()
    assert np.array_equal(content(client, "live", TABLE), TABLE + 1)
    assert client.put("/aliases/live", json={"tensor": "many@3"}).status_code == 200
    assert np.array_equal(content(client, "live", TABLE), TABLE + 2)
    assert client.delete("/aliases/next").status_code == 204
    in_use = client.delete("/tensors/many")
    assert (in_use.status_code, in_use.json()["code"]) == (409, "tensor_in_use")
    assert client.delete("/tensors/many@2").status_code == 204
    assert client.delete("/aliases/live").status_code == 204
    assert client.delete("/tensors/many").status_code == 204
    assert client.get("/tensors/many").status_code == 404
    until(lambda: cluster.stored() == cluster.wanted(), "what nobody wants is dropped")


def test_an_import_that_shards_may_not_read_is_streamed_to_them_by_the_router(
    client: httpx.Client, cluster: Clustered
) -> None:
    answer = client.post("/tensors/imported/import", json={"url": f"{cluster.source}/tables/a.npy"})
    assert answer.status_code == 202, answer.text
    place = answer.headers["location"]
    until(lambda: client.get(place).json()["state"] != "running", "the import has ended")
    found = client.get(place).json()
    assert found["state"] == "done", found
    assert found["metadata"]["name"] == "imported"
    assert np.array_equal(content(client, "imported", TABLE), TABLE)
    with closing(sqlite3.connect(cluster.router.log.parent / "store" / FILE)) as catalogue:
        (record,) = catalogue.execute("SELECT record FROM imports WHERE id = ?", (found["id"],)).fetchone()
    assert json.loads(record)["content"] == "", (
        "what it makes is not in this store: were the router killed, nobody could tell its end"
    )


def test_the_last_map_stays_in_force_and_changes_wait_while_etcd_restarts(
    client: httpx.Client, cluster: Clustered
) -> None:
    put(client, "kept", TABLE)
    cluster.database.stop()
    try:
        assert np.array_equal(content(client, "kept", TABLE), TABLE)
        changed = list[httpx.Response]()
        with cluster.router.client() as own:
            changing = Thread(target=lambda: changed.append(put(own, "kept", TABLE + 1)))
            changing.start()
            changing.join(0.5)
            cluster.database.begin()
            changing.join()
    finally:
        cluster.database.begin()
    assert changed[0].json()["version"] == 2
    assert np.array_equal(content(client, "kept", TABLE), TABLE + 1)


@pytest.mark.slow
def test_a_lookup_through_any_router_never_mixes_the_releases_that_aliases_move_between(
    start: Start, warmed: Path, tmp_path: Path
) -> None:
    """A router that acknowledges a move serves by it with all its workers, another one soon after."""
    with (
        clustered(start, warmed, tmp_path, count=2, flags=(*TWO_WORKERS, "--keep-versions", "3")) as cluster,
        routing(start, cluster.database, *TWO_WORKERS) as second,
        httpx.Client(base_url=cluster.router.url, trust_env=False, timeout=60) as client,
        connected(cluster.router.port, 16) as opened,
        connected(second.port, 16) as opened_too,
    ):
        for name in NAMES:
            for number in VERSIONS:
                assert put(client, name, np.full((1, 1), number, np.float32)).is_success
        assert client.put("/aliases", content=all_named(version_after(1))).status_code == 200
        workers, others = one_of_each(opened), one_of_each(opened_too)
        assert (len(workers), len(others)) == (2, 2), "all workers are asked"
        until(lambda: all(one.ask(LOOK_UP).status == 200 for one in others), "the other router knows the aliases")
        stop, moves = Event(), Moves()
        readers = [ReleaseReader(router.port, stop, moves) for router in (cluster.router, second) for _ in range(2)]
        with reading(readers, stop):
            for move in range(RELEASES):
                mover = workers[move % 2]
                release = move_all(moves, lambda body: mover.ask(request("PUT", "/aliases", body)).status)  # noqa: B023
                for worker in workers:
                    assert releases_of(worker.ask(LOOK_UP).body) == [release] * len(NAMES), f"after move {move}"
                for other in others:
                    until(
                        lambda: set(releases_of(other.ask(LOOK_UP).body)) == {release},  # noqa: B023
                        "the other router serves by it",
                    )
        for reader, is_first in zip(readers, (True, True, False, False), strict=True):
            assert (reader.failures, reader.mixed) == ([], [])
            assert reader.read <= set(VERSIONS)
            assert not (is_first and reader.stale)
