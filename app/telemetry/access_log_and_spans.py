"""Metrics of a service that also writes an access log line, or exports a trace span, for each request.

`app.main` picks this class or plain `Metrics` at start-up, so that a service without either does no work for them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from app.errors import Code
from app.telemetry.logs import RequestLog, trace_id_of
from app.telemetry.metric_definitions import METHODS
from app.telemetry.observed_request import ObservedRequest
from app.telemetry.request_metrics import Metrics
from app.telemetry.shared_counters import Counters
from app.telemetry.tracing import Tracing


class RecordingMetrics(Metrics):
    """Counts each request; with `tracing` it also exports a span, and with `log.access` it writes a log line."""

    def __init__(
        self,
        counters: Counters | None,
        log: RequestLog,
        statuses: Mapping[Code, int],
        template: Callable[[str], str],
        tracing: Tracing | None,
    ) -> None:
        super().__init__(counters, log, statuses, template)
        self._tracing = tracing

    def count(self, context: ObservedRequest, code: str | None) -> None:
        """Count a request, trace it and log it."""
        super().count(context, code)
        end = context.timings.finished
        status, code = self.outcome(context, code)
        trace_id = trace_id_of(context.headers)
        if self._tracing is not None:
            method = context.method if context.method in METHODS else "_OTHER"
            trace_id = self._tracing.record(context, method, self.template(context.path), status, code, end)
        if code is not None or self.log.access:
            self.log.write(self.record(context, status, code, end - context.timings.start, trace_id))

    def failed(self, context: ObservedRequest, status: int, code: str, seconds: float) -> None:
        """Do nothing: `count` writes the line, with the id of the trace."""
