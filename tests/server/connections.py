"""A connection of the server whose transport keeps what is written: no socket, no process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest
import uvicorn
from uvicorn.server import ServerState

from app.memory.budget import Budget
from app.server.connection_limit import ConnectionLimit
from app.server.http1_connection import Http1Connection
from app.settings import Settings
from app.telemetry.shared_counters import unshared_counters

Application = Callable[..., Coroutine[Any, Any, None]]


class FakeTransport(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.reads = True
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def can_write_eof(self) -> bool:
        return False

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Bring no more to the connection."""


@contextmanager
def configured(settings: Settings) -> Iterator[None]:
    """Give connections what a server with these settings gives them, but for the answers of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Http1Connection, "settings", settings, raising=False)
        patch.setattr(Http1Connection, "budget", Budget(1 << 30), raising=False)
        patch.setattr(Http1Connection, "limit", ConnectionLimit(100, set(), unshared_counters()), raising=False)
        yield


def connect(app: Application) -> tuple[Http1Connection, FakeTransport]:
    """A new connection to `app`, whose class is `configured`. Call it in a running loop."""
    config = uvicorn.Config(cast(Any, app), lifespan="off", log_config=None)
    config.load()
    connection = Http1Connection(config=config, server_state=ServerState(), app_state={})
    transport = FakeTransport()
    connection.connection_made(transport)
    return connection, transport


async def until(state: Callable[[], bool]) -> None:
    """Wait for a state."""
    async with asyncio.timeout(60):
        while not state():  # noqa: ASYNC110  (nothing says when it comes)
            await asyncio.sleep(0)
