"""The segments of a catalogue, each with its table, its version and, if the segment is open, its range record."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from app.cluster.catalogue.records import Catalogue, RangeRecord, Segment, Version
from app.cluster.catalogue.transitions import replicas_of
from app.cluster.shard_map import content_of


@dataclass(frozen=True, slots=True)
class Listed:
    """A segment of the catalogue.

    `replicas` is the desired number of shards. `opened` is the range record, or None if the segment is not open.
    """

    table: str
    version: Version
    segment: Segment
    replicas: int
    opened: RangeRecord | None = None

    @property
    def tensor(self) -> str:
        """The name under which shards hold the segment. No other segment ever has this name."""
        return self.version.tensor(self.segment)


def listed_segments(catalogue: Catalogue, content_id: str = "") -> Iterator[Listed]:
    """Yield every segment of every kept version, or only the segments with one content ID."""
    for name, table in catalogue.tables.items():
        replicas = replicas_of(catalogue, table)
        for version in table.versions:
            for segment in version.segments if content_id in ("", version.content_id) else ():
                opened = catalogue.ranges.get(version.tensor(segment))
                yield Listed(name, version, segment, replicas, opened)


def find_listed(catalogue: Catalogue, tensor: str) -> Listed | None:
    """Return the segment that shards hold under this name, or None if no version lists it."""
    return next((one for one in listed_segments(catalogue, content_of(tensor)) if one.tensor == tensor), None)
