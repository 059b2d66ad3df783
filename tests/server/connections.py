"""A connection of the server whose transport keeps what is written: no socket, no process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast

import uvicorn
from uvicorn.server import ServerState

from app.server.http1_connection import Http1Connection
from app.settings import Settings

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


def connect(app: Application) -> tuple[Http1Connection, FakeTransport]:
    """A new connection to `app`, with the settings that a server without any gives it. Call it in a running loop."""
    Http1Connection.settings = Settings()
    config = uvicorn.Config(cast(Any, app), lifespan="off", log_config=None)
    config.load()
    connection = Http1Connection(config=config, server_state=ServerState(), app_state={})
    transport = FakeTransport()
    connection.connection_made(transport)
    return connection, transport


async def until(state: Callable[[], bool]) -> None:
    """Wait for a state."""
    async with asyncio.timeout(30):
        while not state():  # noqa: ASYNC110  (nothing says when it comes)
            await asyncio.sleep(0)
