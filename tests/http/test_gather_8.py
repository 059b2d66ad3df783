"""OpenVINO's Gather-8, `/gather` in the dialect openvino-8: batch_dims beside the axis, any index type, zeros for what
is out of bounds.

The reference is the text's formula, one element at a time.
"""

from __future__ import annotations

import json
from random import Random
from typing import Any

import httpx
import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load, save

from tests.conftest import samples
from tests.http.forms import INTEGERS, int64, octets, tensor
from tests.http.tensors import error, npy, put_strings
from tests.oip.bodies import output, part, request

Array = NDArray[Any]
SAFETENSORS = {"content-type": "application/x-safetensors"}
GATHER_8: dict[str, Any] = {"dialect": "openvino-8", "axis": 2, "batch_dims": 1}
DATA = np.arange(12, dtype=np.float32).reshape(2, 3, 2)
INDICES = np.array([[1, -1], [0, 7]])
OUTPUT = [1, 1, 3, 3, 5, 5, 6, 0, 8, 0, 10, 0]


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


def random_case(source: Random) -> tuple[Array, Array, int, int]:
    """Data, indices around the bounds of the axis, the axis and batch_dims; either may count from the back."""
    shape = [source.choice([1, 2, 3, 4, 0 if source.random() < 0.1 else 2]) for _ in range(source.randint(1, 5))]
    axis = source.randrange(len(shape))
    b = source.randint(0, axis)
    index_shape = [*shape[:b], *(source.choice([1, 2, 3, 5, 0 if source.random() < 0.1 else 1])
                                 for _ in range(source.randint(0, 2)))]  # fmt: skip
    kind = source.choice(sorted(INTEGERS))
    info = np.iinfo(kind)
    count = int(np.prod(index_shape))
    far = [info.min, info.max, min(info.max, 2**62)]
    values = [source.choice(far) if source.random() < 0.05 else source.randint(-6, 6) for _ in range(count)]
    indices = np.array([max(value, info.min) for value in values], kind).reshape(index_shape)
    data = np.arange(int(np.prod(shape)), dtype=np.int32).reshape(shape) - 9
    back = b - len(index_shape)
    return (
        data,
        indices,
        source.choice([axis, axis - len(shape)]),
        back if -min(len(shape), len(index_shape)) <= back < 0 and source.random() < 0.5 else b,
    )


