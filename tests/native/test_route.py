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
