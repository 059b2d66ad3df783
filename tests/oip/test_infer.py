"""The rules of the infer request, one by one, over plain HTTP."""

from __future__ import annotations

import json
from typing import Any

import httpx
import numpy as np
import pytest

from tests.for_each import for_each
from tests.oip.bodies import NUMPY, Array, example, output, part, refused, request, same

INFER = "/v2/models/gathernd/infer"
INDICES = np.array([[1], [-3], [0]], np.int64)
DATA: dict[str, Array] = {
    "BOOL": np.array([[True, False], [False, True], [True, True]]),
    "FP64": np.array([[0.1, -0.0], [1.7e308, 5e-324], [1, 2]], np.float64),
    "BYTES": np.array([["", "ä"], ["\0", "日本"], ['"\\', "z" * 300]], object),
}


def post(client: httpx.Client, path: str = INFER, **members: Any) -> httpx.Response:
    return client.post(path, json=example(**members))


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["data-first", "indices-first"])
@for_each("datatype", DATA)
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


def test_the_id_comes_back_and_only_if_it_was_sent(client: httpx.Client) -> None:
    assert post(client, id='a "quoted" ä\n').json()["id"] == 'a "quoted" ä\n'
    assert post(client, id="").json()["id"] == ""
    assert "id" not in post(client).json()
    assert "id" not in post(client, id=None).json()


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
