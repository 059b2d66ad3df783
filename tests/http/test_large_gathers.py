"""Gathers of more than one thread's work, whose answers are NumPy's; the conformance table has the small ones."""

from __future__ import annotations

from typing import Any

import httpx
import numpy as np
from safetensors.numpy import load, save

from tests.http.tensors import npy
from tests.parity.items import same

SAFETENSORS = {"content-type": "application/x-safetensors"}


def test_a_large_gather_of_elements(client: httpx.Client) -> None:
    numbers = np.random.default_rng(5)
    data = numbers.standard_normal((600, 700)).astype(np.float32)
    indices = numbers.integers(-600, 600, (500, 650))
    answer = client.post("/gather_elements", content=save({"data": data, "indices": indices}), headers=SAFETENSORS)
    assert answer.status_code == 200, answer.text
    assert same(load(answer.content)["output"], np.take_along_axis(data[:, :650], indices % 600, 0))


def test_a_large_gather_in_batches_fills_what_is_out_of_bounds(every_client: httpx.Client) -> None:
    source = np.random.default_rng(8)
    data = source.integers(-99, 99, (40, 5, 60, 3)).astype(np.int16)
    indices = source.integers(-70, 70, (40, 400)).astype(np.int32)
    every_client.put("/tensors/large-8", content=npy(data)).raise_for_status()
    query: dict[str, Any] = {"dialect": "openvino-8", "axis": 2, "batch_dims": 1, "tensor": "large-8"}
    answer = every_client.post("/gather", params=query, content=save({"indices": indices}), headers=SAFETENSORS)
    b, outer, t, inner = np.ogrid[:40, :5, :400, :3]
    chosen = indices[b, t]
    good = (chosen >= -60) & (chosen < 60)
    wanted = np.where(good, data[b, outer, np.where(good, chosen, 0), inner], 0)
    assert (load(answer.content)["output"] == wanted).all()
    assert int(answer.headers["x-gathernd-replaced"]) == int(((indices < -60) | (indices >= 60)).sum())
