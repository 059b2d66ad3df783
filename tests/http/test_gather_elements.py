"""`POST /gather_elements` and the model `gather_elements`: known answers in every format, resident data, refusals."""

from __future__ import annotations

from typing import Any

import httpx
import numpy as np
from safetensors.numpy import load, save

from tests.http.forms import int64, tensor
from tests.http.tensors import error, npy
from tests.oip.bodies import same

PATH = "/gather_elements"
SAFETENSORS = {"content-type": "application/x-safetensors"}
# The examples of the ONNX text.
ONE: dict[str, Any] = {
    "data": tensor("int32", [2, 2], [1, 2, 3, 4]),
    "indices": int64([2, 2], [0, 0, 1, 0]),
    "axis": 1,
}


def asked(client: httpx.Client, body: dict[str, Any], **more: Any) -> dict[str, Any]:
    answer = client.post(PATH, json=body | more)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_a_large_gather_is_split_and_right(client: httpx.Client) -> None:
    numbers = np.random.default_rng(5)
    data = numbers.standard_normal((600, 700)).astype(np.float32)
    indices = numbers.integers(-600, 600, (500, 650))
    answer = client.post(PATH, content=save({"data": data, "indices": indices}), headers=SAFETENSORS)
    assert answer.status_code == 200, answer.text
    assert same(load(answer.content)["output"], np.take_along_axis(data[:, :650], indices % 600, 0))


def test_an_explanation_names_plan_and_routes(client: httpx.Client) -> None:
    body = {"data": tensor("float32", [3, 4], [0] * 12), "indices": int64([2, 4], [0] * 8)}
    found = client.post(PATH, params={"explain": "true"}, json=body).json()
    assert found["output"] == {"dtype": "float32", "shape": [2, 4]}
    explanation = found["explanation"]
    assert explanation["operator"] == "gather_elements"
    assert explanation["output_bytes"] == 32
    plan = {"batches": 1, "tuples": 8, "dims": [3], "slice_items": 1, "item_size": 4, "shared": False, "wrap": True}
    assert explanation["plan"] == plan
    assert explanation["choice"]["route"] == "loop"
    gpu = explanation["routes"][0]
    assert (gpu["route"], gpu["open"]) == ("gpu", False)


def test_requests_are_counted_under_the_route(client: httpx.Client) -> None:
    asked(client, ONE)
    assert 'gathernd_requests_total{method="POST",path="/gather_elements",status="200"}' in client.get("/metrics").text


def test_no_tensor_is_given_the_name(client: httpx.Client) -> None:
    answer = client.put("/tensors/gather_elements", content=npy(np.zeros(3)))
    problem = error(answer, 422, "invalid_field", "/name")
    assert "reserved" in problem["detail"]
