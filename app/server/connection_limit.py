"""Limit the number of open connections of a process.

A new connection beyond the limit closes the one that has been idle the longest. If none is idle, the new connection is
refused (503) when the header of its request has arrived, so that the refusal is a response to that request. At most
SPARE connections wait to be refused. Any others are refused immediately or, if they would begin a TLS handshake, just
closed. Requests for health and metrics are always answered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from heapq import nsmallest
from time import monotonic
from typing import Any, Final

from app.errors import GatherError
from app.server import lingering_close
from app.server.connection_interface import Connection
from app.telemetry.shared_counters import Counters

IDLE_S: Final = 1.0
"""Seconds without bytes after which a connection is idle.

If the time were shorter, a client might be sending just when its connection is closed.
"""
SPARE: Final = 64
"""Upper bound on the connections beyond the limit that stay open until they are refused."""
_BATCH: Final = 64
"""Number of idle connections that one scan finds."""
_LOOK_AGAIN_S: Final = 0.1
"""Seconds before the next scan if no connection was idle."""


class ConnectionLimit:
    """Keeps at most `maximum` connections in `connections`, the server's own set.

    Requests for the paths in `always_answered` are answered even beyond the limit, because a full service is still
    alive and must be monitored.
    """

    def __init__(
        self, maximum: int, connections: set[Any], counters: Counters, always_answered: Collection[bytes] = ()
    ) -> None:
        self.maximum = maximum
        self.always_answered = always_answered
        self.beyond: set[Connection] = set()
        self._connections = connections
        self._counters = counters
        self._longest: deque[tuple[float, Connection]] = deque()
        self._none_before = 0.0

    def admit(self, newcomer: Connection) -> bool:
        """Return whether `newcomer`, which is already in the set, may stay. Closes an idle connection if necessary."""
        self.beyond.discard(newcomer)
        taken = len(self._connections) - len(self.beyond) - lingering_close.count()
        if taken <= self.maximum or self._close_idle(newcomer):
            return True
        self.beyond.add(newcomer)
        return False

    def take(self, coming: int) -> bool:
        """Return whether another connection may be set up while `coming` others are being set up (TLS handshakes)."""
        taken = len(self._connections) - lingering_close.count()
        return taken + coming < self.maximum + SPARE or self._close_idle(None)

    def count_refused(self) -> None:
        """Count a connection that was closed instead of set up."""
        self._counters.add("gathernd_connections_refused")

    def forget(self, connection: Connection) -> None:
        """Remove `connection` from the records, because it has ended."""
        self.beyond.discard(connection)

    def refusal(self) -> GatherError:
        """Return the error for a connection that does not fit, and count it."""
        self.count_refused()
        return GatherError(
            "overloaded",
            f"the service has {self.maximum} connections open, and none of them is idle",
            retry_after=1,
            facts={"limit": "connections", "maximum": self.maximum},
        )

    def _close_idle(self, newcomer: Connection | None) -> bool:
        """Close the connection that has been idle the longest. Returns False if none is idle."""
        now = monotonic()
        connection = self._longest_idle(now, newcomer)
        if connection is None:
            return False
        self._connections.discard(connection)  # it no longer counts, although it has not closed yet
        connection.transport.close()
        self._counters.add("gathernd_connections_closed_idle")
        return True

    def _longest_idle(self, now: float, newcomer: Connection | None) -> Connection | None:
        # Idle connections are found in batches, because scanning all connections takes a long time. A connection that
        # becomes idle after a scan has been idle for less time than those in the batch.
        while True:
            while self._longest:
                received, connection = self._longest.popleft()
                if connection.last_received == received and self._is_idle(connection, now):
                    return connection
            if now < self._none_before:
                return None
            found = ((one.last_received, id(one), one) for one in self._connections if self._is_idle(one, now))
            self._longest.extend(
                (received, one) for received, _, one in nsmallest(_BATCH, found) if one is not newcomer
            )
            if not self._longest:
                self._none_before = now + _LOOK_AGAIN_S
                return None

    def _is_idle(self, connection: Connection, now: float) -> bool:
        """Return whether a connection is idle and counts towards the limit."""
        is_placed = connection in self._connections and connection not in self.beyond
        return is_placed and connection.is_idle(now, IDLE_S)
