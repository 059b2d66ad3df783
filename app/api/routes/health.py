"""The routes of liveness, readiness and metrics."""

from __future__ import annotations

from fastapi import FastAPI, Response
from fastapi.responses import PlainTextResponse

from app.api.openapi_document import operation, problem_responses
from app.api.readiness import Readiness
from app.api.schemas.gather_answer import Live, Ready
from app.telemetry.request_metrics import Metrics


def add_health_routes(app: FastAPI, readiness: Readiness, metrics: Metrics) -> None:
    """Add the routes of health and metrics."""

    @operation(app, "livez", tags=["health"], summary="Whether the process is alive")
    async def livez() -> Live:
        return Live(status="live")

    @operation(app, "readyz", tags=["health"], summary="Whether requests should be sent here")
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
