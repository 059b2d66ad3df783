"""The rest of a large body, read from the socket straight into the memory it is to lie in.

On its usual way a byte is copied three times after the kernel has handed it over: into the event loop's buffer, the
parser's piece, and the body. While the parser could only say "more of the body", the socket is read without it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Final

import httptools

if TYPE_CHECKING:
    from app.server.http1_connection import Protocol
    from app.server.http_exchange import HttpExchange

_READ: Final = 1 << 20
_DROPPED: Final = memoryview(bytearray(1 << 18))
"""Where bytes go that nobody wants."""


class BodyReader(asyncio.BufferedProtocol):
    """Takes the place of `protocol` at its transport until `missing` bytes have come, the rest of the body of `cycle`.

    They go into `view`, and `taken` is told of them as they arrive. Once it has raised, or where there is no view, what
    still comes is dropped: the client must come to read the answer.
    """

    def __init__(
        self,
        protocol: Protocol,
        cycle: HttpExchange,
        missing: int,
        view: memoryview | None = None,
        taken: Callable[[int], None] | None = None,
    ) -> None:
        self._protocol = protocol
        self._cycle = cycle
        self._view = view
        self._taken = taken
        self._place = 0
        self._missing = missing

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes go; never beyond the end of the body, so that what follows is left to the parser."""
        size = min(self._missing, _READ)
        if self._view is None:
            return _DROPPED[:size]
        return self._view[self._place : self._place + size]

    def buffer_updated(self, count: int) -> None:
        """`count` bytes have come."""
        protocol, cycle = self._protocol, self._cycle
        protocol.heard = monotonic()
        cycle.received += count
        self._place += count
        self._missing -= count
        if self._view is not None and self._taken is not None:
            try:
                self._taken(count)
            except Exception as failure:  # noqa: BLE001  (whoever waits for the body raises it)
                self._view = None
                cycle.failure = failure
                cycle.message_event.set()
        if not self._missing and protocol.parser is not None:
            self._view = None
            # The old parser still waits for the body; nothing of the next request has been read.
            protocol.parser = httptools.HttpRequestParser(protocol)
            protocol.parser.set_dangerous_leniencies(lenient_data_after_close=True)
            protocol.transport.set_protocol(protocol)
            protocol.on_message_complete()

    def eof_received(self) -> bool:
        """The client has stopped sending, in the middle of the body."""
        return self._protocol.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone."""
        self._view = None
        self._protocol.connection_lost(exc)

    def pause_writing(self) -> None:
        """The client does not read."""
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        """The client reads again."""
        self._protocol.resume_writing()
