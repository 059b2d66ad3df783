"""The model `scatternd`: refusals with their places; `tests/http/test_scatters.py` has its answers."""

from __future__ import annotations

from typing import Any

import httpx
import numpy as np
import pytest

from tests.oip.bodies import part, refused, request

PARTS = [
    part("data", np.arange(6, dtype=np.float32).reshape(3, 2), "FP32"),
    part("indices", np.array([[0], [2]]), "INT64"),
    part("updates", np.ones((2, 2), np.float32), "FP32"),
]


def failures(client: httpx.Client) -> int:
    found = client.get("/v2/models/scatternd/stats").json()["model_stats"][0]
    return int(found["inference_stats"]["fail"]["count"])


@pytest.mark.parametrize(
    ("parameters", "pointer"),
    [
        ({"reduction": "sub"}, "/parameters/reduction"),
    ],
)
def test_a_parameter_that_it_does_not_take_is_refused_and_counted(
    client: httpx.Client, parameters: dict[str, Any], pointer: str
) -> None:
    content, headers = request(PARTS, parameters=parameters)
    before = failures(client)
    refused(client.post("/v2/models/scatternd/infer", content=content, headers=headers), "invalid_field", pointer)
    assert failures(client) == before + 1


def test_errors_point_to_updates(client: httpx.Client) -> None:
    content, headers = request([part("updates", np.zeros((2, 2)), "FP64"), *PARTS[:2]])
    answer = client.post("/v2/models/scatternd/infer", content=content, headers=headers)
    refused(answer, "unsupported_dtype", "/inputs/0/datatype")
    content, headers = request(PARTS[:2])
    answer = client.post("/v2/models/scatternd/infer", content=content, headers=headers)
    assert "'updates'" in refused(answer, "invalid_field", "/inputs")["hint"]


def test_a_body_without_json_is_for_one_input(client: httpx.Client) -> None:
    headers = {"inference-header-content-length": "0"}
    answer = client.post("/v2/models/scatternd/infer", content=b"", headers=headers)
    assert "has 3" in refused(answer, "malformed_request")["detail"]
