"""Requests made to do harm: each is a 4xx, soon, and in bounded memory."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest

from tests.conftest import slow_but_for
from tests.http.server import Server
from tests.oip.bodies import SIZE, example, part, refused, request

INFER = "/v2/models/gathernd/infer"
DATA = np.arange(24, dtype=np.float32).reshape(6, 4)
INDICES = np.array([[1], [5]], np.int64)
ROOM = 400 << 20
"""More memory than this no test here may make the server take, by whatever it sends."""


@pytest.fixture(autouse=True)
def bounded(server: Server) -> Iterator[None]:
    """The server outlives each test, and its memory stays bounded."""
    before = server.peak()
    yield
    assert server.process.poll() is None, server.log_text()
    assert server.peak() - before < ROOM


def binary() -> tuple[bytes, dict[str, str]]:
    return request([part("data", DATA, "FP32", binary=True), part("indices", INDICES, "INT64", binary=True)])


def test_a_header_size_over_the_limit_of_json(client: httpx.Client) -> None:
    content, headers = binary()
    headers[SIZE] = "9" * 18
    answer = client.post(INFER, content=content, headers=headers)
    assert answer.status_code == 413
    refused(answer, "payload_too_large")


def test_a_header_size_given_twice(client: httpx.Client) -> None:
    content, headers = binary()
    answer = client.post(INFER, content=content, headers=[*headers.items(), (SIZE, "5")])
    refused(answer, "malformed_request")


@pytest.mark.parametrize("form", [True, False], ids=["binary", "json"])
def test_a_shape_written_with_absurdly_many_digits(client: httpx.Client, form: bool) -> None:
    parts = [part("data", DATA, "FP32", binary=form), part("indices", INDICES, "INT64")]
    content, headers = request(parts)
    wide = b'"shape": [' + b"9" * 1_000_000 + b"]"
    grown = content.replace(b'"shape": [6, 4]', wide)
    if headers:
        headers[SIZE] = str(int(headers[SIZE]) + len(grown) - len(content))
    answer = client.post(INFER, content=grown, headers=headers)
    assert answer.status_code == 422, answer.text
    assert len(answer.content) < 5000


@pytest.mark.parametrize(
    "squeeze", slow_but_for((gzip.compress,), (gzip.compress, zlib.compress)), ids=["gzip", "deflate"]
)
@pytest.mark.parametrize("size", slow_but_for(("100",), (None, "100")))
def test_a_compressed_bomb(client: httpx.Client, server: Server, squeeze: Any, size: str | None) -> None:
    bomb = squeeze(bytes(1 << 28))
    headers = {"content-encoding": "gzip" if squeeze is gzip.compress else "deflate"}
    if size is not None:
        headers[SIZE] = size
    before = server.peak()
    refused(client.post(INFER, content=bomb, headers=headers), "payload_too_large")
    assert server.peak() - before < 160 << 20


@pytest.mark.parametrize(("count", "code", "pointer"), [
    (10, "invalid_field", "/inputs/0/name"), (50_000, "limit_exceeded", "/inputs"),
])  # fmt: skip
def test_many_inputs(client: httpx.Client, count: int, code: str, pointer: str) -> None:
    body = {"inputs": [{"name": f"x{n}", "datatype": "INT8", "shape": [1], "data": [n]} for n in range(count)]}
    refused(client.post(INFER, json=body), code, pointer)


def test_the_json_part_over_its_limit(client: httpx.Client) -> None:
    content = json.dumps(example(pad="x" * (9 << 20))).encode()
    refused(client.post(INFER, content=content), "payload_too_large")
    refused(client.post(INFER, content=content + bytes(8), headers={SIZE: str(len(content))}), "payload_too_large")


@pytest.mark.parametrize("declared", [True, False], ids=["content-length", "chunked"])
def test_a_body_over_its_limit(client: httpx.Client, declared: bool) -> None:
    size = (64 << 20) + 1
    chunk = bytes(1 << 20)

    def chunks() -> Iterator[bytes]:
        for start in range(0, size, len(chunk)):
            yield chunk[: size - start]

    headers = {SIZE: "10"} | ({"content-length": str(size)} if declared else {})
    try:
        answer = client.post(INFER, content=chunks(), headers=headers)
    except httpx.WriteError:
        return  # the server has answered and closed before the client looked
    refused(answer, "payload_too_large")
