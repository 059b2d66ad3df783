"""The model `lookup` of the inference protocol: what it says of itself, and as Triton's client calls it."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import numpy as np
import pytest

from tests.http.lookups import Given, looped
from tests.http.server import Server
from tests.http.tensors import put_raw

ITEMS = np.random.default_rng(2).standard_normal((20, 5), dtype=np.float32)
BAG = Given("v2_items", [4, 4, 9, 1, 0], [0, 3], pooling="sum")


@pytest.fixture(scope="module", autouse=True)
def tables(server: Server) -> Iterator[None]:
    client = server.shared_client()
    assert put_raw(client, "v2_items", ITEMS).status_code == 201
    yield
    client.delete("/tensors/v2_items")


def test_the_model_is_described_listed_and_counted(client: httpx.Client) -> None:
    metadata = client.get("/v2/models/lookup").json()
    assert [one["name"] for one in metadata["inputs"]] == ["0.indices", "0.offsets", "0.weights"]
    assert [one["name"] for one in metadata["outputs"]] == ["output", "0.output"]
    assert client.get("/v2/models/lookup/config").json()["name"] == "lookup"
    assert client.get("/v2/models/lookup/ready").status_code == 200
    listed = client.post("/v2/repository/index", json={}).json()
    assert "lookup" in [one["name"] for one in listed]

    def count() -> int:
        (stats,) = client.get("/v2/models/lookup/stats").json()["model_stats"]
        found: int = stats["inference_stats"]["success"]["count"]
        return found

    before = count()
    one = {"name": "0.indices", "datatype": "INT64", "shape": [1], "data": [0]}
    lookup = json.dumps({"features": [{"tensor": "v2_items"}]})
    answer = client.post("/v2/models/lookup/infer", json={"inputs": [one], "parameters": {"lookup": lookup}})
    assert answer.status_code == 200
    assert count() == before + 1


@pytest.mark.parametrize("binary", [False, True])
def test_triton_s_client_looks_up_as_it_is(binary: bool, server: Server) -> None:
    triton = pytest.importorskip("tritonclient.http")
    client = triton.InferenceServerClient(f"127.0.0.1:{server.port}")
    inputs = []
    for name, array in BAG.arrays().items():
        one = triton.InferInput(f"0.{name}", list(array.shape), "INT64")
        one.set_data_from_numpy(array, binary_data=binary)
        inputs.append(one)
    parameters = {"lookup": json.dumps({"features": [BAG.fields()]})}
    outputs = [triton.InferRequestedOutput("output", binary_data=binary)]
    result = client.infer("lookup", inputs, outputs=outputs, parameters=parameters)
    assert result.as_numpy("output").tobytes() == looped(ITEMS, BAG).tobytes()
    client.close()
