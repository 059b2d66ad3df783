"""A cluster answers bit for bit as one machine with the whole tables: errors, positions and totals included."""

from __future__ import annotations

import httpx
import numpy as np
import pytest

from tests.cluster import gathers
from tests.cluster.running import BothTransport
from tests.conftest import samples
from tests.http.forms import int64
from tests.http.tensors import RAW
from tests.parity import lookup_messages
from tests.parity.lookup_cases import Tables, random_lookup

COUNT = 1000
"""Of each, in `make test-all`; with lookups and gathers a soak takes 20,000 at a tenth of its full counts."""


@pytest.mark.parametrize("share", range(2))
def test_random_lookups(both: BothTransport, compared: httpx.Client, held: Tables, share: int) -> None:
    rng = np.random.default_rng([18, share])
    before = both.compared
    for number in range(samples(COUNT) // 2):
        lookup = random_lookup(rng, held, spoiled=number % 3 == 0)
        lookup_messages.send(compared, rng, lookup, held)
    assert both.compared - before == samples(COUNT) // 2
    assert both.statuses[200] > 5 * samples(COUNT) // 20


@pytest.mark.parametrize("share", range(2))
def test_random_gathers(both: BothTransport, compared: httpx.Client, held: Tables, share: int) -> None:
    rng = np.random.default_rng([19, share])
    before = both.compared
    for number in range(samples(COUNT) // 2):
        gathers.send(compared, rng, *gathers.random_gather(rng, held, spoiled=number % 3 == 0))
    assert both.compared - before == samples(COUNT) // 2
    assert both.statuses[200] > 5 * samples(COUNT) // 20


@pytest.mark.parametrize("name", ["pl_wide", "pl_tall"])
@pytest.mark.parametrize("accept", ["application/json", "application/x-safetensors"])
def test_answers_larger_than_a_buffer(compared: httpx.Client, held: Tables, name: str, accept: str) -> None:
    rng = np.random.default_rng(3)
    rows, columns = held[name].shape
    headers = {"accept": accept}
    some = rng.integers(-rows, rows, 400 if name == "pl_tall" else 60)
    body = {"data": {"tensor": name}, "indices": int64([len(some), 1], some.tolist()), "output_encoding": "base64"}
    assert compared.post("/gathernd", json=body, headers=headers).status_code == 200
    pairs = np.stack([some, rng.integers(-columns, columns, len(some))], 1)
    body["indices"] = int64([len(some), 2], pairs.reshape(-1).tolist())
    assert compared.post("/gathernd", json=body, headers=headers).status_code == 200
    body["indices"] = int64([3, 2], rng.integers(-columns, columns, 6).tolist())
    assert compared.post("/gather", json=body | {"axis": 1}, headers=headers).status_code == 200
    per_row = rng.integers(-columns, columns, (rows, 1)).reshape(-1).tolist()
    body["indices"] = int64([rows, 1], per_row)
    assert compared.post("/gathernd", json=body | {"batch_dims": 1}, headers=headers).status_code == 200
    assert compared.post("/gather_elements", json=body | {"axis": 1}, headers=headers).status_code == 200


def test_gradients_know_the_shape_of_a_table(compared: httpx.Client) -> None:
    grad = {"dtype": "float32", "shape": [2, 2, 3], "values": list(range(12))}
    body = {"tensor": "pl_float32_3", "indices": int64([2, 1], [3, 0]), "grad_output": grad}
    assert compared.post("/gathernd/backward", json=body).status_code == 200
    body["indices"] = int64([2, 1], [4, 0])
    assert compared.post("/gathernd/backward", json=body).status_code == 422


def test_data_in_the_request_is_gathered_by_the_router(compared: httpx.Client) -> None:
    data = {"dtype": "float32", "shape": [2, 2], "values": [0, 1, 2, 3]}
    assert compared.post("/gathernd", json={"data": data, "indices": int64([1, 1], [1])}).status_code == 200
    assert compared.post("/gathernd", json={"data": data, "indices": int64([1, 1], [2])}).status_code == 422


def test_what_changes_data_is_refused(both: BothTransport) -> None:
    body = {"indices": int64([1, 1], [0]), "updates": {"dtype": "float32", "shape": [1, 3], "values": [1, 2, 3]}}
    for answer in (
        both.router.post("/tensors/pl_float32_1/scatter", json=body),
        both.router.post("/scatternd", json=body | {"data": {"tensor": "pl_float32_1"}}),
        both.router.put(
            "/tensors/new", params={"dtype": "int8", "shape": "1"}, content=b"a", headers={"content-type": RAW}
        ),
        both.router.delete("/tensors/pl_float32_1"),
        both.router.put("/aliases/new", json={"tensor": "pl_float32_1@1"}),
        both.router.delete("/aliases/pl_alias"),
        both.router.post("/tensors/new/import", json={"url": "https://x.example/a.npy"}),
    ):
        assert (answer.status_code, answer.json()["code"]) == (501, "not_implemented"), answer.text
