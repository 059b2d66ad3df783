"""`POST /gathernd/backward` and `POST /gather/backward`: known answers in both formats, resident shapes, refusals."""

from __future__ import annotations

import json
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import load

from app.api.schemas.backward_examples import REQUESTS
from app.operators.backward_registry import BACKWARDS
from tests.http.conftest import Start
from tests.http.forms import int64, tensor
from tests.http.tensors import error, put_raw, save

ND, AXIS = "/gathernd/backward", "/gather/backward"
SAFETENSORS = {"content-type": "application/x-safetensors"}
BODY: dict[str, Any] = {
    "indices": int64([3, 1], [3, 0, -1]),
    "grad_output": tensor("float32", [3, 2], [1, 2, 10, 20, 100, 200]),
    "data_shape": [4, 2],
}
DENSE = [10, 20, 0, 0, 0, 0, 101, 202]


def asked(client: httpx.Client, body: dict[str, Any], path: str = ND, **more: Any) -> dict[str, Any]:
    answer = client.post(path, json=body | more)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def refused(client: httpx.Client, code: str, pointer: str | None = None, path: str = ND, **more: Any) -> dict[str, Any]:
    """BODY with other members, those that are None left out, is refused."""
    body = {name: value for name, value in (BODY | more).items() if value is not None}
    return error(client.post(path, json=body), 404 if code == "tensor_not_found" else 422, code, pointer)


@pytest.mark.parametrize("operator", BACKWARDS.values(), ids=lambda operator: operator.name)
def test_the_examples_of_openapi_are_real(every_client: httpx.Client, operator: Any) -> None:
    for _, body, answer in REQUESTS[operator.name].values():
        assert asked(every_client, body, operator.path) == answer


@pytest.mark.parametrize("text", ["-0", "-0.0", "-0e1", "-1e-400"])
def test_lda_coeff_keeps_the_sign_of_its_zero(every_client: httpx.Client, text: str) -> None:
    """All that was 0 or more becomes -0.0, in a body as in a query."""
    answer = every_client.post(ND, content=json.dumps(BODY)[:-1] + f', "lda_coeff": {text}}}').json()
    assert str(answer["grad_data"]["values"]) == str([-0.0] * 8)
    content = save(indices=np.array([[0]]), grad_output=np.ones((1, 2), np.float32))
    answer = every_client.post(
        ND, params={"data_shape": "1,2", "lda_coeff": text}, content=content, headers=SAFETENSORS
    )
    assert str(load(answer.content)["grad_data"].tolist()) == str([[-0.0, -0.0]])


def test_the_shape_of_a_resident_tensor(client: httpx.Client) -> None:
    assert put_raw(client, "bw-table", np.zeros((4, 2), np.float32)).is_success
    body = {name: BODY[name] for name in ("indices", "grad_output")} | {"tensor": "bw-table"}
    assert asked(client, body)["grad_data"]["values"] == DENSE
    content = save(indices=np.array([3, 3], np.int32), grad_output=np.ones((2, 2), np.float32))
    answer = client.post(AXIS, params={"tensor": "bw-table", "sparse": "true"}, content=content, headers=SAFETENSORS)
    found = load(answer.content)
    assert (found["grad_indices"].tolist(), found["grad_values"].tolist()) == ([3], [[2, 2]])
    wrong = body | {"grad_output": BODY["grad_output"] | {"dtype": "float64"}}
    found = error(client.post(ND, json=wrong), 422, "unsupported_dtype", "/grad_output/dtype")
    assert found["hint"] == "Convert grad_output to float32."
    assert put_raw(client, "bw-counts", np.zeros((4, 2), np.int32)).is_success
    error(client.post(ND, json=body | {"tensor": "bw-counts"}), 422, "unsupported_dtype", "/tensor")
    missing = error(client.post(ND, json=body | {"tensor": "bw-tabel"}), 404, "tensor_not_found", "/tensor")
    assert missing["hint"]


def test_a_sparse_gradient_is_what_a_scatter_into_the_table_takes(client: httpx.Client) -> None:
    table = np.arange(12, dtype=np.float32).reshape(4, 3)
    assert put_raw(client, "bw-trained", table).is_success
    body = {
        "indices": int64([3, 1], [2, 0, 2]),
        "grad_output": tensor("float32", [3, 3], [1] * 9),
        "tensor": "bw-trained",
        "sparse": True,
        "lda_coeff": -0.25,
    }
    found = asked(client, body)
    scatter = {"indices": found["grad_indices"], "updates": found["grad_values"], "reduction": "add"}
    assert client.post("/tensors/bw-trained/scatter", json=scatter).status_code == 200
    row = client.post("/gathernd", json={"data": {"tensor": "bw-trained"}, "indices": int64([4, 1], [0, 1, 2, 3])})
    wanted = table - np.array([[0.25], [0], [0.5], [0]], np.float32)
    assert row.json()["output"]["values"] == wanted.ravel().tolist()


