"""OpenVINO's Gather-8, `/gather` in the dialect openvino-8: many batches over threads, and its plan."""

from __future__ import annotations

import json
from typing import Any

import httpx
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load, save

from tests.http.forms import tensor
from tests.http.tensors import npy

Array = NDArray[Any]
SAFETENSORS = {"content-type": "application/x-safetensors"}
GATHER_8: dict[str, Any] = {"dialect": "openvino-8", "axis": 2, "batch_dims": 1}
DATA = np.arange(12, dtype=np.float32).reshape(2, 3, 2)
INDICES = np.array([[1, -1], [0, 7]])


def as_json(data: Array = DATA, indices: Array = INDICES, **more: Any) -> dict[str, Any]:
    given = {
        name: tensor(a.dtype.name, a.shape, a.ravel().tolist()) for name, a in (("data", data), ("indices", indices))
    }
    return given | GATHER_8 | more


def test_large_gathers_over_threads(every_client: httpx.Client) -> None:
    source = np.random.default_rng(8)
    data = source.integers(-99, 99, (40, 5, 60, 3)).astype(np.int16)
    indices = source.integers(-70, 70, (40, 400)).astype(np.int32)
    every_client.put("/tensors/large-8", content=npy(data)).raise_for_status()
    body = save({"indices": indices})
    answer = every_client.post("/gather", params={**GATHER_8, "tensor": "large-8"}, content=body, headers=SAFETENSORS)
    b, outer, t, inner = np.ogrid[:40, :5, :400, :3]
    chosen = indices[b, t]
    good = (chosen >= -60) & (chosen < 60)
    wanted = np.where(good, data[b, outer, np.where(good, chosen, 0), inner], 0)
    assert (load(answer.content)["output"] == wanted).all()
    assert int(answer.headers["x-gathernd-replaced"]) == int(((indices < -60) | (indices >= 60)).sum())


def test_an_explanation(client: httpx.Client) -> None:
    found = client.post("/gather?explain=true", content=json.dumps(as_json())).json()
    assert found["output"] == {"dtype": "float32", "shape": [2, 3, 2]}
    plan = found["explanation"]["plan"]
    assert (plan["batches"], plan["tuples"], plan["dims"], plan["shared"]) == (6, 2, [2], False)
