"""One decoding of paths for all routes: an encoded slash is part of its segment. And the target `*`."""

from __future__ import annotations

import zlib

import httpx
import numpy as np
import pytest

from tests.conftest import slow_but_for
from tests.http.raw import TINY, Wire, ask, request
from tests.http.server import Server
from tests.http.tensors import RAW, error, put_raw

TABLE = np.arange(6, dtype=np.int64)


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


@pytest.mark.parametrize("window", slow_but_for((-15,), (15, -15)), ids=["with the zlib header", "raw"])
def test_both_forms_of_deflate_are_read_on_every_route(client: httpx.Client, name: str, window: int) -> None:
    put_raw(client, name, TABLE)
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
