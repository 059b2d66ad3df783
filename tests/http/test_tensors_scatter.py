"""Scatter over HTTP: what it changes, what it refuses, and that a retry changes nothing."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest

from tests.http.conftest import Start
from tests.http.forms import int64
from tests.http.tensors import SAFETENSORS, dying, error, look_up, put_raw, put_strings, save, scatter_body

TABLE = np.arange(12, dtype=np.float32).reshape(4, 3)
ROW = np.full((1, 3), 10, np.float32)


@pytest.fixture
def name(client: httpx.Client) -> Iterator[str]:
    put_raw(client, "scattered", TABLE)
    yield "scattered"
    client.delete("/tensors/scattered")


def content(client: httpx.Client, name: str) -> Any:
    return np.frombuffer(client.get(f"/tensors/{name}/content").content, np.float32).reshape(4, 3).tolist()


def send(client: httpx.Client, name: str, body: Any, **headers: str) -> httpx.Response:
    return client.post(f"/tensors/{name}/scatter", json=body, headers=headers)


@pytest.mark.parametrize(
    ("reduction", "row"),
    [("none", [2, 2, 2]), ("add", [15, 16, 17]), ("mul", [60, 80, 100]), ("min", [2, 2, 2]), ("max", [10, 10, 10])],
)
@pytest.mark.parametrize("binary", [False, True])
def test_reductions_in_both_formats(
    client: httpx.Client, name: str, reduction: str, row: list[int], binary: bool
) -> None:
    before = client.get(f"/tensors/{name}").json()
    updates = np.stack([ROW[0], ROW[0] - 8])
    if binary:
        body = save(indices=np.array([[1], [-3]]), updates=updates)
        headers = {"content-type": SAFETENSORS}
        path = f"/tensors/{name}/scatter?reduction={reduction}"
        answer = client.post(path, content=body, headers=headers)
    else:
        answer = send(client, name, scatter_body([[1], [-3]], updates, reduction))
    assert answer.status_code == 200, answer.text
    expected = [*map(list, TABLE.tolist())]
    expected[1] = list(map(float, row))
    assert content(client, name) == expected
    after = client.get(f"/tensors/{name}").json()
    assert answer.json() == {"name": name, "etag": after["etag"]}
    assert answer.headers["etag"] == after["etag"] == before["etag"].replace("-0", "-1")
    assert after["created"] == before["created"] < after["modified"]
    assert look_up(client, name, [1]).json()["data_etag"] == after["etag"]


def test_gather_is_the_inverse(client: httpx.Client, name: str) -> None:
    where = [[0, 2], [3, 0], [1, 1]]
    assert send(client, name, scatter_body(where, np.array([7, 8, 9], np.float32))).status_code == 200
    answer = client.post(
        "/gathernd", json={"data": {"tensor": name}, "indices": int64([3, 2], np.ravel(where).tolist())}
    )
    assert answer.json()["output"]["values"] == [7, 8, 9]


def test_strings_are_replaced_by_longer_ones(client: httpx.Client) -> None:
    put_strings(client, "words", ["a", "b", "c"])
    updates = {"dtype": "string", "shape": [2], "values": ["x" * 99, ""]}
    body = {"indices": int64([2, 1], [2, 0]), "updates": updates}
    assert send(client, "words", body).status_code == 200
    assert look_up(client, "words", [0, 1, 2]).json()["output"]["values"] == ["", "b", "x" * 99]
    error(send(client, "words", {**body, "reduction": "add"}), 422, "unsupported_dtype", "/reduction")
    client.delete("/tensors/words")


def test_a_retry_with_its_key_is_answered_alike_and_changes_nothing(client: httpx.Client, name: str) -> None:
    body = scatter_body([[0]], ROW, "add")
    first = send(client, name, body, **{"idempotency-key": "k-1"})
    assert send(client, name, body, **{"idempotency-key": "k-1"}).json() == first.json()
    assert content(client, name)[0] == [10, 11, 12]
    # Also where the tensor has moved on, and where the condition of the first time holds no more.
    send(client, name, scatter_body([[1]], ROW))
    headers = {"idempotency-key": "k-1", "if-match": first.json()["etag"].replace("-1", "-0")}
    assert send(client, name, body, **headers).json() == first.json()
    put_raw(client, name, TABLE[:1])
    assert send(client, name, scatter_body([[0]], ROW, "add"), **{"idempotency-key": "k-1"}).json() == first.json()
    assert client.get(f"/tensors/{name}").json()["shape"] == [1, 3]


def test_a_key_of_another_request_is_refused(client: httpx.Client, name: str) -> None:
    send(client, name, scatter_body([[0]], ROW, "add"), **{"idempotency-key": "k-2"})
    answer = send(client, name, scatter_body([[1]], ROW, "add"), **{"idempotency-key": "k-2"})
    error(answer, 422, "invalid_field", "/idempotency-key")
    assert content(client, name)[1] == TABLE[1].tolist()


@pytest.mark.parametrize("key", ["", "a b", "x" * 257, "é"])
def test_a_key_of_another_form_is_refused(client: httpx.Client, name: str, key: str) -> None:
    answer = client.post(
        f"/tensors/{name}/scatter",
        json=scatter_body([[0]], ROW),
        headers={b"idempotency-key": key.encode()},
    )
    error(answer, 422, "invalid_field", "/idempotency-key")


def test_if_match(client: httpx.Client, name: str) -> None:
    etag = client.get(f"/tensors/{name}").json()["etag"]
    assert send(client, name, scatter_body([[0]], ROW), **{"if-match": etag}).status_code == 200
    error(send(client, name, scatter_body([[1]], ROW), **{"if-match": etag}), 412, "precondition_failed")
    assert content(client, name)[1] == TABLE[1].tolist()


GOOD = scatter_body([[0]], ROW)
REFUSED: dict[str, tuple[Any, str, str | None]] = {
    "an index beyond the end": (
        scatter_body([[0], [4]], np.vstack([ROW, ROW])), "index_out_of_bounds", "/indices/values/1"
    ),
    "an index before the start": (scatter_body([[-5]], ROW), "index_out_of_bounds", "/indices/values/0"),
    "an index whose product wraps": (scatter_body([[2**62]], ROW), "index_out_of_bounds", "/indices/values/0"),
    "an inner index out of range within the flat range": (
        scatter_body([[0, 5]], np.ones(1, np.float32)), "index_out_of_bounds", "/indices/values/1"
    ),
    "updates of another shape": (scatter_body([[0]], ROW[:, :2]), "updates_shape_mismatch", "/updates/shape"),
    "updates of another rank": (scatter_body([[0]], ROW[0]), "updates_shape_mismatch", "/updates/shape"),
    "updates of another count": (scatter_body([[0], [1]], ROW), "updates_shape_mismatch", "/updates/shape"),
    "updates of another type": (scatter_body([[0]], ROW.astype(np.float64)), "unsupported_dtype", "/updates/dtype"),
    "indices of another type": (
        {**GOOD, "indices": {"dtype": "int32", "shape": [1, 1], "values": [0]}}, "unsupported_dtype", "/indices/dtype"
    ),
    "indices of rank 0": ({**GOOD, "indices": int64([], [0])}, "rank_too_small", "/indices/shape"),
    "tuples of length 0": ({**GOOD, "indices": int64([1, 0], [])}, "index_depth_out_of_range", "/indices/shape"),
    "tuples that are too long": (
        {**GOOD, "indices": int64([1, 3], [0, 0, 0])}, "index_depth_out_of_range", "/indices/shape"
    ),
    "an unknown reduction": ({**GOOD, "reduction": "sub"}, "invalid_field", "/reduction"),
    "a null reduction": ({**GOOD, "reduction": None}, "invalid_field", "/reduction"),
    "an unknown field": ({**GOOD, "axis": 0}, "invalid_field", "/axis"),
    "no updates": ({"indices": GOOD["indices"]}, "invalid_field", "/updates"),
    "no indices": ({"updates": GOOD["updates"]}, "invalid_field", "/indices"),
    "a wrong count": (
        {**GOOD, "updates": {**GOOD["updates"], "values": [1]}}, "element_count_mismatch", "/updates/values"
    ),
    "a value too large": (
        {**GOOD, "updates": {**GOOD["updates"], "values": [1, 1e39, 1]}}, "value_not_representable", "/updates/values/1"
    ),
    "a resident name for updates": ({**GOOD, "updates": {"tensor": "x"}}, "invalid_field", None),
    "a list": ([], "invalid_field", ""),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_changes_nothing(client: httpx.Client, name: str, case: str) -> None:
    body, code, pointer = REFUSED[case]
    before = client.get(f"/tensors/{name}").json()
    error(send(client, name, body), 422, code, pointer)
    assert client.get(f"/tensors/{name}").json() == before
    assert content(client, name) == TABLE.tolist()


def test_all_bad_indices_are_counted(client: httpx.Client, name: str) -> None:
    found = error(send(client, name, scatter_body([[9]] * 15, np.repeat(ROW, 15, 0))), 422, "index_out_of_bounds")
    assert (found["total"], len(found["errors"])) == (15, 10)
    assert found["rule"]["dialect"] == "onnx-18"
    assert found["errors"][0] == {
        "pointer": "/indices/values/0", "position": [0, 0], "value": 9, "axis": 0, "size": 4, "allowed": [-4, 3],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("body", "code"),
    [(b"{", "malformed_request"), (b"", "malformed_request"), (b'{"indices":NaN}', "malformed_request")],
)
def test_what_is_no_json(client: httpx.Client, name: str, body: bytes, code: str) -> None:
    error(client.post(f"/tensors/{name}/scatter", content=body), 400, code)


def test_types_of_bodies(client: httpx.Client, name: str) -> None:
    path = f"/tensors/{name}/scatter"
    raw = json.dumps(GOOD).encode()
    assert client.post(path, content=raw).status_code == 200
    assert client.post(path, content=gzip.compress(raw), headers={"content-encoding": "gzip"}).status_code == 200
    error(client.post(path, content=raw, headers={"content-type": "text/csv"}), 415, "unsupported_media_type")
    error(client.post(path + "?reduction=add", content=raw), 422, "invalid_field", "/query/reduction")
    binary = {"content-type": SAFETENSORS}
    whole = save(indices=np.array([[0]]), updates=ROW)
    assert client.post(path, content=whole, headers=binary).status_code == 200
    error(client.post(path, content=whole[:-1], headers=binary), 400, "malformed_request")
    extra = save(indices=np.array([[0]]), updates=ROW, more=ROW)
    error(client.post(path, content=extra, headers=binary), 422, "invalid_field", "/more")
    error(client.post(path, content=save(updates=ROW), headers=binary), 422, "invalid_field", "/indices")
    wrong = save(indices=np.array([[7]]), updates=ROW)
    error(client.post(path, content=wrong, headers=binary), 422, "index_out_of_bounds", "/indices")
    bad = client.post(path + "?reduction=x", content=whole, headers=binary)
    error(bad, 422, "invalid_field", "/query/reduction")


def test_an_explanation_is_not_offered(client: httpx.Client, name: str) -> None:
    body = scatter_body([[1]], ROW, "none")
    refused = client.post(f"/tensors/{name}/scatter?explain=true", json=body)
    found = error(refused, 422, "invalid_field", "/query/explain")
    assert found["hint"] == "Leave 'explain' out of the query."  # the body takes no such field


def test_a_tensor_that_is_not_there(client: httpx.Client) -> None:
    for headers in ({}, {"idempotency-key": "k"}):
        error(send(client, "nobody", GOOD, **headers), 404, "tensor_not_found", "/name")
    error(send(client, "..%2fx", GOOD), 422, "invalid_field", "/name")


def test_scatters_survive_a_kill(start: Start, tmp_path: Any) -> None:
    flags = ("--kernel", "numpy", "--store-dir", str(tmp_path / "kept"))
    with dying(start, *flags) as server, server.client() as client:
        put_raw(client, "x", TABLE)
        for turn in range(5):
            answer = send(client, "x", scatter_body([[turn % 4]], ROW, "add"), **{"idempotency-key": f"k{turn}"})
        server.process.kill()
        server.process.wait()
    with start(*flags) as server, server.client() as client:
        expected = TABLE + 10
        expected[0] += 10
        assert content(client, "x") == expected.tolist()
        assert client.get("/tensors/x").json()["etag"] == answer.json()["etag"]
        again = send(client, "x", scatter_body([[0]], ROW, "add"), **{"idempotency-key": "k4"})
        assert again.json() == answer.json()
        assert content(client, "x") == expected.tolist()
