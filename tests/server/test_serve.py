"""What the process that serves says of itself in its log."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
import uvicorn

from app.server import listening_sockets
from app.server.http1_connection import Http1Connection
from app.server.serve import Server
from app.settings import Settings


class Starting:
    """A server, with its sockets, whose application is not ready before `become_ready`."""

    def __init__(self) -> None:
        self.readiness = SimpleNamespace(waiting_for=["kernels"], failed=None, draining=False)
        application = SimpleNamespace(readiness=self.readiness, metrics=SimpleNamespace(counters=None))
        options = SimpleNamespace(
            scheme="http", page_path="/page", docs_path="/docs", always_answered=frozenset(), settings=Settings(),
        )  # fmt: skip
        self.listeners = listening_sockets.bind("127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self.listeners[0].getsockname()[1]}"
        config = uvicorn.Config(cast(Any, application), log_config=None)
        self.server = Server(cast(Any, options), config, None, self.listeners)

    def close(self) -> None:
        for listener in self.listeners:
            listener.close()

    def become_ready(self) -> None:
        self.readiness.waiting_for.clear()


@pytest.fixture
def starting(monkeypatch: pytest.MonkeyPatch) -> Iterator[Starting]:
    monkeypatch.setattr(Http1Connection, "leaving", False)
    made = Starting()
    yield made
    made.close()


@pytest.mark.parametrize("stops", [False, True], ids=["runs", "stops"])
def test_it_says_that_it_is_ready_unless_it_stops(
    starting: Starting, stops: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def become_ready() -> None:
        said = asyncio.ensure_future(starting.server.say_when_ready())
        await asyncio.sleep(0)
        if stops:
            starting.server.drain()
            starting.close()
        starting.become_ready()
        await asyncio.wait_for(said, 10)

    with caplog.at_level("INFO", "gathernd"):
        asyncio.run(become_ready())
    said = f"ready on {starting.url}, page at {starting.url}/page, docs at {starting.url}/docs"
    assert caplog.messages == [] if stops else [said]
