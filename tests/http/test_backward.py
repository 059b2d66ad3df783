"""`POST /gathernd/backward` and `POST /gather/backward`: known answers in both formats, resident shapes, refusals."""

from __future__ import annotations

from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import load

from tests.http.conftest import Start
from tests.http.forms import int64, tensor
from tests.http.tensors import error, put_raw, save

ND, AXIS = "/gathernd/backward", "/gather/backward"
SAFETENSORS = {"content-type": "application/x-safetensors"}
BODY: dict[str, Any] = {
    "indices": int64([3, 1], [3, 0, -1]),
    "grad_output": tensor("float32", [3, 2], [1, 2, 10, 20, 100, 200]),
    "data_shape": [4, 2],
}


def asked(client: httpx.Client, body: dict[str, Any], path: str = ND, **more: Any) -> dict[str, Any]:
    answer = client.post(path, json=body | more)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_a_sparse_gradient_is_what_a_scatter_into_the_table_takes(client: httpx.Client) -> None:
    table = np.arange(12, dtype=np.float32).reshape(4, 3)
    assert put_raw(client, "bw-trained", table).is_success
    body = {
        "indices": int64([3, 1], [2, 0, 2]),
        "grad_output": tensor("float32", [3, 3], [1] * 9),
        "tensor": "bw-trained",
        "sparse": True,
        "lda_coeff": -0.25,
    }
    found = asked(client, body)
    scatter = {"indices": found["grad_indices"], "updates": found["grad_values"], "reduction": "add"}
    assert client.post("/tensors/bw-trained/scatter", json=scatter).status_code == 200
    row = client.post("/gathernd", json={"data": {"tensor": "bw-trained"}, "indices": int64([4, 1], [0, 1, 2, 3])})
    wanted = table - np.array([[0.25], [0], [0.5], [0]], np.float32)
    assert row.json()["output"]["values"] == wanted.ravel().tolist()


@pytest.mark.parametrize("sparse", [False, True])
def test_explained_nothing_runs(client: httpx.Client, sparse: bool) -> None:
    answer = client.post(f"{ND}?explain=true", json=BODY | {"sparse": sparse, "data_shape": [3, 2]})
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert found.get("grad_data") == (None if sparse else {"dtype": "float32", "shape": [3, 2]})
    explained = found["explanation"]
    assert (explained["operator"], explained["choice"]["route"]) == ("gathernd_backward", "loop")
    assert explained["routes"][0]["open"] is False
    assert explained["output_bytes"] == (24 + 3 * 16 if sparse else 24)


def test_large_ones_are_split_and_equal_to_numpy(every_client: httpx.Client) -> None:
    chance = np.random.default_rng(3)
    indices, gradient = chance.integers(-500, 500, 60_000), chance.standard_normal((60_000, 24)).astype(np.float32)
    wanted = np.zeros((500, 24), np.float32)
    np.add.at(wanted, indices, gradient)
    content = save(indices=indices, grad_output=gradient)
    answer = every_client.post(f"{AXIS}?data_shape=500,24", content=content, headers=SAFETENSORS)
    assert load(answer.content)["grad_data"].tobytes() == wanted.tobytes()
    answer = every_client.post(
        f"{AXIS}?data_shape=2000000,24&sparse=true&lda_coeff=2", content=content, headers=SAFETENSORS
    )
    found = load(answer.content)
    assert found["grad_indices"].tolist() == np.unique(indices % 2_000_000).tolist()
    wide = np.zeros((1000, 24), np.float32)
    np.add.at(wide, indices, gradient)
    rows = [at if at < 1000 else at - 2_000_000 for at in found["grad_indices"].tolist()]
    assert found["grad_values"].tobytes() == (wide[rows] * np.float32(2)).tobytes()


def test_what_it_takes_is_charged_before_it_is_taken(start: Start) -> None:
    with start("--memory-budget", str(64 << 20)) as server:
        client = server.shared_client()
        body = BODY | {"data_shape": [10_000_000, 2]}
        error(client.post(ND, json=body), 413, "payload_too_large")
        assert asked(client, body, sparse=True)["grad_indices"]["values"] == [0, 3, 9_999_999]
        # The first takes 24 MB and 8 bytes for the row of each tuple, the second 6 MB and 64 bytes to sort each.
        for tuples, further in ((8_000_000, {}), (2_000_000, {"sparse": "true"})):
            content = save(indices=np.zeros((tuples, 1), np.int8), grad_output=np.zeros((tuples, 1), np.float16))
            query = {"data_shape": "4,1", "dialect": "openvino-8"} | further
            error(client.post(ND, params=query, content=content, headers=SAFETENSORS), 413, "payload_too_large")
        content = save(indices=np.zeros((2_000_000, 1), np.int8), grad_output=np.zeros((2_000_000, 1), np.float16))
        answer = client.post(ND, params=query | {"sparse": "false"}, content=content, headers=SAFETENSORS)
        assert load(answer.content)["grad_data"].shape == (4, 1)
