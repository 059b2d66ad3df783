"""A reconciler's view of its cluster: the catalogue, and the segments of each shard whose list was received."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from app.cluster.catalogue.listed_segments import Listed, listed_segments
from app.cluster.catalogue.records import Catalogue
from app.cluster.catalogue.transitions import free_bytes, zones_of
from app.cluster.shard_map import shard_tensor


@dataclass(frozen=True, slots=True)
class HeldSegment:
    """What a shard reports about a complete segment."""

    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Holding:
    """The complete segments of a shard, by name, from a list that was requested with the fencing token `fence`.

    `revision` is the revision of a catalogue read before the list, so a segment published later may be missing.
    """

    fence: int
    revision: int
    segments: Mapping[str, HeldSegment]


@dataclass(frozen=True)
class ClusterView:
    """The catalogue, and the segments of the shards whose lists were received."""

    catalogue: Catalogue
    holdings: Mapping[str, Holding]

    @cached_property
    def fence(self) -> int:
        """The fencing token of the leading reconciler, or 0 if there is none."""
        return self.catalogue.revisions.get("reconciler", 0)

    @cached_property
    def known(self) -> Mapping[str, Mapping[str, HeldSegment]]:
        """The segments of each running shard. Includes only shards whose list was requested with the current fencing
        token.
        """
        return {
            node: holding.segments
            for node, holding in self.holdings.items()
            if self.is_alive(node) and holding.fence == self.fence
        }

    @cached_property
    def segments(self) -> tuple[Listed, ...]:
        """Every segment of the catalogue."""
        return tuple(listed_segments(self.catalogue))

    @cached_property
    def zones(self) -> Mapping[str, str]:
        """The zone of each shard."""
        return zones_of(self.catalogue)

    @cached_property
    def wanted(self) -> frozenset[tuple[str, str]]:
        """All pairs of shard and segment that tables or uploads list."""
        found = {(node, one.tensor) for one in self.segments for node in one.segment.nodes}
        for content_id, upload in self.catalogue.uploads.items():
            for segment in upload.segments:
                found.update((node, shard_tensor(content_id, segment.start, segment.stop)) for node in segment.nodes)
        return frozenset(found)

    @cached_property
    def used(self) -> Mapping[str, int]:
        """Bytes of rows on each shard, including open ranges that the shard has yet to copy."""
        found = dict.fromkeys(self.catalogue.nodes, 0)
        for one in self.segments:
            for node in self.complete_nodes(one) if one.opened is None else one.segment.nodes:
                found[node] = found.get(node, 0) + one.segment.size
        return found

    def room(self) -> dict[str, int]:
        """Return the free bytes of each shard that is in `known` and not drained."""
        return {node: free for node, free in free_bytes(self.catalogue).items() if node in self.known}

    def has_copy(self, node: str, tensor: str, sha256: str) -> bool:
        """Return whether a known shard has a complete segment with this digest."""
        found = self.known.get(node, {}).get(tensor)
        return found is not None and sha256 in ("", found.sha256)

    def complete_nodes(self, one: Listed) -> tuple[str, ...]:
        """Return the shards that have a complete copy of a segment. For an open range, only in-sync shards count."""
        if one.opened is not None:
            own = (node for node in one.segment.nodes if node in one.opened.in_sync)
            return tuple(node for node in own if self.has_copy(node, one.tensor, ""))
        return tuple(node for node in one.segment.nodes if self.has_copy(node, one.tensor, one.segment.sha256))

    def has_lost(self, node: str, one: Listed) -> bool:
        """Return whether a shard has lost a segment that the catalogue lists for it."""
        listed_at = self.catalogue.revisions.get(f"tables/{one.table}", 0)
        is_listed = node in self.known and self.holdings[node].revision >= listed_at
        return is_listed and not self.has_copy(node, one.tensor, one.segment.sha256)

    def is_alive(self, node: str) -> bool:
        """Return whether a shard is running."""
        return node in self.catalogue.alive and node in self.catalogue.nodes

    def is_leaving(self, node: str) -> bool:
        """Return whether a shard is lost or drained, so that its segments must move to other shards."""
        return not self.is_alive(node) or node in self.catalogue.drained
