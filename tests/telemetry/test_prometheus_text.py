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
