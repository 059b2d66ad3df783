"""Run one process under uvicorn: configure it, start it, and shut it down without losing any request (drain).

On SIGTERM or SIGINT the shutdown takes these steps:

1. /readyz returns 503, and every response has `Connection: close`, so that clients leave. New connections are still
   accepted for DRAIN_DELAY, so that load balancers have time to react.
2. New connections are no longer accepted. Running requests are answered. An idle connection is closed when no request
   has arrived on it for QUIET_S. uvicorn closes it immediately, but the client might be sending a request at that very
   moment.
3. After DRAIN_TIMEOUT, requests that are still running are cut off. The exit code is 0.

A second signal ends the delay, and a second SIGINT also cuts off running requests. A service that cannot start, or
cannot prepare its kernels, exits with 3.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import socket
from collections.abc import Sequence
from time import monotonic
from types import FrameType
from typing import Any, Final, NoReturn

import uvicorn

from app.memory.malloc_tuning import keep_freed_memory
from app.server import listening_sockets
from app.server.connection_acceptor import Acceptor
from app.server.connection_limit import ConnectionLimit
from app.server.exit_codes import STARTUP_FAILURE
from app.server.http1_connection import Http1Connection
from app.server.raw_error_response import EVERYWHERE
from app.server.served_application import ServedApplication, ServerOptions
from app.server.slow_and_idle_clients import sweep
from app.server.tls import SHUTDOWN_S, Tls
from app.telemetry import logs
from app.telemetry.metric_definitions import CERTIFICATE_EXPIRY

logger = logging.getLogger("gathernd")

QUIET_S: Final = 1.0
_STEP_S: Final = 0.02
"""Seconds between checks of the remaining connections during a shutdown."""


class Server(uvicorn.Server):
    """uvicorn's server with the startup and the shutdown described in the module's docstring.

    `exit_at` is the time when the shutdown delay ends, or None if no shutdown has begun. `cut` means that running
    requests are to be cut off, and `failed` means that the service could not prepare its kernels.
    """

    def __init__(
        self,
        options: ServerOptions,
        config: uvicorn.Config,
        tls: Tls | None,
        listeners: Sequence[socket.socket],
    ) -> None:
        super().__init__(config)
        self.options = options
        self.application: ServedApplication = config.app  # type: ignore[assignment]
        self.acceptor: Acceptor | None = None
        self.servers = []  # the acceptor accepts connections instead of asyncio servers
        self.exit_at: float | None = None
        self.cut = False
        self.failed = False
        self.tls = tls
        self.listeners = listeners
        self.url = listening_sockets.url(options.scheme, options.settings.host, listeners)
        counters = self.application.metrics.counters
        self.limit = ConnectionLimit(
            options.settings.max_connections, self.server_state.connections, counters, options.always_answered
        )
        Http1Connection.limit = self.limit

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start listening, then start the application, the acceptor and the additional listener."""
        self.listen()
        acceptor = await self.start_application()
        acceptor.start()
        await self.start_further_listener()
        log_address(self.options, self.url)
        self.application.background.start("ready", self.log_when_ready)

    async def start_application(self) -> Acceptor:
        """Start the application and supervise its connections. Returns the acceptor.

        Ends the process if the application cannot start.
        """
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            raise SystemExit(STARTUP_FAILURE)
        connections, counters = self.server_state.connections, self.application.metrics.counters
        self.acceptor = Acceptor(self.listeners, self.connection, connections, counters, self.tls_options, self.limit)
        self.started = True
        self.watch()
        return self.acceptor

    async def log_when_ready(self) -> None:
        """Log that the service is ready, unless preparation fails or a shutdown begins before that."""
        if await self.wait_until_prepared() and self.exit_at is None:
            log_ready(self.options, self.url)

    async def wait_until_prepared(self) -> bool:
        """Wait until this process has prepared everything for its first gather. Returns False if preparation failed."""
        readiness = self.application.readiness
        while "kernels" in readiness.waiting_for:
            if readiness.failed is not None:
                return False
            await asyncio.sleep(0.01)
        return True

    async def start_further_listener(self) -> None:
        """Start the additional listener (gRPC), if there is one. Ends the process if it fails to start."""
        if self.application.further_listener is None:
            return
        try:
            await self.application.further_listener.start(self.tls)
        except (RuntimeError, listening_sockets.CannotListen) as problem:
            logger.error("gRPC cannot be served: %s", problem)
            self.end_at_once(STARTUP_FAILURE)

    def listen(self) -> None:
        """Let the kernel accept connections. Ends the process if another process is already listening."""
        try:
            listening_sockets.listen(self.listeners)
        except listening_sockets.CannotListen as problem:
            logger.error("%s", problem)
            raise SystemExit(STARTUP_FAILURE) from None

    def connection(self) -> asyncio.Protocol:
        """Create the protocol object for a new connection."""
        return self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )

    def tls_options(self) -> dict[str, Any]:
        """Return the event loop's options for setting up a new connection."""
        if self.tls is None:
            return {}
        handshake = Http1Connection.settings.header_timeout
        return {"ssl": self.tls.context, "ssl_handshake_timeout": handshake, "ssl_shutdown_timeout": SHUTDOWN_S}

    def watch(self) -> None:
        """Start the tasks that watch for slow clients and renewed certificates, and register their gauges."""
        connections = self.server_state.connections
        self.application.metrics.gauges["gathernd_connections"] = lambda: len(connections)
        self.application.background.start("connections", lambda: sweep(connections))
        if self.tls is not None:
            tls = self.tls
            self.application.metrics.unsummed[CERTIFICATE_EXPIRY] = lambda: tls.expiry
            self.application.background.start("tls", tls.watch)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin the drain at the first signal, and end it at the second."""
        if self.exit_at is None:
            self.drain()
        else:
            self.end_drain(cut=sig == signal.SIGINT)

    def drain(self) -> None:
        """Begin a shutdown, which starts with a drain."""
        self.application.readiness.draining = True
        self.leave(self.options.settings.drain_delay)

    def leave(self, delay: float = 0.0) -> None:
        """Close each connection after its next response, and shut down after `delay` seconds."""
        if self.exit_at is not None:
            return
        Http1Connection.leaving = True
        self.exit_at = monotonic() + delay
        self.should_exit = delay == 0

    def end_drain(self, *, cut: bool) -> None:
        """End the shutdown delay. If `cut` is set, also cut off running requests.

        This replaces uvicorn's own handling, which would exit without running uvicorn's shutdown.
        """
        self.should_exit = True
        self.cut = self.cut or cut

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting, let running requests finish, close other connections once they are quiet, and shut down."""
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
        """End the process immediately.

        A compiler cannot be interrupted, and a normal interpreter exit would wait for it and for gRPC's threads.
        """
        self.application.release()
        logging.shutdown()
        os._exit(code)

    def stop_listening(self) -> None:
        """Stop accepting connections. If no other process of the service remains, accept those in the backlog first."""
        if self.acceptor is not None:
            self.acceptor.stop(rest=self.application.readiness.draining)

    async def on_tick(self, counter: int) -> bool:
        """Check for a shutdown. Runs ten times a second. Returns whether to stop now."""
        if self.exit_at is not None and monotonic() >= self.exit_at:
            self.should_exit = True
        if self.application.readiness.failed is not None:
            # A service without kernels would refuse every request, so end the process. Its supervisor can restart it or
            # raise an alarm.
            self.failed = self.should_exit = True
        return await super().on_tick(counter)


