"""Header fields, methods and paths: what every answer carries, and what each method gets."""

from __future__ import annotations

import httpx
import pytest

from tests.http.raw import TINY

PAGES = (
    "/", "/docs", "/docs/swagger-ui.css", "/errors", "/errors/internal", "/openapi.json", "/livez", "/readyz",
    "/metrics",
)  # fmt: skip
OPERATORS = ("/gathernd", "/gather", "/gather_elements")
SMALL = {"/gathernd": TINY} | dict.fromkeys(OPERATORS[1:], TINY.replace(b"[1,1]", b"[1]"))


@pytest.mark.parametrize("path", OPERATORS)
def test_an_answer_times_every_stage(client: httpx.Client, path: str) -> None:
    timing = client.post(path, content=SMALL[path]).headers["server-timing"]
    assert [part.split(";")[0] for part in timing.split(", ")] == ["parse", "queue", "kernel", "encode"]


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


@pytest.mark.parametrize("path", PAGES)
def test_head_answers_like_get_without_a_body(client: httpx.Client, path: str) -> None:
    got, head = client.get(path), client.head(path)
    assert head.status_code == got.status_code == 200
    assert head.content == b""
    assert head.headers["content-type"] == got.headers["content-type"]
    if path != "/metrics":
        assert head.headers["content-length"] == str(len(got.content))


def test_an_answer_is_not_compressed(client: httpx.Client) -> None:
    answer = client.post("/gathernd", content=TINY, headers={"accept-encoding": "gzip, deflate, br"})
    assert "content-encoding" not in answer.headers
