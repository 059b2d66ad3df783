"""`out_of_bounds` and `fill_value` beside the conformance table: how a value is written, limits, and many indices."""

from __future__ import annotations

from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import load, save

from tests.http.conftest import Start
from tests.http.forms import int64, tensor
from tests.http.tensors import error, npy, put_strings
from tests.oip.bodies import output, part, request

SAFETENSORS = {"content-type": "application/x-safetensors"}


def asked(client: httpx.Client, path: str, body: dict[str, Any], **more: Any) -> dict[str, Any]:
    answer = client.post(path, json=body | more)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


@pytest.mark.parametrize("text", ["-0", "-0.0", "-0e1"])
def test_a_fill_value_keeps_the_sign_of_its_zero(every_client: httpx.Client, text: str) -> None:
    """With and without a fraction, as the values of a tensor do."""

    def is_minus_zero(found: Any) -> bool:
        return np.array_equal(np.signbit(found), np.ones(np.shape(found), bool)) and not np.any(found)

    body = (
        '{"data": {"dtype": "float64", "values": [1]}, "indices": {"dtype": "int64", "values": [[1]]}, '
        '"out_of_bounds": "fill", "fill_value": %s}'
    )
    for _ in range(2):  # the second one's fields have been seen before
        answer = every_client.post("/gathernd", content=body % text).json()
        assert is_minus_zero(answer["output"]["values"])
    pairs = body.replace("float64", "complex64").replace("[1]}, ", "[[1, 1]]}, ", 1)
    answer = every_client.post("/gathernd", content=pairs % f"[{text}, {text}]").json()
    assert is_minus_zero(answer["output"]["values"])
    whole = every_client.post("/gathernd", content=body.replace("float64", "int8") % text).json()
    assert str(whole["output"]["values"]) == "[0]"
    binary = save({"data": np.ones(1, np.float32), "indices": np.array([[1]])})
    query = {"out_of_bounds": "fill", "fill_value": text}
    answer = every_client.post("/gathernd", params=query, content=binary, headers=SAFETENSORS)
    assert is_minus_zero(load(answer.content)["output"])
    inputs = [part("data", np.ones(1, np.float32), "FP32"), part("indices", np.array([[1]]), "INT64")]
    content, headers = request(inputs, parameters=query)
    answer = every_client.post("/v2/models/gathernd/infer", content=content, headers=headers)
    assert is_minus_zero(output(answer)[1])
    every_client.put("/tensors/zeros", content=npy(np.ones((1, 2), np.float32))).raise_for_status()
    features = '{"features": [{"tensor": "zeros"%s}], "out_of_bounds": "fill", "fill_value": %s}'
    answer = every_client.post("/lookup", content=features % (', "indices": {"dtype": "int64", "values": [7]}', text))
    assert is_minus_zero(answer.json()["output"]["values"])
    binary = save({"0.indices": np.array([7])}, {"lookup": features % ("", text)})
    answer = every_client.post("/lookup", content=binary, headers=SAFETENSORS)
    assert is_minus_zero(load(answer.content)["output"])
    every_client.delete("/tensors/zeros")


def test_a_fill_value_of_a_query_that_is_no_json_is_refused(client: httpx.Client) -> None:
    binary = save({"data": np.zeros(1, np.float32), "indices": np.zeros((1, 1), np.int64)})
    for text in ("", "nan", "[1", "'x'"):
        query = {"out_of_bounds": "fill", "fill_value": text}
        answer = client.post("/gathernd", params=query, content=binary, headers=SAFETENSORS)
        error(answer, 422, "invalid_field", "/query/fill_value")


def test_a_string_that_is_too_long_is_refused_where_limits_have_their_turn(start: Start) -> None:
    body = {"data": {"dtype": "string", "values": ["a", "b"]}, "indices": int64([1, 1], [7]), "out_of_bounds": "fill"}
    long = {**body, "fill_value": "ééééa"}
    with start("--max-string-bytes", "8") as server, server.client() as client:
        assert asked(client, "/gathernd", body, fill_value="éééé")["output"]["values"] == ["éééé"]
        for more in ({}, {"explain": True}):
            problem = error(client.post("/gathernd", json=long, params=more), 422, "limit_exceeded")
            assert problem["errors"] == [{"pointer": "/fill_value"}]
            assert (problem["limit"], problem["maximum"]) == ("string_bytes", 8)
        deep = {**long, "indices": int64([1, 2], [7, 7])}
        error(client.post("/gathernd", json=deep), 422, "index_depth_out_of_range")
        put_strings(client, "words", ["a", "b"])
        fill = {"out_of_bounds": "fill", "fill_value": "ééééa"}
        lookup = {"features": [{"tensor": "words", "indices": int64([1], [7])}], **fill}
        assert error(client.post("/lookup", json=lookup), 422, "limit_exceeded")["errors"] == [
            {"pointer": "/fill_value"}
        ]


def test_many_indices_are_replaced_by_a_thread(every_client: httpx.Client) -> None:
    source = np.random.default_rng(3)
    data = source.integers(0, 99, 1000).astype(np.int32)
    indices = source.integers(-3000, 3000, (100_000, 1))
    body = {
        "data": tensor("int32", [1000], data.tolist()),
        "indices": int64(indices.shape, indices.ravel().tolist()),
    }
    index, outside = indices[:, 0], (indices[:, 0] < -1000) | (indices[:, 0] >= 1000)
    back = np.where((index < 0) & ~outside, index + 1000, index)
    made = {"clip": data[back.clip(0, 999)], "wrap": data[back % 1000], "fill": np.where(outside, 0, data[back % 1000])}
    for mode, wanted in made.items():
        found = asked(every_client, "/gathernd", body, out_of_bounds=mode)
        assert found["output"]["values"] == wanted.tolist()
        assert found["replaced"] == outside.sum()
