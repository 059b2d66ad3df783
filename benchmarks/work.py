"""The requests that benchmarks ask for: small and large gathers inline, and lookups in a resident table."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from benchmarks import common

ROWS, WIDTH, PICK = 200_000, 64, 256
SAFETENSORS = {"Content-Type": "application/x-safetensors"}
OCTETS = {"Content-Type": "application/octet-stream"}
JSON_SIZE = "Inference-Header-Content-Length"
Array = NDArray[Any]


class Work(NamedTuple):
    """A piece of work: our own request, the inference protocol's, and the right output."""

    request: common.Request
    protocol: common.Request
    output: Array


def table() -> Array:
    """The resident table `items`: ROWS x WIDTH float32."""
    return np.random.default_rng(7).random((ROWS, WIDTH), dtype=np.float32)


def upload(port: int, rows: Array, name: str = "items") -> None:
    """Make a table resident."""
    shape = ",".join(map(str, rows.shape))
    path = f"/tensors/{name}?dtype={rows.dtype.name}&shape={shape}"
    common.post(port, common.Request(path, rows.tobytes(), OCTETS, "PUT"))


def protocol(model: str, binary: bool, **inputs: Array) -> common.Request:
    """An infer request whose inputs and output are binary, or JSON."""
    described, raws = [], []
    for name, array in inputs.items():
        datatype = {"int64": "INT64", "float32": "FP32"}[array.dtype.name]
        one: dict[str, Any] = {"name": name, "datatype": datatype, "shape": array.shape}
        if binary:
            raws.append(array.tobytes())
            one["parameters"] = {"binary_data_size": array.nbytes}
        else:
            one["data"] = array.ravel().tolist()
        described.append(one)
    head = json.dumps({"inputs": described, "parameters": {"binary_data_output": binary}}).encode()
    fields = OCTETS | {JSON_SIZE: str(len(head))} if binary else {"Content-Type": common.JSON}
    return common.Request(f"/v2/models/{model}/infer", b"".join((head, *raws)), fields)


def in_json(array: Array) -> dict[str, Any]:
    """A tensor of our JSON."""
    return {"dtype": array.dtype.name, "shape": array.shape, "values": array.ravel().tolist()}


def all_work(rows: Array) -> dict[str, Work]:
    """Every piece of work by its name; `rows` is the resident table."""
    data, pairs = np.arange(4, dtype=np.float32).reshape(2, 2), np.array([[0, 0], [1, 1]])
    picked = np.random.default_rng(8).integers(0, ROWS, (PICK, 1))
    rng = np.random.default_rng(9)
    large, tuples = rng.random((1000, 1000), dtype=np.float32), rng.integers(0, 1000, (10_000, 2))
    tiny = json.dumps({"data": in_json(data), "indices": in_json(pairs)}).encode()
    lookup = json.dumps({"data": {"tensor": "items"}, "indices": in_json(picked)}).encode()
    found = rows[picked[:, 0]]
    return {
        "tiny json": Work(
            common.Request("/gathernd", tiny),
            protocol("gathernd", False, data=data, indices=pairs),
            data[tuple(pairs.T)],
        ),
        "lookup json": Work(common.Request("/gathernd", lookup), protocol("items", False, indices=picked), found),
        "lookup binary": Work(
            common.Request("/gathernd?tensor=items", save({"indices": picked}), SAFETENSORS),
            protocol("items", True, indices=picked),
            found,
        ),
        "inline 4 MB binary": Work(
            common.Request("/gathernd", save({"data": large, "indices": tuples}), SAFETENSORS),
            protocol("gathernd", True, data=large, indices=tuples),
            large[tuple(tuples.T)],
        ),
    }


def output_of(answer: bytes, request: common.Request, like: Array) -> Array:
    """The output in an answer to `request`, as an array of the shape and type of `like`."""
    if request.headers.get("Content-Type") != common.JSON:
        return np.frombuffer(answer[len(answer) - like.nbytes :], like.dtype).reshape(like.shape)
    found = json.loads(answer)
    values = found["outputs"][0]["data"] if "outputs" in found else found["output"]["values"]
    return np.array(values, like.dtype).reshape(like.shape)


def lua_of(bodies: list[bytes], folder: str, paths: list[str] | None = None) -> str:
    """Lua that has wrk send these bodies in turn, each to its path; `folder` keeps them meanwhile."""
    for number, body in enumerate(bodies):
        with open(f"{folder}/{number}", "wb") as file:  # noqa: PTH123  (a name in Lua, too)
            file.write(body)
    each = ", ".join(f'"{path}"' for path in paths) if paths else ""
    return f"""
local paths, bodies, turn = {{{each}}}, {{}}, 0
for number = 0, {len(bodies) - 1} do
  local part = io.open("{folder}/" .. number, "rb")
  bodies[number + 1] = part:read("*a")
  part:close()
end
function request()
  turn = turn % #bodies + 1
  return wrk.format("POST", paths[turn], nil, bodies[turn])
end
"""
