"""The two clients of the package as one fixture, against a server of their own."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gathernd import AsyncClient, Client
from gathernd_cli.command_line import app
from tests.http.conftest import client, server, start
from tests.http.server import Server

__all__ = ["client", "server", "start"]


class Awaited:
    """An `AsyncClient` on an event loop of its own, each method run to its end."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self._client = AsyncClient(*args, **options)
        self._loop = asyncio.new_event_loop()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._client, name)

        def call(*args: Any, **options: Any) -> Any:
            made = method(*args, **options)
            if inspect.isasyncgen(made):
                return iter(self._loop.run_until_complete(_collect(made)))
            return self._loop.run_until_complete(made)

        return call

    def close(self) -> None:
        self._loop.run_until_complete(self._client.close())
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()

    def __enter__(self) -> Awaited:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


async def _collect(made: Any) -> list[Any]:
    return [item async for item in made]


KINDS: dict[str, Any] = {"sync": Client, "async": Awaited}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Any:
    """A client class: sync, or async in the dress of the sync one."""
    return KINDS[request.param]


@pytest.fixture
def service(server: Server) -> Iterator[Client]:
    """A blocking client of the server. `deploy.sync_client` writes its code from the asynchronous client's."""
    with Client(server.url) as made:
        yield made


@pytest.fixture
def each_service(kind: Any, server: Server) -> Iterator[Any]:
    """Clients of both kinds, for what they do differently: sending, receiving, waiting."""
    with kind(server.url) as made:
        yield made


@pytest.fixture
def run(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Run a command of `gathernd` in a folder of the test's own, for the server of the tests."""
    monkeypatch.setenv("GATHERND_URL", server.url)
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(app, arguments)


def done(run: Callable[..., Any], *arguments: str) -> tuple[str, str]:
    """What a command that succeeds prints, and what it says."""
    ended = run(*arguments)
    assert ended.exit_code == 0, ended.output
    return ended.stdout, ended.stderr