def test_batches_and_axes(client: httpx.Client) -> None:
    ones = tensor("float64", [2, 3, 2], [1] * 12)
    body = {"indices": int64([2, 3, 1], [0, 0, 1, 2, 2, -1]), "grad_output": ones, "data_shape": [2, 3, 2]}
    found = asked(client, body, batch_dims=1)["grad_data"]["values"]
    assert found == [2, 2, 1, 1, 0, 0, 0, 0, 0, 0, 3, 3]
    body = {"indices": int64([], [1]), "grad_output": tensor("float32", [2, 2], [1, 2, 3, 4]), "data_shape": [2, 3, 2]}
    assert asked(client, body, AXIS, axis=-2)["grad_data"]["values"] == [0, 0, 1, 2, 0, 0, 0, 0, 3, 4, 0, 0]
    found = asked(client, body | {"data_shape": [3, 2, 2]}, AXIS, sparse=True, axis=-3)
    assert (found["grad_indices"], found["grad_values"]["shape"]) == (int64([1], [1]), [1, 2, 2])


def test_tuples_of_several_components_come_back_in_ascending_order(client: httpx.Client) -> None:
    body = {
        "indices": int64([4, 2], [1, 2, 0, -1, -1, -1, 1, 0]),
        "grad_output": tensor("float32", [4], [1, 2, 4, 8]),
        "data_shape": [2, 3],
        "sparse": True,
    }
    found = asked(client, body)
    assert found["grad_indices"] == int64([3, 2], [0, 2, 1, 0, 1, 2])
    assert found["grad_values"] == tensor("float32", [3], [2, 8, 5])


@pytest.mark.parametrize(
    ("indices", "grad_output", "data_shape", "shape"),
    [
        (int64([0, 1], []), tensor("float32", [0, 2], []), [3, 2], [3, 2]),
        (int64([2, 1], [1, 0]), tensor("float32", [2, 0], []), [3, 0], [3, 0]),
        (int64([0, 1], []), tensor("float32", [0, 2], []), [0, 2], [0, 2]),
    ],
)
def test_nothing_to_add(
    every_client: httpx.Client, indices: Any, grad_output: Any, data_shape: list[int], shape: list[int]
) -> None:
    body = {"indices": indices, "grad_output": grad_output, "data_shape": data_shape}
    found = asked(every_client, body)["grad_data"]
    assert (found["shape"], found["values"]) == (shape, [0.0] * int(np.prod(shape)))
    found = asked(every_client, body, sparse=True)
    named = sorted(indices["values"])
    assert found["grad_indices"] == int64([len(named), 1], named)
    assert found["grad_values"]["shape"] == [len(named), data_shape[1]]


def test_indices_of_other_types_and_dialects(client: httpx.Client) -> None:
    body = BODY | {"indices": tensor("uint8", [3, 1], [3, 0, 3]), "dialect": "openvino-8"}
    assert asked(client, body)["dialect"] == "openvino-8"
    refused(client, "unsupported_dtype", "/indices/dtype", indices=body["indices"])
    found = refused(client, "index_out_of_bounds", "/indices/values/2", dialect="openvino-8")
    assert found["rule"]["dialect"] == "openvino-8"
    bfloat16 = BODY["grad_output"] | {"dtype": "bfloat16"}
    refused(client, "unsupported_dtype", "/grad_output/dtype", dialect="onnx-12", grad_output=bfloat16)


