"""The interface through which the server's other modules use a connection (see `app.server.http1_connection`).

The interface avoids an import cycle, because the module that implements connections imports those modules.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from app.server.connection_input import TimedFlowControl


class Connection(HttpToolsProtocol):
    """An HTTP/1.1 connection. `cycle` is the exchange of the last request.

    `last_received` is the time when bytes last arrived, in seconds of `monotonic`.
    """

    __slots__ = ()

    cycle: Any
    flow: TimedFlowControl
    last_received: float

    def eof_received(self) -> bool:  # type: ignore[override]
        """Handle the end of the client's data. Returns whether the connection stays open for responses."""
        raise NotImplementedError

    def is_idle(self, now: float, seconds: float) -> bool:
        """Return whether no request is in flight, every response has been sent, and nothing has arrived for `seconds`
        seconds.
        """
        raise NotImplementedError

    def read_into(self, exchange: Any, view: memoryview, taken: Callable[[int], None]) -> None:
        """Read the next bytes of the body of `exchange` from the socket straight into `view`, until it is full."""
        raise NotImplementedError
