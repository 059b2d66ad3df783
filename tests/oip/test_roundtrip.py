"""Random tensors of every datatype through a running server, against NumPy."""

from __future__ import annotations

import httpx
import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tests.oip.bodies import NUMPY, Array

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
