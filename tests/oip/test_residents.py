"""Resident tensors as models of their own names."""

from __future__ import annotations

import gzip
from typing import Any

import httpx
import numpy as np
import pytest

from tests.http.tensors import npy
from tests.oip.bodies import SIZE, Array, output, part, refused, request, same

TABLE = np.random.default_rng(3).random((500, 8), np.float32)
PICK = np.array([[3], [-1], [499], [3]], np.int64)


@pytest.fixture(autouse=True)
def table(client: httpx.Client) -> str:
    """ETag of the resident tensor `table`."""
    answer = client.put("/tensors/table", content=npy(TABLE), headers={"content-type": "application/x-npy"})
    assert answer.status_code in (200, 201), answer.text
    return str(answer.headers["etag"])


def version_of(client: httpx.Client, name: str = "table") -> str:
    """The current version of a tensor, as the protocol writes it: each upload makes another one."""
    return str(client.get(f"/tensors/{name}").json()["version"])


def infer(client: httpx.Client, *parts: Any, name: str = "table", **members: Any) -> httpx.Response:
    content, headers = request(parts, **members)
    return client.post(f"/v2/models/{name}/infer", content=content, headers=headers)


@pytest.mark.parametrize("binary", [False, True])
def test_it_takes_indices_only(client: httpx.Client, table: str, binary: bool) -> None:
    answer = infer(
        client, part("indices", PICK, "INT64", binary=binary), id="9", parameters={"binary_data_output": binary}
    )
    body, found = output(answer)
    assert (body["model_name"], body["model_version"], body["id"]) == ("table", version_of(client), "9")
    assert answer.headers["x-gathernd-data-version"] == version_of(client)
    assert answer.headers["x-gathernd-data-etag"] == table
    assert same(found, TABLE[PICK[:, 0]])
    data = part("data", TABLE[:1], "FP32")
    refused(infer(client, data, part("indices", PICK, "INT64")), "invalid_field", "/inputs/0/name")


def test_a_tensor_that_is_named_like_a_call_is_a_model_all_the_same(client: httpx.Client) -> None:
    client.put("/tensors/infer", content=npy(TABLE), headers={"content-type": "application/x-npy"})
    assert client.get("/v2/models/infer").json()["name"] == "infer"
    assert infer(client, part("indices", PICK, "INT64"), name="infer").status_code == 200
    client.delete("/tensors/infer")


@pytest.mark.parametrize("picked", [PICK[:, 0], np.empty(0, np.int64), np.arange(100_000) % 500])
@pytest.mark.parametrize("squeezed", [False, True])
def test_a_raw_body_is_a_column_of_int64(client: httpx.Client, picked: Array, squeezed: bool) -> None:
    content = picked.tobytes()
    headers = {SIZE: "0"}
    if squeezed:
        content, headers = gzip.compress(content), {SIZE: "0", "content-encoding": "gzip"}
    body, found = output(
        client.post(f"/v2/models/table/versions/{version_of(client)}/infer", content=content, headers=headers)
    )
    assert "binary_data_size" in body["outputs"][0]["parameters"]
    assert same(found, TABLE[picked])


def test_metadata_config_and_statistics(client: httpx.Client) -> None:
    model = client.get("/v2/models/table").json()
    assert [(one["name"], one["shape"]) for one in model["inputs"]] == [("indices", [-1, -1])]
    assert model["outputs"] == [{"name": "output", "datatype": "FP32", "shape": [-1]}]
    config = client.get("/v2/models/table/config").json()
    assert config["output"][0]["data_type"] == "TYPE_FP32"
    assert config["input"][0]["dims"] == [-1, -1]
    assert client.get("/v2/models/table/ready").status_code == 200
    before = client.get("/v2/models/table/stats").json()["model_stats"][0]
    infer(client, part("indices", PICK, "INT64"))
    after = client.get(f"/v2/models/table/versions/{version_of(client)}/stats").json()["model_stats"][0]
    assert after["inference_count"] == before["inference_count"] + 1
    assert "table" in [one["name"] for one in client.get("/v2/models/stats").json()["model_stats"]]


def test_it_comes_and_goes_with_its_tensor(client: httpx.Client) -> None:
    raw = {"content-type": "application/octet-stream"}
    assert client.put("/tensors/brief?dtype=int8&shape=3", content=b"abc", headers=raw).status_code == 201
    index = {one["name"]: one for one in client.post("/v2/repository/index").json()}
    assert index["brief"] == {"name": "brief", "version": "1", "state": "READY", "reason": ""}
    assert client.post("/v2/repository/models/brief/unload").status_code == 200
    assert infer(client, part("indices", np.array([[2]]), "INT64"), name="brief").json()["outputs"][0]["data"] == [99]
    assert client.delete("/tensors/brief").status_code == 204
    refused(infer(client, part("indices", np.array([[2]]), "INT64"), name="brief"), "model_not_found")
    refused(client.get("/v2/models/brief"), "model_not_found")
    refused(client.post("/v2/repository/models/brief/load"), "model_not_found")
    names = [one["name"] for one in client.get("/v2/models/stats").json()["model_stats"]]
    assert "brief" not in names


def test_a_complex_tensor_is_pointed_to_the_native_route(client: httpx.Client) -> None:
    array = np.array([1 + 2j], np.complex64)
    assert client.put("/tensors/complex", content=npy(array), headers={"content-type": "application/x-npy"}).is_success
    for answer in (
        infer(client, part("indices", np.array([[0]]), "INT64"), name="complex"),
        client.get("/v2/models/complex"),
        client.get("/v2/models/complex/ready"),
    ):
        assert "/gathernd" in refused(answer, "unsupported_dtype")["error"]
    index = {one["name"]: one for one in client.post("/v2/repository/index").json()}
    assert index["complex"]["state"] == "UNAVAILABLE"
    assert "/gathernd" in index["complex"]["reason"]
    assert client.delete("/tensors/complex").status_code == 204
