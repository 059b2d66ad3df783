"""Moves. A move consists of a segment in the catalogue, the parts that will replace it, and the copies to make first.

A move transfers a replica to another shard, adds or removes a replica, or splits a segment in two. A move of an open
range has no copies: the catalogue lists a shard before that shard has the rows, and the shard does not count as a
replica until it is in sync.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from app.cluster.catalogue.listed_segments import Listed
from app.cluster.catalogue.ranges import without_replica
from app.cluster.catalogue.records import Catalogue, Change, Record, Segment, Table

AT_ONCE: Final = 50
"""Maximum number of moves per transaction.

Each move compares a table and a range, and etcd's default limit is 128 operations.
"""
Reason: TypeAlias = Literal["restore", "replace", "add", "remove", "spread", "split", "even out"]
"""Why a segment moves, in the order of the values: its shard has lost it; its shard is lost or drained; there are too
few replicas; there are too many replicas; two replicas are in one zone; it is too large; other shards hold less.
"""


@dataclass(frozen=True, slots=True)
class Copy:
    """A part that must be complete on `node` before the catalogue lists it there."""

    node: str
    part: Segment


@dataclass(frozen=True, slots=True)
class Move:
    """The replacement of a segment with `parts` once all `copies` are complete.

    `leaving` is the shard that gives the segment up, or "" if none does.
    """

    of: Listed
    reason: Reason
    parts: tuple[Segment, ...]
    copies: tuple[Copy, ...] = ()
    leaving: str = ""

    @property
    def changes_catalogue(self) -> bool:
        """Whether the move changes the catalogue. It does not if a shard only restores what it has lost."""
        return self.parts != (self.of.segment,)


def move_replica(one: Listed, old: str, new: str, reason: Reason) -> Move:
    """Return a move of a replica from shard `old` to shard `new`."""
    nodes = tuple(new if node == old else node for node in one.segment.nodes)
    part = replace(one.segment, nodes=nodes)
    return Move(one, reason, (part,), (Copy(new, part),), old)


def add_replica(one: Listed, new: str, reason: Reason = "add") -> Move:
    """Return a move that adds a replica."""
    part = replace(one.segment, nodes=(*one.segment.nodes, new))
    return Move(one, reason, (part,), (Copy(new, part),) if one.opened is None else ())


def remove_replica(one: Listed, old: str) -> Move:
    """Return a move that removes a replica."""
    part = replace(one.segment, nodes=tuple(node for node in one.segment.nodes if node != old))
    return Move(one, "remove", (part,), leaving=old)


def restore_replica(one: Listed, node: str) -> Move:
    """Return a move that restores a segment on a shard for which the catalogue lists it."""
    return Move(one, "restore", (one.segment,), (Copy(node, one.segment),))


def apply_moves(catalogue: Catalogue, moves: Sequence[Move]) -> Change | None:
    """Replace each segment with the parts of its move if the catalogue still contains exactly that segment.

    A shard that leaves an open range is removed from its in-sync set. A move planned for a closed range is skipped once
    the range is open. Returns None if nothing changes.
    """
    tables: dict[str, Table] = {}
    ranges: dict[str, Record] = {}
    for move in moves:
        name, opened = move.of.table, move.of.opened
        table = tables.get(name) or catalogue.tables.get(name)
        changed = None if table is None else _with_parts(table, move)
        if changed is None or catalogue.ranges.get(move.of.tensor) != opened:
            continue
        tables[name] = changed
        if opened is not None and move.leaving in opened.in_sync:
            ranges[f"ranges/{move.of.tensor}"] = without_replica(catalogue, opened, move.leaving)
    if not tables:
        return None
    judged_by = frozenset(f"ranges/{move.of.tensor}" for move in moves)
    puts = {f"tables/{name}": table for name, table in tables.items()}
    return Change({**puts, **ranges}, unchanged=frozenset({"reconciler"}) | judged_by)


def _with_parts(table: Table, move: Move) -> Table | None:
    old = move.of.segment
    _check_same_rows(old, move.parts)
    for place, version in enumerate(table.versions):
        if version.content_id == move.of.version.content_id and old in version.segments:
            at = version.segments.index(old)
            segments = (*version.segments[:at], *move.parts, *version.segments[at + 1 :])
            changed = replace(version, segments=segments)
            return replace(table, versions=(*table.versions[:place], changed, *table.versions[place + 1 :]))
    return None


def _check_same_rows(old: Segment, parts: tuple[Segment, ...]) -> None:
    bounds = [old.start, *(part.stop for part in parts)]
    if [part.start for part in parts] != bounds[:-1] or bounds[-1] != old.stop or not all(one.nodes for one in parts):
        raise ValueError(f"{parts} do not have the rows of {old}, each on a shard")
