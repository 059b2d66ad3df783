"""Header fields, methods and paths: what every answer carries, and what each method gets."""

from __future__ import annotations

import json
from urllib.parse import quote

import httpx
import pytest

from tests.for_each import for_each
from tests.http.raw import TINY

PAGES = (
    "/",
    "/docs",
    "/docs/swagger-ui.css",
    "/errors",
    "/errors/internal",
    "/openapi.json",
    "/livez",
    "/readyz",
    "/metrics",
)
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


@pytest.mark.parametrize("path", OPERATORS)
@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "PATCH", "PROPFIND"])
def test_another_method_on_an_operator_is_refused_and_told_which_one(
    client: httpx.Client, path: str, method: str
) -> None:
    answer = client.request(method, path)
    assert answer.status_code == 405
    assert answer.headers["allow"] == "POST, OPTIONS"
    assert answer.content == b"" if method == "HEAD" else answer.json()["code"] == "method_not_allowed"


@for_each("path", PAGES)
@for_each("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_another_method_on_a_page_is_refused_and_told_which_ones(client: httpx.Client, path: str, method: str) -> None:
    answer = client.request(method, path)
    assert answer.status_code == 405
    assert answer.headers["allow"] == "GET, HEAD, OPTIONS"


@pytest.mark.parametrize("path", [*OPERATORS, *PAGES])
def test_options_says_what_a_path_takes(client: httpx.Client, path: str) -> None:
    answer = client.options(path)
    assert answer.status_code == 204
    assert answer.content == b""
    assert "content-length" not in answer.headers
    assert answer.headers["allow"] == ("POST, OPTIONS" if path in OPERATORS else "GET, HEAD, OPTIONS")


@for_each(
    "path", ["/gathernd/", "/gather/", "/readyz/", "//gathernd", "/GatherND", "/gathernd/x", "/docs/", "/favicon.ico/"]
)
@for_each("method", ["GET", "POST", "HEAD", "OPTIONS", "PUT"])
def test_a_path_that_is_none_is_not_found_by_any_method(client: httpx.Client, path: str, method: str) -> None:
    answer = client.request(
        method, client.base_url.join(path) if not path.startswith("//") else f"{client.base_url}{path}"
    )
    assert answer.status_code == 404
    assert answer.content == b"" if method == "HEAD" else answer.json()["code"] == "not_found"


@pytest.mark.parametrize("text", ["\r\nX-Evil: 1", "<script>", "ä\ud7ff", "%", "\x00", "a" * 2000])
def test_an_odd_path_is_not_found_and_harmless(client: httpx.Client, text: str) -> None:
    answer = client.get("/" + quote(text, safe=""))
    assert answer.status_code == 404
    assert "x-evil" not in answer.headers


@pytest.mark.parametrize(
    "content_type",
    [
        None, "", "application/json", "Application/JSON", "application/json; charset=utf-8",
        'application/json;charset="UTF-8"', "application/json ; charset=utf8", "application/json; odata=verbose",
    ],
)  # fmt: skip
def test_json_may_be_announced_in_many_ways_or_not_at_all(client: httpx.Client, content_type: str | None) -> None:
    headers = {} if content_type is None else {"content-type": content_type}
    request = client.build_request("POST", "/gathernd", content=TINY, headers=headers)
    assert request.headers.get("content-type") == content_type
    assert client.send(request).status_code == 200


@for_each(
    "content_type",
    [
        "text/plain", "application/xml", "multipart/form-data; boundary=x", "application/octet-stream", "json",
        "application/json; charset=utf-16", "application/json; charset=latin-1", "application/jsonp", "a" * 999,
        "application/x-www-form-urlencoded", "application/x-www-form-urlencoded; charset=utf-8",
    ],
)  # fmt: skip
@for_each("path", OPERATORS)
def test_other_media_types_are_refused(client: httpx.Client, content_type: str, path: str) -> None:
    answer = client.post(path, content=SMALL[path], headers={"content-type": content_type})
    assert answer.status_code == 415
    found = answer.json()
    assert found["code"] == "unsupported_media_type"
    assert "; application/json and application/x-safetensors are" in found["detail"]
    hint = "-H 'Content-Type: application/json'"
    assert (hint in found["detail"]) == content_type.startswith("application/x-www-form-urlencoded")


def test_an_answer_is_json(client: httpx.Client) -> None:
    answer = client.post("/gathernd", content=TINY)
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["content-length"] == str(len(answer.content))
    assert json.loads(answer.content) == {
        "output": {"dtype": "int8", "shape": [1], "values": [8]},
        "dialect": "onnx-13",
        "device": "cpu",
    }


def test_an_answer_is_not_compressed(client: httpx.Client) -> None:
    answer = client.post("/gathernd", content=TINY, headers={"accept-encoding": "gzip, deflate, br"})
    assert "content-encoding" not in answer.headers
