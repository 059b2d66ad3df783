"""One process under uvicorn: its configuration, its protocol, and a stop that loses no request.

A stop goes in this order, on SIGTERM or SIGINT:

1. /readyz says no, and every answer says `Connection: close`, so that clients leave by themselves; new connections are
   still taken for DRAIN_DELAY, in which whoever balances the load finds out.
2. No new connections. What runs is answered. A connection without a request is closed once none has come for QUIET_S:
   closed at once, as uvicorn does, it may be just then that its client sends one.
3. After DRAIN_TIMEOUT what still runs is cut off. Exit code 0.

A second signal ends the delay, and a second SIGINT also cuts off what runs. A service that cannot prepare its kernels
ends with 3.
"""

from __future__ import annotations

import asyncio
import json
import logging
import logging.config
import os
import resource
import signal
import socket
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from time import monotonic
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import uvicorn

from app.main import Application
from app.memory.malloc_tuning import keep_freed_memory
from app.server import listening_sockets
from app.server.connection_acceptor import Acceptor
from app.server.connection_limit import ConnectionLimit
from app.server.http1_connection import Protocol, sweep
from app.server.timeouts import Timeouts
from app.server.tls import SHUTDOWN_S, Tls
from app.store import LocalStore, StoreRefused
from app.telemetry import logs

if TYPE_CHECKING:
    from app.settings import Settings

logger = logging.getLogger("gathernd")

QUIET_S: Final = 1.0
STARTUP_FAILURE: Final = 3
_STEP_S: Final = 0.02


class Server(uvicorn.Server):
    """uvicorn's server with the stop that the module describes."""

    def __init__(self, config: uvicorn.Config, tls: Tls | None, listeners: Sequence[socket.socket]) -> None:
        super().__init__(config)
        self.tls = tls
        self.listeners = listeners
        app = self.application
        self.limit = ConnectionLimit(app.settings.max_connections, self.server_state.connections, app.metrics.counters)
        Protocol.limit = self.limit
        self.tls_acceptor: Acceptor | None = None
        self.exit_at: float | None = None
        self.cut = False
        self.failed = False

    @property
    def application(self) -> Application:
        """The application that this server runs."""
        app = self.config.app
        assert isinstance(app, Application)
        return app

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal starts the drain, the second ends it."""
        if self.exit_at is None:
            self.drain()
        else:
            self.hurry(cut=sig == signal.SIGINT)

    def drain(self) -> None:
        """Begin to stop."""
        app = self.application
        app.readiness.draining = True
        self.leave(app.settings.drain_delay)

    def leave(self, delay: float = 0.0) -> None:
        """Make each answer the last of its connection, and stop after `delay` seconds."""
        if self.exit_at is not None:
            return
        Protocol.leaving = True
        self.exit_at = monotonic() + delay
        self.should_exit = delay == 0

    def hurry(self, *, cut: bool) -> None:
        """End the delay; with `cut` also what runs, for which uvicorn's way would be to end without tidying up."""
        self.should_exit = True
        self.cut = self.cut or cut

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and watch for slow senders from then on. uvicorn's own way has no limits on a TLS handshake."""
        self.listen()
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            raise SystemExit(STARTUP_FAILURE)
        if self.config.ssl is None:
            loop = asyncio.get_running_loop()
            self.servers = [
                await loop.create_server(self.connection, sock=bound, backlog=listening_sockets.BACKLOG)
                for bound in self.listeners
            ]
        else:
            # The event loop's own way knows of no connection before its handshake is over, and so of no limit.
            self.servers = []
            self.tls_acceptor = Acceptor(
                self.listeners,
                self.connection,
                self.server_state.connections,
                self.application.metrics.counters,
                tls_options(self.config),
                self.limit,
            )
            self.tls_acceptor.start()
        tell_where(self.application.settings, self.listeners)
        self.started = True
        self.watch()

    def listen(self) -> None:
        """Have the kernel take connections. Ends the process where another one came first."""
        try:
            listening_sockets.listen(self.listeners)
        except listening_sockets.CannotListen as problem:
            logger.error("%s", problem)
            raise SystemExit(STARTUP_FAILURE) from None

    def connection(self) -> asyncio.Protocol:
        """The protocol of one new connection."""
        return self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )

    def watch(self) -> None:
        """Look after the connections: slow senders, idle ones, how many there are; and after the certificate."""
        connections = self.server_state.connections
        self.application.metrics.gauges["gathernd_connections"] = lambda: len(connections)
        self.application.background.start("connections", lambda: sweep(connections))
        if self.tls is not None:
            self.application.background.start("tls", self.tls.watch)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take no new connections, let running requests finish, close the others once they are quiet, stop."""
        Protocol.leaving = True
        end = monotonic() + self.application.settings.drain_timeout
        self.stop_listening(sockets)
        if self.tls_acceptor is not None:
            await self.tls_acceptor.settle()
        connections = self.server_state.connections
        while connections and not self.cut and (now := monotonic()) < end:
            for connection in list(connections):
                if isinstance(connection, Protocol):
                    connection.leave(now, QUIET_S)
            await asyncio.sleep(_STEP_S)
        if "kernels" in self.application.readiness.waiting_for and not self.failed:
            self._leave_compiler()
        self.config.timeout_graceful_shutdown = 1
        await super().shutdown()

    def _leave_compiler(self) -> None:
        """End the process. A compiler cannot be interrupted, and the interpreter's own end would wait for it."""
        logger.info("stopped before the kernels were ready")
        self.application.store.close()
        logging.shutdown()
        os._exit(0)

    def stop_listening(self, sockets: list[socket.socket] | None = None) -> None:
        """Take no new connections."""
        if self.tls_acceptor is not None:
            self.tls_acceptor.stop(rest=True)
        for server in self.servers:
            server.close()
        for listener in sockets or ():
            listener.close()

    async def on_tick(self, counter: int) -> bool:
        """Called ten times a second: whether to stop now."""
        if self.exit_at is not None and monotonic() >= self.exit_at:
            self.should_exit = True
        if self.application.readiness.failed is not None:
            # Whoever looks after the process starts it again, or tells somebody; refusing for ever helps nobody.
            self.failed = self.should_exit = True
        return await super().on_tick(counter)


