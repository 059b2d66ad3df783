"""Read the rest of a large body from the socket straight into its final memory.

Without this module, each byte is copied three times after it leaves the kernel: into the event loop's buffer, the
parser's piece, and the body. The rest of a body needs no parsing, so it can bypass the parser. Measured on 2026-11-20
(2 cores, AMD EPYC): with 4 MB inline requests, reading bodies through the parser lowers the rate to 81% and takes 1.37
times the CPU time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Final

import httptools

from app.server.connection_interface import Connection
from app.server.http_exchange import HttpExchange

_READ_BYTES: Final = 1 << 20
"""Upper bound on the bytes of one read, so that other connections get their turn."""
_DROPPED: Final = memoryview(bytearray(1 << 18))
"""Buffer for bytes that are discarded."""


class BodyReader(asyncio.BufferedProtocol):
    """Replaces `connection` as its transport's protocol until the `missing` bytes of the exchange's body have arrived.

    Reading pauses as soon as a view is full, so nothing arrives before the next view is set. If bytes arrive when there
    is no view to fill, the body is no longer wanted, and they are discarded so that the client goes on to read the
    response.
    """

    def __init__(self, connection: Connection, exchange: HttpExchange, missing: int) -> None:
        self._connection = connection
        self._exchange = exchange
        self._view: memoryview | None = None
        self._taken: Callable[[int], None] | None = None
        self._place = 0
        self._missing = missing

    def fill(self, view: memoryview, taken: Callable[[int], None]) -> None:
        """Read the next bytes into `view`.

        `taken` is called with the number of bytes whenever some arrive, and may raise.
        """
        self._view, self._taken, self._place = view, taken, 0

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer for the next bytes. It never extends beyond the body; the parser gets whatever follows."""
        size = min(self._missing, _READ_BYTES)
        if self._view is None:
            return _DROPPED[:size]
        return self._view[self._place : self._place + size]

    def buffer_updated(self, count: int) -> None:
        """Account for `count` bytes that have arrived."""
        connection, exchange = self._connection, self._exchange
        connection.last_received = monotonic()
        exchange.received += count
        self._place += count
        self._missing -= count
        if self._view is not None and self._taken is not None:
            try:
                self._taken(count)
            except Exception as failure:  # noqa: BLE001  (raised where the body is awaited)
                self._view = None
                exchange.failure = failure
                exchange.message_event.set()
            else:
                if self._place == len(self._view):
                    self._view = None
                    connection.flow.pause_reading()
                    exchange.is_filling = False
                    exchange.message_event.set()
        if not self._missing and connection.parser is not None:
            self._view = None
            # The old parser is still waiting for the body, so use a new one. Nothing of the next request has been read
            # yet.
            connection.parser = httptools.HttpRequestParser(connection)
            connection.parser.set_dangerous_leniencies(lenient_data_after_close=True)
            connection.transport.set_protocol(connection)
            connection.on_message_complete()

    def eof_received(self) -> bool:
        """Report that the client has stopped sending before the end of the body."""
        return self._connection.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """Report that the client has disconnected."""
        self._view = None
        self._connection.connection_lost(exc)

    def pause_writing(self) -> None:
        """Report that the client has stopped reading."""
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        """Report that the client is reading again."""
        self._connection.resume_writing()
