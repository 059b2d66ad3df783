"""The model `gather_elements`: datatypes, refusals with their places, and the model's metadata."""

from __future__ import annotations

import json
from typing import Any

import httpx
import numpy as np
import pytest

from tests.for_each import for_each
from tests.oip.bodies import NUMPY, output, part, refused, request, same

INFER = "/v2/models/gather_elements/infer"


@for_each("datatype", NUMPY)
@for_each("binary", [False, True])
def test_every_datatype_of_the_protocol(client: httpx.Client, datatype: str, binary: bool) -> None:
    if datatype == "BYTES":
        data: Any = np.array([["a", "ß"], ["", "日本"]], object)
    else:
        data = np.array([[0, 1], [1, 0]]).astype(NUMPY[datatype])
    indices = np.array([[1, -2], [-1, 1]])
    content, headers = request(
        [part("data", data, datatype, binary=binary), part("indices", indices, "INT64", binary=binary)],
        parameters={"axis": 1, "binary_data_output": binary},
    )
    _, found = output(client.post(f"{INFER[:-6]}/versions/1/infer", content=content, headers=headers))
    expected = np.empty_like(data)
    for row in range(2):
        for column in range(2):
            expected[row, column] = data[row, indices[row, column]]
    assert same(found, expected)


def sent(data: Any, indices: Any, **parameters: Any) -> dict[str, Any]:
    content, _ = request(
        [part("data", np.asarray(data, np.int8), "INT8"), part("indices", np.asarray(indices, np.int64), "INT64")]
    )
    body: dict[str, Any] = json.loads(content)
    return body | {"parameters": parameters}


def test_bad_entries_are_named_where_they_stand(client: httpx.Client) -> None:
    values = np.array([0, 4, 9, -5] * 6).reshape(6, 4)
    answer = client.post(INFER, json=sent(np.zeros((6, 4)), values, axis=1))
    problem = refused(answer, "index_out_of_bounds", "/inputs/1/data/1")
    assert problem["total"] == 18
    bad = [item for item in range(24) if item % 4][:10]
    assert [place["pointer"] for place in problem["errors"]] == [f"/inputs/1/data/{item}" for item in bad]
    assert problem["errors"][0]["allowed"] == [-4, 3]


def test_rules_on_shapes_point_to_their_input(client: httpx.Client) -> None:
    refused(client.post(INFER, json=sent([[1]], [0])), "rank_mismatch", "/inputs/1/shape")
    refused(client.post(INFER, json=sent(1, 0)), "rank_too_small", "/inputs/0/shape")
    refused(client.post(INFER, json=sent([[1]], [[0], [0]], axis=1)), "indices_shape_mismatch", "/inputs/1/shape")


@pytest.mark.parametrize("axis", [2, -3, 2**63, -(2**63), 2**64, -(10**40)])
def test_an_axis_however_large_is_out_of_range(client: httpx.Client, axis: int) -> None:
    body = sent([[1, 2], [3, 4]], [[0]], axis=axis)
    refused(client.post(INFER, json=body), "axis_out_of_range", "/parameters/axis")


def test_the_parameter_of_another_operator_is_refused(client: httpx.Client) -> None:
    refused(client.post(INFER, json=sent([1], [0], batch_dims=0)), "invalid_field", "/parameters/batch_dims")
    refused(client.post(INFER, json=sent([1], [0], dialect="onnx-12")), "invalid_field", "/parameters/dialect")


def test_a_gpu_is_not_to_be_had(client: httpx.Client) -> None:
    refused(client.post(INFER, json=sent([1], [0], device="gpu")), "device_unavailable", "/parameters/device")


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
