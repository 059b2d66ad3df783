"""Takes new connections in a worker, such that all workers have about as many.

Left to themselves, workers that share a listening socket do not: whoever wakes first takes all connections that wait,
and a worker that starts again while clients keep their connections gets none. Two rules mend that. A worker that has
more connections than another lets that one go first, for a moment. And one that has far more than its share says
`Connection: close` in some of its answers; who comes back is taken by another.
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

_COURTESY_S: Final = 0.003
_PAUSE_S: Final = 0.5
_ACTIVE_S: Final = 1.0
_SETTLE_S: Final = 1.0


class Acceptor:
    """Takes connections from `listeners`, one for each turn of the event loop, while it is started.

    `tls` is what the event loop is told about TLS when it sets them up. Beyond `limit` another connection makes room,
    or the new one is closed.
    """

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        factory: Callable[[], asyncio.Protocol],
        connections: set[Any],
        counters: Counters,
        tls: Mapping[str, Any] | None = None,
        limit: ConnectionLimit | None = None,
    ) -> None:
        self._listeners = listeners
        self._factory = factory
        self._connections = connections
        self._counters = counters
        self._tls = tls or {}
        self._limit = limit
        self._loop = asyncio.get_running_loop()
        self._waited = False
        self._timer: asyncio.TimerHandle | None = None
        self._coming: dict[asyncio.Task[Any], float] = {}
        self.accepting = False

    def start(self) -> None:
        """Take connections from now on; the sockets listen already."""
        for listener in self._listeners:
            listener.setblocking(False)
        self.accepting = True
        self.tell()
        self._counters.head[SlotHeader.ACCEPTING] = 1
        self._watch()

    def stop(self, *, rest: bool) -> None:
        """Take no more. Those that wait are for the other workers, or, with `rest`, are still taken."""
        if self.accepting:
            self.accepting = False
            self._counters.head[SlotHeader.ACCEPTING] = 0
            self._unwatch()
            if self._timer is not None:
                self._timer.cancel()
            for listener in self._listeners:
                while rest and self._take(listener):
                    pass
        for listener in self._listeners:
            listener.close()

    async def settle(self) -> None:
        """Wait for the connections that were taken and are not yet set up; not for handshakes that go nowhere."""
        if self._coming:
            await asyncio.wait(self._coming, timeout=_SETTLE_S)
        for task in self._coming:
            task.cancel()

    def tell(self) -> int:
        """Let the other workers know how many connections this one has, and return the number."""
        number = len(self._connections) + len(self._coming)
        self._counters.head[SlotHeader.CONNECTIONS] = number
        return number

    def balance(self, now: float) -> None:
        """Send some clients away if this worker has far more connections than the others have on average."""
        mine = self.tell()
        counts = self._counters.accepting()
        fair = -(-sum(counts) // max(len(counts), 1))
        if len(counts) < 2 or mine <= fair + max(1, fair // 4):
            return
        excess = mine - fair
        for connection in self._connections:
            if excess == 0:
                break
            # One that is idle would hardly notice; it counts, but does not work.
            if now - connection.last_received < _ACTIVE_S:
                connection.leaving = True
                excess -= 1

    def _watch(self) -> None:
        for listener in self._listeners:
            self._loop.add_reader(listener.fileno(), self._ready, listener)

    def _unwatch(self) -> None:
        for listener in self._listeners:
            self._loop.remove_reader(listener.fileno())

    def _ready(self, listener: socket.socket) -> None:
        if not self._waited and self.tell() > min(self._counters.accepting(), default=0):
            self._waited = True
            self._pause(_COURTESY_S)
            return
        self._waited = False
        self._take(listener)

    def _take(self, listener: socket.socket) -> bool:
        """Take one connection, if one waits and can be taken."""
        try:
            connection = listener.accept()[0]
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            if error.errno == ECONNABORTED:
                return True
            # Want of descriptors or memory, or what accept(2) passes on of the network: none of it is gone at once.
            logger.error("no connection can be taken: %s", error.strerror)
            self._pause(_PAUSE_S)
            return False
        if self._limit is not None and not self._limit.take(len(self._coming)) and not self._give_up_oldest():
            self._limit.count_refused()
            connection.close()
            return True
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        task = self._loop.create_task(self._set_up(connection))
        self._coming[task] = monotonic()
        task.add_done_callback(self._arrived)
        return True

    def _arrived(self, task: asyncio.Task[Any]) -> None:
        self._coming.pop(task, None)

    def _give_up_oldest(self) -> bool:
        """End the TLS handshake that takes the longest; False where none takes long."""
        for task, begun in self._coming.items():
            if monotonic() - begun < IDLE_S:
                break
            task.cancel()
            del self._coming[task]
            return True
        return False

    async def _set_up(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._factory, connection, **self._tls)
        except OSError:
            connection.close()

    def _pause(self, seconds: float) -> None:
        self._unwatch()
        self._timer = self._loop.call_later(seconds, self._resume)

    def _resume(self) -> None:
        if self.accepting:
            self._watch()
