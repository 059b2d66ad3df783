"""The response to GET /metrics: every metric in `metric_definitions` with its help text.

The service's counters and gauges are summed over its processes (see `shared_counters`). The operating system's figures
for a process (CPU, memory, files, start time) are not summed, because shared memory would be counted several times and
CPU time would fall whenever a worker is replaced. They are exposed per process, with the `process` label, and any
process can read the figures of all processes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector

from app.telemetry.metric_definitions import (
    BUCKETS,
    BUILD_INFO,
    COUNTERS,
    GAUGES,
    PROCESS_COUNTERS,
    PROCESS_GAUGES,
    REQUEST_SECONDS,
)
from app.telemetry.shared_counters import GAUGE

Measured = Mapping[int, Mapping[str, float]]
"""The values of each process: by slot, then by metric name."""


def families(totals: Mapping[str, float]) -> Iterator[Metric]:
    """Yield all metrics.

    `totals` holds the sum of each cell by name; a name consists of metric and labels, joined by "|".
    """
    cells: dict[str, dict[tuple[str, ...], float]] = {}
    for name, number in sorted(totals.items()):
        metric, *labels_of_cell = name.split("|")
        cells.setdefault(metric, {})[tuple(labels_of_cell)] = number
    yield _build()
    for name, (labels, text, from_start) in COUNTERS.items():
        counter = CounterMetricFamily(name, text, labels=labels)
        always = [(label,) for label in from_start] if labels else [()]
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


def measure_processes(processes: Mapping[int, int]) -> Measured:
    """Measure the processes in `processes`, which maps slots to process ids.

    There are no values for a process that has just ended. Reads /proc and may block.
    """
    return {
        slot: {
            family.name: family.samples[0].value
            for family in ProcessCollector(pid=partial(str, pid), registry=None).collect()
        }
        for slot, pid in processes.items()
    }


def process_families(measured: Measured) -> Iterator[Metric]:
    """Yield the metrics for the measured values."""
    for kind, texts in ((CounterMetricFamily, PROCESS_COUNTERS), (GaugeMetricFamily, PROCESS_GAUGES)):
        for name, text in texts.items():
            family = kind(name, text, labels=("process",))
            for slot, values in measured.items():
                if name in values:
                    family.add_metric((str(slot),), values[name])
            yield family
