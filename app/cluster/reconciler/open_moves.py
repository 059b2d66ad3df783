"""The moves of ranges that take scatters: what is uploaded tells nothing of their rows, so they go by who is in sync.

A shard is added to the list of a segment first; it then copies the rows by itself and joins. A shard is taken off the
list, and out of the replicas in sync, once enough others are in sync. So a move is two: an addition, and a removal.
Each is chosen anew in each round from the catalogue alone. Ranges that take scatters are not cut in two.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from app.cluster.catalogue.listed_segments import Listed
from app.cluster.catalogue.node_choice import choose_nodes, crowding
from app.cluster.catalogue.records import RangeRecord
from app.cluster.reconciler.cluster_view import ClusterView
from app.cluster.reconciler.moves import Move, added, removed

JOIN_S: Final = 120.0
SLOWEST: Final = 5 << 20
"""Bytes a second: a shard may take JOIN_S seconds to join, and the time for the size at this rate."""


class Joining:
    """Since when shards that run have been listed without being in sync, while there was a primary to copy from."""

    def __init__(self) -> None:
        self._since: dict[tuple[str, str], float] = {}

    def note(self, view: ClusterView, now: float) -> None:
        """Take in what the catalogue says now."""
        waiting = {
            (node, one.tensor)
            for one in view.segments
            if one.opened is not None and view.is_alive(one.opened.primary)
            for node in one.segment.nodes
            if node not in one.opened.in_sync and view.is_alive(node)
        }
        self._since = {each: self._since.get(each, now) for each in waiting}

    def late(self, one: Listed, now: float) -> set[str]:
        """The shards of a segment that have not joined in time."""
        patience = JOIN_S + one.segment.size / SLOWEST
        nodes = one.segment.nodes
        return {node for node in nodes if now - self._since.get((node, one.tensor), now) > patience}


def needed_move(
    one: Listed, record: RangeRecord, late: Collection[str], able: Mapping[str, int], view: ClusterView
) -> Move | None:
    """The move that an open range needs first, None if it is well or has to wait.

    `able` has the room of the shards that may get it. Shards in `late` count as lost until they are in sync.
    """
    nodes, replicas = one.segment.nodes, one.replicas
    staying = [node for node in nodes if not view.is_leaving(node) and node not in late]
    synced = {node for node in view.whole(one) if node in staying}
    others = {node: room for node, room in able.items() if node not in nodes}
    if len(staying) < replicas and len(nodes) <= 2 * replicas:
        for new in choose_nodes(others, one.segment.size, 1, view.zones, staying):
            return added(one, new)
    if len(synced) < replicas:
        return None
    if leaving := [node for node in nodes if node not in staying]:
        return removed(one, min(leaving, key=view.is_alive))
    if len(staying) > replicas:
        worst = max(staying, key=lambda node: (_crowds(node, nodes, view), view.used.get(node, 0), node))
        return removed(one, worst) if len(synced - {worst}) >= replicas else None
    crowded = crowding(nodes, view.zones)
    for node in reversed(nodes) if crowded else ():
        left = [other for other in nodes if other != node]
        for new in choose_nodes(others, one.segment.size, 1, view.zones, nodes):
            if crowding((*left, new), view.zones) < crowded:
                return added(one, new, "spread")
    return None


def is_settled(one: Listed, view: ClusterView) -> bool:
    """Whether an open range has just the replicas that it is to have, all of them in sync."""
    return len(one.segment.nodes) == one.replicas and set(view.whole(one)) == set(one.segment.nodes)


def copies_under_way(view: ClusterView, joining: Joining, now: float) -> int:
    """How many shards that run copy the rows of an open range. One that is late copies nothing: it may be full."""
    return sum(
        node in view.known and one.tensor not in view.known[node]
        for one in view.segments
        if one.opened is not None
        for node in set(one.segment.nodes).difference(one.opened.in_sync, joining.late(one, now))
    )


def lost_rows(view: ClusterView) -> dict[str, str]:
    """By open range a shard that is in sync by the catalogue, though a later list shows that it has lost its rows."""
    return {
        one.tensor: node
        for one in view.segments
        if one.opened is not None
        for node in one.opened.in_sync
        if node in view.known
        and one.tensor not in view.known[node]
        and view.holdings[node].revision >= view.catalogue.revisions.get(f"ranges/{one.tensor}", 0)
    }


def _crowds(node: str, nodes: Collection[str], view: ClusterView) -> int:
    """How many replicas share a zone because of the one on `node`."""
    return crowding(nodes, view.zones) - crowding([other for other in nodes if other != node], view.zones)
