from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.http.server import Server, serving

Start = Callable[..., AbstractContextManager[Server]]
KERNELS = ("numba", "numpy")


@pytest.fixture(scope="session")
def start(warmed: Path, tmp_path_factory: pytest.TempPathFactory) -> Start:
    """Start a server of one's own: `with start("--deadline", "1") as server`."""

    def begin(*flags: str, **options: Any) -> AbstractContextManager[Server]:
        return serving(warmed, tmp_path_factory.mktemp("server"), *flags, **options)

    return begin


@pytest.fixture(scope="session")
def server(start: Start) -> Iterator[Server]:
    """The server with default settings, one for the whole run."""
    with start() as running:
        yield running


@pytest.fixture(scope="session")
def server_numpy(start: Start) -> Iterator[Server]:
    with start("--kernel", "numpy") as running:
        yield running


@pytest.fixture(params=KERNELS)
def every_server(request: pytest.FixtureRequest) -> Server:
    """A server for each CPU kernel in turn."""
    name = "server" if request.param == "numba" else f"server_{request.param}"
    running = request.getfixturevalue(name)
    assert isinstance(running, Server)
    return running


@pytest.fixture
def client(server: Server) -> httpx.Client:
    """The client of the default server; it fails once the server is gone."""
    return server.shared_client()


@pytest.fixture
def name(client: httpx.Client, request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of a tensor that no other test uses; what it names at the end is removed."""
    made = f"t-{hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:20]}"
    yield made
    client.delete(f"/tensors/{made}")


@pytest.fixture
def every_client(every_server: Server) -> httpx.Client:
    """The client of a server for each CPU kernel in turn."""
    return every_server.shared_client()
