"""A cluster answers bit for bit as one machine with the whole tables: errors, positions and totals included."""

from __future__ import annotations

from typing import Any

import httpx
import numpy as np
import pytest

from tests.cluster import gathers
from tests.cluster.running import BothTransport
from tests.conformance.random_cases import case_of
from tests.conftest import TEST_ALL, samples, slow_but_for
from tests.http.forms import int64
from tests.http.tensors import RAW
from tests.parity.lookup_cases import Tables, random_lookup

COUNT = 1000 if TEST_ALL else 100
"""Lookups and gathers, of which a run takes its part (`samples`): a soak 20,000 at a tenth of its full counts."""


@pytest.mark.parametrize("share", slow_but_for((0,), range(2)))
def test_random_lookups(both: BothTransport, compared: httpx.Client, held: Tables, share: int) -> None:
    rng = np.random.default_rng([18, share])
    before = both.compared
    for _ in range(samples(COUNT) // 2):
        gathers.send(compared, rng, case_of(random_lookup(rng, held)))
    assert both.compared - before == samples(COUNT) // 2
    assert both.statuses[200] > 5 * samples(COUNT) // 20


@pytest.mark.parametrize("share", slow_but_for((0,), range(2)))
def test_random_gathers(both: BothTransport, compared: httpx.Client, held: Tables, share: int) -> None:
    rng = np.random.default_rng([19, share])
    before = both.compared
    for number in range(samples(COUNT) // 2):
        gathers.send(compared, rng, gathers.random_gather(rng, held, spoiled=number % 3 == 0))
    assert both.compared - before == samples(COUNT) // 2
    assert both.statuses[200] > 5 * samples(COUNT) // 20


@pytest.mark.parametrize("name", ["pl_wide", "pl_tall"])
@pytest.mark.parametrize("accept", ["application/json", "application/x-safetensors"])
def test_answers_larger_than_a_buffer(compared: httpx.Client, held: Tables, name: str, accept: str) -> None:
    rng = np.random.default_rng(3)
    rows, columns = held[name].shape
    headers = {"accept": accept}
    some = rng.integers(-rows, rows, 400 if name == "pl_tall" else 60)
    body = {"data": {"tensor": name}, "indices": int64([len(some), 1], some.tolist()), "output_encoding": "base64"}
    assert compared.post("/gathernd", json=body, headers=headers).status_code == 200
    pairs = np.stack([some, rng.integers(-columns, columns, len(some))], 1)
    body["indices"] = int64([len(some), 2], pairs.reshape(-1).tolist())
    assert compared.post("/gathernd", json=body, headers=headers).status_code == 200
    body["indices"] = int64([3, 2], rng.integers(-columns, columns, 6).tolist())
    assert compared.post("/gather", json=body | {"axis": 1}, headers=headers).status_code == 200
    per_row = rng.integers(-columns, columns, (rows, 1)).reshape(-1).tolist()
    body["indices"] = int64([rows, 1], per_row)
    assert compared.post("/gathernd", json=body | {"batch_dims": 1}, headers=headers).status_code == 200
    assert compared.post("/gather_elements", json=body | {"axis": 1}, headers=headers).status_code == 200


def test_gradients_know_the_shape_of_a_table(compared: httpx.Client) -> None:
    grad = {"dtype": "float32", "shape": [2, 2, 3], "values": list(range(12))}
    body = {"tensor": "pl_float32_3", "indices": int64([2, 1], [3, 0]), "grad_output": grad}
    assert compared.post("/gathernd/backward", json=body).status_code == 200
    body["indices"] = int64([2, 1], [4, 0])
    assert compared.post("/gathernd/backward", json=body).status_code == 422


def test_data_in_the_request_is_gathered_by_the_router(compared: httpx.Client) -> None:
    data = {"dtype": "float32", "shape": [2, 2], "values": [0, 1, 2, 3]}
    assert compared.post("/gathernd", json={"data": data, "indices": int64([1, 1], [1])}).status_code == 200
    assert compared.post("/gathernd", json={"data": data, "indices": int64([1, 1], [2])}).status_code == 422


def test_what_changes_data_is_refused(both: BothTransport) -> None:
    body = {"indices": int64([1, 1], [0]), "updates": {"dtype": "float32", "shape": [1, 3], "values": [1, 2, 3]}}
    for answer in (
        both.router.post("/tensors/pl_float32_1/scatter", json=body),
        both.router.post("/scatternd", json=body | {"data": {"tensor": "pl_float32_1"}}),
        both.router.put(
            "/tensors/new", params={"dtype": "int8", "shape": "1"}, content=b"a", headers={"content-type": RAW}
        ),
        both.router.delete("/tensors/pl_float32_1"),
        both.router.put("/aliases/new", json={"tensor": "pl_float32_1@1"}),
        both.router.delete("/aliases/pl_alias"),
        both.router.post("/tensors/new/import", json={"url": "https://x.example/a.npy"}),
    ):
        assert (answer.status_code, answer.json()["code"]) == (501, "not_implemented"), answer.text


@pytest.mark.parametrize("accept", ["*/*", "application/x-npy", "application/x-safetensors"])
@pytest.mark.parametrize(
    "name", ["pl_float32_3", "pl_string_1", "pl_tall", "pl_empty", "pl_no_items", "pl_alias", "pl_scalar"]
)
def test_downloads(compared: httpx.Client, name: str, accept: str) -> None:
    for query in ({}, {"rows": "2:4"}, {"rows": "3:3"}, {"rows": "4:2"}, {"rows": "0:5001"}, {"rows": "x"}):
        answer = compared.get(f"/tensors/{name}/content", params=query, headers={"accept": accept})
        assert answer.status_code in (200, 416, 422), answer.text
    assert compared.get(f"/tensors/{name}/content", headers={"if-none-match": "*"}).status_code == 304
    assert compared.get("/tensors/missing/content").status_code == 404


def test_tables_are_described_and_listed(both: BothTransport, held: Tables) -> None:
    router, whole = both.router, both.whole
    for name in ("pl_float32_3", "pl_float32_3@1", "pl_alias", "pl_empty"):
        told, wanted = (client.get(f"/tensors/{name}").json() for client in (router, whole))
        for member in ("name", "version", "versions", "dtype", "shape", "bytes"):
            assert told[member] == wanted[member]
    names = sorted([*held, "pl_scalar"])
    page = router.get("/tensors", params={"limit": 3, "after": names[0]}).json()
    assert [one["name"] for one in page["tensors"]] == names[1:4]
    assert page["next"] == names[3]
    assert router.get("/aliases").json()["aliases"][0]["tensor"] == "pl_float32_3@1"
    etag = router.get("/tensors/pl_float32_3").headers["etag"]
    assert etag == '"pl_float32_3-1-0"'
    assert router.get("/tensors/pl_float32_3", headers={"if-none-match": etag}).status_code == 304
    models = {one["name"] for one in router.post("/v2/repository/index", json={}).json()}
    assert {"pl_float32_3", "pl_alias", "lookup"} <= models


def test_an_explanation_says_which_shards(both: BothTransport) -> None:
    body: dict[str, Any] = {"data": {"tensor": "pl_float32_0"}, "indices": int64([4, 1], [0, 5, -1, 9])}
    told = both.router.post("/gathernd", json=body, params={"explain": "true"}).json()["explanation"]["shards"]
    assert [(one["rows"], one["tuples"]) for one in told] == [([0, 1], 1), ([3, 6], 2)]
    assert all(len(one["replicas"]) == 2 for one in told)
    body = {"features": [{"tensor": "pl_float32_0", "indices": int64([2], [1, 1])}]}
    told = both.router.post("/lookup", json=body, params={"explain": "true"}).json()["explanation"]["features"]
    assert [(one["rows"], one["tuples"]) for one in told[0]["shards"]] == [([1, 3], 2)]
    body = {"data": {"tensor": "pl_float32_1"}, "indices": int64([1], [1]), "axis": 1}
    told = both.router.post("/gather", json=body, params={"explain": "true"}).json()["explanation"]["shards"]
    assert [one["tuples"] for one in told] == [None] * len(told)
    assert len(told) > 1
