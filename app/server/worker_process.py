"""A worker process: a server that shares its parent's port and does what the parent, `app.server.supervisor`, says."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from contextlib import suppress
from time import monotonic

from app.main import create_app
from app.server.connection_acceptor import Acceptor
from app.server.serve import STARTUP_FAILURE, Server, WorkerStart, configure, tls_of, tls_options
from app.settings import Settings
from app.telemetry.shared_counters import SlotHeader, join

logger = logging.getLogger("gathernd")


class WorkerServer(Server):
    """A worker's server: it takes connections when the parent says so, and from the parent's socket."""

    def __init__(self, start: WorkerStart) -> None:
        settings = Settings(**start.settings)
        counters = join(start.counters, start.slot)
        app = create_app(settings, counters, store_token=start.store_token, last_good_keys=start.keys)
        tls = tls_of(settings)
        super().__init__(configure(settings, app, tls), tls, [socket.socket(fileno=fd) for fd in start.listeners])
        self._channel = socket.socket(fileno=start.channel)
        self._counters = counters
        self._first = start.first
        self._go = asyncio.Event()
        self._acceptor: Acceptor | None = None
        if self._first:
            app.readiness.waiting_for.append("workers")

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the application, and report to the parent."""
        loop = asyncio.get_running_loop()
        self._channel.setblocking(False)
        loop.add_reader(self._channel.fileno(), self._hear)
        if self._first:
            self.listen()
        else:
            await self._go.wait()
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            raise SystemExit(STARTUP_FAILURE)
        self.servers = []
        self._acceptor = Acceptor(
            self.listeners,
            self.connection,
            self.server_state.connections,
            self._counters,
            tls_options(self.config),
            self.limit,
        )
        self.started = True
        self.watch()
        if self._first:
            self._acceptor.start()
            self._say(b"o")
        self.application.background.start("report", self._report)

    async def _report(self) -> None:
        readiness = self.application.readiness
        while "kernels" in readiness.waiting_for:
            if readiness.failed is not None:
                return
            await asyncio.sleep(0.01)
        self._say(b"w")

    def _hear(self) -> None:
        try:
            heard = self._channel.recv(16)
        except BlockingIOError:
            return
        except OSError:
            heard = b""
        if not heard:
            asyncio.get_running_loop().remove_reader(self._channel.fileno())
            logger.error("the parent process has gone: stopping")
            if not self.started:
                os._exit(STARTUP_FAILURE)
            self.leave()
        for letter in heard:
            self._obey(letter)

    def _obey(self, letter: int) -> None:
        if letter == ord("g"):
            self._go.set()
        elif letter == ord("a") and self._acceptor is not None and self.exit_at is None:
            if self._first:
                self.application.readiness.done("workers")
            else:
                self.listen()  # which nobody does any more where all workers had died
                self._acceptor.start()
            self._say(b"a")
        elif letter == ord("d"):
            self.drain()
        elif letter == ord("l"):
            # Others carry on: the service as a whole stays ready, whoever is asked.
            self.leave()
        elif letter in b"hc":
            self.hurry(cut=letter == ord("c"))

    def _say(self, letter: bytes) -> None:
        with suppress(OSError):
            self._channel.send(letter)

    def stop_listening(self, sockets: list[socket.socket] | None = None) -> None:
        """Leave new connections to the other workers."""
        if self._acceptor is not None:
            self._acceptor.stop(rest=self.application.readiness.draining)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """As one process does."""
        self.stop_listening()
        if self._acceptor is not None:
            await self._acceptor.settle()
        await super().shutdown(sockets)

    async def on_tick(self, counter: int) -> bool:
        """Called ten times a second."""
        self._counters.head[SlotHeader.BEAT] += 1
        if self._acceptor is not None and self._acceptor.accepting:
            self._acceptor.tell()
            if counter % 10 == 0:
                self._acceptor.balance(monotonic())
        return await super().on_tick(counter)


def work(fd: int) -> None:
    """The life of a worker process; `fd` is what its parent has written (see `WorkerStart`)."""
    server = WorkerServer(WorkerStart.read(fd))
    server.run()
    if server.failed or not server.started:
        raise SystemExit(STARTUP_FAILURE)
