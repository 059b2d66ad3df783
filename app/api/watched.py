"""Metrics for a service that also traces its requests or writes a line about each of them.

What most services do without costs them nothing: which of the two classes counts is decided at start-up.
"""

from __future__ import annotations

from app.api.counters import Counters
from app.api.exchange import Exchange
from app.api.logs import RequestLog, trace_id_of
from app.api.metrics import METHODS, Metrics, outcome
from app.api.traces import Tracing


class WatchedMetrics(Metrics):
    """Also has a span made of each request, if there is `tracing`, and a line written, if `log` wants them all."""

    def __init__(self, counters: Counters | None, log: RequestLog, tracing: Tracing | None) -> None:
        super().__init__(counters, log)
        self._tracing = tracing

    def count(self, exchange: Exchange, code: str | None) -> None:
        """Count a request, trace it and tell of it."""
        super().count(exchange, code)
        end = exchange.stages.over
        status, code = outcome(exchange, code)
        trace_id = trace_id_of(exchange.headers)
        if self._tracing is not None:
            method = exchange.method if exchange.method in METHODS else "_OTHER"
            trace_id = self._tracing.record(exchange, method, self.template(exchange.path), status, code, end)
        if code is not None or self.log.access:
            self.log.tell(self.seen(exchange, status, code, end - exchange.stages.start, trace_id))

    def failed(self, exchange: Exchange, status: int, code: str, seconds: float) -> None:
        """Left to `count`, which knows the trace."""
