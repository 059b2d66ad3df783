"""A cluster answers bit for bit as one machine with the whole tables: errors, positions and totals included."""

from __future__ import annotations

import random
from typing import Any

import httpx
import numpy as np
import pytest

from tests.cluster import gathers, scatters
from tests.cluster.written import WrittenTransport, sequence_of
from tests.conformance.random_cases import case_of
from tests.conftest import SOAK, slow_but_for
from tests.http.forms import int64
from tests.http.tensors import RAW
from tests.parity.items import choose
from tests.parity.lookup_cases import Tables, random_lookup

COUNT = 20_000 if SOAK else 150
"""Lookups, gathers and scatters."""
SHARES = 2


@pytest.mark.parametrize("share", slow_but_for((0,), range(SHARES)))
def test_random_requests(both: WrittenTransport, compared: httpx.Client, held: Tables, share: int) -> None:
    """Reads and scatters in any order: the same answers, and in the end the same bytes."""
    rng = np.random.default_rng([random.SystemRandom().getrandbits(32) if SOAK else 18, share])
    good, count = both.statuses.get(200, 0), COUNT // (SHARES if SOAK else 1)
    end = both.compared + count
    while both.compared < end:
        number = both.compared
        match choose(rng, ("lookup", "gather", "gather", "scatter", "scatter")):
            case "lookup":
                gathers.send(compared, rng, case_of(random_lookup(rng, held)))
            case "gather":
                gathers.send(compared, rng, gathers.random_gather(rng, held, is_wrong=number % 3 == 0))
            case _ if both.keyed and rng.random() < 0.1:
                compared.send(both.again(rng))
            case _:
                both.key = choose(rng, (None, f"{share}-{number}", f"{share}-{number - int(rng.integers(30))}"))
                scatters.send(compared, rng, scatters.random_scatter(rng, held, is_wrong=number % 3 == 0))
    both.key = None
    assert both.statuses.get(200, 0) - good > count // 2
    for name in held:
        answer = compared.get(f"/tensors/{name}/content", headers={"accept": RAW})
        assert answer.status_code == 200, answer.text


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


def test_tables_are_described_and_listed(both: WrittenTransport, held: Tables) -> None:
    router, whole = both.router, both.whole
    for name in ("pl_float32_3", "pl_float32_3@1", "pl_alias", "pl_empty"):
        told, wanted = (client.get(f"/tensors/{name}").json() for client in (router, whole))
        for member in ("name", "version", "versions", "dtype", "shape", "bytes"):
            assert told[member] == wanted[member]
        ranges, rows = told.get("ranges", []), told["shape"][0]
        assert [one["start"] for one in ranges] + [rows] == [0, *(one["stop"] for one in ranges)]
        assert all(one["shards"] for one in ranges)
        assert "ranges" not in wanted
    names = sorted([*held, "pl_scalar"])
    page = router.get("/tensors", params={"limit": 3, "after": names[0]}).json()
    assert [one["name"] for one in page["tensors"]] == names[1:4]
    assert page["next"] == names[3]
    assert router.get("/aliases").json()["aliases"][0]["tensor"] == "pl_float32_3@1"
    etag = router.get("/tensors/pl_float32_3").headers["etag"]
    assert sequence_of(etag) >= 0
    assert router.get("/tensors/pl_float32_3", headers={"if-none-match": etag}).status_code == 304
    models = {one["name"] for one in router.post("/v2/repository/index", json={}).json()}
    assert {"pl_float32_3", "pl_alias", "lookup"} <= models


def test_an_explanation_says_which_shards(both: WrittenTransport) -> None:
    body: dict[str, Any] = {"data": {"tensor": "pl_float32_0"}, "indices": int64([4, 1], [0, 5, -1, 9])}
    told = both.router.post("/gathernd", json=body, params={"explain": "true"}).json()["explanation"]["shards"]
    assert [(one["rows"], one["tuples"]) for one in told] == [([0, 1], 1), ([4, 6], 2)]
    assert all(len(one["replicas"]) == 2 for one in told)
    body = {"features": [{"tensor": "pl_float32_0", "indices": int64([2], [1, 1])}]}
    told = both.router.post("/lookup", json=body, params={"explain": "true"}).json()["explanation"]["features"]
    assert [(one["rows"], one["tuples"]) for one in told[0]["shards"]] == [([1, 3], 2)]
    body = {"data": {"tensor": "pl_float32_1"}, "indices": int64([1], [1]), "axis": 1}
    told = both.router.post("/gather", json=body, params={"explain": "true"}).json()["explanation"]["shards"]
    assert [one["tuples"] for one in told] == [None] * len(told)
    assert len(told) > 1
