"""Find out whether a client is still connected, even though its connection is not being read.

This module queries the kernel. If the client has stopped sending (a half-closed connection), the kernel cannot tell
whether the client is still reading. A client that has closed its connection looks the same until the service sends it
something and it replies with a reset. While a half-closed client's request waits for a thread, the service therefore
sends the client `100 Continue`, which every HTTP/1.1 client ignores.
"""

from __future__ import annotations

import select
import socket
from enum import Enum
from typing import Final

from app.server.connection_interface import Connection

FIRST_S: Final = 0.1
LONGEST_S: Final = 5.0
"""First and longest interval between checks of a client. Each interval is twice as long as the previous one."""


class Presence(Enum):
    """State of the peer of a connection."""

    OPEN = "it may send and read"
    SENDS_NO_MORE = "it has sent its end, which may stand behind bytes that were not read yet"
    GONE = "nobody is there to read an answer: it has reset the connection or, of a Unix socket, closed it"


def presence(connection: socket.socket) -> Presence:
    """Return the state of a connection's peer, as reported by poll(2), which supports TCP and Unix sockets.

    A TCP connection that the peer has closed looks half-closed until something is sent to the peer.
    """
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLRDHUP)  # POLLHUP is always reported
    found = poll.poll(0)
    events = found[0][1] if found else 0
    if events & select.POLLHUP:
        return Presence.GONE
    return Presence.SENDS_NO_MORE if events & select.POLLRDHUP else Presence.OPEN


def watch(connection: Connection, interval: float = FIRST_S) -> None:
    """Check a client that has stopped sending, first after `interval` seconds, until its request is answered."""
    connection.loop.call_later(interval, _probe, connection, min(2 * interval, LONGEST_S))


def _probe(connection: Connection, interval: float) -> None:
    running = connection.cycle
    if connection.transport.is_closing() or running is None or running.response_complete:
        return
    if running.on_disconnect is not None and not running.response_started and running.scope["http_version"] == "1.1":
        if presence(connection.transport.get_extra_info("socket")) is Presence.GONE:
            connection.transport.abort()
            return
        running.send_continue()
    watch(connection, interval)
