"""What a shard says in /metrics of its ranges that take scatters."""

from __future__ import annotations

from prometheus_client.exposition import generate_latest
from prometheus_client.registry import CollectorRegistry

from app.cluster.catalogue.listed_segments import Listed
from app.cluster.catalogue.records import RangeRecord, Segment, Version
from app.cluster.shard.range_metrics import RangeCounts, range_gauges
from app.telemetry.metric_definitions import GAUGES
from app.telemetry.prometheus_text import families
from app.telemetry.shared_counters import unshared_counters
from app.tensors.dtypes import DTYPES


def listed(nodes: str, record: RangeRecord | None, replicas: int = 3) -> Listed:
    segment = Segment(0, 4, 16, tuple(nodes))
    version = Version(1, "content", DTYPES["float32"], (4,), (segment,), 0, "", 16)
    return Listed("items", version, segment, replicas, record)


def test_gauges_say_how_the_ranges_of_a_shard_stand() -> None:
    ranges = [
        listed("abc", RangeRecord(1, "a", ("a", "b", "c"))),
        listed("abc", RangeRecord(2, "b", ("b", "c"))),
        listed("abc", RangeRecord(3, "a", ("a",))),
        listed("ab", RangeRecord(3, "a", ("a",)), replicas=2),
        listed("bc", RangeRecord(1, "b", ("b", "c"))),
        listed("abc", None),
    ]
    found = range_gauges("a", ranges)
    assert found == {
        "gathernd_ranges_primary": 3,
        "gathernd_ranges_in_sync": 3,
        "gathernd_ranges_out_of_sync": 1,
        "gathernd_ranges_refusing_scatters": 1,
    }
    assert set(found) <= set(GAUGES)


def test_all_that_is_counted_is_shown() -> None:
    counters = unshared_counters()
    counts = RangeCounts(counters)
    for outcome in ("ok", "repeated", "changed", "shard_unavailable"):
        counts.count_scatter(outcome)
    for why in ("silent", "behind", "lost"):
        counts.count_leave(why)
    counts.count_join()
    counts.count_copy("done")
    counts.count_copy("failed")
    counts.count_takeover()

    class Collected(CollectorRegistry):
        def collect(self):  # type: ignore[no-untyped-def]
            return families(counters.totals())

    shown = [line for line in generate_latest(Collected()).decode().splitlines() if line.startswith("gathernd_range_")]
    assert all(line.endswith(" 1.0") for line in shown), shown
    assert len(shown) == 4 + 3 + 1 + 2 + 1
