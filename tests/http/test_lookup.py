"""`POST /lookup` beside the conformance table: explanations, metrics, limits and the memory budget."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import numpy as np
import pytest

from tests.http.conftest import Start
from tests.http.lookups import Given, as_json, as_safetensors
from tests.http.server import Server
from tests.http.tensors import SAFETENSORS, error, put_raw

BINARY = {"content-type": SAFETENSORS}
_SOURCE = np.random.default_rng(16)
USERS = _SOURCE.standard_normal((50, 8), dtype=np.float32)
ITEMS = _SOURCE.standard_normal((20, 5), dtype=np.float32)
TABLES = {"lk_users": USERS, "lk_items": ITEMS}


@pytest.fixture(scope="module", autouse=True)
def tables(server: Server) -> Iterator[None]:
    client = server.shared_client()
    for name, table in TABLES.items():
        assert put_raw(client, name, table).status_code in (200, 201)
    yield
    for name in TABLES:
        assert client.delete(f"/tensors/{name}").status_code == 204


BAG = Given("lk_items", [4, 4, 9, 1, 0], [0, 3], pooling="sum")


def test_a_lookup_is_explained(client: httpx.Client) -> None:
    for content, headers in ((json.dumps(as_json([BAG])).encode(), {}), (as_safetensors([BAG]), BINARY)):
        answer = client.post("/lookup?explain=true", content=content, headers=headers).json()
        assert answer["output"] == {"dtype": "float32", "shape": [2, 5]}
        explained = answer["explanation"]
        assert explained["operator"] == "lookup"
        assert explained["output_bytes"] == 40
        (feature,) = explained["features"]
        assert feature["bytes_read"] == 5 * 20
        assert feature["table"] == {"dtype": "float32", "shape": [20, 5], "bytes": 400}
        assert [route["route"] for route in explained["routes"]] == ["gpu", "split", "loop", "thread"]
        assert not explained["routes"][0]["open"]


@pytest.fixture(scope="module")
def small(start: Start) -> Iterator[Server]:
    with start("--max-features", "3", "--max-output-bytes", "4096", "--memory-budget", "4MiB") as server:
        client = server.shared_client()
        for name in ("lk_items", "lk_users"):
            assert put_raw(client, name, TABLES[name]).status_code == 201
        yield server


def test_limits_hold_for_the_sum_of_all_features(small: Server) -> None:
    client = small.shared_client()
    rows = Given("lk_users", [0] * 42)  # 1,344 bytes
    assert client.post("/lookup", json=as_json([rows] * 3)).status_code == 200
    more = Given("lk_users", [0] * 43)
    for concat in (True, False):
        found = error(
            client.post("/lookup", json=as_json([more] * 3, concat=concat)), 422, "output_too_large", "/features"
        )
        assert (found["limit"], found["maximum"]) == ("output_bytes", 4096)
    for sent, headers, pointer in (
        (json.dumps(as_json([rows] * 4)).encode(), {}, "/features"),
        (as_safetensors([rows] * 4), BINARY, "/__metadata__/lookup/features"),
    ):
        found = error(client.post("/lookup", content=sent, headers=headers), 422, "limit_exceeded", pointer)
        assert (found["limit"], found["maximum"]) == ("features", 3)
