"""`out_of_bounds` and `fill_value`: what clip, wrap and fill make of indices outside of their axis, in every format."""

from __future__ import annotations

import json
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import load, save

from tests.http.conftest import Start
from tests.http.forms import int64, items, octets, tensor
from tests.http.tensors import error, npy, put_strings
from tests.oip.bodies import output, part, request

SAFETENSORS = {"content-type": "application/x-safetensors"}
MODES = ("clip", "wrap", "fill")
DATA = tensor("float32", [3, 2], [0, 1, 2, 3, 4, 5])
OUTSIDE = int64([4, 1], [-4, -1, 3, 7])


def asked(client: httpx.Client, path: str, body: dict[str, Any], **more: Any) -> dict[str, Any]:
    answer = client.post(path, json=body | more)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def judged(component: int, size: int, wraps: bool, mode: str) -> tuple[int | None, bool]:
    """The index that a component becomes, None where its slice is filled, and whether it is replaced."""
    if wraps and -size <= component < 0:
        component += size
    if 0 <= component < size:
        return component, False
    if mode == "fill":
        return None, True
    return (component % size if mode == "wrap" else 0 if component < 0 else size - 1), True


def gathered(operator: str, data: Any, indices: Any, parameter: int, mode: str, fill: Any, wraps: bool) -> Any:
    """(output, replaced) by the texts' formulas, one index tuple after the other."""
    replaced = 0
    if operator == "gathernd":
        b, k = parameter, indices.shape[-1]
        found = np.empty(indices.shape[:-1] + data.shape[b + k :], data.dtype)
        for place in np.ndindex(indices.shape[:-1]):
            way: list[int | None] = list(place[:b])
            for j, component in enumerate(indices[place]):
                index, wrong = judged(int(component), data.shape[b + j], wraps, mode)
                way.append(index)
                replaced += wrong
            found[place] = fill if None in way else data[tuple(way)]
        return found, replaced
    axis = parameter % data.ndim
    if operator == "gather":
        found = np.empty(data.shape[:axis] + indices.shape + data.shape[axis + 1 :], data.dtype)
        for place in np.ndindex(indices.shape):
            index, wrong = judged(int(indices[place]), data.shape[axis], wraps, mode)
            replaced += wrong
            target = (slice(None),) * axis + place
            found[target] = fill if index is None else data.take(index, axis)
        return found, replaced
    found = np.empty(indices.shape, data.dtype)
    for place in np.ndindex(indices.shape):
        index, wrong = judged(int(indices[place]), data.shape[axis], wraps, mode)
        replaced += wrong
        found[place] = fill if index is None else data[(*place[:axis], index, *place[axis + 1 :])]
    return found, replaced


def test_none_replaced_is_said_too_and_nothing_where_it_is_an_error(client: httpx.Client) -> None:
    body = {"data": DATA, "indices": int64([1, 1], [2])}
    assert asked(client, "/gathernd", body, out_of_bounds="fill", fill_value=7)["replaced"] == 0
    assert "replaced" not in asked(client, "/gathernd", body, out_of_bounds="error")
    answer = client.post("/gathernd", json={"data": DATA, "indices": OUTSIDE, "out_of_bounds": "error"})
    assert error(answer, 422, "index_out_of_bounds")["total"] == 3


FILLS: dict[str, list[tuple[Any, Any]]] = {
    "bool": [(True, True), (None, False)],
    "int8": [(-128, -128), (None, 0)],
    "int64": [(2**63 - 1, 2**63 - 1), (-(2**63), -(2**63))],
    "uint64": [(2**64 - 1, 2**64 - 1)],
    "float16": [(0.1, 0.0999755859375), ("NaN", "NaN"), ("-Infinity", "-Infinity")],
    "bfloat16": [(0.1, 0.10009765625)],
    "float32": [(0.1, 0.10000000149011612), (1e38, 9.999999680285692e37)],
    "float64": [(0.1, 0.1), (None, 0)],
    "complex64": [([1, -2], [1.0, -2.0]), (None, [0, 0])],
    "complex128": [([0.1, "Infinity"], [0.1, "Infinity"])],
    "string": [("ä\n", "ä\n"), ("", ""), (None, "")],
}


@pytest.mark.parametrize(("dtype", "fill", "stored"), [(d, *pair) for d, pairs in FILLS.items() for pair in pairs])
def test_a_fill_value_has_the_json_form_of_datas_type(client: httpx.Client, dtype: str, fill: Any, stored: Any) -> None:
    values: dict[str, list[Any]] = {
        "bool": [False, True],
        "string": ["a", "bcd"],
        "complex64": [[0, 1], [2, 3]],
        "complex128": [[0, 1], [2, 3]],
    }
    body = {
        "data": tensor(dtype, [2], values.get(dtype, [0, 1])),
        "indices": int64([3, 1], [2, 1, -3]),
        "out_of_bounds": "fill",
    } | ({} if fill is None else {"fill_value": fill})
    last = values.get(dtype, [0, 1])[1]
    wanted = octets(dtype, [stored, last, stored])
    for encoding in ("values", "base64"):
        found = asked(client, "/gathernd", body, output_encoding=encoding)
        assert octets(dtype, items(found["output"])) == wanted


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


