"""Header fields and paths: what answers carry, and how paths are decoded."""

from __future__ import annotations

import httpx
import pytest

from tests.http.raw import TINY, Wire, ask, request
from tests.http.server import Server


@pytest.mark.parametrize(
    ("sent", "timings"),
    [
        (b"{", ["parse"]),
        (TINY.replace(b"[1,1]", b"[1,2]"), ["parse"]),
        (TINY.replace(b"[1,1]", b"[0,2]").replace(b"[1]", b"[]"), ["parse", "queue"]),
        (TINY.replace(b'"values":[1]', b'"values":[2]'), ["parse", "queue", "kernel"]),
    ],
)
def test_an_error_times_the_stages_it_got_to(client: httpx.Client, sent: bytes, timings: list[str]) -> None:
    answer = client.post("/gathernd", content=sent)
    assert answer.status_code >= 400
    assert [part.split(";")[0] for part in answer.headers["server-timing"].split(", ")] == timings


@pytest.mark.parametrize("given", ["a", "A.b_c-9", "x" * 128])
@pytest.mark.parametrize("path", ["/gathernd", "/livez", "/nowhere"])
def test_a_request_id_is_echoed(client: httpx.Client, given: str, path: str) -> None:
    answer = client.post(path, content=TINY, headers={"X-Request-ID": given})
    assert answer.headers["x-request-id"] == given


def test_an_answer_is_not_compressed(client: httpx.Client) -> None:
    answer = client.post("/gathernd", content=TINY, headers={"accept-encoding": "gzip, deflate, br"})
    assert "content-encoding" not in answer.headers


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
