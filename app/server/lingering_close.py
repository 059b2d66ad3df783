"""Close a connection slowly if its last response was sent before the whole request was read (a lingering close).

If bytes arrive after a close, the kernel sends a reset, and a reset discards any response that the client has not read
yet. Proxies, and clients that send a whole upload before they read, would see a broken connection instead of the
refusal. So the service shuts down its own direction, discards what arrives, and closes when the rest of the body has
arrived, the client has closed, or one of this module's limits is reached. With TLS, a single direction cannot be shut
down; the client knows from Content-Length where the response ends.

A lingering connection does not count towards the limit on connections; there are at most MOST of them.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Final

from app.server.connection_interface import Connection

PAUSE_S: Final = 2.0
LONGEST_S: Final = 10.0
"""Seconds after which a silent connection is closed, and seconds after which any connection is closed."""
MOST_BYTES: Final = 1 << 32
"""Upper bound on the bytes discarded on one connection."""
MOST: Final = 64
"""Upper bound on the lingering connections of a process. When it is exceeded, the oldest connection is closed."""
_DROPPED: Final = memoryview(bytearray(1 << 16))
"""Buffer for reads. It is small because up to MOST connections are read in one turn of the loop."""

_under_way: Final[dict[LingeringClose, None]] = {}


class LingeringClose(asyncio.BufferedProtocol):
    """Replaces `connection` as its transport's protocol until the connection has ended.

    `left` is the number of bytes that may still arrive, at most MOST_BYTES. After that number of bytes, the connection
    closes.
    """

    def __init__(self, connection: Connection, left: int) -> None:
        self._connection = connection
        self._left = min(left, MOST_BYTES)
        self._began = self._last = monotonic()

    def begin(self) -> None:
        """Shut down the service's direction after the written bytes, and start discarding what arrives."""
        transport = self._connection.transport
        if transport.can_write_eof():
            transport.write_eof()
        transport.set_protocol(self)
        self._connection.flow.resume_reading()
        _under_way[self] = None
        if len(_under_way) > MOST:
            next(iter(_under_way)).close()

    def close(self) -> None:
        """End the connection."""
        self.forget()
        self._connection.transport.close()

    def forget(self) -> None:
        """Stop counting this connection."""
        _under_way.pop(self, None)

    def is_over(self, now: float) -> bool:
        """Return whether the client's time is up."""
        return now - self._last > PAUSE_S or now - self._began > LONGEST_S

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer for the next bytes."""
        return _DROPPED

    def buffer_updated(self, count: int) -> None:
        """Count and discard `count` bytes that have arrived."""
        self._last = monotonic()
        self._left -= count
        if self._left <= 0:
            self.close()

    def eof_received(self) -> bool:
        """Close the connection. The client has stopped sending, so no reset can follow."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Report that the connection has ended."""
        self._connection.connection_lost(exc)

    def pause_writing(self) -> None:
        """Report that the client has stopped reading."""
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        """Report that the client is reading again."""
        self._connection.resume_writing()


def count() -> int:
    """Return the number of lingering connections in this process."""
    return len(_under_way)
