"""Clients that send no more (half-closed connections): whether one still reads, while its request waits for a thread.

One that has closed its connection looks the same until it is sent something, which it answers with a reset. So it is
sent `100 Continue`, which every client of HTTP/1.1 takes and drops.
"""

from __future__ import annotations

from typing import Final

from app.server.connection_interface import Connection
from app.server.expect_continue import send_continue
from app.server.peer_state import PeerState, peer_state

FIRST_S: Final = 0.1
LONGEST_S: Final = 5.0
"""First and longest time between two looks at a client; each is twice the one before."""


def watch(connection: Connection, interval: float = FIRST_S) -> None:
    """Look at the client after `interval` seconds and from then on, until its request is answered."""
    connection.loop.call_later(interval, _probe, connection, min(2 * interval, LONGEST_S))


def _probe(connection: Connection, interval: float) -> None:
    running = connection.cycle
    if connection.transport.is_closing() or running is None or running.response_complete:
        return
    if running.on_disconnect is not None and not running.response_started and running.scope["http_version"] == "1.1":
        if peer_state(connection.transport.get_extra_info("socket")) is PeerState.GONE:
            connection.transport.abort()
            return
        send_continue(running)
    watch(connection, interval)
