"""The rules of the infer request, one by one, over plain HTTP."""

from __future__ import annotations

import json
from typing import Any

import httpx
import ml_dtypes
import numpy as np
import pytest

from tests.for_each import for_each
from tests.oip.bodies import NUMPY, SIZE, Array, example, octets, output, part, refused, request, same

INFER = "/v2/models/gathernd/infer"
INDICES = np.array([[1], [-3], [0]], np.int64)
DATA: dict[str, Array] = {
    "BOOL": np.array([[True, False], [False, True], [True, True]]),
    **{name: np.array([[0, 1], [2, 3], [100, 127]], NUMPY[name]) for name in NUMPY if "INT" in name},
    "FP16": np.array([[0.5, -0.0], [65504, 6e-8], [1, 2]], np.float16),
    "BF16": np.array([[0.5, -0.0], [3.38e38, 1e-40], [1, 2]], ml_dtypes.bfloat16),
    "FP32": np.array([[0.1, -0.0], [3.4e38, 1e-45], [1, 2]], np.float32),
    "FP64": np.array([[0.1, -0.0], [1.7e308, 5e-324], [1, 2]], np.float64),
    "BYTES": np.array([["", "ä"], ["\0", "日本"], ['"\\', "z" * 300]], object),
}
DATA["INT64"][0] = [-(2**63), 2**63 - 1]
DATA["UINT64"][0] = [2**53 + 1, 2**64 - 1]


def post(client: httpx.Client, path: str = INFER, **members: Any) -> httpx.Response:
    return client.post(path, json=example(**members))


def edited(path: str, value: Any) -> dict[str, Any]:
    """Example 1 with the member at `path` set to `value`."""
    body = example()
    at: Any = body
    *steps, last = path.strip("/").split("/")
    for step in steps:
        at = at[int(step)] if isinstance(at, list) else at.setdefault(step, {})
    at[int(last) if isinstance(at, list) else last] = value
    return body


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["data-first", "indices-first"])
@for_each("datatype", ["FP64", "BYTES", "BOOL"])
@for_each("data_binary", [False, True])
@for_each("indices_binary", [False, True])
def test_inputs_come_in_any_order_each_in_json_or_behind_it(
    client: httpx.Client, order: tuple[int, int], datatype: str, data_binary: bool, indices_binary: bool
) -> None:
    parts = [
        part("data", DATA[datatype], datatype, binary=data_binary),
        part("indices", INDICES, "INT64", binary=indices_binary),
    ]
    content, headers = request([parts[number] for number in order])
    _, found = output(client.post(INFER, content=content, headers=headers))
    assert same(found, DATA[datatype][[1, 0, 0]])


@pytest.mark.parametrize("datatype", ["FP32", "BYTES"])
def test_json_items_may_be_nested_as_the_shape_says(client: httpx.Client, datatype: str) -> None:
    parts = [part("data", DATA[datatype], datatype, flat=False), part("indices", INDICES, "INT64", flat=False)]
    content, _ = request(parts)
    _, found = output(client.post(INFER, content=content))
    assert same(found, DATA[datatype][[1, 0, 0]])


@pytest.mark.parametrize("datatype", [name for name in NUMPY if name.startswith(("FP", "BF"))])
def test_bare_and_quoted_non_finite_numbers_go_in_and_quoted_ones_come_out(client: httpx.Client, datatype: str) -> None:
    nan, infinity = float("nan"), float("inf")
    body = example()
    body["inputs"] = [
        {"name": "data", "datatype": datatype, "shape": [6],
         "data": [nan, infinity, -infinity, "NaN", "Infinity", "-Infinity"]},
        {"name": "indices", "datatype": "INT64", "shape": [6, 1], "data": [0, 1, 2, 3, 4, 5]},
    ]  # fmt: skip
    text = json.dumps(body)
    assert "[NaN, Infinity, -Infinity, " in text
    answer = client.post(INFER, content=text)
    assert answer.status_code == 200, answer.text
    assert answer.json()["outputs"][0]["data"] == ["NaN", "Infinity", "-Infinity"] * 2


@for_each("datatype", [name for name in NUMPY if not name.startswith(("FP", "BF"))])
@for_each("bare", ["NaN", "Infinity", "-Infinity"])
def test_a_bare_nan_is_no_item_of_other_types(client: httpx.Client, datatype: str, bare: str) -> None:
    text = json.dumps(edited("/inputs/0/datatype", datatype)).replace("[0, 1, 2, 3]", f"[{bare}, 1, 2, 3]")
    refused(client.post(INFER, content=text), "value_not_representable", "/inputs/0/data/0")


