"""Requests that are large enough for several threads; NumPy gives the expected responses."""

from __future__ import annotations

from typing import Any

import httpx
import numpy as np
from safetensors.numpy import load, save

from app.tensors.dtypes import DTYPES
from tests.for_each import for_each
from tests.http.forms import int64, tensor
from tests.http.tensors import npy
from tests.parity.items import same

SAFETENSORS = {"content-type": "application/x-safetensors"}
UNKNOWN_TO_NUMPY = ("string", "bfloat16", "complex128", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu")
"""Types that safetensors does not read or write with NumPy."""


@for_each("dtype", [name for name in DTYPES if name not in UNKNOWN_TO_NUMPY])
def test_large_scatters_of_every_type(client: httpx.Client, dtype: str) -> None:
    """More than a thread of the pool takes, on every route: the bits of a plain loop."""
    rng = np.random.default_rng(2)
    kind = DTYPES[dtype].numpy
    data, updates = rng.integers(0, 2, (3000, 40)).astype(kind), rng.integers(0, 2, (4000, 40)).astype(kind)
    indices = rng.integers(-3000, 3000, (4000, 1))
    expected = data.copy()
    for (row,), update in zip(indices.tolist(), updates, strict=True):
        expected[row] = update
    content = save({"data": data, "indices": indices, "updates": updates})
    answer = client.post("/scatternd", content=content, headers=SAFETENSORS)
    assert load(answer.content)["output"].tobytes() == expected.tobytes()
    if DTYPES[dtype].kind in ("int", "uint", "float"):
        columns = rng.integers(0, 40, (3000, 50))
        more = rng.integers(0, 3, (3000, 50)).astype(kind)
        expected = data.copy()
        for column in range(50):
            expected[np.arange(3000), columns[:, column]] += more[:, column]
        content = save({"data": data, "indices": columns, "updates": more})
        answer = client.post(
            "/scatter_elements", params={"axis": 1, "reduction": "add"}, content=content, headers=SAFETENSORS
        )
        assert load(answer.content)["output"].tobytes() == expected.tobytes()


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


def test_many_indices_are_replaced_by_a_thread(every_client: httpx.Client) -> None:
    source = np.random.default_rng(3)
    data = source.integers(0, 99, 1000).astype(np.int32)
    indices = source.integers(-3000, 3000, (100_000, 1))
    body = {
        "data": tensor("int32", [1000], data.tolist()),
        "indices": int64(indices.shape, indices.ravel().tolist()),
    }
    index, outside = indices[:, 0], (indices[:, 0] < -1000) | (indices[:, 0] >= 1000)
    back = np.where((index < 0) & ~outside, index + 1000, index)
    made = {"clip": data[back.clip(0, 999)], "wrap": data[back % 1000], "fill": np.where(outside, 0, data[back % 1000])}
    for mode, wanted in made.items():
        found = every_client.post("/gathernd", json=body | {"out_of_bounds": mode}).json()
        assert found["output"]["values"] == wanted.tolist()
        assert found["replaced"] == outside.sum()