def tls_of(settings: Settings) -> Tls | None:
    """What the settings say about TLS, None for plain HTTP. Raises BadTls."""
    if settings.tls_cert is None:
        return None
    return Tls(settings.tls_cert, settings.tls_key, settings.tls_key_password_file, settings.tls_client_ca)


def tls_options(config: uvicorn.Config) -> dict[str, Any]:
    """What the event loop is told when it sets up connections."""
    if config.ssl is None:
        return {}
    handshake = Protocol.timeouts.header
    return {"ssl": config.ssl, "ssl_handshake_timeout": handshake, "ssl_shutdown_timeout": SHUTDOWN_S}


def configure(settings: Settings, app: Application, tls: Tls | None = None) -> uvicorn.Config:
    """uvicorn's configuration for this service."""
    keep_freed_memory(settings.memory_budget // 8)
    raise_file_limit()
    Protocol.timeouts = Timeouts(
        settings.header_timeout,
        settings.body_timeout,
        settings.min_body_rate,
        settings.max_header_bytes,
        settings.max_header_fields,
        settings.keep_alive,
        settings.answer_timeout,
        settings.min_answer_rate,
    )
    Protocol.count_refusal = app.metrics.count_refusal
    return uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        http=Protocol,
        ws="none",
        lifespan="on",
        server_header=False,
        access_log=False,
        log_level=settings.log_level,
        log_config=log_config(settings),
        timeout_keep_alive=settings.keep_alive,  # type: ignore[arg-type]
        timeout_graceful_shutdown=max(1, round(settings.drain_timeout)),
        backlog=listening_sockets.BACKLOG,
        proxy_headers=False,
        ssl_context_factory=None if tls is None else lambda *_: tls.context,
    )


def raise_file_limit() -> None:
    """Let this process open as many files as it may; GATHERND_MAX_CONNECTIONS counts on that."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)


def log_config(settings: Settings) -> dict[str, Any]:
    """What `logging.config` is told."""
    return logs.configuration(settings.log_format, settings.log_level)


def tell_where(settings: Settings, listeners: Sequence[socket.socket]) -> None:
    """Say in the log where the service is to be called."""
    scheme = "http" if settings.tls_cert is None else "https"
    logger.info("Uvicorn running on %s (Press CTRL+C to quit)", listening_sockets.url(scheme, settings.host, listeners))


def open_store(store: LocalStore) -> None:
    """Claim the store for this process and those that it starts; where that cannot be, say why and end with 1."""
    try:
        store.open()
    except StoreRefused as refusal:
        raise SystemExit(f"gathernd: {refusal}") from None
    except OSError as error:
        raise SystemExit(
            f"gathernd: the store {store.folder} cannot be used: {error.strerror}; GATHERND_STORE_DIR sets another one"
        ) from None


def serve(settings: Settings, app: Application) -> None:
    """Serve with one process, this one.

    What can be refused is refused before anything is made: the files of TLS, then the port, then the store, for which
    this ends the process. Raises BadTls and CannotListen.
    """
    logging.config.dictConfig(log_config(settings))
    tls = tls_of(settings)
    listeners = listening_sockets.bind(settings.host, settings.port)
    open_store(app.store)
    server = Server(configure(settings, app, tls), tls, listeners)
    server.run()
    if server.failed:
        logger.error("the service cannot start without its kernels: the log lines above say why")
    if server.failed or not server.started:
        raise SystemExit(STARTUP_FAILURE)


@dataclass(frozen=True)
class WorkerStart:
    """What a worker process gets from its parent, in a file in memory: no limit on arguments or variables applies.

    `listeners`, `channel` and `counters` are file descriptors. `settings` are all of them, whatever the environment
    says. `keys` are the lines of the keys file when it was last good, None without one.
    """

    settings: dict[str, Any]
    listeners: list[int]
    channel: int
    counters: int
    slot: int
    first: bool
    store_token: str
    keys: str | None

    def write(self) -> int:
        """A file that holds this, as a descriptor, which the caller closes. Raises OSError."""
        fd = os.memfd_create("gathernd-worker", os.MFD_CLOEXEC)
        try:
            with os.fdopen(fd, "wb", closefd=False) as file:
                file.write(json.dumps(asdict(self)).encode())
        except BaseException:
            os.close(fd)
            raise
        return fd

    @classmethod
    def read(cls, fd: int) -> WorkerStart:
        """What the parent has written; closes `fd`."""
        with os.fdopen(fd, "rb") as file:
            file.seek(0)
            return cls(**json.load(file))
