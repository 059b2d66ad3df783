"""One decoding of paths for all routes: an encoded slash is part of its segment. And the target `*`."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import httpx
import numpy as np
import pytest

from tests.conftest import slow_but_for
from tests.for_each import for_each
from tests.http.raw import TINY, Wire, ask, request
from tests.http.server import Server
from tests.http.tensors import RAW, error, put_raw

TABLE = np.arange(6, dtype=np.int64)


@for_each(
    "path",
    [
        "/tensors%2Fx", "/tensors%2fx%2Fcontent", "/gathernd%2F", "/%2Fgathernd", "/errors%2Finternal", "/docs%2Fx",
        "/v2%2Fhealth%2Flive", "/tensors/x%2Fcontent/y", "/tensors/x/content%2Fy", "/%2A",
        "/v2%2Fmodels/gathernd/infer",
    ],
)  # fmt: skip
@for_each("method", ["GET", "POST", "PUT", "OPTIONS"])
def test_an_encoded_slash_makes_no_segment(client: httpx.Client, path: str, method: str) -> None:
    answer = client.request(method, path, content=TINY)
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


def test_an_encoded_slash_is_part_of_a_name(client: httpx.Client) -> None:
    for path in ("/tensors/a%2Fb", "/tensors/a%2Fcontent", "/tensors/%2F", "/tensors/a%2Fb/content"):
        error(client.get(path), 422, "invalid_field", "/name")
    error(client.get("/errors/internal%2F"), 404, "not_found")


@pytest.mark.parametrize(
    ("method", "path", "code"),
    [
        ("GET", "/v2/health%2Flive", "not_found"),
        ("GET", "/v2/models%2Fgathernd", "not_found"),
        ("POST", "/v2/models/gathernd%2Finfer", "method_not_allowed"),  # the path of a model
        ("GET", "/v2/models/gathernd%2Fready", "model_not_found"),
        ("POST", "/v2/models/gathernd%2Fversions%2F1/infer", "model_not_found"),
    ],
)
def test_an_encoded_slash_is_part_of_a_models_name(server: Server, method: str, path: str, code: str) -> None:
    answer = httpx.request(method, server.url + path, json={}, trust_env=False)
    assert (answer.status_code, answer.json()["code"]) == (405 if code == "method_not_allowed" else 404, code)


@pytest.mark.parametrize("_", range(2))  # the second time the header is known
def test_other_encoded_characters_are_what_they_stand_for(client: httpx.Client, _: int) -> None:
    assert client.post("/%67athernd", content=TINY).status_code == 200
    assert client.get("/%6civez").status_code == 200
    assert client.get("/%74ensors").status_code == 200
    assert client.get("/v2/models/g%61thernd").json()["name"] == "gathernd"
    assert client.get("/errors/intern%61l").status_code == 200


def test_the_target_that_stands_for_the_whole_service_has_options(server: Server) -> None:
    answer = ask(server, request(b"", line="OPTIONS * HTTP/1.1"))
    assert (answer.status, answer.body) == (204, b"")
    assert answer.headers["allow"] == "GET, HEAD, PUT, POST, DELETE, OPTIONS"
    for method in ("GET", "POST", "HEAD"):
        with Wire(server) as wire:
            wire.send(request(b"", line=f"{method} * HTTP/1.1", length=False))
            assert wire.read(head=method == "HEAD").status == 404


def deflated(data: bytes, window: int) -> bytes:
    stream = zlib.compressobj(9, zlib.DEFLATED, window)
    return stream.compress(data) + stream.flush()


@pytest.fixture
def name(client: httpx.Client) -> Iterator[str]:
    put_raw(client, "deflated", TABLE)
    yield "deflated"
    client.delete("/tensors/deflated")


@pytest.mark.parametrize("window", slow_but_for((-15,), (15, -15)), ids=["with the zlib header", "raw"])
def test_both_forms_of_deflate_are_read_on_every_route(client: httpx.Client, name: str, window: int) -> None:
    headers = {"content-encoding": "deflate"}
    gathered = client.post("/gathernd", content=deflated(TINY, window), headers=headers)
    assert gathered.json()["output"]["values"] == [8]
    large = np.arange(1 << 17, dtype=np.int64)  # in more than one piece, inflated too
    for array in (TABLE, large, np.zeros(1 << 19, np.int64), np.zeros(0, np.int64)):
        query = {"dtype": "int64", "shape": str(len(array))}
        body = deflated(array.tobytes(), window)
        put = client.put(f"/tensors/{name}", params=query, content=body, headers=headers | {"content-type": RAW})
        assert put.status_code == 200, put.text
        assert client.get(f"/tensors/{name}/content").content == array.tobytes()
        for damaged in (body[:-1], body + b"x", body[:1], b"", b"\xff\xff" + body):
            put = client.put(f"/tensors/{name}", params=query, content=damaged, headers=headers | {"content-type": RAW})
            error(put, 400, "malformed_request")