def test_refusals_in_json(every_client: httpx.Client) -> None:
    client = every_client
    refused(client, "invalid_field", "/data_shape", data_shape=None)
    refused(client, "invalid_field", "/tensor", tensor="items")
    refused(client, "invalid_field", "/data_shape/1", data_shape=[4, -2])
    refused(client, "invalid_field", "/data_shape", data_shape="4,2")
    refused(client, "invalid_field", "/grad_output", grad_output=None)
    refused(client, "invalid_field", "/out_of_bounds", out_of_bounds="clip")
    refused(client, "invalid_field", "/data", data={"tensor": "items"})
    refused(client, "invalid_field", "/axis", axis=0)
    refused(client, "invalid_field", "/batch_dims", path=AXIS, batch_dims=0)
    refused(client, "invalid_field", "/dialect", path=AXIS, dialect="onnx-12")
    for wrong in ("1", "NaN", True, [1]):
        refused(client, "invalid_field", "/lda_coeff", lda_coeff=wrong)
    for text in (1, "true", "yes"):
        refused(client, "invalid_field", "/sparse", sparse=text)
    refused(client, "unsupported_dtype", "/grad_output/dtype", grad_output=tensor("int32", [3, 2], [1] * 6))
    refused(client, "unsupported_dtype", "/grad_output/dtype", grad_output=tensor("string", [3, 2], ["a"] * 6))
    refused(client, "element_count_mismatch", "/grad_output/values", grad_output=tensor("float32", [3, 2], [1] * 5))
    refused(client, "value_not_representable", "/lda_coeff", lda_coeff=1e39)
    refused(client, "rank_too_small", "/data_shape", data_shape=[])
    refused(client, "batch_dims_out_of_range", "/batch_dims", batch_dims=2**63)
    refused(client, "batch_shape_mismatch", "/indices/shape", indices=int64([3, 1, 1], [0, 0, 0]), batch_dims=1)
    refused(client, "index_depth_out_of_range", "/indices/shape", indices=int64([1, 3], [0, 0, 0]))
    refused(client, "axis_out_of_range", "/axis", path=AXIS, axis=-3)
    found = refused(client, "updates_shape_mismatch", "/grad_output/shape", data_shape=[4, 3])
    assert found["hint"] == "Send grad_output of shape [3, 3]."
    refused(client, "limit_exceeded", "/data_shape", data_shape=[2**62, 2])
    refused(client, "output_too_large", "/data_shape", data_shape=[2**32, 2])
    refused(client, "invalid_field", "/sparse", path=AXIS, sparse=True, axis=1)
    refused(client, "device_unavailable", "/device", device="gpu")
    found = refused(client, "index_out_of_bounds", "/indices/values/0", data_shape=[3, 2])
    assert (found["total"], found["errors"][0]["allowed"]) == (1, [-3, 2])
    assert "out_of_bounds" not in found["hint"]
    refused(client, "index_out_of_bounds", "/indices/values/0", data_shape=[0, 2])


def test_the_order_of_refusals(client: httpx.Client) -> None:
    """Each of these is wrong in all that comes later, too."""
    wrong: dict[str, Any] = {
        "indices": tensor("float64", [3, 3], [9] * 9),
        "grad_output": tensor("int8", [3, 2], [1] * 6),
        "data_shape": [2**62, 2**62],
        "batch_dims": 7,
        "device": "gpu",
    }
    refused(client, "unsupported_dtype", "/indices/dtype", **wrong)
    wrong["indices"] = int64([3, 3], [9] * 9)
    refused(client, "unsupported_dtype", "/grad_output/dtype", **wrong)
    wrong["grad_output"] = tensor("float32", [3, 2], [1] * 6)
    refused(client, "batch_dims_out_of_range", "/batch_dims", **wrong)
    wrong["batch_dims"] = 0
    refused(client, "index_depth_out_of_range", "/indices/shape", **wrong)
    wrong["indices"] = int64([3, 1], [-9] * 3)
    refused(client, "updates_shape_mismatch", "/grad_output/shape", **wrong)
    wrong["data_shape"] = [2**40, 2]
    refused(client, "limit_exceeded", "/data_shape", **wrong)
    wrong["data_shape"] = [4, 2]
    refused(client, "device_unavailable", "/device", **wrong)
    refused(client, "index_out_of_bounds", "/indices/values/0", **wrong | {"device": "cpu"})


def test_what_is_no_json_and_what_the_query_may_not_have(client: httpx.Client) -> None:
    answer = client.post(ND, content=json.dumps(BODY)[:-1], headers={"content-type": "application/json"})
    error(answer, 400, "malformed_request")
    twice = json.dumps(BODY)[:-1] + ', "sparse": true, "sparse": true}'
    error(client.post(ND, content=twice, headers={"content-type": "application/json"}), 400, "malformed_request")
    error(client.post(ND, params={"sparse": "true"}, json=BODY), 422, "invalid_field", "/query/sparse")
    answer = client.post(ND, content=json.dumps(BODY).replace('"data_shape"', '"lda_coeff": 1e400, "data_shape"'))
    error(answer, 422, "invalid_field", "/lda_coeff")
    answer = client.post(ND, content=b"a=1", headers={"content-type": "application/x-www-form-urlencoded"})
    error(answer, 415, "unsupported_media_type")


