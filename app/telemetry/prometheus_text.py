"""What /metrics shows: every metric with its help, made from the sums of the counters (see `counters`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from app import __version__
from app.errors import CODES
from app.telemetry.shared_counters import GAUGE

BUCKETS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

# Name, labels, help. Everything that is counted under a name of this table is shown.
COUNTERS: Final[Mapping[str, tuple[tuple[str, ...], str]]] = {
    "gathernd_requests": (
        ("method", "path", "status"),
        "Requests answered, by route template and status; status 0: the client went away first.",
    ),
    "gathernd_errors": (("code",), "Errors answered, by code of the catalogue: what was rejected and why."),
    "gathernd_caller_deadlines": (
        ("path",),
        "Of the errors deadline_exceeded, those for which the caller had set the deadline, shorter than the service's.",
    ),
    "gathernd_limit_refusals": (("limit",), "Requests refused for the sake of a limit, by the limit's name."),
    "gathernd_kernel_routes": (
        ("predicted", "taken"),
        "Gathers, by the route predicted to be the fastest and the one taken.",
    ),
    "gathernd_route_predicted_seconds": (
        ("route",),
        "Seconds predicted for the gathers that took the route predicted, added up.",
    ),
    "gathernd_route_measured_seconds": (
        ("route",),
        "Seconds that the same gathers took: over those predicted, 1 where the predictions are right.",
    ),
    "gathernd_stage_seconds": (("path", "stage"), "Seconds that gathers spent in each stage, added up."),
    "gathernd_connections_closed_idle": ((), "Idle connections closed to make room for new ones."),
    "gathernd_connections_refused": ((), "Connections refused because as many were open as may be, none of them idle."),
    "gathernd_received_bytes": ((), "Bytes of request bodies received."),
    "gathernd_sent_bytes": ((), "Bytes of response bodies sent."),
    "gathernd_workers_started": ((), "Worker processes started, the first ones included."),
    "gathernd_workers_died": ((), "Worker processes that ended without being asked to."),
    "gathernd_background_failures": (
        ("task",),
        "Failures of tasks that run beside the requests; each is started again.",
    ),
}
GAUGES: Final[Mapping[str, str]] = {
    "gathernd_requests_in_flight": "Requests being answered.",
    "gathernd_requests_limit": "Requests that may be under way: one more is refused.",
    "gathernd_connections": "Open connections.",
    "gathernd_connections_limit": "Connections that may be open: for one more an idle one is closed, or it is refused.",
    "gathernd_queue_depth": "Calls of the thread pool that run or wait.",
    "gathernd_queue_capacity": "Calls of the thread pool that may run or wait: one more is refused.",
    "gathernd_memory_used_bytes": "Bytes of the memory budget that requests and answers hold.",
    "gathernd_memory_budget_bytes": "Bytes of the memory budget.",
    "gathernd_processes": "Processes that answer requests.",
    "gathernd_processes_expected": "Processes that the settings ask for; there are more while workers are replaced.",
    "gathernd_resident_tensors": "Resident tensors.",
    "gathernd_resident_tensors_damaged": "Resident tensors whose content is known to be damaged.",
    "gathernd_resident_bytes": "Bytes of the resident tensors.",
    "gathernd_resident_tensors_limit": "Most resident tensors that there may be.",
    "gathernd_resident_bytes_free": "Bytes of resident tensors that quota and disk still have room for.",
    "gathernd_gpu_memory_bytes": "Bytes of the GPU's memory that the service may use; 0 without a GPU.",
    "gathernd_gpu_used_bytes": "Bytes of it that copies of tensors and gathers hold.",
    "gathernd_gpu_resident_bytes": "Bytes of it that copies of resident tensors hold.",
}

CLIENT_GONE: Final = "client_gone"
"""Counted beside the codes of the catalogue: nobody was left to answer."""
_SHOWN_AT_ZERO: Final[Mapping[str, tuple[str, ...]]] = {"gathernd_errors": (*CODES, CLIENT_GONE)}
"""The first of a kind is a rise only where there was a zero before: labels that are few and known are always shown."""


def families(totals: Mapping[str, float]) -> Iterator[Metric]:
    """All metrics; `totals` are numbers by the name of their cell."""
    parts: dict[str, dict[tuple[str, ...], float]] = {}
    for name, number in sorted(totals.items()):
        first, *chosen = name.split("|")
        parts.setdefault(first, {})[tuple(chosen)] = number
    yield _build()
    for name, (labels, text) in COUNTERS.items():
        counter = CounterMetricFamily(name, text, labels=labels)
        always = [(label,) for label in _SHOWN_AT_ZERO.get(name, ())] if labels else [()]
        numbers = dict.fromkeys(always, 0.0) | parts.get(name, {})
        for values, number in numbers.items():
            if number or values in always:
                counter.add_metric(values, number)
        yield counter
    yield _histogram(parts.get("gathernd_request_seconds", {}))
    for name, text in GAUGES.items():
        gauge = GaugeMetricFamily(name, text)
        for number in parts.get(GAUGE + name, {}).values():
            gauge.add_metric((), number)
        yield gauge


def _build() -> Metric:
    build = GaugeMetricFamily(
        "gathernd_build_info", "Always 1; the label says which version runs.", labels=("version",)
    )
    build.add_metric((__version__,), 1)
    return build


def _histogram(cells: Mapping[tuple[str, ...], float]) -> Metric:
    by_path: dict[str, dict[str, float]] = {}
    for (path, bound), number in cells.items():
        by_path.setdefault(path, {})[bound] = number
    seconds = HistogramMetricFamily("gathernd_request_seconds", "Seconds from request to answer.", labels=("path",))
    for path, found in by_path.items():
        total, buckets = 0.0, []
        for bound in (*map(str, BUCKETS), "+Inf"):
            total += found.get(bound, 0.0)
            buckets.append((bound, total))
        seconds.add_metric((path,), buckets, found.get("sum", 0.0))
    return seconds
