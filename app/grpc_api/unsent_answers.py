"""Answers that gRPC has and the caller has not taken yet: their bytes stay charged, and their calls keep their places.

A caller may open no window for an answer, or stop reading. gRPC holds the answer for as long as the connection lives,
and has no call that ends it. So a connection on which answers have waited is looked at twice, half of
GATHERND_ANSWER_TIMEOUT apart: where its caller has meanwhile acknowledged fewer bytes than GATHERND_MIN_ANSWER_RATE
asks for, it is reset.

On a Unix socket all callers have one name, and the kernel counts no bytes. There a connection is reset whose caller has
left the same bytes unread for as long as it may take to read all of them. A caller that reads and opens no window is
left to GATHERND_GRPC_MAX_CONNECTION_AGE.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any, Final, NamedTuple, TypeAlias

import grpc.aio

from app.grpc_api.rpc_request import Address, address_of_peer
from app.server.slow_and_idle_clients import reset_on_close, unsent_bytes

logger = logging.getLogger("gathernd")

_ACKNOWLEDGED_AT: Final = 120
"""Where struct tcp_info of linux/tcp.h has tcpi_bytes_acked, 8 bytes."""
_LEAST_BYTES: Final = 1024
"""So many bytes are more than answers to pings, and count as reading under any rate."""
_DESCRIPTORS: Final = Path("/proc/self/fd")
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


@dataclass(slots=True, eq=False)
class _Unsent:
    """An answer that waits: when to look at it, and what its caller had acknowledged at the last look, in bytes."""

    context: Context
    look_at: float
    acknowledged: int | None = None


class _FullQueue(NamedTuple):
    """Bytes that the peer of a Unix socket has not read, and since when they have been so many."""

    size: int
    since: float


class UnsentAnswers:
    """The answers of a server; `timeout` is in seconds, `rate` in bytes a second.

    `unix_address` is where the server's Unix socket was bound, if it has one.
    """

    def __init__(self, timeout: float, rate: int) -> None:
        self.unix_address: str | None = None
        self._full_queues: dict[int, _FullQueue] = {}  # by the inodes of the sockets
        self._pause = timeout / 2
        self._least = max(int(rate * self._pause), _LEAST_BYTES)
        self._waiting: set[_Unsent] = set()

    def add(self, context: Context, task: asyncio.Task[Any], done: Callable[[], None]) -> None:
        """The handler of a call, run by `task`, returns its answer now; `done` is called once that has been sent or
        given up.
        """
        unsent = self._begin(context)

        def sent(_: object) -> None:
            self._waiting.discard(unsent)
            done()

        # Not the context's own callbacks: they would keep it, and with it the call, until garbage is collected.
        task.add_done_callback(sent)

    async def wait(self, context: Context, sending: Awaitable[Any]) -> None:
        """Send an answer of a stream, or the error that a call ends with; the call releases what it has charged."""
        unsent = self._begin(context)
        try:
            await sending
        finally:
            self._waiting.discard(unsent)

    def _begin(self, context: Context) -> _Unsent:
        unsent = _Unsent(context, monotonic() + self._pause)
        self._waiting.add(unsent)
        return unsent

    async def sweep(self, interval: float = 1.0) -> None:
        """Reset the connections of callers that read too slowly. Runs until it is cancelled."""
        while True:
            await asyncio.sleep(min(interval, self._pause))
            self.look()

    def look(self) -> None:
        """Look once at the answers that have waited long enough."""
        now = monotonic()
        if not any(one.look_at <= now for one in self._waiting):
            self._full_queues.clear()
            return
        overdue: dict[Address, list[_Unsent]] = {}
        for one in self._waiting:
            if one.look_at <= now and (address := address_of_peer(one.context.peer())) is not None:
                overdue.setdefault(address, []).append(one)
        known, self._full_queues = self._full_queues, {}
        for connection in _sockets():
            with suppress(OSError):  # it listens, or has just ended
                peer = connection.getpeername()
                if connection.family == socket.AF_UNIX:
                    if connection.getsockname() == self.unix_address:
                        self._look_at_unix_connection(connection, now, known)
                elif connection.family in (socket.AF_INET, socket.AF_INET6):
                    address = peer[0].removeprefix("::ffff:"), peer[1]
                    self._look_at_connection(connection, now, address[0], overdue.get(address, []))

    def _look_at_connection(self, connection: socket.socket, now: float, host: str, overdue: list[_Unsent]) -> None:
        """Reset a connection whose peer has not acknowledged enough since the last look at one of its answers."""
        acknowledged = _bytes_acknowledged(connection) if overdue else 0
        for one in overdue:
            if one.acknowledged is not None and acknowledged - one.acknowledged < self._least:
                _reset(connection)
                logger.info("a gRPC connection of %s is reset: its caller reads no answers", host)
                break
            one.acknowledged, one.look_at = acknowledged, now + self._pause

    def _look_at_unix_connection(self, connection: socket.socket, now: float, known: Mapping[int, _FullQueue]) -> None:
        """Reset a connection whose peer has read nothing for as long as the least rate gives it for all that waits."""
        size = unsent_bytes(connection)  # as the kernel counts them, with its own for each piece
        if not size:
            return
        inode = os.fstat(connection.fileno()).st_ino
        queue = known.get(inode)
        if queue is None or queue.size != size:
            queue = _FullQueue(size, now)
        if now - queue.since < max(2 * self._pause, size * self._pause / self._least):
            self._full_queues[inode] = queue
            return
        _reset(connection)
        logger.info("a gRPC connection on the Unix socket is reset: its caller reads no answers")


def _sockets() -> Iterator[socket.socket]:
    """The process's sockets, each while it is looked at."""
    for descriptor in _DESCRIPTORS.iterdir():
        with suppress(OSError):
            if not descriptor.is_socket():
                continue
            # A descriptor of our own: gRPC's threads may close theirs meanwhile.
            with socket.socket(fileno=os.dup(int(descriptor.name))) as connection:
                yield connection


def _bytes_acknowledged(connection: socket.socket) -> int:
    told = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _ACKNOWLEDGED_AT + 8)
    return int.from_bytes(told[_ACKNOWLEDGED_AT:], "little")


def _reset(connection: socket.socket) -> None:
    reset_on_close(connection)
    connection.shutdown(socket.SHUT_RDWR)