@pytest.mark.parametrize("seed", range(samples(600) // 50))
def test_random_requests_are_as_the_text_says(every_client: httpx.Client, seed: int) -> None:
    source = Random(seed)
    for _ in range(50):
        data, indices, axis, batch_dims = random_case(source)
        body = {
            "data": tensor("int32", data.shape, flat(data)),
            "indices": tensor(indices.dtype.name, indices.shape, flat(indices)),
            "dialect": "openvino-8",
            "axis": axis,
        } | ({"batch_dims": batch_dims} if batch_dims or source.random() < 0.5 else {})
        fill = source.choice([None, 0, 7])
        chosen: dict[str, Any] = {} if source.random() < 0.5 else {"out_of_bounds": "fill"}
        chosen |= {} if fill is None else {"fill_value": fill}
        made, replaced = gathered(data, indices, axis, batch_dims, fill or 0)
        answer = every_client.post("/gather", json=body | chosen)
        assert answer.status_code == 200, (body, answer.text)
        found = answer.json()
        assert found["output"]["shape"] == list(made.shape), body
        assert found["output"]["values"] == flat(made), body
        assert found["replaced"] == replaced, body
        answer = every_client.post("/gather", json=body | {"out_of_bounds": "error"})
        if replaced:
            assert error(answer, 422, "index_out_of_bounds")["total"] == replaced, body
        else:
            assert answer.json()["output"]["values"] == flat(made), body
            assert "replaced" not in answer.json()


def as_json(data: Array = DATA, indices: Array = INDICES, **more: Any) -> dict[str, Any]:
    given = {name: tensor(a.dtype.name, a.shape, flat(a)) for name, a in (("data", data), ("indices", indices))}
    return given | GATHER_8 | more


@pytest.mark.parametrize("index_type", INTEGERS)
def test_json(every_client: httpx.Client, index_type: str) -> None:
    indices = INDICES.clip(0 if index_type.startswith("u") else -1).astype(index_type)
    wanted, replaced = gathered(DATA, indices, 2, 1)
    for _ in range(2):  # the second one's fields have been seen before
        found = every_client.post("/gather", json=as_json(indices=indices)).json()
        assert found["output"] == {"dtype": "float32", "shape": [2, 3, 2], "values": flat(wanted)}
        assert (found["replaced"], found["dialect"]) == (replaced, "openvino-8")


def test_requests_that_differ_in_batch_dims_alone(client: httpx.Client) -> None:
    data = np.arange(8).reshape(2, 2, 2)
    indices = np.array([[0, 1], [1, 0]])
    for _ in range(2):
        for batch_dims in (0, 1, 2, -1, -2):
            found = client.post("/gather", json=as_json(data, indices, batch_dims=batch_dims)).json()
            wanted, _ = gathered(data, indices, 2, batch_dims)
            assert found["output"]["shape"] == list(wanted.shape)
            assert found["output"]["values"] == flat(wanted)


def test_safetensors(client: httpx.Client) -> None:
    body = save({"data": DATA, "indices": INDICES})
    for _ in range(2):
        for query, last in ((GATHER_8, 0.0), ({**GATHER_8, "batch_dims": -1, "fill_value": "2.5"}, 2.5)):
            answer = client.post("/gather", params=query, content=body, headers=SAFETENSORS)
            made = load(answer.content)["output"]
            assert made.shape == (2, 3, 2)
            assert flat(made) == [*OUTPUT[:7], last, 8, last, 10, last]
            assert answer.headers["x-gathernd-replaced"] == "1"
            assert answer.headers["x-gathernd-dialect"] == "openvino-8"
    answer = client.post("/gather", params={"dialect": "openvino-8"}, content=body, headers=SAFETENSORS)
    error(answer, 422, "invalid_field", "/query/axis")
    answer = client.post("/gather", params={"axis": 2, "batch_dims": 1}, content=body, headers=SAFETENSORS)
    error(answer, 422, "invalid_field", "/query/batch_dims")
    answer = client.post("/gather", params={**GATHER_8, "batch_dims": 3}, content=body, headers=SAFETENSORS)
    error(answer, 422, "batch_dims_out_of_range", "/query/batch_dims")


@pytest.mark.parametrize("binary", [False, True])
def test_the_inference_protocol(client: httpx.Client, binary: bool) -> None:
    inputs = [part("data", DATA, "FP32", binary=binary), part("indices", INDICES, "INT64", binary=binary)]

    def ask(**parameters: Any) -> httpx.Response:
        content, headers = request(inputs, parameters=parameters)
        # A client whose answers are not held to the native form of errors.
        return httpx.post(f"{client.base_url}/v2/models/gather/infer", content=content, headers=headers, timeout=60)

    for _ in range(2):
        head, made = output(ask(**GATHER_8))
        assert made.shape == (2, 3, 2)
        assert flat(made) == OUTPUT
        assert head["parameters"] == {"dialect": "openvino-8", "device": "cpu", "replaced": 1}
    assert flat(output(ask(**GATHER_8, fill_value="3"))[1])[7] == 3
    problem = ask(dialect="openvino-8").json()
    assert (problem["code"], problem["errors"][0]["pointer"]) == ("invalid_field", "/parameters/axis")
    problem = ask(axis=2, batch_dims=1).json()
    assert (problem["code"], problem["errors"][0]["pointer"]) == ("invalid_field", "/parameters/batch_dims")
    problem = ask(**GATHER_8 | {"batch_dims": 3}).json()
    assert (problem["code"], problem["errors"][0]["pointer"]) == ("batch_dims_out_of_range", "/parameters/batch_dims")


def test_a_resident_tensor(every_client: httpx.Client) -> None:
    every_client.put("/tensors/gather-8", content=npy(DATA)).raise_for_status()
    found = every_client.post("/gather", json=as_json() | {"data": {"tensor": "gather-8"}}).json()
    assert (found["output"]["values"], found["replaced"]) == (OUTPUT, 1)
    assert found["data_etag"]


def test_strings(every_client: httpx.Client) -> None:
    body = as_json() | {"data": tensor("string", [2, 3, 2], [f"s{number}" for number in range(12)])}
    wanted = ["s1", "s1", "s3", "s3", "s5", "s5", "s6", "", "s8", "", "s10", ""]
    assert every_client.post("/gather", json=body).json()["output"]["values"] == wanted
    filled = every_client.post("/gather", json=body | {"fill_value": "none"}).json()["output"]["values"]
    assert filled == [text or "none" for text in wanted]
    put_strings(every_client, "texts-8", ["a", "bb", "ccc"])
    given: dict[str, Any] = {
        "data": {"tensor": "texts-8"},
        "indices": int64([3], [3, -1, 0]),
        "dialect": "openvino-8",
        "axis": 0,
    }
    assert every_client.post("/gather", json=given).json()["output"]["values"] == ["", "ccc", "a"]


@pytest.mark.parametrize("dtype", ["bool", "float16", "bfloat16", "float64", "uint64", "int8"])
def test_element_types(every_client: httpx.Client, dtype: str) -> None:
    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    data = (DATA % 2).astype(kind)
    given = tensor(dtype, data.shape, [bool(x) if dtype == "bool" else float(x) for x in data.ravel()])
    found = every_client.post("/gather", json=as_json() | {"data": given}).json()
    wanted, _ = gathered(data, INDICES, 2, 1)
    assert octets(dtype, found["output"]["values"]) == wanted.tobytes()


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_complex_types_are_refused(client: httpx.Client, dtype: str) -> None:
    body = as_json() | {"data": tensor(dtype, [1], [[0, 0]])}
    assert error(client.post("/gather", json=body), 422, "unsupported_dtype", "/data/dtype")["rule"]["clause"] is None


def test_modes_that_are_asked_for(every_client: httpx.Client) -> None:
    body = {"data": int64([3], [5, 6, 7]), "indices": int64([4], [-4, -1, 3, 7]), "dialect": "openvino-8", "axis": 0}
    for mode, values in (("clip", [5, 7, 7, 7]), ("wrap", [7, 7, 5, 6]), ("fill", [0, 7, 0, 0])):
        found = every_client.post("/gather", json=body | {"out_of_bounds": mode}).json()
        assert (found["output"]["values"], found["replaced"]) == (values, 3)
    wrong = error(every_client.post("/gather", json=body | {"out_of_bounds": "error"}), 422, "index_out_of_bounds")
    assert wrong["total"] == 3
    assert wrong["rule"]["text"].endswith("filled with zeros")


def test_the_other_dialects_have_the_default_that_they_had(client: httpx.Client) -> None:
    body: dict[str, Any] = {"data": int64([3], [5, 6, 7]), "indices": int64([1], [3])}
    for dialect in ("onnx-13", "onnx-11", "onnx-1"):
        error(client.post("/gather", json=body | {"dialect": dialect}), 422, "index_out_of_bounds")
    body |= {"indices": int64([1, 1], [3]), "dialect": "openvino-8"}
    error(client.post("/gathernd", json=body), 422, "index_out_of_bounds")


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
