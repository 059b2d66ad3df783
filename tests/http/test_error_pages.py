"""The page of each error shows a request and its whole answer, and the service gives just that answer to it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from app.api.error_responses import EXAMPLE_REQUEST_ID, example_answer
from app.api.routes.health_and_pages import ADDRESS, error_page
from app.errors import CATALOGUE, CODES, Code
from tests.for_each import for_each
from tests.golden.source import safetensors
from tests.http.conftest import Start
from tests.http.forms import tensor
from tests.http.server import Server
from tests.http.tensors import put_raw

ETAG = '"9f86d081884c7d65-0"'
"""Stands for the ETag of a tensor, which is another for every upload."""
IMPORTED = "file:///data/tables/"
"""From where the service of a command imports."""
STATES = ("overloaded", "not_ready", "deadline_exceeded", "shard_unavailable", "tensor_damaged", "internal")
"""Codes that a service in a certain state answers with, whatever is asked."""
OWN = ("unauthorized", "request_timeout", "key_not_found")
"""Codes that need a service of their own, or half a minute."""
needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="needs the Debian package curl")


@pytest.fixture(scope="module")
def full(start: Start) -> Iterator[Server]:
    """A server whose only tensor is `items`, which the alias `live` names, and which may have no other."""
    with (
        start("--max-tensors", "1", "--device", "cpu", "--import-from", IMPORTED) as server,
        httpx.Client(base_url=server.url, trust_env=False, timeout=60) as client,
    ):
        assert put_raw(client, "items", np.zeros((3, 2), np.float32)).status_code == 201
        assert client.put("/aliases/live", json={"tensor": "items@1"}).status_code == 201
        yield server


def answer_of(command: str, server: Server) -> Any:
    """What a command of a page prints, sent to `server`, with the members that change as the pages show them."""
    assert ADDRESS in command
    command = command.replace(ADDRESS, server.url)
    done = subprocess.run(["bash", "-c", command], capture_output=True, timeout=60, check=False)
    found = json.loads(done.stdout)
    assert found["request_id"]
    found["request_id"] = EXAMPLE_REQUEST_ID
    for member in ("detail", "hint"):
        found[member] = re.sub(r'"[0-9a-f]{8,}-\d+"', ETAG, found[member])
    return found


@needs_curl
@pytest.mark.parametrize("code", [code for code in CODES if code not in (*STATES, *OWN)])
def test_the_request_of_a_page_gets_the_answer_of_the_page(code: Code, full: Server) -> None:
    example = CATALOGUE[code].example
    assert answer_of(example.command, full) == example_answer(code)


@needs_curl
def test_a_key_that_a_table_lacks_gets_the_answer_of_the_page(start: Start) -> None:
    keys = {"keys": tensor("int64", [3], [1001, 1002, 1003]), "data": tensor("float32", [3, 2], [0] * 6)}
    headers = {"content-type": "application/x-safetensors"}
    with start("--device", "cpu") as server, httpx.Client(base_url=server.url, trust_env=False, timeout=60) as client:
        assert client.put("/tensors/users", content=safetensors(keys), headers=headers).status_code == 201
        assert answer_of(CATALOGUE["key_not_found"].example.command, server) == example_answer("key_not_found")


@needs_curl
@pytest.mark.slow
def test_a_request_without_a_key_gets_the_answer_of_the_page(start: Start, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"{'0' * 64} gather nobody\n")
    example = CATALOGUE["unauthorized"].example
    with start("--api-keys-file", str(keys)) as server:
        assert answer_of(example.command, server) == example_answer("unauthorized")


def test_the_page_of_every_code_is_there_and_names_the_hint() -> None:
    for code in CODES:
        assert example_answer(code)["code"] == code
        assert json.dumps(example_answer(code)["hint"], ensure_ascii=False) in unescape(error_page(code))


BROWSER = {"accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}


@for_each("path", ["/nowhere", "/a/b/c", "/errors/nothing", "/docs/nothing", "/%3Cscript%3E", "/%ff%0d%0a"])
def test_a_browser_gets_a_page_for_what_is_not_found_and_others_the_error(full: Server, path: str) -> None:
    with httpx.Client(base_url=full.url, trust_env=False, timeout=60) as client:
        shown = client.get(path, headers=BROWSER)
        assert (shown.status_code, shown.headers["content-type"]) == (404, "text/html; charset=utf-8")
        assert "default-src 'self'" in shown.headers["content-security-policy"]
        assert "<script" not in shown.text
        for link in re.findall(r'href="([^"]*)"', shown.text):
            assert client.get(httpx.URL(full.url + path).join(link)).status_code == 200, link
        for accept in ("*/*", "application/json", "application/json, text/html;q=0.9", "text/html;q=0", ""):
            plain = client.get(path, headers={"accept": accept})
            assert plain.headers["content-type"] == "application/problem+json"
            assert plain.json()["code"] == "not_found"
        protocol = client.get("/v2/nowhere", headers=BROWSER)
        assert (protocol.status_code, protocol.headers["content-type"]) == (404, "application/json")
        assert client.get("/tensors/nothing", headers=BROWSER).json()["code"] == "tensor_not_found"
