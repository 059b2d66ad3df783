"""The native binary format over HTTP: what is asked and answered in it, and beside it JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx
import numpy as np
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
