"""What the other modules of the server use of a connection (see `app.server.http1_connection`).

It stands below them all, so that none of them imports the connection that imports it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from app.server.connection_input import TimedFlowControl


class Connection(HttpToolsProtocol):
    """An HTTP/1.1 connection. `last_received` is when bytes came last, in seconds of `monotonic`, and `cycle` the
    exchange of the request that came last.
    """

    __slots__ = ()

    cycle: Any
    flow: TimedFlowControl
    last_received: float

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client sends no more; whether the connection stays open for its answers."""
        raise NotImplementedError

    def is_idle(self, now: float, seconds: float) -> bool:
        """Whether no request is under way, its answer has left, and nothing has come for so many seconds."""
        raise NotImplementedError

    def read_into(self, exchange: Any, view: memoryview, taken: Callable[[int], None]) -> None:
        """Read the next bytes of the body of `exchange` from the socket straight into `view`, until it is full."""
        raise NotImplementedError
