"""The interface between application and server: the ASGI application and what the server needs from it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any, Protocol

from app.memory.budget import Budget
from app.server.raw_error_response import ErrorRenderer
from app.server.readiness import Readiness
from app.server.restarting_tasks import BackgroundTasks
from app.server.tls import Tls, TlsFiles
from app.settings import Settings
from app.telemetry.request_metrics import Metrics


@dataclass(frozen=True)
class ServerOptions:
    """Options of the server. Requests for the paths in `always_answered` are answered even at GATHERND_MAX_CONNECTIONS.

    `render_error` renders the responses to requests that the server itself refuses. `page_path` and `docs_path` are the
    paths of the pages that the log mentions.
    """

    settings: Settings
    always_answered: frozenset[bytes]
    render_error: ErrorRenderer
    page_path: str
    docs_path: str

    @property
    def tls(self) -> TlsFiles | None:
        """The TLS files, or None without TLS."""
        settings = self.settings
        if settings.tls_cert is None:
            return None
        return TlsFiles(settings.tls_cert, settings.tls_key, settings.tls_key_password_file, settings.tls_client_ca)

    @property
    def scheme(self) -> str:
        """The scheme of the service's URL."""
        return "http" if self.settings.tls_cert is None else "https"


class FurtherListener(Protocol):
    """Offers the same service on another port, in the same process."""

    async def start(self, tls: Tls | None) -> None:
        """Begin to accept requests, encrypted with `tls`."""
        ...

    async def stop(self, grace: float) -> None:
        """Stop accepting requests, let running ones finish within `grace` seconds, and cut off the rest."""
        ...


class ServedApplication(Protocol):
    """The ASGI application, including the methods that its server calls. It adds its own metrics to `metrics`."""

    background: BackgroundTasks
    further_listener: FurtherListener | None
    metrics: Metrics
    readiness: Readiness

    @property
    def budget(self) -> Budget:
        """The memory budget for its requests and connections."""
        ...

    async def __call__(
        self,
        scope: MutableMapping[str, Any],
        receive: Callable[[], Awaitable[MutableMapping[str, Any]]],
        send: Callable[[MutableMapping[str, Any]], Awaitable[None]],
    ) -> None:
        """Handle an ASGI connection."""
        ...

    def release(self) -> None:
        """Release what other processes are waiting for. Called if the process ends before the ASGI lifespan does."""
        ...
