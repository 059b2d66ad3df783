"""The worked examples of the specification texts: GatherND 11, 12 and 13 with their backend cases, the same operator as
a Python function, OpenVINO's GatherND-8 with its layers, and Gather's table of shapes.

They are written out here from the texts. An example that several texts give is asked in each dialect that has it.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Sequence
from math import prod
from typing import Any

import httpx
import numpy as np
import pytest

from tests.for_each import for_each
from tests.http.forms import int64, nested, packed, tensor

MATRIX = [[0, 1], [2, 3]]
CUBE = [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]
# number, batch_dims, data, indices, output
GATHERND = {
    "1": (0, MATRIX, [[0, 0], [1, 1]], [0, 3]),
    "2": (0, MATRIX, [[1], [0]], [[2, 3], [0, 1]]),
    "3": (0, CUBE, [[0, 1], [1, 0]], [[2, 3], [4, 5]]),
    "4": (0, CUBE, [[[0, 1]], [[1, 0]]], [[[2, 3]], [[4, 5]]]),
    "5": (1, CUBE, [[1], [0]], [[2, 3], [4, 5]]),
}
BACKEND = {
    "test_gathernd_example_int32": ("int32", *GATHERND["1"]),
    "test_gathernd_example_float32": ("float32", *GATHERND["4"]),
    "test_gathernd_example_int32_batch_dim1": ("int32", *GATHERND["5"]),
}
SIXTH = [
    [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]],
    [[13, 14, 15, 16], [17, 18, 19, 20], [21, 22, 23, 24]],
]
OPENVINO = {
    "1": (0, [[1, 2], [3, 4]], [[0, 0], [1, 0]], [1, 3]),
    "2": (0, [[1, 2], [3, 4]], [[1], [0]], [[3, 4], [1, 2]]),
    "3": (0, [[1, 2], [3, 4]], [[[1]], [[0]]], [[[3, 4]], [[1, 2]]]),
    "4": (1, [[1, 2], [3, 4]], [[1], [0]], [2, 3]),
    "5": (1, SIXTH, [[1], [0]], [[5, 6, 7, 8], [13, 14, 15, 16]]),
    "6": (
        2,
        SIXTH,
        [[[[1]], [[0]], [[2]]], [[[0]], [[2]], [[2]]]],
        [[[2], [5], [11]], [[13], [19], [23]]],
    ),
    "7": (
        3,
        [[[[1, 2, 3, 4], [5, 6, 7, 8]], [[9, 10, 11, 12], [13, 14, 15, 16]]]],
        [[[[1], [0]], [[3], [2]]]],
        [[[2, 5], [12, 15]]],
    ),
}
# batch_dims, shape of data, of indices, of the output
LAYERS = {
    "tuples of 3 into 4 axes": (0, (1000, 256, 10, 15), (25, 125, 3), (25, 125, 15)),
    "two batch axes": (2, (30, 2, 100, 35), (30, 2, 3, 1), (30, 2, 3, 35)),
    "three batch axes": (3, (1, 64, 64, 320), (1, 64, 64, 1, 1), (1, 64, 64, 1)),
}
SIZES = {"P": 3, "Q": 4, "R": 2, "S": 5}
# data, indices, axis, output, by the letters of the table
GATHER = (("PQ", "", 0, "Q"), ("PQR", "", 1, "PR"), ("PQ", "RS", 0, "RSQ"), ("PQ", "RS", 1, "PRS"))


def shape_of(values: Any) -> list[int]:
    return [len(values), *shape_of(values[0])] if isinstance(values, list) else []


def flat(values: Any) -> list[Any]:
    return [item for value in values for item in flat(value)] if isinstance(values, list) else [values]


def ask(
    client: httpx.Client, dtype: str, index_dtype: str, batch_dims: int | None, data: Any, indices: Any, dialect: str
) -> dict[str, Any]:
    """Send the lists as they are written, flat, and as base64: the three answers are the same."""
    fields = {"dialect": dialect} | ({} if batch_dims is None else {"batch_dims": batch_dims})
    made = tensor(dtype, shape_of(data), flat(data)), tensor(index_dtype, shape_of(indices), flat(indices))
    answers = []
    for form in (dict, nested, packed):
        body = {"data": form(made[0]), "indices": form(made[1]), **fields}
        answer = client.post("/gathernd", json=body)
        assert answer.status_code == 200, answer.text
        answers.append(answer.json())
    unshaped = {
        "data": {"dtype": dtype, "values": data},
        "indices": {"dtype": index_dtype, "values": indices},
        **fields,
    }
    assert client.post("/gathernd", json=unshaped).json() == answers[0]
    assert answers[0] == answers[1] == answers[2]
    output: dict[str, Any] = answers[0]["output"]
    assert answers[0]["dialect"] == dialect
    return output


@for_each(
    ("dialect", "example"),
    [
        (dialect, example)
        for dialect in ("onnx-13", "onnx-12", "onnx-11")
        for example, (batch_dims, *_) in GATHERND.items()
        if dialect != "onnx-11" or not batch_dims  # GatherND-11 has no batch_dims and gives no example 5
    ],
)
def test_an_example_of_onnx_gathernd(every_client: httpx.Client, example: str, dialect: str) -> None:
    batch_dims, data, indices, expected = GATHERND[example]
    output = ask(every_client, "int64", "int64", None if dialect == "onnx-11" else batch_dims, data, indices, dialect)
    assert output == tensor("int64", shape_of(expected), flat(expected))


@pytest.mark.parametrize("name", BACKEND)
@pytest.mark.parametrize("dialect", ["onnx-13", "onnx-12"])
def test_a_backend_case_of_onnx(every_client: httpx.Client, name: str, dialect: str) -> None:
    dtype, batch_dims, data, indices, expected = BACKEND[name]
    output = ask(every_client, dtype, "int64", batch_dims, data, indices, dialect)
    assert output == tensor(dtype, shape_of(expected), flat(expected))


@for_each("example", OPENVINO)
@for_each("index_dtype", ["int64", "int32", "uint8"])
def test_an_example_of_openvino(every_client: httpx.Client, example: str, index_dtype: str) -> None:
    batch_dims, data, indices, expected = OPENVINO[example]
    output = ask(every_client, "int32", index_dtype, batch_dims, data, indices, "openvino-8")
    assert output == tensor("int32", shape_of(expected), flat(expected))


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_of_openvino(every_client: httpx.Client, layer: str) -> None:
    batch_dims, data_shape, index_shape, output_shape = LAYERS[layer]
    source = np.random.default_rng(8)
    item = "uint8" if prod(data_shape) > 2**24 else "float32"  # 38 million items of one byte stay below the limit
    data = source.integers(0, 256, prod(data_shape), np.uint8).astype(item)
    depth = index_shape[-1]
    tuples = np.stack(
        [source.integers(0, data_shape[batch_dims + j], prod(index_shape[:-1])) for j in range(depth)], axis=-1
    )
    answer = every_client.post(
        "/gathernd",
        json={
            "data": _base64(data, data_shape),
            "indices": _base64(tuples.astype(np.int64), index_shape),
            "batch_dims": batch_dims,
            "dialect": "openvino-8",
            "output_encoding": "base64",
        },
    )
    assert answer.status_code == 200, answer.text[:300]
    output = answer.json()["output"]
    assert output["shape"] == list(output_shape)
    expected = _by_rows(data.tobytes(), data.itemsize, data_shape, tuples.tolist(), index_shape, batch_dims)
    assert b64decode(output["base64"]) == expected


def _base64(array: np.ndarray, shape: Sequence[int]) -> dict[str, Any]:
    return {"dtype": array.dtype.name, "shape": list(shape), "base64": b64encode(array.tobytes()).decode()}


def _by_rows(
    data: bytes,
    item_size: int,
    shape: Sequence[int],
    tuples: list[list[int]],
    index_shape: Sequence[int],
    batch_dims: int,
) -> bytes:
    """The gather as the text words it, tuple after tuple."""
    per_batch = prod(index_shape[batch_dims:-1])
    block = prod(shape[batch_dims:]) * item_size
    output = bytearray()
    for number, places in enumerate(tuples):
        start, step = number // per_batch * block, block
        for axis, place in enumerate(places, batch_dims):
            step //= shape[axis]
            start += place * step
        output += data[start : start + step]
    return bytes(output)


@for_each(("data", "indices", "axis", "output"), GATHER)
@for_each("index_dtype", ["int64", "int32"])
@for_each("dialect", ["onnx-13", "onnx-11", "onnx-1"])
def test_a_row_of_the_table_of_gather(
    every_client: httpx.Client, data: str, indices: str, axis: int, output: str, index_dtype: str, dialect: str
) -> None:
    data_shape, index_shape, output_shape = ([SIZES[letter] for letter in text] for text in (data, indices, output))
    size = data_shape[axis]
    chosen = [(7 * number + 1) % size for number in range(prod(index_shape))]
    expected = []
    for out in np.ndindex(*output_shape):
        at = dict(zip(output, out, strict=True))
        number = 0
        for letter in indices:
            number = number * SIZES[letter] + at[letter]
        flat_place = 0
        for place, letter in enumerate(data):
            flat_place = flat_place * SIZES[letter] + (chosen[number] if place == axis else at[letter])
        expected.append(flat_place)
    answer = every_client.post(
        "/gather",
        json={
            "data": tensor("uint16", data_shape, list(range(prod(data_shape)))),
            "indices": tensor(index_dtype, index_shape, chosen),
            "axis": axis,
            "dialect": dialect,
        },
    )
    assert answer.status_code == 200, answer.text
    assert answer.json()["output"] == tensor("uint16", output_shape, expected)


def test_axis_is_zero_where_none_is_given(client: httpx.Client) -> None:
    answer = client.post("/gather", json={"data": tensor("int8", [2, 2], [1, 2, 3, 4]), "indices": int64([], [1])})
    assert answer.json()["output"] == tensor("int8", [2], [3, 4])
