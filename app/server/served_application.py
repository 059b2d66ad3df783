"""What the server is given: the application that it runs, and a few things that it says in the application's name."""

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
    """The settings. `always_answered` are the paths that are answered beyond GATHERND_MAX_CONNECTIONS, `render_error`
    makes the answers of requests that the server itself refuses, and `page_path` and `docs_path` are those of the pages
    that the log names.
    """

    settings: Settings
    always_answered: frozenset[bytes]
    render_error: ErrorRenderer
    page_path: str
    docs_path: str

    @property
    def tls(self) -> TlsFiles | None:
        """The files of TLS, None for a service without."""
        settings = self.settings
        if settings.tls_cert is None:
            return None
        return TlsFiles(settings.tls_cert, settings.tls_key, settings.tls_key_password_file, settings.tls_client_ca)

    @property
    def scheme(self) -> str:
        """The scheme of the service's URL."""
        return "http" if self.settings.tls_cert is None else "https"


class FurtherListener(Protocol):
    """Takes requests for the same service on a port of its own, in the same process."""

    async def start(self, tls: Tls | None) -> None:
        """Take requests from now on, with `tls` encrypted."""
        ...

    async def stop(self, grace: float) -> None:
        """Take no more requests, let those that run finish within `grace` seconds, and cut off the rest."""
        ...


class ServedApplication(Protocol):
    """The ASGI application, with what its server counts, starts and asks. It adds its own metrics to `metrics`."""

    background: BackgroundTasks
    further_listener: FurtherListener | None
    metrics: Metrics
    readiness: Readiness

    @property
    def budget(self) -> Budget:
        """The memory budget of its requests and connections."""
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