@pytest.mark.parametrize("path", ["/v2/models/gathernd/infer", "/v2/models/gathernd/versions/1/infer"])
def test_version_1_may_be_named(client: httpx.Client, path: str) -> None:
    body, found = output(post(client, path))
    assert (body["model_name"], body["model_version"]) == ("gathernd", "1")
    assert same(found, np.array([0, 3], np.int32))


@pytest.mark.parametrize(
    "path",
    [
        "/v2/models/gathernd/versions/2/infer", "/v2/models/gathernd/versions/01/infer", "/v2/models/nothing/infer",
        "/v2/models/Gathernd/infer", "/v2/models/stats/infer", "/v2/models//infer",
    ],
)  # fmt: skip
def test_other_models_and_versions_are_not_there(client: httpx.Client, path: str) -> None:
    refused(post(client, path), "model_not_found")


@pytest.mark.parametrize(
    "path",
    ["/v2/models/a/b/infer", "/v2/models/a/versions/1/2/infer", "/v2/models/a/versions//infer", "/v2/models/infer"],
)
def test_other_paths_are_not_there(client: httpx.Client, path: str) -> None:
    assert post(client, path).status_code in (404, 405)


def test_the_id_comes_back_and_only_if_it_was_sent(client: httpx.Client) -> None:
    assert post(client, id='a "quoted" ä\n').json()["id"] == 'a "quoted" ä\n'
    assert post(client, id="").json()["id"] == ""
    assert "id" not in post(client).json()
    assert "id" not in post(client, id=None).json()


