"""A worker process: a server that shares its parent's port and follows its commands (see `app.server.supervisor`)."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from time import monotonic
from typing import Any, BinaryIO, Final

from app.server.exit_codes import STARTUP_FAILURE
from app.server.serve import Server, configure, run
from app.server.served_application import ServedApplication, ServerOptions
from app.server.tls import Tls
from app.telemetry.shared_counters import SlotHeader

_BEAT_S: Final = 0.1
"""Seconds between two heartbeats of a worker."""
logger = logging.getLogger("gathernd")


@dataclass(frozen=True)
class WorkerStart:
    """The data that a worker process receives from its parent.

    The data is passed in a file in memory, because arguments and environment variables have size limits. `listeners`,
    `channel` and `counters` are file descriptors, and `slot` is the worker's slot in the counters. The rest is for the
    program that creates the application: all settings (the environment is ignored), the token that opens the store,
    gRPC's addresses, and the last good contents of the key files, the TLS files and a router's files.
    """

    settings: dict[str, Any]
    listeners: list[int]
    channel: int
    counters: int
    slot: int
    first: bool
    store_token: str
    grpc_addresses: list[str] = field(default_factory=list)
    last_good: dict[str, dict[str, str]] = field(default_factory=dict)

    def write(self) -> BinaryIO:
        """Write this to a new file in memory. The caller closes it. Raises OSError."""
        file = os.fdopen(os.memfd_create("gathernd-worker", os.MFD_CLOEXEC), "wb", buffering=0)
        file.write(json.dumps(asdict(self)).encode())
        return file

    @classmethod
    def read(cls, fd: int) -> WorkerStart:
        """Read the data that the parent wrote, and close `fd`."""
        with os.fdopen(fd, "rb") as file:
            file.seek(0)
            return cls(**json.load(file))


class WorkerServer(Server):
    """A worker's server. It accepts connections from the parent's sockets when the parent says so."""

    def __init__(self, start: WorkerStart, options: ServerOptions, app: ServedApplication) -> None:
        tls = None if options.tls is None else Tls(options.tls, last_good=start.last_good)
        listeners = [socket.socket(fileno=fd) for fd in start.listeners]
        super().__init__(options, configure(options, app, tls), tls, listeners)
        self._channel = socket.socket(fileno=start.channel)
        self._counters = app.metrics.counters
        self._first = start.first
        self._may_start = asyncio.Event()
        self._starting: asyncio.Future[None] | None = None
        self._beating: asyncio.Task[None] | None = None
        if self._first:
            app.readiness.waiting_for.append("workers")

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the application and report to the parent."""
        loop = asyncio.get_running_loop()
        self._channel.setblocking(False)
        loop.add_reader(self._channel.fileno(), self._receive)
        if self._first:
            self.listen()
        else:
            await self._may_start.wait()
        acceptor = await self.start_application()
        self._beating = asyncio.create_task(self._show_heartbeat())
        if self._first:
            acceptor.start()
            await self.start_further_listener()
            self._send(b"o")
        self.application.background.start("report", self._report)

    async def _report(self) -> None:
        if await self.wait_until_prepared():
            self._send(b"w")

    def _receive(self) -> None:
        try:
            received = self._channel.recv(16)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        if not received:
            asyncio.get_running_loop().remove_reader(self._channel.fileno())
            logger.error("the parent process has ended: stopping")
            if not self.started:
                os._exit(STARTUP_FAILURE)
            self.leave()
        for letter in received:
            self._execute(letter)

    def _execute(self, letter: int) -> None:
        if letter == ord("g"):
            self._may_start.set()
        elif letter == ord("a") and self.acceptor is not None and self.exit_at is None:
            if self._first:
                self.application.readiness.mark_done("workers")
                self._send(b"a")
            else:
                self.listen()  # if all workers have died, the parent has shut the sockets down
                self.acceptor.start()
                self._starting = asyncio.ensure_future(self._start_and_report())
        elif letter == ord("d"):
            self.drain()
        elif letter == ord("l"):
            # The other workers keep serving, so the service as a whole stays ready.
            self.leave()
        elif letter in b"hc":
            self.end_drain(cut=letter == ord("c"))

    async def _start_and_report(self) -> None:
        await self.start_further_listener()
        self._send(b"a")

    def _send(self, letter: bytes) -> None:
        with suppress(OSError):
            self._channel.send(letter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Wait until any startup in progress has finished, and then shut down like a single process."""
        self.stop_listening()
        if self._starting is not None:
            await asyncio.wait((self._starting,))  # a socket that is not listening yet could not be stopped
        await super().shutdown(sockets)
        if self._beating is not None:
            self._beating.cancel()

    async def _show_heartbeat(self) -> None:
        """Show the parent that this worker's event loop is running, until the last request has finished."""
        while True:
            await asyncio.sleep(_BEAT_S)
            self._counters.header[SlotHeader.HEARTBEAT] += 1

    async def on_tick(self, counter: int) -> bool:
        """Run ten times a second until the worker stops: publish and balance its connections."""
        if self.acceptor is not None and self.acceptor.accepting:
            self.acceptor.publish_count()
            if counter % 10 == 0:
                self.acceptor.balance(monotonic())
        return await super().on_tick(counter)


def work(start: WorkerStart, options: ServerOptions, app: ServedApplication) -> None:
    """Run as a worker process until the parent stops it. `app` keeps its counters in the slot given by `start`."""
    run(WorkerServer(start, options, app))
