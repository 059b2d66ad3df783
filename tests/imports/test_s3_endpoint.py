"""Objects of S3 from an endpoint that lies, redirects, stalls or never ends: nothing else is asked, nothing is kept."""

from __future__ import annotations

import hashlib
import hmac
import importlib.util
import random
import resource
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote, unquote

import numpy as np
import pytest

from app.imports import http_ranges
from app.imports.s3_source import S3Source
from app.imports.source import PIECE_BYTES, SourceFailed
from app.imports.source_urls import parse
from tests.for_each import for_each
from tests.http.conftest import Start
from tests.http.held import ended
from tests.http.tensors import npy
from tests.imports.range_server import Handler, RangeServer, range_server
from tests.imports.sources import read_all

CONTENT = random.Random(2).randbytes(PIECE_BYTES + 12345)
PATH = "/models/tables/a.npy"


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec("obstore") is None:
        pytest.skip("needs the package obstore, of the extra cloud")
    monkeypatch.setattr(http_ranges, "_FIRST_PAUSE_S", 0.0)
    for name, value in (
        ("ACCESS_KEY_ID", "ours"), ("SECRET_ACCESS_KEY", "secret"), ("SESSION_TOKEN", "token"), ("REGION", "us-east-1"),
    ):  # fmt: skip
        monkeypatch.setenv(f"AWS_{name}", value)


@pytest.fixture
def endpoint() -> Iterator[RangeServer]:
    with range_server() as running:
        running.files = {PATH: CONTENT, "/models/tables": b"outside"}
        yield running


@pytest.fixture
def inner() -> Iterator[RangeServer]:
    """A server that must not be asked."""
    with range_server() as running:
        running.files = {PATH: CONTENT, "/secret": CONTENT}
        yield running


def source(endpoint: RangeServer, key: str = "tables/a.npy") -> S3Source:
    return S3Source(parse(f"s3://models/{key}"), endpoint.url)


def of_method(method: str, answer: Callable[[Handler], bool]) -> Callable[[Handler], bool]:
    return lambda handler: handler.command == method and answer(handler)


def test_what_comes_is_what_is_there_and_is_resumed_where_it_was_cut(endpoint: RangeServer) -> None:
    endpoint.cut_every = 700_000
    assert read_all(source(endpoint)) == CONTENT
    assert endpoint.cuts >= len(CONTENT) // endpoint.cut_every
    assert endpoint.sent <= len(CONTENT) + (endpoint.cuts + 1) * (1 << 20)
    assert {path.partition("?")[0] for path, _, _ in endpoint.asked} == {PATH}


@for_each("status", [301, 302, 308])
@for_each("method", ["HEAD", "GET"])
@for_each("path", [PATH, "/secret"])
def test_a_redirect_is_not_followed(
    endpoint: RangeServer, inner: RangeServer, status: int, method: str, path: str
) -> None:
    endpoint.respond = of_method(method, lambda handler: handler.answer(status, Location=inner.url + path))
    with pytest.raises(SourceFailed, match="redirects"):
        read_all(source(endpoint))
    assert inner.asked == []


def test_an_answer_without_end_is_not_taken_into_memory(endpoint: RangeServer) -> None:
    sent = 0

    def answer(handler: Handler) -> bool:
        nonlocal sent
        handler.send_response(206)
        handler.send_header("Content-Range", f"bytes 0-65535/{len(CONTENT)}")
        handler.send_header("ETag", handler.etag_of(CONTENT))
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        handler.close_connection = True
        while sent < 1 << 28:
            handler.wfile.write(b"100000\r\n" + bytes(1 << 20) + b"\r\n")
            sent += 1 << 20
        return True

    endpoint.respond = of_method("GET", answer)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(SourceFailed, match="more than it announced"):
        read_all(source(endpoint))
    assert sent < 1 << 27
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10


def test_the_keys_travel_in_no_field_and_cookies_not_at_all(endpoint: RangeServer) -> None:
    endpoint.fields = {"Set-Cookie": "session=secret"}
    read_all(source(endpoint))
    fields: Any
    for fields in endpoint.headers:
        assert not {"authorization", "cookie", "referer", "x-amz-security-token"} & fields.keys()


