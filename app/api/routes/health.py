"""The routes of liveness, readiness and metrics."""

from __future__ import annotations

from typing import Final

from app.api.asgi_request import RequestContext
from app.api.error_responses import JSON
from app.server.readiness import Readiness
from app.telemetry.request_metrics import Metrics

_PROMETHEUS: Final = b"text/plain; version=0.0.4; charset=utf-8"


class HealthRoutes:
    """`/livez`, `/readyz` and `/metrics`."""

    def __init__(self, readiness: Readiness, metrics: Metrics) -> None:
        self.readiness = readiness
        self.metrics = metrics

    async def live(self, context: RequestContext) -> None:
        """`GET /livez`."""
        await context.send(200, JSON, b'{"status":"live"}')

    async def ready(self, context: RequestContext) -> None:
        """`GET /readyz`."""
        self.readiness.check()
        await context.send(200, JSON, b'{"status":"ready"}')

    async def write_metrics(self, context: RequestContext) -> None:
        """`GET /metrics`."""
        await context.send(200, _PROMETHEUS, await self.metrics.text())