@pytest.mark.parametrize(
    ("query", "pointer"),
    [
        ({}, "/query/data_shape"),
        ({"data_shape": "4,2", "tensor": "items"}, "/query/tensor"),
        ({"data_shape": "4,-2"}, "/query/data_shape"),
        ({"data_shape": "4;2"}, "/query/data_shape"),
        ({"tensor": ".items"}, "/query/tensor"),
        ({"data_shape": "4,2", "lda_coeff": "NaN"}, "/query/lda_coeff"),
        ({"data_shape": "4,2", "lda_coeff": "1e999"}, "/query/lda_coeff"),
        ({"data_shape": "4,2", "sparse": "1"}, "/query/sparse"),
        ({"data_shape": "4,2", "axis": "0"}, "/query/axis"),
        ({"data_shape": "4,2", "out_of_bounds": "clip"}, "/query/out_of_bounds"),
        ({"data_shape": "4,2", "batch_dims": "1", "sparse": "true"}, "/query/sparse"),
    ],
    ids=str,
)
def test_refusals_of_a_query(client: httpx.Client, query: dict[str, str], pointer: str) -> None:
    content = save(indices=np.array([[3], [0]]), grad_output=np.ones((2, 2), np.float32))
    error(client.post(ND, params=query, content=content, headers=SAFETENSORS), 422, "invalid_field", pointer)


def test_refusals_of_a_binary_body(client: httpx.Client) -> None:
    def sent(query: str = "data_shape=4,2", **tensors: Any) -> httpx.Response:
        return client.post(f"{ND}?{query}", content=save(**tensors), headers=SAFETENSORS)

    indices, gradient = np.array([[3], [0]]), np.ones((2, 2), np.float32)
    error(sent(indices=indices), 422, "invalid_field", "/grad_output")
    error(sent(indices=indices, grad_output=gradient, data=gradient), 422, "invalid_field", "/data")
    error(sent(indices=indices, grad_output=gradient.astype(np.int32)), 422, "unsupported_dtype", "/grad_output")
    error(sent(indices=indices, grad_output=gradient[:1]), 422, "updates_shape_mismatch", "/grad_output")
    error(sent("data_shape=", indices=indices, grad_output=gradient), 422, "rank_too_small", "/query/data_shape")
    found = error(sent("data_shape=3,2", indices=indices, grad_output=gradient), 422, "index_out_of_bounds", "/indices")
    assert found["errors"][0]["position"] == [0, 0]
    error(
        sent("data_shape=4,2&device=gpu", indices=indices, grad_output=gradient),
        422,
        "device_unavailable",
        "/query/device",
    )


@pytest.mark.parametrize("sparse", [False, True])
def test_explained_nothing_runs(client: httpx.Client, sparse: bool) -> None:
    answer = client.post(f"{ND}?explain=true", json=BODY | {"sparse": sparse, "data_shape": [3, 2]})
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert found.get("grad_data") == (None if sparse else {"dtype": "float32", "shape": [3, 2]})
    explained = found["explanation"]
    assert (explained["operator"], explained["choice"]["route"]) == ("gathernd_backward", "loop")
    assert explained["routes"][-1]["open"] is False
    assert explained["output_bytes"] == (24 + 3 * 16 if sparse else 24)


def test_large_ones_are_split_and_equal_to_numpy(every_client: httpx.Client) -> None:
    chance = np.random.default_rng(3)
    indices, gradient = chance.integers(-500, 500, 60_000), chance.standard_normal((60_000, 24)).astype(np.float32)
    wanted = np.zeros((500, 24), np.float32)
    np.add.at(wanted, indices, gradient)
    content = save(indices=indices, grad_output=gradient)
    answer = every_client.post(f"{AXIS}?data_shape=500,24", content=content, headers=SAFETENSORS)
    assert load(answer.content)["grad_data"].tobytes() == wanted.tobytes()
    answer = every_client.post(
        f"{AXIS}?data_shape=2000000,24&sparse=true&lda_coeff=2", content=content, headers=SAFETENSORS
    )
    found = load(answer.content)
    assert found["grad_indices"].tolist() == np.unique(indices % 2_000_000).tolist()
    wide = np.zeros((1000, 24), np.float32)
    np.add.at(wide, indices, gradient)
    rows = [at if at < 1000 else at - 2_000_000 for at in found["grad_indices"].tolist()]
    assert found["grad_values"].tobytes() == (wide[rows] * np.float32(2)).tobytes()


