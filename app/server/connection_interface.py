"""What the other modules of the server use of a connection (see `app.server.http1_connection`), as a protocol.

It stands below them all, so that none of them imports the connection that imports it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from logging import Logger
from typing import Any, Protocol

import httptools
from uvicorn._types import ASGI3Application
from uvicorn.server import ServerState

from app.server.connection_input import TimedFlowControl


class Connection(Protocol):
    """An HTTP/1.1 connection. `last_received` is when bytes came last, in seconds of `monotonic`, and `cycle` the
    exchange of the request that came last.
    """

    access_logger: Logger
    app: ASGI3Application
    cycle: Any
    flow: TimedFlowControl
    last_received: float
    leaving: bool
    logger: Logger
    loop: asyncio.AbstractEventLoop
    parser: httptools.HttpRequestParser
    server_state: ServerState
    tasks: set[asyncio.Task[None]]
    transport: asyncio.Transport

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone."""
        ...

    def eof_received(self) -> bool:
        """The client sends no more; whether the connection stays open for its answers."""
        ...

    def is_idle(self, now: float, seconds: float) -> bool:
        """Whether no request is under way, its answer has left, and nothing has come for so many seconds."""
        ...

    def on_message_complete(self) -> None:
        """The body of a request is whole."""
        ...

    def on_response_complete(self) -> None:
        """An answer has been written."""
        ...

    def pause_writing(self) -> None:
        """The client does not read."""
        ...

    def read_into(self, exchange: Any, view: memoryview, taken: Callable[[int], None]) -> None:
        """Read the rest of the body of `exchange` from the socket straight into `view`."""
        ...

    def resume_writing(self) -> None:
        """The client reads again."""
        ...
