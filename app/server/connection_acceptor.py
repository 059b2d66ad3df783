"""Accept new connections so that all workers have about the same number of them.

The event loop would not report a TLS connection until after its handshake, too late for the limit on connections.
Workers that merely share a listening socket become unbalanced: the one that wakes first accepts all waiting
connections, and a restarted worker gets none while clients keep their connections. Two rules prevent this. A worker
with more connections than another one pauses briefly before it accepts a connection. A worker with far more than its
share sends `Connection: close` with some of its responses, so that those clients reconnect to another worker.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Mapping, Sequence
from errno import ECONNABORTED
from time import monotonic
from typing import Any, Final

from app.server.connection_limit import IDLE_S, ConnectionLimit
from app.telemetry.shared_counters import Counters, SlotHeader

logger = logging.getLogger("gathernd")

_YIELD_S: Final = 0.003
"""Seconds that a worker waits before it accepts a connection if another worker has fewer connections."""
_PAUSE_S: Final = 0.5
"""Seconds to pause accepting after an error such as a lack of file descriptors."""
_ACTIVE_S: Final = 1.0
"""A connection counts as active for this many seconds after its last bytes arrived."""
_SETUP_S: Final = 1.0
"""Seconds that a shutdown waits for connections that are being set up."""


class Acceptor:
    """Accepts connections from `listeners`, one per turn of the event loop, while it is started.

    `tls` returns the event loop's options for setting up a new TCP connection. When `limit` is reached, an idle
    connection is closed. If there is none, the new connection is closed before its TLS handshake or, without TLS,
    receives an error response.
    """

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        factory: Callable[[], asyncio.Protocol],
        connections: set[Any],
        counters: Counters,
        tls: Callable[[], Mapping[str, Any]],
        limit: ConnectionLimit,
    ) -> None:
        self._listeners = listeners
        self._factory = factory
        self._connections = connections
        self._counters = counters
        self._tls = tls
        self._limit = limit
        self._loop = asyncio.get_running_loop()
        self._has_yielded = False
        self._timer: asyncio.TimerHandle | None = None
        self._in_setup: dict[asyncio.Task[Any], float] = {}
        self.accepting = False

    def start(self) -> None:
        """Begin to accept connections. The sockets are already listening."""
        for listener in self._listeners:
            listener.setblocking(False)
        self.accepting = True
        self.publish_count()
        self._counters.header[SlotHeader.ACCEPTING] = 1
        self._watch()

    def stop(self, *, rest: bool) -> None:
        """Stop accepting.

        If `rest` is set, connections in the backlog are still accepted; otherwise, they are left to other workers.
        """
        if self.accepting:
            self.accepting = False
            self._counters.header[SlotHeader.ACCEPTING] = 0
            self._unwatch()
            if self._timer is not None:
                self._timer.cancel()
            for listener in self._listeners:
                while rest and self._accept_one(listener):
                    pass
        for listener in self._listeners:
            listener.close()

    async def finish_setup(self) -> None:
        """Wait for the connections that are being set up, and cancel TLS handshakes that take too long."""
        if self._in_setup:
            await asyncio.wait(self._in_setup, timeout=_SETUP_S)
        for task in self._in_setup:
            task.cancel()

    def publish_count(self) -> int:
        """Publish this worker's number of connections to the other workers, and return it."""
        number = len(self._connections) + len(self._in_setup)
        self._counters.header[SlotHeader.CONNECTIONS] = number
        return number

    def balance(self, now: float) -> None:
        """Close some connections if this worker has far more of them than the average worker."""
        mine = self.publish_count()
        counts = self._counters.accepting()
        fair = -(-sum(counts) // max(len(counts), 1))
        if len(counts) < 2 or mine <= fair + max(1, fair // 4):
            return
        excess = mine - fair
        for connection in self._connections:
            if excess == 0:
                break
            # Choose only active connections: an idle one gets no response that could announce the close, and costs
            # other workers nothing.
            if now - connection.last_received < _ACTIVE_S:
                connection.leaving = True
                excess -= 1

    def _watch(self) -> None:
        for listener in self._listeners:
            self._loop.add_reader(listener.fileno(), self._on_readable, listener)

    def _unwatch(self) -> None:
        for listener in self._listeners:
            self._loop.remove_reader(listener.fileno())

    def _on_readable(self, listener: socket.socket) -> None:
        if not self._has_yielded and self.publish_count() > min(self._counters.accepting(), default=0):
            self._has_yielded = True
            self._pause(_YIELD_S)
            return
        self._has_yielded = False
        self._accept_one(listener)

    def _accept_one(self, listener: socket.socket) -> bool:
        """Accept one connection if one is waiting and there is room.

        Returns False if this method should not be called again right now.
        """
        try:
            connection = listener.accept()[0]
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            if error.errno == ECONNABORTED:
                return True
            # A shortage of file descriptors or memory, or a network error (see accept(2)), lasts for a while.
            logger.error("no connection can be accepted: %s", error.strerror)
            self._pause(_PAUSE_S)
            return False
        tls = {} if connection.family == socket.AF_UNIX else self._tls()
        if tls and not self._has_room():
            connection.close()
            return True
        connection.setblocking(False)
        if connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        task = self._loop.create_task(self._set_up(connection, tls))
        self._in_setup[task] = monotonic()
        task.add_done_callback(self._on_set_up)
        return True

    def _has_room(self) -> bool:
        """Return whether another TLS handshake may begin.

        May close an idle connection or cancel a long handshake to make room.
        """
        if self._limit.take(len(self._in_setup)) or self._cancel_oldest_setup():
            return True
        self._limit.count_refused()
        return False

    def _on_set_up(self, task: asyncio.Task[Any]) -> None:
        self._in_setup.pop(task, None)

    def _cancel_oldest_setup(self) -> bool:
        """Cancel the TLS handshake that has taken the longest. Returns False if none has taken long."""
        for task, begun in self._in_setup.items():
            if monotonic() - begun < IDLE_S:
                break
            task.cancel()
            del self._in_setup[task]
            return True
        return False

    async def _set_up(self, connection: socket.socket, tls: Mapping[str, Any]) -> None:
        try:
            await self._loop.connect_accepted_socket(self._factory, connection, **tls)
        except OSError:
            connection.close()

    def _pause(self, seconds: float) -> None:
        self._unwatch()
        self._timer = self._loop.call_later(seconds, self._resume)

    def _resume(self) -> None:
        if self.accepting:
            self._watch()