def test_without_a_signature_none_is_sent_and_no_credentials_are_looked_for(
    endpoint: RangeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN"):
        monkeypatch.delenv(f"AWS_{name}")
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    assert read_all(source(endpoint)) == CONTENT
    assert {path for path, _, _ in endpoint.asked} == {PATH}


def is_signed(handler: Handler, keys: dict[str, str]) -> bool:
    """Whether a request has a valid signature of one of these keys: AWS, "Signature Calculations", in a query."""
    path, _, query = handler.path.partition("?")
    members = dict(member.split("=", 1) for member in query.split("&"))
    given = members.pop("X-Amz-Signature", "")
    key, *scope = unquote(members["X-Amz-Credential"]).split("/")
    canonical = "&".join(f"{name}={members[name]}" for name in sorted(members))
    request = "\n".join(
        (handler.command, path, canonical, f"host:{handler.headers['Host']}", "", "host", "UNSIGNED-PAYLOAD")
    )
    text = "\n".join(
        ("AWS4-HMAC-SHA256", members["X-Amz-Date"], "/".join(scope), hashlib.sha256(request.encode()).hexdigest())
    )
    secret = b"AWS4" + keys.get(key, "").encode()
    for part in scope:
        secret = hmac.digest(secret, part.encode(), "sha256")
    return (
        key in keys
        and scope == [members["X-Amz-Date"][:8], "us-east-1", "s3", "aws4_request"]
        and members["X-Amz-SignedHeaders"] == "host"
        and hmac.digest(secret, text.encode(), "sha256").hex() == given
    )


@pytest.mark.parametrize("key", ["tables/a.npy", "a b/\u00fc+=,;:@&$!'()*~.npy"])
@pytest.mark.parametrize(
    ("name", "secret", "is_known"), [("ours", "secret", True), ("ours", "wrong", False), ("theirs", "secret", False)]
)
def test_credentials_are_the_operators_and_are_checked(
    endpoint: RangeServer, monkeypatch: pytest.MonkeyPatch, key: str, name: str, secret: str, is_known: bool
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", name)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    endpoint.files[f"/models/{quote(key, safe='/~')}"] = CONTENT
    endpoint.respond = lambda handler: not is_signed(handler, {"ours": "secret"}) and handler.answer(403)
    if is_known:
        assert read_all(source(endpoint, key)) == CONTENT
        return
    with pytest.raises(SourceFailed, match="refuses the operator's credentials") as failure:
        read_all(source(endpoint, key))
    assert secret not in failure.value.why


def test_a_service_imports_from_its_operators_endpoint_and_tells_nobody_the_keys(
    start: Start, endpoint: RangeServer
) -> None:
    table = np.arange(20, dtype=np.float32)
    endpoint.files = {PATH: npy(table)}
    endpoint.respond = lambda handler: not is_signed(handler, {"ours": "nobody-reads-this"}) and handler.answer(403)
    keys = {"AWS_ACCESS_KEY_ID": "ours", "AWS_SECRET_ACCESS_KEY": "nobody-reads-this", "AWS_REGION": "us-east-1"}
    flags = "--import-from", "s3://models/tables/", "--import-s3-endpoint", endpoint.url
    with start(*flags, environment=keys) as server, server.client() as client:
        made = ended(client, client.post("/tensors/t/import", json={"url": "s3://models/tables/a.npy"}))
        assert (made["state"], made["bytes_done"]) == ("done", table.nbytes), made
        assert client.get("/tensors/t/content").content == table.tobytes()
        wrong = client.post("/tensors/t/import", json={"url": "s3://models/tables/missing.npy"})
        assert (wrong.status_code, wrong.json()["code"]) == (502, "import_failed")
        told = client.get("/imports").text + client.get("/metrics").text + wrong.text + server.log_text()
    assert "s3://models/tables/a.npy" in told
    for secret in ("nobody-reads-this", "X-Amz-Signature", "Credential="):
        assert secret not in told
