"""One process under uvicorn: its configuration and its start; how it stops is in `drain`.

A service that cannot start, or cannot prepare its kernels, ends with 3.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
from collections.abc import Sequence
from typing import Any

import uvicorn

from app.memory.malloc_tuning import keep_freed_memory
from app.server import listening_sockets
from app.server.application_interface import ServedApplication
from app.server.connection_acceptor import Acceptor
from app.server.connection_limit import ConnectionLimit
from app.server.drain import DrainingServer
from app.server.exit_codes import STARTUP_FAILURE
from app.server.http1_connection import Http1Connection
from app.server.refusal_response import EVERYWHERE
from app.server.server_options import ServerOptions
from app.server.slow_and_idle_clients import sweep
from app.server.tls import SHUTDOWN_S, Tls
from app.telemetry import logs
from app.telemetry.metric_definitions import CERTIFICATE_EXPIRY

logger = logging.getLogger("gathernd")


class Server(DrainingServer):
    """uvicorn's server, which starts as the module describes and stops as `drain` does."""

    def __init__(
        self,
        options: ServerOptions,
        config: uvicorn.Config,
        tls: Tls | None,
        listeners: Sequence[socket.socket],
    ) -> None:
        super().__init__(options, config)
        self.tls = tls
        self.listeners = listeners
        self.url = listening_sockets.url(options.scheme, options.settings.host, listeners)
        counters = self.application.metrics.counters
        self.limit = ConnectionLimit(
            options.settings.max_connections, self.server_state.connections, counters, options.always_answered
        )
        Http1Connection.limit = self.limit

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and watch for slow senders from then on. uvicorn itself has no limits on a TLS handshake."""
        self.listen()
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            raise SystemExit(STARTUP_FAILURE)
        self.acceptor = self.make_acceptor()
        self.acceptor.start()
        await self.start_further_listener()
        log_address(self.options, self.url)
        self.started = True
        self.watch()
        self.application.background.start("ready", self.say_when_ready)

    async def say_when_ready(self) -> None:
        """Write to the log that the service is ready, unless it cannot be or stops before it is."""
        readiness = self.application.readiness
        while readiness.waiting_for:
            if readiness.failed is not None:
                return
            await asyncio.sleep(0.01)
        if self.exit_at is None:
            log_ready(self.options, self.url)

    async def start_further_listener(self) -> None:
        """Take requests on the port beside that of HTTP, if there is one. Ends the process where that cannot be."""
        if self.application.further_listener is None:
            return
        try:
            await self.application.further_listener.start(self.tls)
        except (RuntimeError, listening_sockets.CannotListen) as problem:
            logger.error("gRPC cannot be served: %s", problem)
            self.end_at_once(STARTUP_FAILURE)

    def listen(self) -> None:
        """Have the kernel take connections. Ends the process where another one came first."""
        try:
            listening_sockets.listen(self.listeners)
        except listening_sockets.CannotListen as problem:
            logger.error("%s", problem)
            raise SystemExit(STARTUP_FAILURE) from None

    def make_acceptor(self) -> Acceptor:
        """Make what takes connections from the sockets, once the event loop runs."""
        connections, counters = self.server_state.connections, self.application.metrics.counters
        return Acceptor(self.listeners, self.connection, connections, counters, self.tls_options, self.limit)

    def connection(self) -> asyncio.Protocol:
        """Make the protocol object of one new connection."""
        return self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )

    def tls_options(self) -> dict[str, Any]:
        """The event loop's options for setting up a connection that has just come."""
        if self.tls is None:
            return {}
        handshake = Http1Connection.settings.header_timeout
        return {"ssl": self.tls.context, "ssl_handshake_timeout": handshake, "ssl_shutdown_timeout": SHUTDOWN_S}

    def watch(self) -> None:
        """Start the tasks that look for slow clients and a renewed certificate, and the gauges of both."""
        connections = self.server_state.connections
        self.application.metrics.gauges["gathernd_connections"] = lambda: len(connections)
        self.application.background.start("connections", lambda: sweep(connections))
        if self.tls is not None:
            tls = self.tls
            self.application.metrics.unsummed[CERTIFICATE_EXPIRY] = lambda: tls.expiry
            self.application.background.start("tls", tls.watch)


def configure(options: ServerOptions, app: ServedApplication, tls: Tls | None = None) -> uvicorn.Config:
    """uvicorn's configuration for this service. Sets up this process and the class of its connections, too."""
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
    """Let this process open as many files as it may; GATHERND_MAX_CONNECTIONS counts on that."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)


def log_address(options: ServerOptions, url: str | None) -> None:
    """Write the service's URL to the log, and the path of its Unix socket."""
    for place in filter(None, (url, _unix_url(options))):
        logger.info("listening on %s (Ctrl+C stops it)", place)


def log_ready(options: ServerOptions, url: str | None) -> None:
    """Write to the log that the service is ready, and where it and its pages are."""
    if url is None:
        logger.info("ready on %s", _unix_url(options))
        return
    logger.info("ready on %s, page at %s%s, docs at %s%s", url, url, options.page_path, url, options.docs_path)


def _unix_url(options: ServerOptions) -> str | None:
    return None if (path := options.settings.uds) is None else f"unix:{path.absolute()}"


def serve(options: ServerOptions, app: ServedApplication, tls: Tls | None, listeners: Sequence[socket.socket]) -> None:
    """Serve with one process, this one, on sockets that are bound."""
    server = Server(options, configure(options, app, tls), tls, listeners)
    try:
        run(server)
    finally:
        if server.failed:
            logger.error("the service cannot start without its kernels: the log lines above say why")


def run(server: Server) -> None:
    """Run until the server has stopped; ends the process with STARTUP_FAILURE where it could not start."""
    server.run()
    if server.failed or not server.started:
        raise SystemExit(STARTUP_FAILURE)
