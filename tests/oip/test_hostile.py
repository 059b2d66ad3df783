"""Requests made to do harm: each is refused soon and in bounded memory."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator

import httpx
import numpy as np
import pytest

from tests.http.server import Server
from tests.oip.bodies import SIZE, example, part, refused, request

INFER = "/v2/models/gathernd/infer"
ROOM = 160 << 20
"""More memory than this no test here may make the server take."""


@pytest.fixture(autouse=True)
def bounded(server: Server) -> Iterator[None]:
    """The server outlives each test, and its memory stays bounded."""
    before = server.peak()
    yield
    assert server.process.poll() is None, server.log_text()
    assert server.peak() - before < ROOM


def test_a_header_size_over_the_limit_or_given_twice(client: httpx.Client) -> None:
    parts = [part("data", np.zeros((6, 4), np.float32), "FP32", binary=True)]
    content, headers = request([*parts, part("indices", np.array([[1], [5]]), "INT64", binary=True)])
    refused(client.post(INFER, content=content, headers={SIZE: "9" * 18}), "payload_too_large")
    refused(client.post(INFER, content=content, headers=[*headers.items(), (SIZE, "5")]), "malformed_request")


def test_a_compressed_bomb(client: httpx.Client) -> None:
    headers = {"content-encoding": "gzip", SIZE: "100"}
    refused(client.post(INFER, content=gzip.compress(bytes(1 << 28)), headers=headers), "payload_too_large")


def test_many_inputs(client: httpx.Client) -> None:
    body = {"inputs": [{"name": f"x{n}", "datatype": "INT8", "shape": [1], "data": [n]} for n in range(50_000)]}
    refused(client.post(INFER, json=body), "limit_exceeded", "/inputs")


def test_the_json_part_over_its_limit(client: httpx.Client) -> None:
    content = json.dumps(example(pad="x" * (9 << 20))).encode()
    refused(client.post(INFER, content=content), "payload_too_large")
    refused(client.post(INFER, content=content + bytes(8), headers={SIZE: str(len(content))}), "payload_too_large")
