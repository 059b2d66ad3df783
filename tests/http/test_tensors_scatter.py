"""Scatter over HTTP: what it changes, what it refuses, and that a retry changes nothing."""

from __future__ import annotations

import gzip
import json
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
def table(client: httpx.Client, name: str) -> str:
    """The name of a tensor that holds TABLE."""
    put_raw(client, name, TABLE)
    return name


def content(client: httpx.Client, name: str) -> Any:
    return np.frombuffer(client.get(f"/tensors/{name}/content").content, np.float32).reshape(4, 3).tolist()


def send(client: httpx.Client, name: str, body: Any, **headers: str) -> httpx.Response:
    return client.post(f"/tensors/{name}/scatter", json=body, headers=headers)


def test_strings_are_replaced_by_longer_ones(client: httpx.Client) -> None:
    put_strings(client, "words", ["a", "b", "c"])
    updates = {"dtype": "string", "shape": [2], "values": ["x" * 99, ""]}
    body = {"indices": int64([2, 1], [2, 0]), "updates": updates}
    assert send(client, "words", body).status_code == 200
    assert look_up(client, "words", [0, 1, 2]).json()["output"]["values"] == ["", "b", "x" * 99]
    error(send(client, "words", {**body, "reduction": "add"}), 422, "unsupported_dtype", "/reduction")
    client.delete("/tensors/words")


def test_a_retry_with_its_key_is_answered_alike_and_changes_nothing(client: httpx.Client, table: str) -> None:
    body = scatter_body([[0]], ROW, "add")
    first = send(client, table, body, **{"idempotency-key": "k-1"})
    assert send(client, table, body, **{"idempotency-key": "k-1"}).json() == first.json()
    assert content(client, table)[0] == [10, 11, 12]
    # Also where the tensor has moved on, and where the condition of the first time holds no more.
    send(client, table, scatter_body([[1]], ROW))
    headers = {"idempotency-key": "k-1", "if-match": first.json()["etag"].replace("-1", "-0")}
    assert send(client, table, body, **headers).json() == first.json()
    put_raw(client, table, TABLE[:1])
    assert send(client, table, scatter_body([[0]], ROW, "add"), **{"idempotency-key": "k-1"}).json() == first.json()
    assert client.get(f"/tensors/{table}").json()["shape"] == [1, 3]


def test_if_match(client: httpx.Client, table: str) -> None:
    etag = client.get(f"/tensors/{table}").json()["etag"]
    assert send(client, table, scatter_body([[0]], ROW), **{"if-match": etag}).status_code == 200
    error(send(client, table, scatter_body([[1]], ROW), **{"if-match": etag}), 412, "precondition_failed")
    assert content(client, table)[1] == TABLE[1].tolist()


GOOD = scatter_body([[0]], ROW)


def test_types_of_bodies(client: httpx.Client, table: str) -> None:
    path = f"/tensors/{table}/scatter"
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
