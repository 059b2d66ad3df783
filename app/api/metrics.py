"""What this process counted, kept as plain numbers on the hot path and put into Prometheus' form when asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from time import perf_counter
from typing import Final

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from app.api.exchange import Exchange

BUCKETS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_KNOWN: Final = frozenset({"/gathernd", "/gather", "/livez", "/readyz", "/metrics", "/openapi.json", "/docs", "/"})


class Metrics(Collector):
    """Counters of requests, errors and routes, and a histogram of durations."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()
        self.errors: Counter[str] = Counter()
        self.routes: Counter[str] = Counter()
        self.buckets = [0] * (len(BUCKETS) + 1)
        self.seconds = 0.0
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def count(self, exchange: Exchange, code: str | None) -> None:
        """Count one finished exchange; `code` is its error's, if it had one."""
        path = exchange.path
        if path not in _KNOWN:
            path = "/errors/{code}" if path.startswith("/errors/") else "other"
        self.requests[path, exchange.status] += 1
        if code is not None:
            self.errors[code] += 1
        stages = exchange.stages
        if stages.route is not None:
            self.routes[stages.route] += 1
        seconds = perf_counter() - stages.start
        self.seconds += seconds
        bucket = 0
        for bound in BUCKETS:
            if seconds <= bound:
                break
            bucket += 1
        self.buckets[bucket] += 1

    def collect(self) -> Iterator[Metric]:
        """Prometheus' view of the numbers."""
        requests = CounterMetricFamily("gathernd_requests", "Requests answered.", labels=("path", "status"))
        for (path, status), number in self.requests.items():
            requests.add_metric((path, str(status)), number)
        yield requests
        errors = CounterMetricFamily("gathernd_errors", "Errors answered, by code of the catalogue.", labels=("code",))
        for code, number in self.errors.items():
            errors.add_metric((code,), number)
        yield errors
        routes = CounterMetricFamily("gathernd_kernel_routes", "Gathers, by the route they took.", labels=("route",))
        for route, number in self.routes.items():
            routes.add_metric((route,), number)
        yield routes
        seconds = HistogramMetricFamily("gathernd_request_seconds", "Time from request to answer.")
        total, buckets = 0, []
        for bound, number in zip((*map(str, BUCKETS), "+Inf"), self.buckets, strict=True):
            total += number
            buckets.append((bound, float(total)))
        seconds.add_metric((), buckets, self.seconds)
        yield seconds

    def text(self) -> bytes:
        """The exposition text of GET /metrics."""
        return generate_latest(self._registry)
