"""`POST /gather_elements` and the model `gather_elements`: known answers in every format, resident data, refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import load, save

from tests.http.forms import int64, items, nested, octets, packed, tensor
from tests.http.tensors import error, npy, put_raw, put_strings, scatter_body
from tests.oip.bodies import output, part, request, same

PATH = "/gather_elements"
INFER = "/v2/models/gather_elements/infer"
SAFETENSORS = {"content-type": "application/x-safetensors"}
# The examples of the ONNX text.
ONE: dict[str, Any] = {
    "data": tensor("int32", [2, 2], [1, 2, 3, 4]),
    "indices": int64([2, 2], [0, 0, 1, 0]),
    "axis": 1,
}
TWO: dict[str, Any] = {
    "data": tensor("float32", [3, 3], [1, 2, 3, 4, 5, 6, 7, 8, 9]),
    "indices": int64([2, 3], [1, 2, 0, 2, 0, 0]),
}
NEGATIVE: dict[str, Any] = {
    "data": tensor("float32", [3, 3], [1, 2, 3, 4, 5, 6, 7, 8, 9]),
    "indices": int64([2, 3], [-1, -2, 0, -2, 0, 0]),
    "axis": 0,
}


def asked(client: httpx.Client, body: dict[str, Any], **more: Any) -> dict[str, Any]:
    answer = client.post(PATH, json=body | more)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def array(given: dict[str, Any]) -> Any:
    return np.array(given["values"], given["dtype"]).reshape(given["shape"])


@pytest.mark.parametrize(
    ("body", "shape", "expected"),
    [(ONE, [2, 2], [1, 1, 4, 3]), (TWO, [2, 3], [4, 8, 3, 7, 2, 3]), (NEGATIVE, [2, 3], [7, 5, 3, 4, 2, 3])],
    ids=["example 1", "example 2", "negative indices"],
)
class TestTheExamplesOfTheText:
    @pytest.mark.parametrize("form", [dict, nested, packed], ids=["flat", "nested", "base64"])
    @pytest.mark.parametrize("encoding", ["values", "base64"])
    def test_in_json(
        self,
        client: httpx.Client,
        body: dict[str, Any],
        shape: list[int],
        expected: list[int],
        form: Any,
        encoding: str,
    ) -> None:
        sent = body | {"data": form(body["data"]), "indices": form(body["indices"])}
        found = asked(client, sent, output_encoding=encoding)
        assert (found["dialect"], found["device"]) == ("onnx-13", "cpu")
        assert found["output"]["dtype"] == body["data"]["dtype"]
        assert found["output"]["shape"] == shape
        assert items(found["output"]) == expected

    @pytest.mark.parametrize("dialect", ["onnx-13", "onnx-11"])
    @pytest.mark.parametrize("kind", ["int32", "int64"])
    def test_in_each_dialect_with_each_type_of_indices(
        self, client: httpx.Client, body: dict[str, Any], shape: list[int], expected: list[int], dialect: str, kind: str
    ) -> None:
        found = asked(client, body | {"indices": body["indices"] | {"dtype": kind}}, dialect=dialect)
        assert (found["dialect"], found["output"]["values"]) == (dialect, expected)

    def test_in_safetensors(
        self, client: httpx.Client, body: dict[str, Any], shape: list[int], expected: list[int]
    ) -> None:
        content = save({"data": array(body["data"]), "indices": array(body["indices"])})
        answer = client.post(PATH, params={"axis": body.get("axis", 0)}, content=content, headers=SAFETENSORS)
        assert answer.status_code == 200, answer.text
        assert (answer.headers["x-gathernd-dialect"], answer.headers["x-gathernd-device"]) == ("onnx-13", "cpu")
        found = load(answer.content)["output"]
        assert (found.dtype, list(found.shape)) == (body["data"]["dtype"], shape)
        assert found.reshape(-1).tolist() == expected

    @pytest.mark.parametrize("binary", [False, True], ids=["json", "binary"])
    def test_by_the_inference_protocol(
        self, client: httpx.Client, body: dict[str, Any], shape: list[int], expected: list[int], binary: bool
    ) -> None:
        data, indices = array(body["data"]), array(body["indices"])
        kinds = {np.dtype("int32"): "INT32", np.dtype("float32"): "FP32"}
        content, headers = request(
            [
                part("data", data, kinds[data.dtype], binary=binary),
                part("indices", indices, "INT64", binary=binary),
            ],
            parameters={"axis": body.get("axis", 0), "binary_data_output": binary},
        )
        described, found = output(client.post(INFER, content=content, headers=headers))
        assert described["model_name"] == "gather_elements"
        assert list(found.shape) == shape
        assert found.reshape(-1).tolist() == expected


@pytest.mark.parametrize("form", [dict, nested, packed], ids=["flat", "nested", "base64"])
def test_strings_and_complex_numbers_in_json(client: httpx.Client, form: Any) -> None:
    indices = int64([2, 1], [1, 0])
    for dtype, values, expected in (
        ("string", ["a", "b", "ü", ""], ["b", "ü"]),
        ("complex128", [[1, 2], [3, 4], [5, 6], [7, 8]], [[3.0, 4.0], [5.0, 6.0]]),
        ("complex64", [[1, 2], [3, 4], [5, 6], [7, 8]], [[3.0, 4.0], [5.0, 6.0]]),
    ):
        found = asked(client, {"data": form(tensor(dtype, [2, 2], values)), "indices": form(indices), "axis": 1})
        assert items(found["output"]) == expected


def test_a_type_that_safetensors_lacks_goes_out_as_json(client: httpx.Client) -> None:
    body = {"data": tensor("string", [2], ["a", "b"]), "indices": int64([1], [1])}
    answer = client.post(PATH, json=body, headers={"accept": "application/x-safetensors, application/json;q=0.1"})
    assert answer.json()["output"]["values"] == ["b"]
    error(client.post(PATH, json=body, headers={"accept": "application/x-safetensors"}), 422, "unsupported_dtype")


@pytest.mark.parametrize(
    ("shape", "index_shape", "axis"),
    [([0, 3], [0, 3], 1), ([0, 3], [0, 3], 0), ([2, 3], [0, 3], 0), ([2, 3], [2, 0], 1), ([2, 0, 3], [1, 0, 9], 2)],
)
def test_nothing_is_gathered_from_or_into_nothing(
    client: httpx.Client, shape: list[int], index_shape: list[int], axis: int
) -> None:
    found = asked(
        client,
        {"data": tensor("int8", shape, [0] * int(np.prod(shape))), "indices": int64(index_shape, []), "axis": axis},
    )
    assert found["output"] == {"dtype": "int8", "shape": index_shape, "values": []}


def test_no_index_is_good_on_an_axis_of_size_0(client: httpx.Client) -> None:
    body = {"data": tensor("int8", [2, 0], []), "indices": int64([2, 1], [0, 0]), "axis": 1}
    problem = error(client.post(PATH, json=body), 422, "index_out_of_bounds")
    assert problem["total"] == 2
    assert problem["errors"][0] == {
        "pointer": "/indices/values/0", "position": [0, 0], "value": 0, "axis": 1, "size": 0, "allowed": None,
    }  # fmt: skip


def test_the_first_ten_bad_entries_are_named_in_every_form(client: httpx.Client) -> None:
    values = [0, 4, 9, -5] * 6
    body: dict[str, Any] = {"data": tensor("int8", [6, 4], [0] * 24), "indices": int64([6, 4], values), "axis": 1}
    indices: dict[str, Any] = body["indices"]
    forms: list[tuple[dict[str, Any], Callable[[int], str]]] = [
        (indices, lambda item: f"/indices/values/{item}"),
        (nested(indices), lambda item: f"/indices/values/{item // 4}/{item % 4}"),
        (packed(indices), lambda item: "/indices/base64"),
    ]
    for form, pointer in forms:
        sent = body | {"indices": form}
        problem = error(client.post(PATH, json=sent), 422, "index_out_of_bounds")
        bad = [item for item in range(24) if item % 4]
        assert problem["total"] == 18
        assert problem["errors"] == [
            {
                "pointer": pointer(item),
                "position": [item // 4, item % 4],
                "value": values[item],
                "axis": 1,
                "size": 4,
                "allowed": [-4, 3],
            }
            for item in bad[:10]
        ]
        assert problem["rule"]["dialect"] == "onnx-13"
        assert "[-s, s-1]" in problem["rule"]["text"]
    content = save({"data": np.zeros((6, 4), np.int8), "indices": np.array(values).reshape(6, 4)})
    answer = client.post(PATH, params={"axis": 1}, content=content, headers=SAFETENSORS)
    assert error(answer, 422, "index_out_of_bounds", "/indices")["total"] == 18


@pytest.mark.parametrize("axis", [2, -3, 2**63, -(2**63), 2**64, -(10**40)])
def test_an_axis_however_large_is_out_of_range_in_every_form(client: httpx.Client, axis: int) -> None:
    body = {"data": tensor("int8", [2, 2], [0] * 4), "indices": int64([1, 1], [0])}
    error(client.post(PATH, json=body | {"axis": axis}), 422, "axis_out_of_range", "/axis")
    content = save({"data": np.zeros((2, 2), np.int8), "indices": np.zeros((1, 1), np.int64)})
    answer = client.post(PATH, params={"axis": str(axis)}, content=content, headers=SAFETENSORS)
    error(answer, 422, "axis_out_of_range", "/query/axis")


@pytest.mark.parametrize("entry", [2**62, -(2**62), 2**63 - 1, -(2**63), 2, -3])
def test_a_hostile_entry_is_out_of_bounds(client: httpx.Client, entry: int) -> None:
    body = {"data": tensor("float64", [2, 4], [0] * 8), "indices": int64([2, 4], [0] * 7 + [entry])}
    problem = error(client.post(PATH, json=body), 422, "index_out_of_bounds")
    assert [(place["position"], place["value"]) for place in problem["errors"]] == [([1, 3], entry)]


def test_fields_of_the_other_operators_are_unknown(client: httpx.Client) -> None:
    error(client.post(PATH, json=ONE | {"batch_dims": 0}), 422, "invalid_field", "/batch_dims")
    for dialect in ("onnx-12", "onnx-1", "openvino-8"):
        error(client.post(PATH, json=ONE | {"dialect": dialect}), 422, "invalid_field", "/dialect")
    content = save({"data": np.zeros((1, 1)), "indices": np.zeros((1, 1), np.int64)})
    answer = client.post(PATH, params={"batch_dims": 0}, content=content, headers=SAFETENSORS)
    error(answer, 422, "invalid_field", "/query/batch_dims")


def test_types_that_a_dialect_lacks_are_refused(client: httpx.Client) -> None:
    bfloat16 = ONE | {"data": tensor("bfloat16", [2, 2], [1, 2, 3, 4])}
    assert items(asked(client, bfloat16)["output"]) == [1, 1, 4, 3]
    error(client.post(PATH, json=bfloat16 | {"dialect": "onnx-11"}), 422, "unsupported_dtype", "/data/dtype")
    for dtype in ("int8", "uint32", "uint64", "float32"):
        sent = ONE | {"indices": ONE["indices"] | {"dtype": dtype}}
        error(client.post(PATH, json=sent), 422, "unsupported_dtype", "/indices/dtype")


def test_a_gpu_is_not_to_be_had(client: httpx.Client) -> None:
    error(client.post(PATH, json=ONE | {"device": "gpu"}), 422, "device_unavailable", "/device")
    assert asked(client, ONE, device="cpu")["device"] == "cpu"


def test_resident_data_in_every_format(client: httpx.Client) -> None:
    table = np.arange(12, dtype=np.float32).reshape(3, 4)
    put_raw(client, "elements", table)
    indices = np.array([[3, -1], [0, 2]])
    expected = np.take_along_axis(table[:2], indices % 4, 1)
    body = {"data": {"tensor": "elements"}, "indices": int64([2, 2], indices.reshape(-1).tolist()), "axis": -1}
    found = asked(client, body)
    assert found["output"] == {"dtype": "float32", "shape": [2, 2], "values": expected.reshape(-1).tolist()}
    etag = client.get("/tensors/elements").headers["etag"]
    assert found["data_etag"] == etag
    answer = client.post(
        PATH, params={"axis": 1, "tensor": "elements"}, content=save({"indices": indices}), headers=SAFETENSORS
    )
    assert load(answer.content)["output"].tolist() == expected.tolist()
    assert answer.headers["x-gathernd-data-etag"] == etag
    client.post("/tensors/elements/scatter", json=scatter_body([[0, 3]], np.array([7], np.float32)))
    assert asked(client, body)["output"]["values"][0] == 7
    error(client.post(PATH, json=body | {"data": {"tensor": "itmes"}}), 404, "tensor_not_found", "/data/tensor")
    error(client.post(PATH, json=body | {"axis": 2}), 422, "axis_out_of_range", "/axis")


def test_resident_strings(client: httpx.Client) -> None:
    put_strings(client, "words", ["a", "ß", "", "日本"])
    body = {"data": {"tensor": "words"}, "indices": int64([3], [3, -4, 1])}
    assert asked(client, body)["output"]["values"] == ["日本", "a", "ß"]
    assert items(asked(client, body, output_encoding="base64")["output"]) == ["日本", "a", "ß"]


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
    gpu = explanation["routes"][-1]
    assert (gpu["route"], gpu["open"], gpu["microseconds"]) == ("gpu", False, None)


def test_requests_are_counted_under_the_route(client: httpx.Client) -> None:
    asked(client, ONE)
    assert 'gathernd_requests_total{method="POST",path="/gather_elements",status="200"}' in client.get("/metrics").text


@pytest.mark.parametrize("path", [PATH, PATH + "/"])
def test_other_methods_are_refused(client: httpx.Client, path: str) -> None:
    answer = client.get(path)
    if path == PATH:
        assert (answer.status_code, answer.headers["allow"]) == (405, "POST, OPTIONS")
    else:
        assert answer.status_code == 404


def test_no_tensor_is_given_the_name(client: httpx.Client) -> None:
    answer = client.put("/tensors/gather_elements", content=npy(np.zeros(3)))
    problem = error(answer, 422, "invalid_field", "/name")
    assert "reserved" in problem["detail"]


def test_a_request_in_base64_is_read_as_bytes(client: httpx.Client) -> None:
    data = tensor("int16", [3], [256, -1, 7])
    assert octets("int16", [256, -1, 7]) == b"\x00\x01\xff\xff\x07\x00"
    assert items(asked(client, {"data": packed(data), "indices": int64([2], [-1, 0])})["output"]) == [7, 256]
