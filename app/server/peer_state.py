"""What the kernel knows of a connection's other side: a connection that is not read does not say so by itself."""

from __future__ import annotations

import select
import socket
from enum import Enum


class PeerState(Enum):
    """What the other side has done."""

    OPEN = "it may send and read"
    SENDS_NO_MORE = "it has sent its end, which may stand behind bytes that were not read yet"
    GONE = "nobody is there to read an answer: it has reset the connection or, of a Unix socket, closed it"


def peer_state(connection: socket.socket) -> PeerState:
    """Asked by poll(2), which knows TCP and Unix sockets. A connection of TCP that the other side has closed looks like
    one that is half-closed until it is sent something.
    """
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLRDHUP)  # it tells of POLLHUP unasked
    found = poll.poll(0)
    events = found[0][1] if found else 0
    if events & select.POLLHUP:
        return PeerState.GONE
    return PeerState.SENDS_NO_MORE if events & select.POLLRDHUP else PeerState.OPEN
