"""Random tensors of every datatype through a running server, against NumPy."""

from __future__ import annotations

import httpx


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
