"""Scatters through routers: keys across routers and versions, conditions, ETags, and what a connection reads."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import httpx
import numpy as np

from tests.cluster.clustered import Clustered
from tests.cluster.running import put
from tests.cluster.two_routers import client, cluster, other
from tests.cluster.waiting import acknowledged, until
from tests.cluster.written import sequence_of
from tests.http.forms import int64
from tests.http.server import Server
from tests.http.tensors import RAW, error, put_strings, scatter_body

__all__ = ["client", "cluster", "other"]

TABLE = np.zeros((40, 2), np.int64)


def send(
    client: httpx.Client, name: str, rows: list[int], headers: Mapping[str, str] | None = None, value: int = 1
) -> httpx.Response:
    """Add a value to all items of some rows."""
    updates = np.full((len(rows), 2), value, np.int64)
    body = scatter_body(np.array(rows, np.int64).reshape(-1, 1), updates, "add")
    return client.post(f"/tensors/{name}/scatter", json=body, headers=headers or {})


def content(client: httpx.Client, name: str) -> Any:
    """The first items of all rows."""
    answer = client.get(f"/tensors/{name}/content", headers={"accept": RAW})
    assert answer.status_code == 200, answer.text
    return np.frombuffer(answer.content, np.int64).reshape(-1, 2)[:, 0]


def test_a_scatter_changes_the_ranges_that_it_names(client: httpx.Client) -> None:
    put(client, "plain", TABLE)
    before = client.get("/tensors/plain").headers["etag"]
    answer = send(client, "plain", [0, -1, 0, 15], value=3)
    assert answer.status_code == 200, answer.text
    etag = answer.headers["etag"]
    assert answer.json() == {"name": "plain", "etag": etag, "ranges": 3}
    assert sequence_of(etag) == sequence_of(before) + 3
    changed = {row: count for row, count in enumerate(content(client, "plain").tolist()) if count}
    assert changed == {0: 6, 15: 3, 39: 3}
    assert send(client, "plain", []).json() == {"name": "plain", "etag": etag, "ranges": 0}
    (listed,) = (one for one in client.get("/tensors").json()["tensors"] if one["name"] == "plain")
    assert listed["etag"] == etag == client.get("/tensors/plain").json()["etag"]
    head = client.head("/tensors/plain/content")
    assert head.headers["etag"] == etag == client.head("/tensors/plain").headers["etag"]
    assert client.get("/tensors/plain", headers={"if-none-match": etag}).status_code == 304
    assert client.get("/tensors/plain/content", headers={"if-none-match": etag}).status_code == 304
    assert client.get("/tensors/plain/content", headers={"if-match": before}).status_code == 412


def test_gathers_and_explanations_tell_the_sum(client: httpx.Client) -> None:
    put(client, "told", TABLE)
    etag = send(client, "told", [0, 39]).json()["etag"]
    body = {"data": {"tensor": "told"}, "indices": int64([2, 1], [0, 39])}
    answer = client.post("/gathernd", json=body).json()
    assert (answer["data_etag"], answer["output"]["values"]) == (etag, [1, 1, 1, 1])
    told = client.post("/gathernd", json=body, params={"explain": "true"}).json()
    assert told["data_etag"] == etag
    feature = {"tensor": "told", "indices": int64([3], [0, 1, 39])}
    other = {"tensor": "told@1", "indices": int64([2], [39, 5])}
    read = client.post("/lookup", json={"features": [feature, other], "concat": False})
    assert read.status_code == 200, read.text
    values = [one["values"] for one in read.json()["outputs"]]
    assert values == [[1, 1, 0, 0, 1, 1], [1, 1, 0, 0]]
    assert [one["data_etag"] for one in read.json()["features"]] == [etag, etag]


def test_a_connection_reads_what_it_has_written(client: httpx.Client) -> None:
    put(client, "session", TABLE)
    body = {"data": {"tensor": "session"}, "indices": int64([1, 1], [21])}
    for turn in range(1, 60):
        assert send(client, "session", [21]).status_code == 200
        assert client.post("/gathernd", json=body).json()["output"]["values"] == [turn, turn]


def test_adds_through_two_routers_all_count(client: httpx.Client, cluster: Clustered, other: Server) -> None:
    put(client, "counted", TABLE)
    until(lambda: other.shared_client().get("/tensors/counted").status_code == 200, "both routers know the table")

    def add(number: int) -> None:
        with (other if number % 2 else cluster.router).client() as own:
            for _ in range(10):
                answer = send(own, "counted", [number, 39 - number, number])
                assert answer.status_code == 200, answer.text

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add, range(4)))
    expected = np.zeros(40, np.int64)
    expected[:4], expected[36:] = 20, 10
    assert content(client, "counted").tolist() == expected.tolist()


def test_a_retry_is_answered_alike_by_every_router_and_changes_nothing(client: httpx.Client, other: Server) -> None:
    put(client, "keyed", TABLE)
    first = send(client, "keyed", [3, 30], {"idempotency-key": "k-1"})
    for one in (client, other.shared_client()):
        again = send(one, "keyed", [3, 30], {"idempotency-key": "k-1"})
        assert again.json() == first.json()
        assert content(one, "keyed").sum() == 2, "a connection reads what it was told of"
        error(send(one, "keyed", [4], {"idempotency-key": "k-1"}), 422, "invalid_field", "/idempotency-key")
        error(send(one, "keyed", [99], {"idempotency-key": "k-1"}), 422, "invalid_field", "/idempotency-key")
    # A request that is refused does not use its key up.
    error(send(client, "keyed", [99], {"idempotency-key": "k-2"}), 422, "index_out_of_bounds")
    assert send(client, "keyed", [9], {"idempotency-key": "k-2"}).status_code == 200


def test_a_retry_whose_version_is_gone_is_refused(client: httpx.Client, other: Server) -> None:
    put(client, "gone", TABLE)
    keys = {"idempotency-key": "k-3"}
    assert send(client, "gone", [1], keys).status_code == 200
    put(client, "gone", TABLE[:5])
    for one in (client, other.shared_client()):
        error(send(one, "gone", [1], keys), 412, "precondition_failed")
        error(send(one, "gone", [2], keys), 422, "invalid_field", "/idempotency-key")
    assert content(client, "gone").sum() == 0
    assert client.delete("/tensors/gone").status_code == 204
    error(send(client, "gone", [1], keys), 412, "precondition_failed")


def test_a_retry_after_an_alias_moved_changes_the_first_version_once(client: httpx.Client, other: Server) -> None:
    put(client, "twice", TABLE)
    client.put("/tensors/twice", params={"dtype": "int64", "shape": "40,2", "keep": "2"}, content=TABLE.tobytes(),
               headers={"content-type": RAW})  # fmt: skip
    client.put("/aliases/either", json={"tensor": "twice@1"})
    keys = {"idempotency-key": "k-4"}
    first = send(client, "either", [1], keys)
    assert first.headers["x-gathernd-data-version"] == "1"
    client.put("/aliases/either", json={"tensor": "twice@2"})
    again = send(other.shared_client(), "either", [1], keys)
    assert (again.json(), again.headers["x-gathernd-data-version"]) == (first.json(), "1")
    assert content(client, "twice@1").sum() == 1
    assert content(client, "twice@2").sum() == 0


def test_conditions(client: httpx.Client) -> None:
    put(client, "several", TABLE)
    etag = client.get("/tensors/several").headers["etag"]
    error(send(client, "several", [0], {"if-match": etag}), 501, "not_implemented")
    assert send(client, "several", [0], {"if-match": "*"}).status_code == 200
    put(client, "single", TABLE[:1])
    etag = client.get("/tensors/single").headers["etag"]
    second = send(client, "single", [0], {"if-match": etag, "idempotency-key": "c-1"})
    assert second.status_code == 200, second.text
    refused = send(client, "single", [0], {"if-match": etag})
    error(refused, 412, "precondition_failed")
    assert second.json()["etag"] in refused.json()["detail"]
    again = send(client, "single", [0], {"if-match": etag, "idempotency-key": "c-1"})
    assert again.json() == second.json()
    error(send(client, "single", [0], {"if-match": etag, "idempotency-key": "c-2"}), 412, "precondition_failed")
    assert content(client, "single").tolist() == [1]


def test_a_table_that_was_scattered_to_is_replaced_and_removed_by_its_etag(client: httpx.Client) -> None:
    put(client, "replaced", TABLE)
    old = client.get("/tensors/replaced").headers["etag"]
    new = send(client, "replaced", [0]).json()["etag"]
    query = {"dtype": "int64", "shape": "40,2"}

    def upload(etag: str) -> httpx.Response:
        headers = {"content-type": RAW, "if-match": etag}
        return client.put("/tensors/replaced", params=query, content=TABLE.tobytes(), headers=headers)

    error(upload(old), 412, "precondition_failed")
    assert upload(new).status_code == 200
    new = send(client, "replaced", [0]).json()["etag"]
    error(client.delete("/tensors/replaced", headers={"if-match": new.replace("-1", "-0")}), 412, "precondition_failed")
    assert client.delete("/tensors/replaced", headers={"if-match": new}).status_code == 204


def test_a_download_is_of_one_content_while_scatters_come(cluster: Clustered, client: httpx.Client) -> None:
    """Each row of a range is added to alike, so that all of them are equal in what is read of one sequence."""
    put(client, "busy", np.zeros((400_000, 2), np.int64))
    every = {"indices": int64([4, 1], [0, 39_999, 40_000, 399_999]), "reduction": "add"}
    body = every | {"updates": {"dtype": "int64", "shape": [4, 2], "values": [1] * 8}}
    stop = Event()

    def scatter() -> None:
        with cluster.router.client() as own:
            while not stop.is_set():
                assert own.post("/tensors/busy/scatter", json=body).status_code == 200

    with ThreadPoolExecutor(1) as pool:
        scattering = pool.submit(scatter)
        try:
            for _ in range(5):
                answer = client.get("/tensors/busy/content", headers={"accept": RAW})
                items = np.frombuffer(answer.content, np.int64).reshape(-1, 2)[:, 0]
                found = items[[0, 39_999, 40_000, 399_999]].tolist()
                assert found[0] == found[1]
                assert sequence_of(answer.headers["etag"]) == found[0] + found[3]
                some = client.get("/tensors/busy/content", params={"rows": "39999:40001"}, headers={"accept": RAW})
                first, second = np.frombuffer(some.content, np.int64).reshape(-1, 2)[:, 0].tolist()
                assert first == second
        finally:
            stop.set()
        scattering.result()


def test_what_is_refused(client: httpx.Client) -> None:
    put_strings(client, "words", ["a", "b", "c"])
    updates = {"dtype": "string", "shape": [1], "values": ["x"]}
    answer = client.post("/tensors/words/scatter", json={"indices": int64([1, 1], [2]), "updates": updates})
    error(answer, 501, "not_implemented")
    error(send(client, "nobody", [0]), 404, "tensor_not_found", "/name")
    error(send(client, "nobody", [0], {"idempotency-key": "n-1"}), 404, "tensor_not_found", "/name")


def test_a_scatter_waits_for_another_primary(cluster: Clustered, client: httpx.Client) -> None:
    """The last test: it kills a shard."""
    put(client, "led", TABLE)
    assert send(client, "led", [0]).status_code == 200
    ranges = cluster.catalogue.ranges
    tensor = next(tensor for tensor in ranges if tensor.startswith(content_id(client, "led")) and ".0-" in tensor)
    cluster.kill(ranges[tensor].primary)
    for turn in range(2, 5):
        key = {"idempotency-key": f"led-{turn}"}
        answer = acknowledged(lambda: send(client, "led", [0], key))  # noqa: B023
        assert answer.status_code == 200, answer.text
        body = {"data": {"tensor": "led"}, "indices": int64([1, 1], [0])}
        assert client.post("/gathernd", json=body).json()["output"]["values"] == [turn, turn]
    assert cluster.catalogue.ranges[tensor].primary != ranges[tensor].primary


def content_id(client: httpx.Client, name: str) -> str:
    etag: str = client.get(f"/tensors/{name}").json()["etag"]
    return etag.strip('"').rpartition("-")[0]
