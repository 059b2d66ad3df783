"""If-Match and If-None-Match, and header fields that occur more than once: a list is one list, the rest is refused."""

from __future__ import annotations

import base64
import hashlib

import httpx
import numpy as np
import pytest

from app.server.header_fields import SINGLE
from tests.http.raw import TINY, ask, request
from tests.http.server import Server
from tests.http.tensors import NPY, RAW, SAFETENSORS, error, npy, put_raw, scatter_body

TABLE = np.arange(24, dtype=np.float32).reshape(6, 4)
BODY = npy(TABLE + 1)
Fields = list[tuple[str, str]]


@pytest.fixture
def path(client: httpx.Client, name: str) -> str:
    """The path of a tensor that holds TABLE."""
    assert put_raw(client, name, TABLE).status_code == 201
    return f"/tensors/{name}"


def untouched(client: httpx.Client, path: str) -> bool:
    return client.get(f"{path}/content").content == TABLE.tobytes()


@pytest.mark.parametrize("order", [1, -1])
def test_every_if_none_match_field_counts_before_a_tensor_is_replaced(
    client: httpx.Client, path: str, order: int
) -> None:
    etag = client.get(path).headers["etag"]
    for first in ("*", etag, f"W/{etag}"):
        fields: Fields = [("if-none-match", first), ("if-none-match", '"other"')][::order]
        error(client.put(path, content=BODY, headers=fields), 412, "precondition_failed")
        error(client.delete(path, headers=fields), 412, "precondition_failed")
    assert untouched(client, path)


@pytest.mark.parametrize("order", [1, -1])
def test_every_if_match_field_counts(client: httpx.Client, path: str, order: int) -> None:
    etag = client.get(path).headers["etag"]
    fields: Fields = [("if-match", etag), ("if-match", '"other"')][::order]
    assert client.get(path, headers=fields).status_code == 200
    assert client.put(path, content=BODY, headers=fields).status_code == 200
    error(client.delete(path, headers=[("if-match", '"x"'), ("if-match", '"y"')]), 412, "precondition_failed")


def test_if_none_match_compares_weakly_and_if_match_strongly(client: httpx.Client, path: str) -> None:
    etag = client.get(path).headers["etag"]
    weak = f"W/{etag}"
    for what in (path, f"{path}/content"):
        assert client.get(what, headers={"if-none-match": weak}).status_code == 304
        assert client.get(what, headers={"if-none-match": f'"x",{weak}'}).status_code == 304
        error(client.get(what, headers={"if-match": weak}), 412, "precondition_failed")
    error(client.put(path, content=BODY, headers={"if-none-match": weak}), 412, "precondition_failed")
    error(client.put(path, content=BODY, headers={"if-match": weak}), 412, "precondition_failed")
    body = scatter_body([[0]], np.zeros((1, 4), np.float32))
    error(client.post(f"{path}/scatter", json=body, headers={"if-match": weak}), 412, "precondition_failed")
    error(client.post(f"{path}/scatter", json=body, headers={"if-none-match": weak}), 412, "precondition_failed")
    assert untouched(client, path)


def test_an_etag_may_hold_commas_and_a_list_empty_members(client: httpx.Client, path: str) -> None:
    etag = client.get(path).headers["etag"]
    assert client.get(path, headers={"if-none-match": f',  "a,b" ,,\t{etag},'}).status_code == 304
    assert client.get(path, headers={"if-none-match": f'"a,{etag[1:]}'}).status_code == 200


def test_accept_fields_are_one_list(client: httpx.Client, path: str) -> None:
    for fields in ([NPY, "text/plain"], ["text/plain", NPY], [f"{RAW};q=0.1", NPY, f"{SAFETENSORS};q=0.5"]):
        answer = client.get(f"{path}/content", headers=[("accept", field) for field in fields])
        assert answer.headers["content-type"] == NPY
    asked: Fields = [("accept", SAFETENSORS), ("accept", "application/json;q=0.5")]
    assert client.post("/gathernd", content=TINY, headers=asked).headers["content-type"] == SAFETENSORS


def digest(body: bytes) -> str:
    return f"sha-256=:{base64.b64encode(hashlib.sha256(body).digest()).decode()}:"


@pytest.mark.parametrize("name", sorted(SINGLE - {b"content-length", b"transfer-encoding"}))
def test_a_field_that_is_no_list_occurs_once(server: Server, name: bytes) -> None:
    value = {b"host": "localhost", b"content-type": "application/json", b"origin": "http://localhost"}.get(name, "1")
    fields = [f"{name.decode()}: {value}"] * (1 if name == b"host" else 2)  # `request` brings a Host of its own
    for line in ("POST /gathernd", "POST /tensors", "GET /livez", "GET /errors"):
        answer = ask(server, request(TINY, *fields, line=f"{line} HTTP/1.1"))
        assert (answer.status, answer.json()["code"]) == (400, "malformed_request"), line
        assert name.decode() in answer.json()["detail"]
