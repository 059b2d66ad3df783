"""Upserts and removals by key over HTTP: what they change, what they answer and refuse, and that a retry is free."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import httpx
import numpy as np
import pytest
import safetensors.numpy
from numpy.typing import NDArray

from tests.http.conftest import Start
from tests.http.keyed import body, of_texts
from tests.http.tensors import SAFETENSORS, error, put_raw

ROWS = np.arange(6, dtype=np.float32).reshape(3, 2) + 1
KEYS: dict[str, list[Any]] = {"int64": [7, -1, 3], "uint64": [7, 2**63, 3], "string": ["a", "bé", ""]}
NEW: dict[str, Any] = {"int64": 5, "uint64": 5, "string": "z\0"}
HEADERS = {"content-type": SAFETENSORS}
every_type = pytest.mark.parametrize("dtype", KEYS)


def arrays(dtype: str, keys: list[Any]) -> dict[str, NDArray[Any]]:
    return of_texts(keys) if dtype == "string" else {"keys": np.array(keys, dtype)}


def put(client: httpx.Client, name: str, dtype: str, query: str = "") -> dict[str, Any]:
    made = client.put(f"/tensors/{name}{query}", content=body(**arrays(dtype, KEYS[dtype]), data=ROWS), headers=HEADERS)
    assert made.status_code == 201, made.text
    found: dict[str, Any] = made.json()
    return found


def tensor(dtype: str, values: list[Any], shape: list[int] | None = None) -> dict[str, Any]:
    return {"dtype": dtype, "shape": [len(values)] if shape is None else shape, "values": values}


def updates(*rows: list[float]) -> dict[str, Any]:
    return tensor("float32", [item for row in rows for item in row], [len(rows), 2])


def content(client: httpx.Client, name: str) -> dict[Any, list[float]]:
    """The row of each key."""
    found = safetensors.numpy.load(client.get(f"/tensors/{name}/content", headers={"accept": SAFETENSORS}).content)
    if "keys" in found:
        keys = found["keys"].tolist()
    else:
        raw, cuts = found["keys.bytes"].tobytes(), found["keys.offsets"].tolist()
        keys = [raw[start:stop].decode() for start, stop in pairwise(cuts)]
    return dict(zip(keys, found["data"].tolist(), strict=True))


def change(client: httpx.Client, name: str, what: str, document: Any, **headers: str) -> httpx.Response:
    return client.post(f"/tensors/{name}/{what}", json=document, headers=headers)


@every_type
def test_an_upsert_changes_known_rows_and_appends_new_ones(client: httpx.Client, name: str, dtype: str) -> None:
    first = put(client, name, dtype)
    known, new = KEYS[dtype][1], NEW[dtype]
    asked = {"keys": tensor(dtype, [new, known, new]), "updates": updates([1, 2], [10, 10], [3, 4]), "reduction": "add"}
    answer = change(client, name, "upsert", asked)
    assert answer.status_code == 200, answer.text
    assert answer.json() == {"name": name, "etag": answer.headers["etag"], "rows": 4, "inserted": 1}
    assert answer.headers["etag"] != first["etag"]
    assert content(client, name) == dict(zip(KEYS[dtype], [[1, 2], [13, 14], [5, 6]], strict=True)) | {new: [4, 6]}
    known_about = client.get(f"/tensors/{name}").json()
    assert (known_about["shape"], known_about["capacity"] >= 4) == ([4, 2], True)


@every_type
def test_a_removal_leaves_the_other_rows_and_counts_keys_that_are_missing(
    client: httpx.Client, name: str, dtype: str
) -> None:
    put(client, name, dtype)
    answer = change(client, name, "remove", {"keys": tensor(dtype, [KEYS[dtype][0], NEW[dtype], KEYS[dtype][0]])})
    assert answer.status_code == 200, answer.text
    assert answer.json() == {"name": name, "etag": answer.headers["etag"], "rows": 2, "removed": 1, "missing": 1}
    assert content(client, name) == dict(zip(KEYS[dtype][1:], ROWS[1:].tolist(), strict=True))
    asked = {"data": {"tensor": name}, "keys": tensor(dtype, KEYS[dtype])}
    error(client.post("/gather", json=asked), 422, "key_not_found", "/keys/values/0")


@every_type
def test_changes_as_safetensors(client: httpx.Client, name: str, dtype: str) -> None:
    put(client, name, dtype)
    sent = body(**arrays(dtype, [NEW[dtype], KEYS[dtype][0]]), updates=np.array([[8, 9], [1, 1]], np.float32))
    answer = client.post(f"/tensors/{name}/upsert?reduction=mul", content=sent, headers=HEADERS)
    assert (answer.status_code, answer.json()["inserted"]) == (200, 1), answer.text
    assert content(client, name)[NEW[dtype]] == [0, 0]
    answer = client.post(f"/tensors/{name}/remove", content=body(**arrays(dtype, [NEW[dtype]])), headers=HEADERS)
    assert (answer.status_code, answer.json()["removed"]) == (200, 1), answer.text
    assert content(client, name) == dict(zip(KEYS[dtype], ROWS.tolist(), strict=True))


def test_int32_keys_stand_for_int64_ones(client: httpx.Client, name: str) -> None:
    put(client, name, "int64")
    assert change(client, name, "remove", {"keys": tensor("int32", [-1])}).json()["removed"] == 1


def test_a_retry_is_answered_alike_and_changes_nothing(client: httpx.Client, name: str) -> None:
    put(client, name, "int64")
    asked = {"keys": tensor("int64", [5]), "updates": updates([1, 1]), "reduction": "add"}
    first = change(client, name, "upsert", asked, **{"idempotency-key": "k-1"})
    assert first.json()["inserted"] == 1
    removed = change(client, name, "remove", {"keys": tensor("int64", [7, 8])}, **{"idempotency-key": "k-2"})
    for _ in range(2):
        assert change(client, name, "upsert", asked, **{"idempotency-key": "k-1"}).json() == first.json()
        again = change(client, name, "remove", {"keys": tensor("int64", [7, 8])}, **{"idempotency-key": "k-2"})
        assert again.json() == removed.json()
    assert content(client, name) == {-1: [3, 4], 3: [5, 6], 5: [1, 1]}
    other = change(client, name, "remove", {"keys": tensor("int64", [3])}, **{"idempotency-key": "k-1"})
    error(other, 422, "invalid_field", "/idempotency-key")


def test_if_match(client: httpx.Client, name: str) -> None:
    etag = put(client, name, "int64")["etag"]
    asked = {"keys": tensor("int64", [3])}
    assert change(client, name, "remove", asked, **{"if-match": etag}).status_code == 200
    error(change(client, name, "remove", asked, **{"if-match": etag}), 412, "precondition_failed")


def test_a_table_has_the_capacity_that_is_asked_for_and_grows_beyond_it(client: httpx.Client, name: str) -> None:
    assert put(client, name, "int64", "?capacity=10")["capacity"] == 10
    for start in range(100, 160, 20):
        keys = list(range(start, start + 20))
        done = change(
            client,
            name,
            "upsert",
            {"keys": tensor("int64", keys), "updates": updates(*[[float(k), 1.0] for k in keys])},
        )
        assert (done.status_code, done.json()["inserted"]) == (200, 20), done.text
    assert client.get(f"/tensors/{name}").json()["shape"] == [63, 2]
    assert content(client, name)[159] == [159, 1]
    large = body(keys=np.arange(3), data=ROWS)
    for query in ("2", "x", "-1"):
        answer = client.put(f"/tensors/{name}?capacity={query}", content=large, headers=HEADERS)
        error(answer, 422, "invalid_field", "/query/capacity")
    answer = client.put(f"/tensors/{name}?capacity=9", content=body(data=ROWS), headers=HEADERS)
    error(answer, 422, "invalid_field", "/query/capacity")


@pytest.mark.parametrize(
    ("what", "document", "code", "pointer"),
    [
        ("upsert", {"keys": tensor("uint64", [7]), "updates": updates([1, 1])}, "unsupported_dtype", "/keys/dtype"),
        ("upsert", {"keys": tensor("string", ["7"]), "updates": updates([1, 1])}, "unsupported_dtype", "/keys/dtype"),
        (
            "upsert", {"keys": tensor("int64", [7]), "updates": tensor("float64", [1, 1], [1, 2])},
            "unsupported_dtype", "/updates/dtype",
        ),
        ("upsert", {"keys": tensor("int64", [7]), "updates": tensor("float32", [1])}, "updates_shape_mismatch",
         "/updates/shape"),
        ("upsert", {"keys": tensor("int64", [7, 3], [2, 1]), "updates": updates([1, 1])}, "rank_mismatch",
         "/keys/shape"),
        ("upsert", {"keys": tensor("int64", [7])}, "invalid_field", "/updates"),
        ("upsert", {"updates": updates([1, 1])}, "invalid_field", "/keys"),
        ("upsert", {"keys": tensor("int64", [7]), "updates": updates([1, 1]), "reduction": "sub"}, "invalid_field",
         "/reduction"),
        ("remove", {"keys": tensor("int64", [7]), "updates": updates([1, 1])}, "invalid_field", "/updates"),
        ("remove", {"keys": tensor("float32", [7])}, "unsupported_dtype", "/keys/dtype"),
        ("remove", {}, "invalid_field", "/keys"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(
    client: httpx.Client, name: str, what: str, document: Any, code: str, pointer: str
) -> None:
    etag = put(client, name, "int64")["etag"]
    error(change(client, name, what, document), 422, code, pointer)
    assert client.get(f"/tensors/{name}").json()["etag"] == etag


def test_tables_without_keys_and_names_of_nothing(client: httpx.Client, name: str) -> None:
    put_raw(client, name, ROWS)
    asked = {"keys": tensor("int64", [7])}
    error(change(client, name, "remove", asked), 422, "no_keys", "/name")
    error(change(client, name, "upsert", asked | {"updates": updates([1, 1])}), 422, "no_keys", "/name")
    error(change(client, "nothing", "remove", asked), 404, "tensor_not_found")


def test_a_removal_that_moves_more_than_the_memory_budget_is_refused(start: Start) -> None:
    with start("--memory-budget", str(32 << 20)) as server, server.client() as client:
        table = body(keys=np.arange(64), data=np.zeros((64, 1 << 20), np.uint8))
        assert client.put("/tensors/wide", content=table, headers=HEADERS).is_success
        few = change(client, "wide", "remove", {"keys": tensor("int64", [0, 1])})
        assert (few.status_code, few.json()["rows"]) == (200, 62), few.text
        many = change(client, "wide", "remove", {"keys": tensor("int64", list(range(2, 18)))})
        assert (many.status_code, many.json()["code"]) == (413, "payload_too_large")
        assert client.get("/tensors/wide").json()["shape"] == [62, 1 << 20]
