"""The routes of liveness, readiness and metrics, and other constant answers."""

from __future__ import annotations

from typing import Any, Final

import orjson

from app.api.asgi_request import Handler, RequestContext
from app.api.error_responses import JSON
from app.server.readiness import Readiness
from app.telemetry.request_metrics import Metrics

_PROMETHEUS: Final = b"text/plain; version=0.0.4; charset=utf-8"


def answer_with(body: dict[str, Any], readiness: Readiness | None = None) -> Handler:
    """Return a handler that always answers `body`; with `readiness`, it raises not_ready until the service is ready."""
    text = orjson.dumps(body)

    async def answer(context: RequestContext) -> None:
        if readiness is not None:
            readiness.check()
        await context.send(200, JSON, text)

    return answer


def write_metrics(metrics: Metrics) -> Handler:
    """`GET /metrics`."""

    async def answer(context: RequestContext) -> None:
        await context.send(200, _PROMETHEUS, await metrics.text())

    return answer
