"""The two clients of the package as one fixture, against a server of their own."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gathernd import AsyncClient, Client
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
def service(kind: Any, server: Server) -> Iterator[Any]:
    """A client of the server."""
    with kind(server.url) as made:
        yield made
