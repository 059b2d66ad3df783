"""A stop that loses no request (drain): in this order, on SIGTERM or SIGINT.

1. /readyz says no, and every answer says `Connection: close`, so that clients leave by themselves; new connections are
   still accepted for DRAIN_DELAY, in which load balancers find out.
2. No new connections. Running requests are answered. A connection without a request is closed once none has come for
   QUIET_S: were it closed at once, as uvicorn does, its client might be sending one just then.
3. After DRAIN_TIMEOUT requests that still run are cut off. Exit code 0.

A second signal ends the delay, and a second SIGINT also cuts off running requests. A service that cannot prepare its
kernels stops by itself.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from time import monotonic
from types import FrameType
from typing import Final, NoReturn

import uvicorn

from app.server.application_interface import ServedApplication
from app.server.connection_acceptor import Acceptor
from app.server.http1_connection import Http1Connection
from app.server.server_options import ServerOptions

logger = logging.getLogger("gathernd")

QUIET_S: Final = 1.0
_STEP_S: Final = 0.02
"""Seconds between two looks at the connections that are left during a stop."""


class DrainingServer(uvicorn.Server):
    """uvicorn's server with the stop that the module describes. `exit_at` is when the delay ends, None before a stop;
    `cut` says that running requests are cut off, `failed` that the service could not prepare its kernels.
    """

    def __init__(self, options: ServerOptions, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.options = options
        self.application: ServedApplication = config.app  # type: ignore[assignment]
        self.acceptor: Acceptor | None = None
        self.servers = []  # the acceptor takes connections in their place
        self.exit_at: float | None = None
        self.cut = False
        self.failed = False

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal starts the drain, the second ends it."""
        if self.exit_at is None:
            self.drain()
        else:
            self.end_drain(cut=sig == signal.SIGINT)

    def drain(self) -> None:
        """Begin to stop."""
        self.application.readiness.draining = True
        self.leave(self.options.settings.drain_delay)

    def leave(self, delay: float = 0.0) -> None:
        """Make each answer the last of its connection, and stop after `delay` seconds."""
        if self.exit_at is not None:
            return
        Http1Connection.leaving = True
        self.exit_at = monotonic() + delay
        self.should_exit = delay == 0

    def end_drain(self, *, cut: bool) -> None:
        """End the delay; with `cut` also running requests, where uvicorn itself would end without its shutdown."""
        self.should_exit = True
        self.cut = self.cut or cut

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take no new connections, let running requests finish, close the others once they are quiet, stop."""
        Http1Connection.leaving = True
        end = monotonic() + self.options.settings.drain_timeout
        self.stop_listening()
        further = self.application.further_listener
        left = None if further is None else asyncio.ensure_future(further.stop(self.options.settings.drain_timeout))
        if self.acceptor is not None:
            await self.acceptor.finish_setup()
        connections = self.server_state.connections
        while connections and not self.cut and (now := monotonic()) < end:
            for connection in list(connections):
                if isinstance(connection, Http1Connection):
                    connection.close_when_quiet(now, QUIET_S)
            await asyncio.sleep(_STEP_S)
        while left is not None and not left.done() and not self.cut:
            await asyncio.wait((left,), timeout=_STEP_S)
        if further is not None and self.cut:
            await further.stop(0.0)
        if "kernels" in self.application.readiness.waiting_for and not self.failed:
            logger.info("stopped before the kernels were ready")
            self.end_at_once(0)
        self.config.timeout_graceful_shutdown = 1
        await super().shutdown()

    def end_at_once(self, code: int) -> NoReturn:
        """End the process. A compiler cannot be interrupted, and the interpreter's own end would wait for it, and for
        threads of gRPC.
        """
        self.application.release()
        logging.shutdown()
        os._exit(code)

    def stop_listening(self) -> None:
        """Take no new connections; those that wait are taken still, unless other processes of the service carry on."""
        if self.acceptor is not None:
            self.acceptor.stop(rest=self.application.readiness.draining)

    async def on_tick(self, counter: int) -> bool:
        """Called ten times a second: whether to stop now."""
        if self.exit_at is not None and monotonic() >= self.exit_at:
            self.should_exit = True
        if self.application.readiness.failed is not None:
            # The process ends, so that its supervisor starts it again or alerts somebody: it would refuse for ever.
            self.failed = self.should_exit = True
        return await super().on_tick(counter)