def test_what_it_takes_is_charged_before_it_is_taken(start: Start) -> None:
    with start("--memory-budget", str(64 << 20)) as server:
        client = server.shared_client()
        body = BODY | {"data_shape": [10_000_000, 2]}
        error(client.post(ND, json=body), 413, "payload_too_large")
        assert asked(client, body, sparse=True)["grad_indices"]["values"] == [0, 3, 9_999_999]
        many = np.zeros((5_000_000, 1), np.int8)  # 5 MB, whose tuples take 16 bytes each while they are sorted
        content = save(indices=many, grad_output=np.zeros((5_000_000, 1), np.float16))
        query = {"data_shape": "4,1", "dialect": "openvino-8"}
        error(client.post(ND, params=query, content=content, headers=SAFETENSORS), 413, "payload_too_large")
    with start("--max-output-bytes", "100") as server:
        client = server.shared_client()
        found = error(client.post(ND, json=BODY | {"data_shape": [40, 2]}), 422, "output_too_large", "/data_shape")
        assert (found["limit"], found["maximum"]) == ("output_bytes", 100)
        assert "'sparse'" in found["hint"]
        assert asked(client, BODY | {"data_shape": [40, 2]}, sparse=True)["grad_values"]["shape"] == [3, 2]


def test_the_gradient_of_gather_8_has_batch_dims_and_nothing_flows_back_from_what_was_filled(
    every_client: httpx.Client,
) -> None:
    """Against a loop over elements, for data of [b, m, s, w] gathered along axis 2 with batch_dims 1."""
    client, chance = every_client, np.random.default_rng(8)
    indices = chance.integers(-7, 7, (2, 4))  # valid from -5 to 4
    gradient = chance.standard_normal((2, 3, 4, 2)).astype(np.float32)
    gradient[:, :, (indices < -5).any(axis=0) | (indices > 4).any(axis=0)] *= 8
    wanted = np.zeros((2, 3, 5, 2), np.float32)
    for batch, middle, at in np.ndindex(2, 3, 4):
        index = indices[batch, at]
        if -5 <= index < 5:
            wanted[batch, middle, index] += gradient[batch, middle, at]
    body = {
        "indices": int64([2, 4], indices.ravel().tolist()),
        "grad_output": tensor("float32", gradient.shape, gradient.ravel().tolist()),
        "data_shape": [2, 3, 5, 2],
        "dialect": "openvino-8",
    }
    for batch_dims in (1, -1):
        found = asked(client, body, AXIS, axis=2, batch_dims=batch_dims)["grad_data"]
        assert np.array(found["values"], np.float32).tobytes() == wanted.tobytes()
    content = save(indices=indices.astype(np.int8), grad_output=gradient)
    query = {"data_shape": "2,3,5,2", "dialect": "openvino-8", "axis": "-2", "batch_dims": "1"}
    answer = client.post(AXIS, params=query, content=content, headers=SAFETENSORS)
    assert load(answer.content)["grad_data"].tobytes() == wanted.tobytes()
    error(client.post(AXIS, json=body | {"batch_dims": 1}), 422, "invalid_field", "/axis")
    error(client.post(AXIS, json=body | {"axis": 2, "batch_dims": 3}), 422, "batch_dims_out_of_range", "/batch_dims")
    error(client.post(AXIS, json=body | {"axis": 0, "batch_dims": 1}), 422, "batch_dims_out_of_range", "/batch_dims")
    other = body | {"dialect": "onnx-13", "axis": 2, "batch_dims": 1}
    error(client.post(AXIS, json=other), 422, "invalid_field", "/batch_dims")


def test_a_sparse_gradient_of_gather_8_does_not_name_what_was_filled(every_client: httpx.Client) -> None:
    body = {
        "indices": int64([5], [1, 9, -1, -9, 1]),
        "grad_output": tensor("float32", [5, 1], [1, "NaN", 4, "Infinity", 16]),
        "data_shape": [3, 1],
        "dialect": "openvino-8",
        "axis": 0,
    }
    found = asked(every_client, body, AXIS, sparse=True)
    assert found["grad_indices"] == int64([2], [1, 2])
    assert found["grad_values"] == tensor("float32", [2, 1], [17, 4])
    assert asked(every_client, body, AXIS)["grad_data"]["values"] == [0, 17, 4]
    empty = asked(every_client, body | {"data_shape": [0, 1]}, AXIS, sparse=True)
    assert (empty["grad_indices"], empty["grad_values"]["shape"]) == (int64([0], []), [0, 1])
