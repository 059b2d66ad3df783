"""The native binary format over HTTP: what is asked and answered in it, and beside it JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load, save

from app.formats.safetensors.header import ALIGNMENT
from tests.http.forms import items

BINARY = {"content-type": "application/x-safetensors"}
DATA = np.arange(12, dtype=np.float32).reshape(3, 4)
INDICES = np.array([[0, 1], [2, -1]])
Tensors = Mapping[str, NDArray[Any]]


def ask(
    client: httpx.Client,
    tensors: Tensors | bytes,
    path: str = "/gathernd",
    params: Mapping[str, Any] | None = None,
    **headers: str,
) -> httpx.Response:
    content = tensors if isinstance(tensors, bytes) else save(dict(tensors))
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return client.post(path, params=params, content=content, headers={**BINARY, **named})


def output(answer: httpx.Response) -> NDArray[Any]:
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/x-safetensors"
    found = load(answer.content)
    assert list(found) == ["output"]
    return found["output"]


def test_a_binary_request_has_a_binary_answer(client: httpx.Client) -> None:
    answer = ask(client, {"data": DATA, "indices": INDICES}, params={"dialect": "onnx-12", "device": "cpu"})
    assert output(answer).tolist() == [1.0, 11.0]
    assert answer.headers["x-gathernd-dialect"] == "onnx-12"
    assert answer.headers["x-gathernd-device"] == "cpu"
    assert "x-gathernd-data-etag" not in answer.headers
    assert (int.from_bytes(answer.content[:8], "little") + 8) % ALIGNMENT == 0


def test_a_large_answer_is_whole(client: httpx.Client) -> None:
    data = np.random.default_rng(1).integers(0, 2**63, (700, 1000), np.int64)
    indices = np.random.default_rng(2).integers(-700, 700, (3000, 1))
    found = output(ask(client, {"data": data, "indices": indices}))
    assert np.array_equal(found, data[indices[:, 0]])


def test_accept_decides_the_format_of_the_answer(client: httpx.Client) -> None:
    sent = {"data": DATA, "indices": INDICES}
    shown = ask(client, sent, accept="application/json")
    assert shown.json() == {
        "output": {"dtype": "float32", "shape": [2], "values": [1.0, 11.0]},
        "dialect": "onnx-13",
        "device": "cpu",
    }
    encoded = ask(client, sent, params={"output_encoding": "base64"}, accept="application/json")
    assert items(encoded.json()["output"]) == [1.0, 11.0]
    asked = {
        "data": {"dtype": "float32", "shape": [3, 4], "values": DATA.reshape(-1).tolist()},
        "indices": {"dtype": "int64", "shape": [2, 2], "values": INDICES.reshape(-1).tolist()},
        "dialect": "onnx-11",
    }
    answer = client.post("/gathernd", json=asked, headers={"accept": "application/x-safetensors"})
    assert output(answer).tolist() == [1.0, 11.0]
    assert answer.headers["x-gathernd-dialect"] == "onnx-11"


@pytest.mark.parametrize(
    ("accept", "binary_answers_binary", "json_answers_binary"),
    [
        ("*/*", True, False),
        ("application/*", True, False),
        ("", True, False),
        ("text/html", True, False),
        ("application/x-safetensors", True, True),
        ("Application/X-Safetensors; Q=0.5, text/html", True, True),
        ("application/json", False, False),
        ("application/json;q=0.9, */*;q=0.1", False, False),
        ("application/x-safetensors, application/json;q=0.5", True, True),
        ("application/json, application/x-safetensors", True, False),
        ("application/x-safetensors;q=0, */*", False, False),
        ("application/json;q=0, */*", True, True),
        ("application/json;q=zero, application/x-safetensors;q=0.1", True, True),
    ],
)
def test_accept_is_weighed(
    client: httpx.Client, accept: str, binary_answers_binary: bool, json_answers_binary: bool
) -> None:
    asked = {
        "data": {"dtype": "float32", "shape": [2], "values": [1, 2]},
        "indices": {"dtype": "int64", "shape": [1, 1], "values": [0]},
    }
    kinds = {True: "application/x-safetensors", False: "application/json"}
    answer = ask(client, {"data": DATA, "indices": INDICES}, accept=accept)
    assert answer.headers["content-type"] == kinds[binary_answers_binary]
    answer = client.post("/gathernd", json=asked, headers={"accept": accept})
    assert answer.headers["content-type"] == kinds[json_answers_binary]


def test_types_that_the_format_lacks_are_refused_or_answered_in_json(client: httpx.Client) -> None:
    asked = {
        "data": {"dtype": "string", "shape": [2], "values": ["a", "ß"]},
        "indices": {"dtype": "int64", "shape": [1, 1], "values": [1]},
        "output_encoding": "base64",
    }
    answer = client.post("/gathernd", json=asked, headers={"accept": "application/x-safetensors"})
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (422, "unsupported_dtype")
    assert problem["errors"] == [{"pointer": "/data/dtype"}]
    assert "application/json" in problem["detail"]
    assert "base64" in problem["detail"]
    answer = client.post(
        "/gathernd", json=asked, headers={"accept": "application/x-safetensors, application/json;q=0.5"}
    )
    assert items(answer.json()["output"]) == ["ß"]
    refused = client.post(
        "/gathernd", json=asked, headers={"accept": "application/x-safetensors, application/json;q=0"}
    )
    assert refused.json()["code"] == "unsupported_dtype"


@pytest.mark.parametrize(
    ("content_type", "status"),
    [
        ("application/x-safetensors", 200),
        ("Application/X-SafeTensors", 200),
        ("application/x-safetensors; version=1", 200),
        ("application/safetensors", 415),
        ("application/octet-stream", 415),
    ],
)
def test_the_content_type_names_the_format(client: httpx.Client, content_type: str, status: int) -> None:
    sent = save({"data": DATA, "indices": INDICES})
    assert client.post("/gathernd", content=sent, headers={"content-type": content_type}).status_code == status


def test_a_missing_tensor_is_pointed_at_in_the_query(client: httpx.Client) -> None:
    problem = ask(client, {"indices": INDICES}, params={"tensor": "nobody"}).json()
    assert (problem["code"], problem["errors"][0]["pointer"]) == ("tensor_not_found", "/query/tensor")


HOSTILE: dict[str, bytes] = {
    "empty body": b"",
    "JSON sent as binary": b'{"data": {"dtype": "float32"}}',
    "header length of 4 GiB": (2**32).to_bytes(8, "little") + b"{}",
    "header length of 2^64-1": b"\xff" * 8 + b"{}",
    "truncated blob": save({"data": DATA, "indices": INDICES})[:-1],
    "trailing byte": save({"data": DATA, "indices": INDICES}) + b"\0",
    "deep nesting": (1 << 19).to_bytes(8, "little") + b'{"data":' + b"[" * ((1 << 19) - 8),
}


@pytest.mark.parametrize("attack", HOSTILE)
def test_hostile_body_is_400_and_the_connection_lives(client: httpx.Client, attack: str) -> None:
    answer = ask(client, HOSTILE[attack])
    assert (answer.status_code, answer.json()["code"]) == (400, "malformed_request")
    assert ask(client, {"data": DATA, "indices": INDICES}).status_code == 200


def test_openapi_lists_the_format_after_json(client: httpx.Client) -> None:
    document = client.get("/openapi.json").json()
    for path in ("/gathernd", "/gather"):
        operation = document["paths"][path]["post"]
        assert list(operation["requestBody"]["content"]) == ["application/json", "application/x-safetensors"]
        assert list(operation["responses"]["200"]["content"]) == ["application/json", "application/x-safetensors"]
        assert {"X-Gathernd-Dialect", "X-Gathernd-Device", "X-Gathernd-Data-ETag"} <= set(
            operation["responses"]["200"]["headers"]
        )
        parameters = {"batch_dims"} if path == "/gathernd" else {"axis", "batch_dims"}
        named = {each["name"]: each for each in operation["parameters"] if each["in"] == "query"}
        assert set(named) == {
            *(
                "dialect",
                "device",
                "tensor",
                "output_encoding",
                "out_of_bounds",
                "fill_value",
                "output_dtype",
                "explain",
            ),
            *parameters,
        }
        assert all("default" not in each["schema"] and not each["required"] for each in named.values())


def test_a_lookup_in_a_resident_tensor_says_which_content_it_read(client: httpx.Client) -> None:
    raw = {"content-type": "application/octet-stream"}
    put = client.put(
        "/tensors/native-table", params={"dtype": "float32", "shape": "3,4"}, content=DATA.tobytes(), headers=raw
    )
    assert put.status_code == 201, put.text
    asked = {"indices": np.array([[2]])}
    found = ask(client, asked, params={"tensor": "native-table"})
    assert output(found).tolist() == DATA[2:].tolist()
    assert found.headers["x-gathernd-data-etag"] == put.headers["etag"]
    shown = ask(client, asked, params={"tensor": "native-table"}, accept="application/json").json()
    assert shown["data_etag"] == put.headers["etag"]
    both = ask(client, {**asked, "data": DATA}, params={"tensor": "native-table"})
    assert (both.status_code, both.json()["errors"][0]["pointer"]) == (422, "/query/tensor")
    text = client.put(
        "/tensors/native-words", params={"dtype": "string", "shape": "1"}, content=b"\1\0\0\0a", headers=raw
    )
    assert text.status_code == 201, text.text
    refused = ask(client, {"indices": np.array([[0]])}, params={"tensor": "native-words"})
    assert refused.json()["code"] == "unsupported_dtype"
    assert refused.json()["errors"][0]["pointer"] == "/query/tensor"
    answered = ask(
        client,
        {"indices": np.array([[0]])},
        params={"tensor": "native-words"},
        accept="application/x-safetensors, application/json",
    )
    assert answered.json()["output"]["values"] == ["a"]
    for name in ("native-table", "native-words"):
        assert client.delete(f"/tensors/{name}").status_code == 204
