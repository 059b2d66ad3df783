"""Tables of a cluster with a coordinator: put, imported, replaced and removed by a router, served from the shards."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from threading import Event, Thread

import httpx
import numpy as np
import pytest

from app.store.catalogue.catalogue import FILE
from tests.cluster.coordinated import Coordinated, coordinated, until
from tests.cluster.running import put
from tests.http.conftest import Start, start
from tests.http.forms import int64
from tests.http.tensors import RAW, npy
from tests.imports.range_server import range_server
from tests.parity.items import Array, name_of
from tests.parity.messages import raw

__all__ = ["start"]

TABLE = np.arange(1001 * 8, dtype=np.float32).reshape(1001, 8)


@pytest.fixture(scope="module")
def cluster(start: Start, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Coordinated]:
    with range_server() as source:
        source.files = {"/tables/a.npy": npy(TABLE)}
        flags = "--import-from", f"{source.url}/tables/", "--max-upload-bytes", "100000000"
        with coordinated(start, tmp_path_factory.mktemp("cluster"), 3, flags=flags) as running:
            running.source = source.url
            yield running


@pytest.fixture
def client(cluster: Coordinated) -> httpx.Client:
    return cluster.router.shared_client()


def content(client: httpx.Client, name: str, table: Array) -> Array:
    answer = client.get(f"/tensors/{name}/content", headers={"accept": RAW})
    assert answer.is_success, answer.text
    return np.frombuffer(answer.content, table.dtype).reshape(table.shape)


def test_an_upload_is_cut_written_to_the_shards_and_served(cluster: Coordinated, client: httpx.Client) -> None:
    answer = put(client, "items", TABLE)
    assert answer.status_code == 201
    described = client.get("/tensors/items").json()
    assert described == answer.json()
    assert (described["version"], described["versions"], described["bytes"]) == (1, [1], TABLE.nbytes)
    assert np.array_equal(content(client, "items", TABLE), TABLE)
    body = {"data": {"tensor": "items"}, "indices": int64([2], [0, 1000])}
    explained = client.post("/gather?explain=true", json=body).json()["explanation"]
    assert [one["rows"] for one in explained["shards"]] == [[0, 250], [750, 1001]]
    found = cluster.coordinator.status()["tables"]
    (ranges,) = [one["ranges"] for one in found if one["table"] == "items"]
    assert [len({replica["node"] for replica in one["replicas"]}) for one in ranges] == [2] * 4
    assert all(replica["whole"] for one in ranges for replica in one["replicas"])


def test_the_digest_is_that_of_one_machine(cluster: Coordinated, client: httpx.Client) -> None:
    shard = next(iter(cluster.shards.values())).shared_client()
    alone = put(shard, "alone", TABLE).json()
    shard.delete("/tensors/alone")
    assert put(client, "digested", TABLE).json()["sha256"] == alone["sha256"]


@pytest.mark.parametrize(
    "table",
    [
        np.zeros((0, 3), np.float32), np.zeros((3, 0), np.int8), np.arange(3), np.array([[True]]),
        np.arange(7, dtype=">i4"), np.arange(12, dtype=np.complex64).reshape(2, 3, 2),
    ],
    ids=lambda table: f"{table.dtype.str}{list(table.shape)}",
)  # fmt: skip
def test_tables_of_few_or_no_rows_and_of_other_byte_orders(client: httpx.Client, table: Array) -> None:
    answer = client.put("/tensors/small", content=npy(table))
    assert answer.is_success, answer.text
    native = table.astype(table.dtype.newbyteorder("="))
    assert np.array_equal(content(client, "small", native), native)
    assert client.delete("/tensors/small").status_code == 204


def test_what_is_wrong_with_an_upload_is_said_as_by_one_machine(client: httpx.Client) -> None:
    query = {"dtype": "float32", "shape": "10,2"}

    def asked(content: bytes, **headers: str) -> tuple[int, str]:
        answer = client.put("/tensors/wrong", params=query, content=content, headers={"content-type": RAW, **headers})
        return answer.status_code, answer.json()["code"]

    assert asked(bytes(79)) == (422, "element_count_mismatch")
    digest = "sha-256=:" + "A" * 43 + "=:"
    assert asked(bytes(80), **{"content-digest": digest}) == (400, "malformed_request")
    assert client.get("/tensors/wrong").status_code == 404


def test_conditions_hold_for_the_version_that_is_current_when_it_is_published(client: httpx.Client) -> None:
    first = put(client, "guarded", TABLE).headers["etag"]
    second = put(client, "guarded", TABLE + 1).headers["etag"]
    query = {"dtype": name_of(TABLE), "shape": "1001,8"}

    def asked(**headers: str) -> int:
        fields = {"content-type": RAW, **{name.replace("_", "-"): value for name, value in headers.items()}}
        return client.put("/tensors/guarded", params=query, content=raw(TABLE), headers=fields).status_code

    assert asked(if_match=first) == 412
    assert asked(if_none_match="*") == 412
    assert asked(if_match=second) == 200


def test_versions_aliases_and_removal(client: httpx.Client, cluster: Coordinated) -> None:
    for number in range(3):
        answer = client.put(
            "/tensors/many", params={"dtype": name_of(TABLE), "shape": "1001,8", "keep": "2"},
            content=raw(TABLE + number), headers={"content-type": RAW},
        )  # fmt: skip
        assert answer.is_success, answer.text
    assert client.get("/tensors/many").json()["versions"] == [2, 3]
    made = client.put("/aliases/live", json={"tensor": "many@2"})
    assert made.status_code == 201, made.text
    assert np.array_equal(content(client, "live", TABLE), TABLE + 1)
    assert client.put("/aliases/live", json={"tensor": "many@3"}).status_code == 200
    assert client.put("/aliases/live", json={"tensor": "many@2"}, headers={"if-none-match": "*"}).status_code == 412
    assert client.put("/aliases/many", json={"tensor": "many@3"}).json()["code"] == "name_conflict"
    assert client.put("/aliases/other", json={"tensor": "many@9"}).json()["code"] == "tensor_not_found"
    in_use = client.delete("/tensors/many")
    assert (in_use.status_code, in_use.json()["code"]) == (409, "tensor_in_use")
    assert client.delete("/tensors/many@2").status_code == 204
    assert client.delete("/aliases/live").status_code == 204
    assert client.delete("/aliases/live").status_code == 404
    assert client.delete("/tensors/many").status_code == 204
    assert client.get("/tensors/many").status_code == 404

    def stored() -> list[str]:
        lists = [shard.shared_client().get("/tensors?limit=1000").json() for shard in cluster.shards.values()]
        return [one["name"] for found in lists for one in found["tensors"]]

    used = {
        f"{one['start']}-{one['stop']}" for table in cluster.coordinator.status()["tables"] for one in table["ranges"]
    }
    until(lambda: {name.rpartition(".")[2] for name in stored()} <= used, "what nobody wants is dropped")


def test_an_import_is_read_by_the_router_and_streamed_to_the_shards(client: httpx.Client, cluster: Coordinated) -> None:
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


def test_each_answer_is_of_one_version_while_versions_are_published(client: httpx.Client, cluster: Coordinated) -> None:
    put(client, "changing", np.zeros((400, 4), np.int32))
    over, failures, answers = Event(), list[str](), list[int]()

    def ask() -> None:
        with cluster.router.client() as own:
            while not over.is_set():
                indices = int64([4], [0, 101, 202, 399])
                answer = own.post("/gather", json={"data": {"tensor": "changing"}, "indices": indices})
                if not answer.is_success:
                    failures.append(answer.text)
                    return
                found = np.array(answer.json()["output"]["values"])
                if len(set(found.tolist())) != 1:
                    failures.append(f"several versions: {found}")
                answers.append(int(found[0]))

    asking = Thread(target=ask)
    asking.start()
    for number in range(1, 6):
        put(client, "changing", np.full((400, 4), number, np.int32))
    over.set()
    asking.join()
    assert not failures
    assert answers == sorted(answers)
    assert answers[-1] >= 4


def test_the_last_map_stays_in_force_and_changes_wait_while_the_coordinator_restarts(
    client: httpx.Client, cluster: Coordinated
) -> None:
    put(client, "kept", TABLE)
    cluster.coordinator.stop()
    try:
        assert np.array_equal(content(client, "kept", TABLE), TABLE)
        changed = list[httpx.Response]()
        with cluster.router.client() as own:
            changing = Thread(target=lambda: changed.append(put(own, "kept", TABLE + 1)))
            changing.start()
            changing.join(0.5)
            cluster.coordinator.begin()
            changing.join(30)
    finally:
        if cluster.coordinator.exchanging is None:
            cluster.coordinator.begin()
    assert changed[0].json()["version"] == 2
    assert np.array_equal(content(client, "kept", TABLE), TABLE + 1)
