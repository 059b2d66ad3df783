"""`POST /lookup`: every format, what is refused and in which order, and what each feature may be."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest

from tests.http.conftest import Start
from tests.http.forms import int64, tensor
from tests.http.lookups import Given, as_json, as_safetensors, saved
from tests.http.server import Server
from tests.http.tensors import SAFETENSORS, error, put_raw, put_strings

BINARY = {"content-type": SAFETENSORS}
_SOURCE = np.random.default_rng(16)
USERS = _SOURCE.standard_normal((50, 8), dtype=np.float32)
ITEMS = _SOURCE.standard_normal((20, 5), dtype=np.float32)
TABLES: dict[str, Any] = {
    "lk_users": USERS,
    "lk_items": ITEMS,
    "lk_line": np.arange(9, dtype=np.float32),
    "lk_ids": np.arange(40, dtype=np.int64).reshape(10, 4),
    "lk_scalar": np.array(3.0, np.float32),
}


@pytest.fixture(scope="module", autouse=True)
def tables(server: Server, server_numpy: Server) -> Iterator[None]:
    both = server, server_numpy
    for running in both:
        client = running.shared_client()
        for name, table in TABLES.items():
            assert put_raw(client, name, table).status_code in (200, 201)
        assert put_strings(client, "lk_words", ["a", "", "été", "xyz"]).status_code in (200, 201)
    yield
    for running in both:
        for name in (*TABLES, "lk_words"):
            assert running.shared_client().delete(f"/tensors/{name}").status_code == 204


BAG = Given("lk_items", [4, 4, 9, 1, 0], [0, 3], pooling="sum")
ROWS = Given("lk_users", [7, 3])


def test_strings_are_answered_in_json_where_safetensors_is_only_preferred(every_client: httpx.Client) -> None:
    headers = BINARY | {"accept": f"{SAFETENSORS}, application/json"}
    sent = as_safetensors([Given("lk_words", [2, 0])])
    answer = every_client.post("/lookup", content=sent, headers=headers).json()
    assert answer["output"]["values"] == ["été", "a"]


def bag(**fields: Any) -> dict[str, Any]:
    sent = as_json([BAG])
    sent["features"][0] |= fields
    return sent


STAGES = [
    bag(extra=1), bag(indices=tensor("int6", [5], [0] * 5)), bag(indices=int64([5], [0])),
    bag(indices=int64([5], [0.5] * 5)), bag(tensor="lk_none"), bag(tensor="lk_ids"), bag(tensor="lk_scalar"),
    bag(weights=tensor("float32", [1], [1])), bag(offsets=int64([3], [0, 0, 0])), bag(offsets=int64([2], [1, 1])),
    bag(indices=int64([5], [99] * 5)),
]  # fmt: skip
"""Features that are wrong at one stage each, in the order of the stages."""


@pytest.mark.parametrize("at", range(len(STAGES) - 1))
def test_stages_come_before_features(at: int, client: httpx.Client) -> None:
    """A feature that is wrong at a later stage and stands first does not hide one of an earlier stage."""
    early, late = STAGES[at]["features"][0], STAGES[at + 1]["features"][0]
    plain = as_json([BAG])["features"][0]
    alone = client.post("/lookup", json={"features": [plain, early]}).json()
    both = client.post("/lookup", json={"features": [plain, early, late]}).json()
    turned = client.post("/lookup", json={"features": [plain, late, early]}).json()
    assert alone["code"] == both["code"] == turned["code"]
    assert both["errors"][0]["pointer"].startswith("/features/1")
    assert turned["errors"][0]["pointer"].startswith("/features/2"), turned


def test_within_a_stage_the_first_feature_is_told(client: httpx.Client) -> None:
    for wrong in STAGES:
        sent = {"features": [as_json([BAG])["features"][0], wrong["features"][0], wrong["features"][0]]}
        found = client.post("/lookup", json=sent).json()
        assert found["errors"][0]["pointer"].startswith("/features/1"), found


BINARY_REFUSED: dict[str, tuple[bytes, str, str | None]] = {
    "no text": (saved({}, "")[:8] + b"", "malformed_request", None),
    "no JSON": (saved({}, "{"), "invalid_field", "/__metadata__/lookup"),
    "a list": (saved({}, []), "invalid_field", "/__metadata__/lookup"),
    "no features": (saved({}, {}), "invalid_field", "/__metadata__/lookup/features"),
    "an array in the text": (
        saved({}, {"features": [{"tensor": "x", "indices": 1}]}), "invalid_field",
        "/__metadata__/lookup/features/0/indices",
    ),
    "no indices": (saved({}, {"features": [{"tensor": "x"}]}), "invalid_field", "/0.indices"),
    "another tensor": (
        saved({"indices": np.zeros(1, np.int64)}, {"features": [{"tensor": "x"}]}), "invalid_field", "/indices",
    ),
    "one feature too many": (
        saved({"0.indices": np.array([0]), "1.indices": np.array([0])}, {"features": [{"tensor": "x"}]}),
        "invalid_field", "/1.indices",
    ),
}  # fmt: skip


@pytest.mark.parametrize("wrong", BINARY_REFUSED)
def test_binary_faults_are_told_with_their_place(wrong: str, client: httpx.Client) -> None:
    content, code, pointer = BINARY_REFUSED[wrong]
    found = client.post("/lookup", content=content, headers=BINARY).json()
    assert found["code"] == code, found
    if pointer is not None:
        assert found["errors"][0]["pointer"] == pointer


def test_a_query_may_only_ask_to_explain(client: httpx.Client) -> None:
    for content, headers in ((json.dumps(as_json([BAG])).encode(), {}), (as_safetensors([BAG]), BINARY)):
        error(
            client.post("/lookup?concat=true", content=content, headers=headers), 422, "invalid_field", "/query/concat"
        )
        answer = client.post("/lookup?explain=true", content=content, headers=headers).json()
        assert answer["output"] == {"dtype": "float32", "shape": [2, 5]}
        explained = answer["explanation"]
        assert explained["operator"] == "lookup"
        assert explained["output_bytes"] == 40
        (feature,) = explained["features"]
        assert feature["bytes_read"] == 5 * 20
        assert feature["table"] == {"dtype": "float32", "shape": [20, 5], "bytes": 400}
        assert [route["route"] for route in explained["routes"]] == ["gpu", "split", "loop", "thread"]
        assert not explained["routes"][0]["open"]


def test_lookups_are_counted_by_features_and_each_tensor(client: httpx.Client) -> None:
    def counts() -> tuple[float, float]:
        text = client.get("/metrics").text
        found = {
            line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in text.splitlines() if line[:1] != "#"
        }
        return (
            found.get('gathernd_lookups_total{features="4"}', 0.0),
            found.get('gathernd_tensor_lookups_total{tensor="lk_items"}', 0.0),
        )

    lookups, reads = counts()
    assert client.post("/lookup", json=as_json([BAG] * 3)).status_code == 200
    assert counts() == (lookups + 1, reads + 3)


def test_the_name_is_reserved(client: httpx.Client) -> None:
    error(put_raw(client, "lookup", ITEMS), 422, "invalid_field", "/name")


@pytest.fixture(scope="module")
def small(start: Start) -> Iterator[Server]:
    with start("--max-features", "3", "--max-output-bytes", "4096", "--memory-budget", "4MiB") as server:
        client = server.shared_client()
        for name in ("lk_items", "lk_users"):
            assert put_raw(client, name, TABLES[name]).status_code == 201
        yield server


def test_limits_hold_for_the_sum_of_all_features(small: Server) -> None:
    client = small.shared_client()
    rows = Given("lk_users", [0] * 42)  # 1,344 bytes
    assert client.post("/lookup", json=as_json([rows] * 3)).status_code == 200
    more = Given("lk_users", [0] * 43)
    for concat in (True, False):
        found = error(
            client.post("/lookup", json=as_json([more] * 3, concat=concat)), 422, "output_too_large", "/features"
        )
        assert (found["limit"], found["maximum"]) == ("output_bytes", 4096)
    for sent, headers, pointer in (
        (json.dumps(as_json([rows] * 4)).encode(), {}, "/features"),
        (as_safetensors([rows] * 4), BINARY, "/__metadata__/lookup/features"),
    ):
        found = error(client.post("/lookup", content=sent, headers=headers), 422, "limit_exceeded", pointer)
        assert (found["limit"], found["maximum"]) == ("features", 3)


def test_what_never_fits_the_budget_is_refused_and_given_back(small: Server) -> None:
    client = small.shared_client()
    many = np.zeros(200_000, np.int64)
    given = Given("lk_items", many, np.zeros(2, np.int64), pooling="sum")
    replaced = as_safetensors([given], out_of_bounds="clip")
    for _ in range(3):
        assert client.post("/lookup", content=replaced, headers=BINARY).json()["code"] == "payload_too_large"
        assert client.post("/lookup", content=as_safetensors([given]), headers=BINARY).status_code == 200
