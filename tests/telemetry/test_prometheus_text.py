"""What /metrics shows before anything has happened, and what it makes of sums."""

from __future__ import annotations

from prometheus_client.core import Metric

from app.errors import CODES
from app.telemetry.metric_definitions import CLIENT_GONE, COUNTERS
from app.telemetry.prometheus_text import families
from app.telemetry.shared_counters import GAUGE


def samples(totals: dict[str, float]) -> dict[tuple[str, ...], float]:
    """Values by name and labels."""
    found: list[Metric] = list(families(totals))
    return {(one.name, *one.labels.values()): one.value for family in found for one in family.samples}


def test_a_rise_from_nothing_is_one_from_a_zero() -> None:
    shown = samples({})
    for name, (labels, *_) in COUNTERS.items():
        if not labels:
            assert shown[f"{name}_total",] == 0, name
    assert {labels[1] for labels in shown if labels[0] == "gathernd_errors_total"} == {*CODES, CLIENT_GONE}
    assert not any(value for (name, *_), value in shown.items() if name != "gathernd_build_info")


def test_what_was_counted_is_shown_beside_the_zeros() -> None:
    shown = samples(
        {"gathernd_errors|overloaded": 3.0, "gathernd_sent_bytes": 7.0, "gathernd_requests|GET|/livez|200": 2.0}
    )
    assert shown["gathernd_errors_total", "overloaded"] == 3
    assert shown["gathernd_errors_total", "internal"] == 0
    assert shown["gathernd_sent_bytes_total",] == 7
    assert shown["gathernd_requests_total", "GET", "/livez", "200"] == 2


def test_labels_that_are_many_are_shown_once_they_are_counted() -> None:
    shown = samples({"gathernd_limit_refusals|queue": 0.0, "gathernd_kernel_routes|thread": 0.0})
    assert not [
        labels for labels in shown if labels[0] in ("gathernd_limit_refusals_total", "gathernd_kernel_routes_total")
    ]


def test_buckets_are_added_up() -> None:
    shown = samples({
        "gathernd_request_seconds|/livez|0.0001": 2.0,
        "gathernd_request_seconds|/livez|0.001": 1.0,
        "gathernd_request_seconds|/livez|+Inf": 4.0,
        "gathernd_request_seconds|/livez|sum": 99.0,
    })  # fmt: skip
    buckets = [
        shown["gathernd_request_seconds_bucket", "/livez", bound] for bound in ("0.0001", "0.001", "10.0", "+Inf")
    ]
    assert buckets == [2, 3, 3, 7]
    assert shown["gathernd_request_seconds_count", "/livez"] == 7
    assert shown["gathernd_request_seconds_sum", "/livez"] == 99


def test_a_gauge_that_nobody_reads_is_not_shown_as_nothing() -> None:
    assert ("gathernd_connections",) not in samples({})
    assert samples({f"{GAUGE}gathernd_connections": 0.0})["gathernd_connections",] == 0
