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

# batch_dims, shape of data, of indices, of the output
LAYERS = {
    "tuples of 3 into 4 axes": (0, (1000, 256, 10, 15), (25, 125, 3), (25, 125, 15)),
    "two batch axes": (2, (30, 2, 100, 35), (30, 2, 3, 1), (30, 2, 3, 35)),
    "three batch axes": (3, (1, 64, 64, 320), (1, 64, 64, 1, 1), (1, 64, 64, 1)),
}


def shape_of(values: Any) -> list[int]:
    return [len(values), *shape_of(values[0])] if isinstance(values, list) else []


def flat(values: Any) -> list[Any]:
    return [item for value in values for item in flat(value)] if isinstance(values, list) else [values]


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
