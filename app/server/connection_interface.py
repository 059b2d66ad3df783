"""The part of a connection that the server's other modules use (see `app.server.http1_connection`).

It avoids a cycle: they do not import the connection, which imports them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from app.server.connection_input import TimedFlowControl


class Connection(HttpToolsProtocol):
    """An HTTP/1.1 connection. `last_received` is when bytes last arrived, in seconds of `monotonic`, and `cycle` the
    exchange of the last request.
    """

    __slots__ = ()

    cycle: Any
    flow: TimedFlowControl
    last_received: float

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client has stopped sending. Returns whether the connection stays open for its answers."""
        raise NotImplementedError

    def is_idle(self, now: float, seconds: float) -> bool:
        """Whether no request is in progress, its answer has been sent, and nothing has arrived for this
        many seconds.
        """
        raise NotImplementedError

    def read_into(self, exchange: Any, view: memoryview, taken: Callable[[int], None]) -> None:
        """Read the next bytes of the body of `exchange` from the socket straight into `view`, until it is full."""
        raise NotImplementedError
