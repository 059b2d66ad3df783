"""The model `gather_elements`: datatypes, refusals with their places, and the model's metadata."""

from __future__ import annotations

import json
from typing import Any

import httpx
import numpy as np

from tests.oip.bodies import part, request

INFER = "/v2/models/gather_elements/infer"


def sent(data: Any, indices: Any, **parameters: Any) -> dict[str, Any]:
    content, _ = request(
        [part("data", np.asarray(data, np.int8), "INT8"), part("indices", np.asarray(indices, np.int64), "INT64")]
    )
    body: dict[str, Any] = json.loads(content)
    return body | {"parameters": parameters}


def test_the_model_is_described_and_listed(client: httpx.Client) -> None:
    metadata = client.get("/v2/models/gather_elements").json()
    assert [one["name"] for one in metadata["inputs"]] == ["data", "indices"]
    config = client.get("/v2/models/gather_elements/config").json()
    assert {name: value["string_value"] for name, value in config["parameters"].items()} == {
        "axis": "0", "dialect": "onnx-13", "device": "auto",
    }  # fmt: skip
    assert client.get("/v2/models/gather_elements/versions/1/ready").status_code == 200
    index = client.post("/v2/repository/index").json()
    assert [entry["state"] for entry in index if entry["name"] == "gather_elements"] == ["READY"]
    before = client.get("/v2/models/gather_elements/stats").json()["model_stats"][0]
    assert client.post(INFER, json=sent([1, 2], [1])).status_code == 200
    after = client.get("/v2/models/gather_elements/stats").json()["model_stats"][0]
    assert after["inference_count"] == before["inference_count"] + 1
