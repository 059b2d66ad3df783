"""`?explain=true` says what a gather would do, and refuses what the gather would refuse, but runs nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import save

from app.api.schemas.answers import GatherAnswer
from app.operators.registry import ROWS
from tests.conftest import SOAK
from tests.golden.answers import service
from tests.golden.requests import requests
from tests.http.conftest import Start
from tests.http.forms import int64, tensor
from tests.http.tensors import put_raw

DATA = tensor("float32", [2, 2], [0, 1, 2, 3])
BODY = {"data": DATA, "indices": int64([2, 2], [0, 0, 1, 1])}
BINARY = {"content-type": "application/x-safetensors"}


@pytest.fixture(scope="module")
def client(start: Start) -> Iterator[httpx.Client]:
    """A server whose resident tensors are this module's own."""
    with start("--threads", "2", "--max-output-bytes", "1MiB") as server:
        yield server.shared_client()


def explained(answer: httpx.Response) -> dict[str, Any]:
    """The explanation, with what stands beside it."""
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    GatherAnswer.model_validate(body)
    of_version = {"data_etag", "version"} if "tensor" in body["explanation"]["data"] else set()
    assert set(body) == {"output", "dialect", "device", "explanation"} | of_version
    assert set(body["output"]) == {"dtype", "shape"}
    found: dict[str, Any] = {**body.pop("explanation"), **body}
    routes = {each["route"]: each for each in found["routes"]}
    assert list(routes) == ["gpu", "split", "loop", "thread"]
    assert all(each["reason"] for each in routes.values())
    assert found["choice"]["route"] == next(route for route, each in routes.items() if each["open"])
    assert found["device"] == "cpu"
    return found


def test_a_small_gather_is_explained(client: httpx.Client) -> None:
    found = explained(client.post("/gathernd", params={"explain": "true"}, json=BODY))
    assert found["operator"] == "gathernd"
    assert found["dialect"] == "onnx-13"
    assert found["data"] == {"dtype": "float32", "shape": [2, 2], "bytes": 16}
    assert found["indices"] == {"dtype": "int64", "shape": [2, 2], "bytes": 32}
    assert found["output"] == {"dtype": "float32", "shape": [2]}
    assert found["output_bytes"] == 8
    plan = {"batches": 1, "tuples": 2, "dims": [2, 2], "slice_items": 1, "item_size": 4, "shared": False, "wrap": True}
    assert found["plan"] == plan
    assert found["size"] == {"items": 4, "bytes": 8}
    assert found["choice"] == {"route": "loop", "parts": 1}
    gpu, split, loop, _ = found["routes"]
    assert (gpu["open"], "threshold" in gpu) == (False, False)
    assert (split["open"], loop["open"]) == (False, True)
    assert split["threshold"]["items"] > 4
    assert loop["threshold"]["items"] > 4
    assert "out of bounds" in found["not_checked"]


def test_a_resident_tensor_is_named(client: httpx.Client) -> None:
    put_raw(client, "table", np.zeros((1000, 64), np.float32))
    body = {"data": {"tensor": "table"}, "indices": int64([2, 1], [5, 7])}
    found = explained(client.post("/gathernd", params={"explain": "true"}, json=body))
    assert found["data"] == {"dtype": "float32", "shape": [1000, 64], "bytes": 256_000, "tensor": "table"}
    content = save({"indices": np.zeros((256, 1), np.int64)})
    params = {"tensor": "table", "explain": "true"}
    found = explained(client.post("/gathernd", params=params, content=content, headers=BINARY))
    assert found["output"] == {"dtype": "float32", "shape": [256, 64]}
    assert found["output_bytes"] == 65_536


def test_the_values_of_indices_are_not_looked_at(client: httpx.Client) -> None:
    body = {"data": DATA, "indices": int64([1, 2], [0, 5])}
    assert client.post("/gathernd", json=body).json()["code"] == "index_out_of_bounds"
    assert explained(client.post("/gathernd", params={"explain": "true"}, json=body))["output"]["shape"] == [1]


def test_what_a_gather_refuses_an_explanation_refuses_alike(start: Start) -> None:
    paths = {row.path for row in ROWS.values()}
    gathers = [
        each
        for each in requests()
        if each.method == "POST" and each.target.partition("?")[0] in paths and "explain" not in each.target
    ]
    as_json = {"accept": "application/json"}
    looked_at = 0
    with start() as server, service(server.port), server.client() as client:
        for each in gathers if SOAK else gathers[::8]:
            explain = f"{'&' if '?' in each.target else '?'}explain=true"
            plain, asked = (
                client.post(each.target + more, content=each.body, headers=each.headers | as_json)
                for more in ("", explain)
            )
            found = {} if plain.status_code == 200 else plain.json()
            of_values = found.get("code") == "offsets_invalid" and "explanation" in asked.json()
            if not found or found["code"] == "index_out_of_bounds" or of_values:
                looked_at += 1
                assert asked.json()["explanation"]["choice"]["route"] == "loop"
            else:
                assert {**asked.json(), "request_id": ""} == {**found, "request_id": ""}, each
    assert looked_at > 3
