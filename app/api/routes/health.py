"""Liveness, readiness and what the service waits for, and the metrics."""

from __future__ import annotations

from fastapi import FastAPI, Response
from fastapi.responses import PlainTextResponse

from app.api.openapi_document import operation, problem_responses
from app.api.schemas.gather_request import Live, Ready
from app.errors import GatherError
from app.telemetry.request_metrics import Metrics


class Readiness:
    """`waiting_for` names what must still happen before the first gather; `draining` is set once a stop has begun.

    A draining service is not ready and still answers, so that load balancers can turn away from it first.
    """

    def __init__(self, *waiting_for: str) -> None:
        self.waiting_for: list[str] = list(waiting_for)
        self.failed: str | None = None
        self.draining = False

    @property
    def ready(self) -> bool:
        """Whether new requests should be sent here."""
        return not self.waiting_for and not self.draining

    def check(self) -> None:
        """Raises not_ready."""
        if not self.ready:
            raise self.error()

    def done(self, name: str) -> None:
        """`name` has happened."""
        self.waiting_for.remove(name)

    def error(self) -> GatherError:
        """The refusal of a service that is not ready."""
        if self.draining:
            detail = "the service is stopping"
        elif self.failed:
            detail = f"the service could not start: {self.failed}"
        else:
            detail = f"the service is starting and waits for: {', '.join(self.waiting_for)}"
        return GatherError("not_ready", detail, retry_after=1)


def add_health_routes(app: FastAPI, readiness: Readiness, metrics: Metrics) -> None:
    """Add the routes of health and metrics."""

    @operation(app, "livez", tags=["health"], summary="Whether the process is alive")
    async def livez() -> Live:
        return Live(status="live")

    @operation(
        app,
        "readyz",
        tags=["health"],
        summary="Whether requests should be sent here",
        responses=problem_responses(("not_ready",)),
    )
    async def readyz() -> Ready:
        readiness.check()
        return Ready(status="ready")

    @operation(
        app,
        "metrics",
        tags=["health"],
        summary="Metrics in Prometheus' text form",
        response_class=PlainTextResponse,
        responses=problem_responses(("unauthorized",)),
    )
    async def metrics_text() -> Response:
        return Response(await metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")