@pytest.mark.parametrize(
    ("dtype", "fill"),
    [
        ("int8", 128),
        ("int8", 1.5),
        ("int8", "1"),
        ("uint8", -1),
        ("int8", True),
        ("bool", 1),
        ("float32", 1e39),
        ("float32", "x"),
        ("float32", [1]),
        ("float32", None),
        ("float32", {}),
        ("float32", {"values": [1]}),
        ("complex64", 1),
        ("complex64", [1]),
        ("complex64", [1, 2, 3]),
        ("string", 1),
        ("string", "\ud800"),
    ],
)
def test_what_datas_type_cannot_hold_is_refused_at_the_fill_value(client: httpx.Client, dtype: str, fill: Any) -> None:
    values = {"bool": [True], "string": ["a"], "complex64": [[0, 1]]}.get(dtype, [0])
    body = {
        "data": tensor(dtype, [1], values),
        "indices": int64([1, 1], [0]),
        "out_of_bounds": "fill",
        "fill_value": fill,
    }
    for path in ("/gathernd", "/gathernd?explain=true"):
        answer = client.post(path, content=json.dumps(body))
        error(answer, 422, "value_not_representable", "/fill_value")


def test_an_unknown_mode_and_text_that_is_no_json_are_refused(client: httpx.Client) -> None:
    body = {"data": DATA, "indices": OUTSIDE, "out_of_bounds": "nearest"}
    found = error(client.post("/gathernd", json=body), 422, "invalid_field", "/out_of_bounds")
    assert "error, clip, wrap, fill" in found["detail"]
    binary = save({"data": np.zeros(1, np.float32), "indices": np.zeros((1, 1), np.int64)})
    for text in ("", "nan", "[1", "'x'"):
        query = {"out_of_bounds": "fill", "fill_value": text}
        answer = client.post("/gathernd", params=query, content=binary, headers=SAFETENSORS)
        error(answer, 422, "invalid_field", "/query/fill_value")


@pytest.mark.parametrize("depth", [3, 505])
@pytest.mark.parametrize("dtype", ["float32", "complex64", "string"])
def test_lists_of_any_depth_are_no_fill_value(client: httpx.Client, dtype: str, depth: int) -> None:
    deep: Any = 0
    for _ in range(depth):
        deep = [deep]
    data = tensor(dtype, [1], [{"string": "a", "complex64": [1, 2]}.get(dtype, 1)])
    body = {"data": data, "indices": int64([1, 1], [5]), "out_of_bounds": "fill", "fill_value": deep}
    error(client.post("/gathernd", json=body), 422, "value_not_representable", "/fill_value")
    binary = save({"data": np.ones(1, np.float32), "indices": np.array([[5]])})
    query = {"out_of_bounds": "fill", "fill_value": json.dumps(deep)}
    answer = client.post("/gathernd", params=query, content=binary, headers=SAFETENSORS)
    error(answer, 422, "value_not_representable", "/query/fill_value")


def test_the_values_come_before_the_dialects_rules(client: httpx.Client) -> None:
    body = {
        "data": tensor("int8", [1], [0]),
        "indices": tensor("int8", [1, 1], [0]),  # not under ONNX
        "out_of_bounds": "fill",
        "fill_value": 1000,
    }
    error(client.post("/gathernd", json=body), 422, "value_not_representable")
    error(client.post("/gathernd", json=body | {"fill_value": 1}), 422, "unsupported_dtype")
    wrong = body | {"indices": tensor("int8", [1, 1], [0, 0])}
    error(client.post("/gathernd", json=wrong), 422, "element_count_mismatch")


@pytest.mark.parametrize("indices", [[0], [-1], [5]])
def test_an_axis_of_size_0_has_no_valid_index(every_client: httpx.Client, indices: list[int]) -> None:
    body = {"data": tensor("int16", [0, 2], []), "indices": int64([1, 1], indices)}
    for mode in ("clip", "wrap"):
        answer = every_client.post("/gathernd", json=body | {"out_of_bounds": mode})
        assert error(answer, 422, "index_out_of_bounds")["errors"][0]["allowed"] is None
    found = asked(every_client, "/gathernd", body, out_of_bounds="fill", fill_value=9)
    assert (found["output"]["values"], found["replaced"]) == ([9, 9], 1)


def test_only_the_components_on_the_axis_of_size_0_are_reported(client: httpx.Client) -> None:
    body = {"data": tensor("int16", [2, 0], []), "indices": int64([1, 2], [7, 0]), "out_of_bounds": "clip"}
    answer = error(client.post("/gathernd", json=body), 422, "index_out_of_bounds")
    assert answer["total"] == 1
    assert answer["errors"][0]["position"] == [0, 1]


def test_unsigned_indices_beyond_int64(client: httpx.Client) -> None:
    body = {
        "data": tensor("int16", [3], [5, 6, 7]),
        "indices": tensor("uint64", [2, 1], [2**64 - 1, 1]),
        "dialect": "openvino-8",
    }
    assert asked(client, "/gathernd", body, out_of_bounds="clip")["output"]["values"] == [7, 6]
    assert asked(client, "/gathernd", body, out_of_bounds="wrap")["output"]["values"] == [5 + (2**64 - 1) % 3, 6]
    assert asked(client, "/gathernd", body, out_of_bounds="fill")["output"]["values"] == [0, 6]


def test_resident_strings_are_filled_with_one_that_the_tensor_has_not(every_client: httpx.Client) -> None:
    put_strings(every_client, "texts", ["a", "bb", "ccc"])
    body = {"data": {"tensor": "texts"}, "indices": int64([4, 1], [3, 0, -9, 2])}
    found = asked(every_client, "/gathernd", body, out_of_bounds="fill", fill_value="zzzz")
    assert (found["output"]["values"], found["replaced"]) == (["zzzz", "a", "zzzz", "ccc"], 2)
    found = asked(every_client, "/gathernd", body | {"indices": int64([1, 1], [3])}, out_of_bounds="fill")
    assert found["output"]["values"] == [""]


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
    for mode in MODES:
        wanted, replaced = gathered("gathernd", data, indices, 0, mode, 0, True)
        found = asked(every_client, "/gathernd", body, out_of_bounds=mode)
        assert found["output"]["values"] == wanted.tolist()
        assert found["replaced"] == replaced