def configure(options: ServerOptions, app: ServedApplication, tls: Tls | None = None) -> uvicorn.Config:
    """Create uvicorn's configuration for this service. Also sets up this process and the class of its connections."""
    settings = options.settings
    keep_freed_memory(settings.memory_budget // settings.workers // 8)
    raise_file_limit()
    Http1Connection.settings = settings
    Http1Connection.count_refusal = app.metrics.count_refusal
    Http1Connection.render_error = options.render_error
    Http1Connection.budget = app.budget
    return uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        http=Http1Connection,
        ws="none",
        lifespan="on",
        server_header=False,
        headers=[(name.decode(), value.decode()) for name, value in EVERYWHERE],
        access_log=False,
        log_level=settings.log_level,
        log_config=logs.configuration(settings.log_format, settings.log_level),
        timeout_keep_alive=settings.keep_alive,  # type: ignore[arg-type]
        timeout_graceful_shutdown=max(1, round(settings.drain_timeout)),
        backlog=listening_sockets.BACKLOG,
        proxy_headers=False,
        ssl_context_factory=None if tls is None else lambda *_: tls.context,
    )


def raise_file_limit() -> None:
    """Raise this process's limit on open files to its maximum. GATHERND_MAX_CONNECTIONS relies on this."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)


def log_address(options: ServerOptions, url: str | None) -> None:
    """Log the service's URL, and the path of its Unix socket."""
    for place in filter(None, (url, _unix_socket_url(options))):
        logger.info("listening on %s (Ctrl+C stops it)", place)


def log_ready(options: ServerOptions, url: str | None) -> None:
    """Log that the service is ready, with the URLs of its pages."""
    if url is None:
        logger.info("ready on %s", _unix_socket_url(options))
        return
    logger.info("ready on %s, page at %s%s, docs at %s%s", url, url, options.page_path, url, options.docs_path)


def _unix_socket_url(options: ServerOptions) -> str | None:
    return None if (path := options.settings.uds) is None else f"unix:{path.absolute()}"


def serve(options: ServerOptions, app: ServedApplication, tls: Tls | None, listeners: Sequence[socket.socket]) -> None:
    """Serve from this process alone, on sockets that are already bound."""
    server = Server(options, configure(options, app, tls), tls, listeners)
    try:
        run(server)
    finally:
        if server.failed:
            logger.error("the service cannot start without its kernels: the log lines above say why")


def run(server: Server) -> None:
    """Run until the server has stopped. Exits with STARTUP_FAILURE if it could not start."""
    server.run()
    if server.failed or not server.started:
        raise SystemExit(STARTUP_FAILURE)
