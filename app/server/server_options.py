"""What the server has to know of the service's settings, and of the application that it runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any, Protocol

from app.server.background_tasks import BackgroundTasks
from app.server.refusal_response import ErrorRenderer
from app.server.timeouts import Timeouts
from app.server.tls import TlsFiles
from app.telemetry.request_metrics import Metrics


@dataclass(frozen=True)
class ServerOptions:
    """The server's part of the settings. Times are in seconds; `kept_memory` is how many bytes of freed memory the
    process may keep for later requests. `render_error` makes the answers of requests that the server itself refuses.
    """

    host: str
    port: int
    workers: int
    tls: TlsFiles | None
    timeouts: Timeouts
    max_connections: int
    drain_delay: float
    drain_timeout: float
    kept_memory: int
    log_level: str
    log_format: str
    render_error: ErrorRenderer

    @property
    def scheme(self) -> str:
        """The scheme of the service's URL."""
        return "http" if self.tls is None else "https"


class Readiness(Protocol):
    """Whether the service is ready. `waiting_for` names what must still happen before, `failed` what could not be done;
    `draining` is set once a stop has begun.
    """

    waiting_for: list[str]
    draining: bool

    @property
    def failed(self) -> str | None:
        """The error that keeps the service from ever being ready."""
        ...

    def done(self, name: str) -> None:
        """`name` has happened."""
        ...


class ServedApplication(Protocol):
    """The ASGI application, with what its server counts, starts and asks."""

    background: BackgroundTasks

    @property
    def metrics(self) -> Metrics:
        """Its metrics, to which the server adds its own."""
        ...

    @property
    def readiness(self) -> Readiness:
        """Whether it is ready."""
        ...

    async def __call__(
        self,
        scope: MutableMapping[str, Any],
        receive: Callable[[], Awaitable[MutableMapping[str, Any]]],
        send: Callable[[MutableMapping[str, Any]], Awaitable[None]],
    ) -> None:
        """ASGI entry."""
        ...

    def release(self) -> None:
        """Give up what other processes wait for; called where the process ends without the end of the lifespan."""
        ...
