"""Responses that gRPC holds because the caller has not read them. They stay charged, and their calls keep their slots.

A caller may open no flow-control window for a response, or may stop reading. gRPC then holds the response as long as
the connection exists, and has no function to drop it. So each connection with waiting responses is checked twice, half
of GATHERND_ANSWER_TIMEOUT apart. It is reset if, between the two checks, the caller has acknowledged fewer bytes than
GATHERND_MIN_ANSWER_RATE requires.

On a Unix socket, all callers have the same peer name, and the kernel does not count acknowledged bytes. There, a
connection is reset if the number of unread bytes has not changed for as long as the caller should have needed to read
all of them. A caller that reads but opens no window is limited only by GATHERND_GRPC_MAX_CONNECTION_AGE.
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
"""Offset of tcpi_bytes_acked (8 bytes) in struct tcp_info of linux/tcp.h."""
_LEAST_BYTES: Final = 1024
"""Minimum number of acknowledged bytes that counts as reading at any minimum rate; replies to pings have fewer."""
_DESCRIPTORS: Final = Path("/proc/self/fd")
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


@dataclass(slots=True, eq=False)
class _UnsentAnswer:
    """A waiting response: the time of its next check, and how many bytes its caller had acknowledged at the last
    check.
    """

    context: Context
    look_at: float
    acknowledged: int | None = None


class _FullQueue(NamedTuple):
    """The number of bytes that the peer of a Unix socket has not read, and the time since which this number has not
    changed.
    """

    size: int
    since: float


class UnsentAnswers:
    """The unsent responses of a server; `timeout` is in seconds, and `rate` is in bytes per second.

    `unix_address` is the address of the server's Unix socket, if it has one.
    """

    def __init__(self, timeout: float, rate: int) -> None:
        self.unix_address: str | None = None
        self._full_queues: dict[int, _FullQueue] = {}  # by socket inode
        self._pause = timeout / 2
        self._least = max(int(rate * self._pause), _LEAST_BYTES)
        self._waiting: set[_UnsentAnswer] = set()

    def add(self, context: Context, task: asyncio.Task[Any], done: Callable[[], None]) -> None:
        """Track the response that a call's handler, which runs in `task`, is about to return.

        `done` is called once the response has been sent or abandoned.
        """
        unsent = self._begin_waiting(context)

        def sent(_: object) -> None:
            self._waiting.discard(unsent)
            done()

        # The context's own callbacks are not used, because they would keep the context and its call alive until a
        # garbage collection.
        task.add_done_callback(sent)

    async def wait(self, context: Context, sending: Awaitable[Any]) -> None:
        """Await `sending`, which sends a stream's response or a call's final error.

        The call releases its own charge.
        """
        unsent = self._begin_waiting(context)
        try:
            await sending
        finally:
            self._waiting.discard(unsent)

    def _begin_waiting(self, context: Context) -> _UnsentAnswer:
        unsent = _UnsentAnswer(context, monotonic() + self._pause)
        self._waiting.add(unsent)
        return unsent

    async def sweep(self, interval: float = 1.0) -> None:
        """Check the waiting responses at intervals, until canceled; see `check_due`."""
        while True:
            await asyncio.sleep(min(interval, self._pause))
            self.check_due()

    def check_due(self) -> None:
        """Check the responses that are due, and reset the connections of callers that read too slowly."""
        now = monotonic()
        if not any(one.look_at <= now for one in self._waiting):
            self._full_queues.clear()
            return
        overdue: dict[Address, list[_UnsentAnswer]] = {}
        for one in self._waiting:
            if one.look_at <= now and (address := address_of_peer(one.context.peer())) is not None:
                overdue.setdefault(address, []).append(one)
        known, self._full_queues = self._full_queues, {}
        for connection in _sockets():
            with suppress(OSError):  # a listening socket, or one that was just closed
                peer = connection.getpeername()
                if connection.family == socket.AF_UNIX:
                    if connection.getsockname() == self.unix_address:
                        self._check_unix_connection(connection, now, known)
                elif connection.family in (socket.AF_INET, socket.AF_INET6):
                    address = peer[0].removeprefix("::ffff:"), peer[1]
                    self._check_connection(connection, now, address[0], overdue.get(address, []))

    def _check_connection(self, connection: socket.socket, now: float, host: str, overdue: list[_UnsentAnswer]) -> None:
        """Reset a connection if its peer has not acknowledged enough bytes since the last check of a response."""
        acknowledged = _bytes_acknowledged(connection) if overdue else 0
        for one in overdue:
            if one.acknowledged is not None and acknowledged - one.acknowledged < self._least:
                _reset(connection)
                logger.info("resetting a gRPC connection of %s: its caller does not read responses", host)
                break
            one.acknowledged, one.look_at = acknowledged, now + self._pause

    def _check_unix_connection(self, connection: socket.socket, now: float, known: Mapping[int, _FullQueue]) -> None:
        """Reset a connection if its peer has read nothing for as long as the unread bytes take at the minimum rate."""
        size = unsent_bytes(connection)  # this includes the kernel's overhead for each piece
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
        logger.info("resetting a gRPC connection on the Unix socket: its caller does not read responses")


def _sockets() -> Iterator[socket.socket]:
    """Yield the process's sockets; each is closed after its iteration."""
    for descriptor in _DESCRIPTORS.iterdir():
        with suppress(OSError):
            if not descriptor.is_socket():
                continue
            # Use our own descriptor, because gRPC's threads may close theirs concurrently.
            with socket.socket(fileno=os.dup(int(descriptor.name))) as connection:
                yield connection


def _bytes_acknowledged(connection: socket.socket) -> int:
    told = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _ACKNOWLEDGED_AT + 8)
    return int.from_bytes(told[_ACKNOWLEDGED_AT:], "little")


def _reset(connection: socket.socket) -> None:
    reset_on_close(connection)
    connection.shutdown(socket.SHUT_RDWR)
