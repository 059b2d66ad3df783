"""Counters and gauges of a shard's open ranges. Their names and help texts are in `metric_definitions`."""

from __future__ import annotations

from collections.abc import Iterable
from threading import Lock
from typing import Final, Literal

from app.cluster.catalogue.listed_segments import Listed
from app.cluster.catalogue.ranges import min_in_sync
from app.errors import CODES
from app.telemetry.shared_counters import Counters, unshared_counters

Left = Literal["silent", "behind", "lost"]
"""Why a replica left the in-sync set: it did not respond, did not apply committed records, or lost its rows."""
_SCATTERS: Final = "gathernd_range_scatters"
_LEFT: Final = "gathernd_range_replicas_left"
_JOINED: Final = "gathernd_range_replicas_joined"
_COPIES: Final = "gathernd_range_copies"
_TAKEOVERS: Final = "gathernd_range_takeovers"


class RangeCounts:
    """Count this process's work for its shard's ranges. Thread-safe."""

    def __init__(self, counters: Counters | None = None) -> None:
        """Create all counter cells. Call this on the event loop only."""
        counters = unshared_counters() if counters is None else counters
        labels = {
            _SCATTERS: ("ok", "repeated", "changed", *CODES),
            _LEFT: ("silent", "behind", "lost"),
            _COPIES: ("done", "failed"),
        }
        names = [f"{name}|{label}" for name, values in labels.items() for label in values] + [_JOINED, _TAKEOVERS]
        self._values = counters.values
        self._cells = {name: counters.cell(name) for name in names}
        self._lock = Lock()

    def count_scatter(self, outcome: str) -> None:
        """Count a scatter to a range: ok, repeated, changed (the sequence differs), or the code of its error."""
        self._add(f"{_SCATTERS}|{outcome}")

    def count_leave(self, why: Left) -> None:
        """Count a replica that has left the in-sync set of a range whose primary is this shard."""
        self._add(f"{_LEFT}|{why}")

    def count_join(self) -> None:
        """Count a replica that has joined a range whose primary is this shard."""
        self._add(_JOINED)

    def count_copy(self, outcome: Literal["done", "failed"]) -> None:
        """Count a copy of a range that was made on this shard."""
        self._add(f"{_COPIES}|{outcome}")

    def count_takeover(self) -> None:
        """Count a range of which this shard has become the primary."""
        self._add(_TAKEOVERS)

    def _add(self, name: str) -> None:
        with self._lock:
            self._values[self._cells[name]] += 1


def range_gauges(node: str, ranges: Iterable[Listed]) -> dict[str, float]:
    """Return the gauges of the shard `node` over all open ranges in the newest catalogue known to it."""
    found = dict.fromkeys(("primary", "in_sync", "out_of_sync", "refusing_scatters"), 0.0)
    for one in ranges:
        record = one.opened
        if record is None:
            continue
        is_in_sync, is_primary = node in record.in_sync, node == record.primary
        found["primary"] += is_primary
        found["in_sync"] += is_in_sync
        found["out_of_sync"] += node in one.segment.nodes and not is_in_sync
        found["refusing_scatters"] += is_primary and len(record.in_sync) < min_in_sync(one.replicas)
    return {f"gathernd_ranges_{name}": number for name, number in found.items()}
