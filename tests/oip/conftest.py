from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.http.conftest import Start, start
from tests.http.server import Server
from tests.oip.bodies import check_answer

__all__ = ["start"]


@pytest.fixture(scope="session")
def server(start: Start) -> Iterator[Server]:
    """The server with small limits, one for all tests of the protocol."""
    with start("--max-json-bytes", "8MiB", "--max-body-bytes", "64MiB", "--max-output-bytes", "64MiB") as running:
        yield running


@pytest.fixture(scope="session")
def _client(server: Server) -> Iterator[httpx.Client]:
    hooks: dict[str, list[Any]] = {"response": [check_answer]}
    # By default httpx advertises a list of encodings, as many clients do.
    with httpx.Client(base_url=server.url, trust_env=False, timeout=60, event_hooks=hooks) as made:
        yield made


@pytest.fixture
def client(_client: httpx.Client, server: Server) -> httpx.Client:
    """A client whose every answer is held to the protocol's form of errors; it fails once the server is gone."""
    assert server.process.poll() is None, server.log_text()
    return _client
