"""`POST /scatternd`, `/scatter_elements` and their models: known answers in each format, resident data, refusals."""

from __future__ import annotations

from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import load, save

from app.tensors.dtypes import DTYPES
from tests.http.forms import int64, tensor
from tests.http.tensors import error, npy, put_raw, scatter_body

ND, ELEMENTS = "/scatternd", "/scatter_elements"
SAFETENSORS = {"content-type": "application/x-safetensors"}


UNKNOWN_TO_NUMPY = ("string", "bfloat16", "complex128", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu")
"""Types that safetensors does not read or write with NumPy."""


def array(given: dict[str, Any]) -> Any:
    return np.array(given["values"], given["dtype"]).reshape(given["shape"])


def nd_body(**more: Any) -> dict[str, Any]:
    return {
        "data": tensor("float32", [3, 2], [1, 2, 3, 4, 5, 6]),
        "indices": int64([2, 1], [0, 2]),
        "updates": tensor("float32", [2, 2], [7, 8, 9, 10]),
    } | more


def elements_body(**more: Any) -> dict[str, Any]:
    return nd_body(indices=int64([2, 2], [0, 2, 1, 0])) | more


@pytest.mark.parametrize("dtype", [name for name in DTYPES if name not in UNKNOWN_TO_NUMPY])
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
    answer = client.post(ND, content=content, headers=SAFETENSORS)
    assert load(answer.content)["output"].tobytes() == expected.tobytes()
    if DTYPES[dtype].kind in ("int", "uint", "float"):
        columns = rng.integers(0, 40, (3000, 50))
        more = rng.integers(0, 3, (3000, 50)).astype(kind)
        expected = data.copy()
        for column in range(50):
            expected[np.arange(3000), columns[:, column]] += more[:, column]
        content = save({"data": data, "indices": columns, "updates": more})
        answer = client.post(ELEMENTS, params={"axis": 1, "reduction": "add"}, content=content, headers=SAFETENSORS)
        assert load(answer.content)["output"].tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    ("path", "opset", "meant"),
    [
        (ND, 17, "onnx-16"), (ND, 21, "onnx-18"), (ND, 12, "onnx-11"), (ELEMENTS, 15, "onnx-13"),
        ("/gathernd", 21, "onnx-13"), ("/gather", 12, "onnx-11"), ("/gather", 14, "onnx-13"), ("/gather", 5, "onnx-1"),
        ("/gather_elements", 12, "onnx-11"), ("/gather/backward", 12, "onnx-11"),
    ],
)  # fmt: skip
def test_an_opset_that_is_no_dialect_is_told_the_version_that_it_has(
    client: httpx.Client, path: str, opset: int, meant: str
) -> None:
    """Not the dialect that looks most like it, whose rules may be others."""
    body = nd_body(dialect=f"onnx-{opset}")
    if "scatter" not in path:
        del body["updates"]
    if "backward" in path:
        body |= {"grad_output": body.pop("data"), "data_shape": [3, 2]}
    found = error(client.post(path, json=body), 422, "invalid_field", "/dialect")
    assert found["hint"].startswith(f"Write '{meant}' in place of 'onnx-{opset}' at /dialect")


def test_the_models_say_what_they_take(client: httpx.Client) -> None:
    for path in (ND, ELEMENTS):
        metadata = client.get(f"/v2/models{path}").json()
        assert [one["name"] for one in metadata["inputs"]] == ["data", "indices", "updates"]
        taken = ["INT64"] if path == ND else ["INT32", "INT64"]
        assert metadata["inputs"][1]["parameters"]["datatypes"] == taken
        config = client.get(f"/v2/models{path}/config").json()
        values = {name: value["string_value"] for name, value in config["parameters"].items()}
        own = {} if path == ND else {"axis": "0"}
        assert values == own | {"reduction": "none", "dialect": "onnx-18", "device": "auto"}
        assert any(entry["name"] == path[1:] for entry in client.post("/v2/repository/index").json())
        assert client.put(f"/tensors{path}", content=npy(np.zeros(3))).status_code == 422


def test_the_hint_of_an_index_out_of_bounds_is_one_for_scatters(client: httpx.Client) -> None:
    """It does not name `out_of_bounds`, which scatters do not take."""
    hint = "Use an index from -3 to 2 at /indices/values/1, since axis 0 of data has size 3."
    found = error(client.post(ND, json=nd_body(indices=int64([2, 1], [0, 3]))), 422, "index_out_of_bounds")
    assert found["hint"] == hint
    found = error(client.post(ELEMENTS, json=elements_body(indices=int64([2, 2], [0, 3, 0, 0]))), 422, found["code"])
    assert found["hint"] == hint
    put_raw(client, "hinted", np.ones((3, 2), np.float32))
    try:
        sent = scatter_body([[0], [3]], np.ones((2, 2), np.float32))
        assert error(client.post("/tensors/hinted/scatter", json=sent), 422, found["code"])["hint"] == hint
    finally:
        client.delete("/tensors/hinted")
    empty = {
        "data": tensor("int8", [0, 3], []), "indices": int64([1, 1], [0]), "updates": tensor("int8", [1, 3], [1, 2, 3])
    }  # fmt: skip
    found = error(client.post(ND, json=empty), 422, found["code"])
    assert found["hint"] == "Send no index for axis 0, which has size 0, so that none is valid."
