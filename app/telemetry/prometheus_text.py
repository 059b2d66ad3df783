"""What GET /metrics answers: every metric of `metric_definitions` with its help, from the sums of `shared_counters`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from app.telemetry.metric_definitions import BUCKETS, BUILD_INFO, COUNTERS, GAUGES, REQUEST_SECONDS, SHOWN_AT_ZERO
from app.telemetry.shared_counters import GAUGE


def families(totals: Mapping[str, float]) -> Iterator[Metric]:
    """All metrics; `totals` has the sum of each cell by its name: the metric's name and its labels, joined by "|"."""
    cells: dict[str, dict[tuple[str, ...], float]] = {}
    for name, number in sorted(totals.items()):
        metric, *labels_of_cell = name.split("|")
        cells.setdefault(metric, {})[tuple(labels_of_cell)] = number
    yield _build()
    for name, (labels, text) in COUNTERS.items():
        counter = CounterMetricFamily(name, text, labels=labels)
        always = [(label,) for label in SHOWN_AT_ZERO.get(name, ())] if labels else [()]
        numbers = dict.fromkeys(always, 0.0) | cells.get(name, {})
        for values, number in numbers.items():
            if number or values in always:
                counter.add_metric(values, number)
        yield counter
    yield _histogram(cells.get(REQUEST_SECONDS[0], {}))
    for name, text in GAUGES.items():
        gauge = GaugeMetricFamily(name, text)
        for number in cells.get(GAUGE + name, {}).values():
            gauge.add_metric((), number)
        yield gauge


def _build() -> Metric:
    name, labels, text = BUILD_INFO
    build = GaugeMetricFamily(name, text, labels=tuple(labels))
    build.add_metric(tuple(labels.values()), 1)
    return build


def _histogram(cells: Mapping[tuple[str, ...], float]) -> Metric:
    by_path: dict[str, dict[str, float]] = {}
    for (path, bound), number in cells.items():
        by_path.setdefault(path, {})[bound] = number
    name, labels, text = REQUEST_SECONDS
    seconds = HistogramMetricFamily(name, text, labels=labels)
    for path, found in by_path.items():
        total, buckets = 0.0, []
        for bound in (*map(str, BUCKETS), "+Inf"):
            total += found.get(bound, 0.0)
            buckets.append((bound, total))
        seconds.add_metric((path,), buckets, found.get("sum", 0.0))
    return seconds
