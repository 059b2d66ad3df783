"""OpenVINO's Gather-8, `/gather` in the dialect openvino-8: batch_dims beside the axis, any index type, zeros for what
is out of bounds.

The reference is the text's formula, one element at a time.
"""

from __future__ import annotations

import json
from typing import Any

import httpx
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load, save

from tests.http.forms import int64, tensor
from tests.http.tensors import error, npy

Array = NDArray[Any]
SAFETENSORS = {"content-type": "application/x-safetensors"}
GATHER_8: dict[str, Any] = {"dialect": "openvino-8", "axis": 2, "batch_dims": 1}
DATA = np.arange(12, dtype=np.float32).reshape(2, 3, 2)
INDICES = np.array([[1, -1], [0, 7]])


def gathered(data: Array, indices: Array, axis: int, batch_dims: int, fill: Any = 0) -> tuple[Array, int]:
    """output[p_0, ..., p_{axis-1}, i_b, ..., i_{M-1}, p_{axis+1}, ..., p_{N-1}], and how many indices are outside."""
    axis = axis % data.ndim
    b = batch_dims + indices.ndim if batch_dims < 0 else batch_dims
    size = data.shape[axis]
    made = np.empty(data.shape[:axis] + indices.shape[b:] + data.shape[axis + 1 :], data.dtype)
    for place in np.ndindex(made.shape):
        before, chosen, after = np.split(np.array(place, int), [axis, axis + indices.ndim - b])
        index = int(indices[(*before[:b], *chosen)])
        index += size if -size <= index < 0 else 0
        made[place] = data[(*before, index, *after)] if 0 <= index < size else fill
    return made, sum(not -size <= int(index) < size for index in indices.ravel())


def flat(array: Array) -> list[Any]:
    return array.ravel().tolist()


def as_json(data: Array = DATA, indices: Array = INDICES, **more: Any) -> dict[str, Any]:
    given = {name: tensor(a.dtype.name, a.shape, flat(a)) for name, a in (("data", data), ("indices", indices))}
    return given | GATHER_8 | more


def test_requests_that_differ_in_batch_dims_alone(client: httpx.Client) -> None:
    data = np.arange(8).reshape(2, 2, 2)
    indices = np.array([[0, 1], [1, 0]])
    for _ in range(2):
        for batch_dims in (0, 1, 2, -1, -2):
            found = client.post("/gather", json=as_json(data, indices, batch_dims=batch_dims)).json()
            wanted, _ = gathered(data, indices, 2, batch_dims)
            assert found["output"]["shape"] == list(wanted.shape)
            assert found["output"]["values"] == flat(wanted)


def test_every_index_is_checked_where_nothing_is_copied(every_client: httpx.Client) -> None:
    for shape in ([2, 0, 3, 2], [2, 2, 3, 0]):
        body: dict[str, Any] = {"data": tensor("int8", shape, []), "indices": int64([2, 2], [0, 1, 2, 3])} | GATHER_8
        found = every_client.post("/gather", json=body).json()
        assert found["output"] == {"dtype": "int8", "shape": [*shape[:2], 2, shape[3]], "values": []}
        assert found["replaced"] == 1
        answer = every_client.post("/gather", json=body | {"out_of_bounds": "error"})
        assert error(answer, 422, "index_out_of_bounds")["errors"][0]["position"] == [1, 1]


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