@pytest.mark.parametrize("identifier", ["\ud800", "a\udc00"])
def test_an_id_that_is_no_unicode_is_refused(client: httpx.Client, identifier: str) -> None:
    body = json.dumps(example(id=identifier))
    answer = client.post(INFER, content=body, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_field")
    assert answer.json()["errors"][0]["pointer"] == "/id"


@pytest.mark.parametrize(
    ("parameters", "code", "name"),
    [
        ({"batch_dims": True}, "invalid_field", "batch_dims"),
        ({"batch_dims": 0.5}, "invalid_field", "batch_dims"),
        ({"batch_dims": "0"}, "invalid_field", "batch_dims"),
        ({"batch_dims": None}, "invalid_field", "batch_dims"),
        ({"dialect": 13}, "invalid_field", "dialect"),
        ({"timeout": -1}, "invalid_field", "timeout"),
        ({"timeout": "1"}, "invalid_field", "timeout"),
        ({"binary_data_output": 1}, "invalid_field", "binary_data_output"),
        ({"fill_value": 0, "out_of_bounds": "fill"}, "invalid_field", "fill_value"),
        ({"fill_value": "nan", "out_of_bounds": "fill"}, "invalid_field", "fill_value"),
        ({"fill_value": "1.5", "out_of_bounds": "fill"}, "value_not_representable", "fill_value"),
    ],
)
def test_parameters_that_are_wrong(client: httpx.Client, parameters: dict[str, Any], code: str, name: str) -> None:
    refused(post(client, parameters=parameters), code, f"/parameters/{name}")


def test_unknown_members_and_parameters_are_ignored(client: httpx.Client) -> None:
    body = example(
        model_name="x",
        surprise=[{"data": [1]}, None],
        parameters={"sequence_id": 3, "sequence_start": True, "sequence_end": "x", "priority": -1, "own": {"a": []}},
        outputs=[{"name": "output", "more": 1, "parameters": {"odd": 1}}],
    )
    body["inputs"][0]["comment"] = {"data": 1}
    body["inputs"][0]["parameters"] = {"content_type": "np"}
    _, found = output(client.post(INFER, json=body))
    assert same(found, np.array([0, 3], np.int32))


def test_optional_members_may_be_null(client: httpx.Client) -> None:
    body = example(id=None, parameters=None, outputs=None)
    body["inputs"][0]["parameters"] = None
    _, found = output(client.post(INFER, json=body))
    assert same(found, np.array([0, 3], np.int32))


@pytest.mark.parametrize(
    ("members", "binary"),
    [
        ({}, False),
        ({"parameters": {"binary_data_output": True}}, True),
        ({"parameters": {"binary_data_output": False}}, False),
        ({"outputs": []}, False),
        ({"outputs": [], "parameters": {"binary_data_output": True}}, True),
        ({"outputs": [{"name": "output"}]}, False),
        ({"outputs": [{"name": "output", "parameters": {"binary_data": True}}]}, True),
        ({"outputs": [{"name": "output"}], "parameters": {"binary_data_output": True}}, True),
        (
            {
                "outputs": [{"name": "output", "parameters": {"binary_data": False}}],
                "parameters": {"binary_data_output": True},
            },
            False,
        ),
    ],
)
def test_whether_the_output_is_binary(client: httpx.Client, members: dict[str, Any], binary: bool) -> None:
    answer = post(client, **members)
    _, found = output(answer)
    assert (SIZE.lower() in answer.headers) == binary
    assert same(found, np.array([0, 3], np.int32))


@pytest.mark.parametrize(
    ("outputs", "code", "pointer"),
    [
        ([{"name": "other"}], "invalid_field", "/outputs/0/name"),
        ([{}], "invalid_field", "/outputs/0/name"),
        ([{"name": "output"}, {"name": "output"}], "invalid_field", "/outputs/1/name"),
        (["output"], "invalid_field", "/outputs/0"),
        ({"name": "output"}, "invalid_field", "/outputs"),
        ([{"name": "output", "parameters": {"binary_data": 1}}], "invalid_field", "/outputs/0/parameters/binary_data"),
        ([{"name": "output", "parameters": []}], "invalid_field", "/outputs/0/parameters"),
        (
            [{"name": "output", "parameters": {"classification": 3}}],
            "not_implemented",
            "/outputs/0/parameters/classification",
        ),
        (
            [{"name": "output", "parameters": {"shared_memory_region": "r"}}],
            "not_implemented",
            "/outputs/0/parameters/shared_memory_region",
        ),
    ],
)
def test_outputs_that_are_wrong(client: httpx.Client, outputs: Any, code: str, pointer: str) -> None:
    refused(post(client, outputs=outputs), code, pointer)


@for_each(
    ("path", "value", "code", "pointer"),
    [
        ("/inputs", None, "invalid_field", "/inputs"),
        ("/inputs", {}, "invalid_field", "/inputs"),
        ("/inputs", [], "invalid_field", "/inputs"),
        ("/inputs", [1], "invalid_field", "/inputs/0"),
        ("/id", 7, "invalid_field", "/id"),
        ("/parameters", [], "invalid_field", "/parameters"),
        ("/inputs/0/name", "values", "invalid_field", "/inputs/0/name"),
        ("/inputs/0/name", "indices", "invalid_field", "/inputs/1/name"),
        ("/inputs/0/name", None, "invalid_field", "/inputs/0/name"),
        ("/inputs/0/datatype", "FP8", "unsupported_dtype", "/inputs/0/datatype"),
        ("/inputs/0/datatype", "fp32", "unsupported_dtype", "/inputs/0/datatype"),
        ("/inputs/0/datatype", None, "invalid_field", "/inputs/0/datatype"),
        ("/inputs/0/shape", None, "invalid_field", "/inputs/0/shape"),
        ("/inputs/0/shape", [2, -2], "invalid_field", "/inputs/0/shape/1"),
        ("/inputs/0/shape", [2, "2"], "invalid_field", "/inputs/0/shape/1"),
        ("/inputs/0/shape", [2, True], "invalid_field", "/inputs/0/shape/1"),
        ("/inputs/0/shape", [2, 3], "element_count_mismatch", "/inputs/0/data"),
        ("/inputs/0/data", None, "invalid_field", "/inputs/0"),
        ("/inputs/0/data", {}, "invalid_field", "/inputs/0/data"),
        ("/inputs/0/parameters", 1, "invalid_field", "/inputs/0/parameters"),
        ("/inputs/0/parameters", {"binary_data_size": 16}, "invalid_field", "/inputs/0"),
        (
            "/inputs/0/parameters",
            {"shared_memory_region": "r"},
            "not_implemented",
            "/inputs/0/parameters/shared_memory_region",
        ),
        ("/inputs/1/data", [[0, 0], [1, -3]], "index_out_of_bounds", "/inputs/1/data/1/1"),
    ],
)
def test_inputs_that_are_wrong(client: httpx.Client, path: str, value: Any, code: str, pointer: str) -> None:
    refused(client.post(INFER, json=edited(path, value)), code, pointer)


def test_a_byte_that_is_no_bool(client: httpx.Client) -> None:
    wrong = part("data", np.array([1, 0, 2], np.uint8), "BOOL", binary=True)
    content, headers = request([wrong, part("indices", np.array([[0]]), "INT64")])
    body = refused(client.post(INFER, content=content, headers=headers), "value_not_representable", "/inputs/0")
    assert body["errors"][0]["position"] == [2]


def test_bytes_that_are_no_text(client: httpx.Client) -> None:
    wrong = part("data", np.array([b"\xff"], object), "BYTES", binary=True)
    content, headers = request([wrong, part("indices", np.array([[0]]), "INT64")])
    refused(client.post(INFER, content=content, headers=headers), "value_not_representable", "/inputs/0")


@pytest.mark.parametrize("binary", [False, True])
def test_a_string_beyond_the_limit(client: httpx.Client, binary: bool) -> None:
    long = part("data", np.array(["", "ä" * 2**22 + "x" * 2**23 if binary else "x"], object), "BYTES", binary=binary)
    content, headers = request([long, part("indices", np.array([[0]]), "INT64")])
    answer = client.post(INFER, content=content, headers=headers)
    assert answer.status_code == 200
    if binary:
        longer = part("data", np.array(["", "x" * (2**24 + 1)], object), "BYTES", binary=True)
        content, headers = request([longer, part("indices", np.array([[0]]), "INT64")])
        refused(client.post(INFER, content=content, headers=headers), "limit_exceeded", "/inputs/0")


def test_a_binary_size_of_0_needs_no_header_field(client: httpx.Client) -> None:
    body = edited(
        "/inputs/0", {"name": "data", "datatype": "FP32", "shape": [0], "parameters": {"binary_data_size": 0}}
    )
    body["inputs"][1] = {"name": "indices", "datatype": "INT64", "shape": [0, 1], "data": []}
    assert client.post(INFER, json=body).status_code == 200


def test_the_header_size_may_say_that_all_is_json(client: httpx.Client) -> None:
    content = json.dumps(example()).encode()
    _, found = output(client.post(INFER, content=content, headers={SIZE: str(len(content))}))
    assert same(found, np.array([0, 3], np.int32))


@pytest.mark.parametrize("model", ["gathernd", "gather"])
def test_a_raw_body_is_for_models_with_one_input(client: httpx.Client, model: str) -> None:
    answer = client.post(f"/v2/models/{model}/infer", content=bytes(16), headers={SIZE: "0"})
    refused(answer, "malformed_request")


@pytest.mark.parametrize(
    "kind", [None, "application/octet-stream", "application/json", "text/plain; charset=x", "no type"]
)
def test_the_content_type_is_never_judged(client: httpx.Client, kind: str | None) -> None:
    headers = {} if kind is None else {"content-type": kind}
    _, found = output(client.post(INFER, content=json.dumps(example()).encode(), headers=headers))
    assert same(found, np.array([0, 3], np.int32))


@pytest.mark.parametrize(
    ("accept", "encoding"),
    [
        ("gzip", "gzip"), ("deflate", "deflate"), ("gzip, deflate", None), ("gzip, deflate, br, zstd", None),
        ("identity", None), ("*", None), ("br", None), ("gzip;q=1", None), ("", None),
    ],
)  # fmt: skip
@pytest.mark.parametrize("binary", [False, True])
def test_an_answer_is_compressed_for_exactly_one_known_encoding(
    client: httpx.Client, accept: str, encoding: str | None, binary: bool
) -> None:
    body = example(parameters={"binary_data_output": binary})
    answer = client.post(INFER, json=body, headers={"accept-encoding": accept})
    assert answer.headers.get("content-encoding") == encoding
    _, found = output(answer)
    assert same(found, np.array([0, 3], np.int32))


def test_errors_are_not_compressed(client: httpx.Client) -> None:
    answer = client.post(INFER, json={}, headers={"accept-encoding": "gzip"})
    assert "content-encoding" not in answer.headers
    refused(answer, "invalid_field", "/inputs")


def test_the_timeout_is_in_microseconds(client: httpx.Client) -> None:
    assert post(client, parameters={"timeout": 10_000_000}).status_code == 200
    assert post(client, parameters={"timeout": 0}).status_code == 200
    late = refused(post(client, parameters={"timeout": 1}), "deadline_exceeded")
    assert late["status"] == 503


def test_a_large_answer_in_pieces(client: httpx.Client) -> None:
    data = np.random.default_rng(1).random((2000, 1000), np.float32)
    indices = np.random.default_rng(2).integers(0, 2000, (3000, 1))
    parts = [part("data", data, "FP32", binary=True), part("indices", indices, "INT64", binary=True)]
    content, headers = request(parts, parameters={"binary_data_output": True})
    _, found = output(client.post(INFER, content=content, headers=headers))
    assert same(found, data[indices[:, 0]])


@pytest.mark.parametrize("pad", range(8))
def test_blobs_at_every_alignment(client: httpx.Client, pad: int) -> None:
    data = np.arange(30_001, dtype=np.uint8)
    parts = [part("data", data, "UINT8", binary=True), part("indices", INDICES, "INT64", binary=True)]
    content, headers = request(parts, pad="x" * pad)
    _, found = output(client.post(INFER, content=content, headers=headers))
    assert octets(found) == bytes([1, (30_001 - 3) % 256, 0])
