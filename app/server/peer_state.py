"""What the kernel knows of a connection's other side: a connection that is not read does not say so by itself.

It is asked by poll(2), which knows both TCP and Unix sockets.
"""

from __future__ import annotations

import select
import socket


def has_gone(connection: socket.socket) -> bool:
    """Whether nobody is there to read an answer: the other side has reset the connection or, of a Unix socket, closed
    it. One of TCP that was closed looks like one that is half-closed until it is sent something.
    """
    return bool(_events(connection) & select.POLLHUP)


def sends_no_more(connection: socket.socket) -> bool:
    """Whether the other side has sent its end, which may stand behind bytes that were not read yet."""
    return bool(_events(connection) & select.POLLRDHUP)


def _events(connection: socket.socket) -> int:
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLRDHUP)  # it tells of POLLHUP unasked
    found = poll.poll(0)
    return found[0][1] if found else 0
