"""Random tensors of every datatype through a running server, against NumPy."""

from __future__ import annotations

from math import isfinite, isnan
from typing import Any

import httpx
import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tests.oip.bodies import NUMPY, SIZE, Array, listed, octets, output, part, request, same

FLOATS = ("FP16", "BF16", "FP32", "FP64")


@st.composite
def tensors(draw: st.DrawFn) -> tuple[str, Array]:
    datatype = draw(st.sampled_from(list(NUMPY)))
    shape = draw(hnp.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=5))
    if datatype == "BYTES":
        text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
        return datatype, draw(hnp.arrays(object, shape, elements=text))
    if datatype in FLOATS:
        # Every bit pattern, NaNs but the quiet one left out: JSON has one NaN only.
        width = np.dtype(NUMPY[datatype]).itemsize
        bits: Array = draw(hnp.arrays(f"<u{width}", shape))
        made = bits.view(NUMPY[datatype]).copy()
        made[np.isnan(made.astype(np.float64))] = NUMPY[datatype](np.nan)
        return datatype, made
    return datatype, draw(hnp.arrays(NUMPY[datatype], shape))


@st.composite
def gathers(draw: st.DrawFn) -> tuple[str, Array, Array]:
    datatype, data = draw(tensors())
    depth = draw(st.integers(1, data.ndim))
    empty = 0 in data.shape[:depth]
    count = draw(hnp.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=4))
    if empty:
        count = (0, *count)
    indices = np.empty((*count, depth), np.int64)
    for axis in range(depth):
        size = data.shape[axis]
        indices[..., axis] = 0 if empty else draw(hnp.arrays(np.int64, count, elements=st.integers(-size, size - 1)))
    return datatype, data, indices


def jsonable(array: Array, flat: bool) -> Any:
    def quoted(value: Any) -> Any:
        if isinstance(value, list):
            return [quoted(one) for one in value]
        if not isinstance(value, float) or isfinite(value):
            return value
        return "NaN" if isnan(value) else "Infinity" if value > 0 else "-Infinity"

    return quoted(listed(array, flat))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(gather=gathers(), binary=st.tuples(st.booleans(), st.booleans(), st.booleans()), flat=st.booleans())
def test_what_goes_in_comes_out(
    client: httpx.Client, gather: tuple[str, Array, Array], binary: tuple[bool, bool, bool], flat: bool
) -> None:
    datatype, data, indices = gather
    parts = [
        part("data", data, datatype, binary=binary[0]),
        part("indices", indices, "INT64", binary=binary[1]),
    ]
    for one, array in zip(parts, (data, indices), strict=True):
        if one.raw is None:
            one.described["data"] = jsonable(array, flat) if array.size else []
    content, headers = request(parts, parameters={"binary_data_output": binary[2]})
    answer = client.post("/v2/models/gathernd/infer", content=content, headers=headers)
    _, found = output(answer)
    assert (SIZE.lower() in answer.headers) == binary[2]
    expected = data[tuple(np.moveaxis(indices, -1, 0))]
    if not isinstance(expected, np.ndarray):
        expected = np.array(expected, data.dtype)
    assert same(found, np.ascontiguousarray(expected).reshape(expected.shape)), (octets(found), octets(expected))


def test_bfloat16_in_json_is_rounded_once(client: httpx.Client) -> None:
    # Halfway between two bfloat16 but for a part that float32 cannot hold: by way of float32 it would go to even, down.
    value = 1 + 2**-8 + 2**-40
    body = {
        "inputs": [
            {"name": "data", "datatype": "BF16", "shape": [1], "data": [value]},
            {"name": "indices", "datatype": "INT64", "shape": [1], "data": [0]},
        ]
    }
    found = client.post("/v2/models/gathernd/infer", json=body).json()["outputs"][0]["data"]
    assert found == [1 + 2**-7]
