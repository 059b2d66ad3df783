"""Running the service under uvicorn: its settings, its protocol, and a stop that drains.

One process serves by itself. Several inherit one listening socket from a parent that replaces those that die: with a
socket each (SO_REUSEPORT) the connections waiting in the backlog of a dying process would be lost.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from time import monotonic
from types import FrameType
from typing import TYPE_CHECKING

import uvicorn
from uvicorn.supervisors.multiprocess import Multiprocess, Process

from app.api.protocol import Protocol, Timeouts, sweep
from app.main import GROUP_VARIABLE, Application, from_environment, limits_of
from app.store import LocalStore, StoreInUse, UnknownFormat

if TYPE_CHECKING:
    from app.settings import Settings

logger = logging.getLogger("gathernd")


class Server(uvicorn.Server):
    """uvicorn's server with the drain of this service: readiness says no, a pause, then a polite end with exit 0."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._exit_at: float | None = None
        self._sweeping: asyncio.Task[None] | None = None

    @property
    def application(self) -> Application:
        """The application that this server runs."""
        app = self.config.app
        assert isinstance(app, Application)
        return app

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal starts the drain, the second ends it."""
        app = self.application
        if self._exit_at is not None:
            self.should_exit = True
            self.force_exit = sig == signal.SIGINT
            return
        app.readiness.draining = True
        self._exit_at = monotonic() + app.settings.drain_delay
        if app.settings.drain_delay == 0:
            self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and watch for slow senders from then on."""
        await super().startup(sockets)
        self._sweeping = asyncio.create_task(sweep(self.server_state.connections))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close idle connections, let running requests finish, stop."""
        try:
            await super().shutdown(sockets)
        finally:
            if self._sweeping is not None:
                self._sweeping.cancel()

    async def on_tick(self, counter: int) -> bool:
        """Called ten times a second: whether to stop now."""
        if self._exit_at is not None and monotonic() >= self._exit_at:
            self.should_exit = True
        return await super().on_tick(counter)


def configure(settings: Settings, app: Application) -> uvicorn.Config:
    """uvicorn's configuration for this service."""
    Protocol.timeouts = Timeouts(
        settings.header_timeout,
        settings.body_timeout,
        settings.min_body_rate,
        settings.max_header_bytes,
        settings.max_header_fields,
        settings.keep_alive,
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
        log_config=LOGGING | {"loggers": {"": {"handlers": ["stderr"], "level": settings.log_level.upper()}}},
        timeout_keep_alive=settings.keep_alive,  # type: ignore[arg-type]
        timeout_graceful_shutdown=max(1, round(settings.drain_timeout)),
        backlog=2048,
        proxy_headers=False,
    )


LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "%(asctime)s %(levelname)s %(name)s: %(message)s"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
}


def run_server(config: uvicorn.Config, sockets: list[socket.socket] | None = None) -> None:
    """Serve until a signal; signals end it with exit code 0."""
    server = Server(config)
    server.run(sockets)
    if not server.started:
        raise SystemExit(3)


def open_store(store: LocalStore) -> None:
    """Claim the store for this process and those that it starts; where that cannot be, say why and end with 1."""
    try:
        store.open()
    except (StoreInUse, UnknownFormat) as refusal:
        raise SystemExit(f"gathernd: {refusal}") from None
    except OSError as error:
        raise SystemExit(
            f"gathernd: the store {store.folder} cannot be used: {error.strerror}; GATHERND_STORE_DIR sets another one"
        ) from None


def serve(settings: Settings, app: Application) -> None:
    """Serve with one process, this one. Ends the process where the store cannot be claimed."""
    open_store(app.store)
    run_server(configure(settings, app))


class _Worker(Process):
    """A worker process, which builds its own application from the environment."""

    def target(self, sockets: list[socket.socket] | None = None) -> None:
        app = from_environment()
        self._server = Server(configure(app.settings, app))
        super().target(sockets)


class Supervisor(Multiprocess):
    """The parent of several workers: starts them, replaces those that die, stops them together."""

    def init_processes(self) -> None:
        """Start the workers."""
        for _ in range(self.processes_num):
            process = _Worker(self.config, self.sockets)
            process.start()
            self.processes.append(process)


def serve_workers(settings: Settings) -> None:
    """Serve with several processes on one socket. They read their settings from the environment.

    The store is claimed here, and the workers use it under this claim.
    """
    store = LocalStore(settings.store_dir, limits_of(settings))
    open_store(store)
    os.environ[GROUP_VARIABLE] = store.group.token
    config = uvicorn.Config(
        "app.main:from_environment", factory=True, host=settings.host, port=settings.port, workers=settings.workers
    )
    Supervisor(config, [config.bind_socket()]).run()


def export(settings: Settings) -> None:
    """Put the settings into the environment, where worker processes find them."""
    for name, value in settings.model_dump(mode="json").items():
        if value is not None:
            text = ",".join(value) if isinstance(value, list) else str(value)
            os.environ[f"GATHERND_{name.upper()}"] = text
