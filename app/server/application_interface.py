"""The interface between the server and the application that it runs: metrics, background tasks, readiness."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Protocol

from app.memory.budget import Budget
from app.server.readiness import Readiness
from app.server.restarting_tasks import BackgroundTasks
from app.server.tls import Tls
from app.telemetry.request_metrics import Metrics


class FurtherListener(Protocol):
    """Takes requests for the same service on a port of its own, in the same process."""

    async def start(self, tls: Tls | None) -> None:
        """Take requests from now on, with `tls` encrypted."""
        ...

    async def stop(self, grace: float) -> None:
        """Take no more requests, let those that run finish within `grace` seconds, and cut off the rest."""
        ...


class ServedApplication(Protocol):
    """The ASGI application, with what its server counts, starts and asks."""

    background: BackgroundTasks
    further_listener: FurtherListener | None

    @property
    def budget(self) -> Budget:
        """The memory budget of its requests and connections."""
        ...

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
