"""Plan the moves of open ranges. Digests of uploads say nothing about current rows, so the in-sync sets decide.

To move a replica, a new shard is first added to the segment's list; it then copies the rows on its own and joins. Once
enough other shards are in sync, the old shard is removed from the list and from the in-sync set. So a move takes two
steps, an addition and a removal. Each round chooses these steps anew, from the catalogue alone. Open ranges are never
split.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from app.cluster.catalogue.listed_segments import Listed
from app.cluster.catalogue.node_choice import choose_nodes, choose_spread, count_zone_mates
from app.cluster.catalogue.records import RangeRecord
from app.cluster.reconciler.cluster_view import ClusterView
from app.cluster.reconciler.moves import Move, add_replica, remove_replica

JOIN_S: Final = 120.0
SLOWEST: Final = 5 << 20
"""Lowest rate of a join, in bytes per second. A shard may take JOIN_S seconds, plus the time to copy the range at this
rate.
"""


class Joining:
    """For how long running shards have been listed but out of sync, with a primary to copy from."""

    def __init__(self) -> None:
        self._since: dict[tuple[str, str], float] = {}

    def update(self, view: ClusterView, now: float) -> None:
        """Update the times from the current catalogue."""
        waiting = {
            (node, one.tensor)
            for one in view.segments
            if one.opened is not None and view.is_alive(one.opened.primary)
            for node in one.segment.nodes
            if node not in one.opened.in_sync and view.is_alive(node)
        }
        self._since = {each: self._since.get(each, now) for each in waiting}

    def late_nodes(self, one: Listed, now: float) -> set[str]:
        """Return the shards of a segment that have not joined in time."""
        patience = JOIN_S + one.segment.size / SLOWEST
        nodes = one.segment.nodes
        return {node for node in nodes if now - self._since.get((node, one.tensor), now) > patience}


def needed_move(
    one: Listed, record: RangeRecord, late: Collection[str], able: Mapping[str, int], view: ClusterView
) -> Move | None:
    """Return the most urgent move of an open range, or None if it needs none or has to wait.

    `able` holds the free bytes of the shards that may receive the range. Shards in `late` count as lost until they are
    in sync.
    """
    nodes, replicas = one.segment.nodes, one.replicas
    staying = [node for node in nodes if not view.is_leaving(node) and node not in late]
    synced = {node for node in view.complete_nodes(one) if node in staying}
    if len(staying) < replicas and len(nodes) <= 2 * replicas:
        others = {node: room for node, room in able.items() if node not in nodes}
        for new in choose_nodes(others, one.segment.size, 1, view.zones, staying):
            return add_replica(one, new)
    if len(synced) < replicas:
        return None
    if leaving := [node for node in nodes if node not in staying]:
        return remove_replica(one, min(leaving, key=view.is_alive))
    if len(staying) > replicas:
        worst = max(staying, key=lambda node: (count_zone_mates(node, nodes, view.zones), view.used.get(node, 0), node))
        return remove_replica(one, worst) if len(synced - {worst}) >= replicas else None
    spread = choose_spread(nodes, able, one.segment.size, view.zones)
    return None if spread is None else add_replica(one, spread[1], "spread")


def is_settled(one: Listed, view: ClusterView) -> bool:
    """Return whether an open range has exactly the required number of replicas, all of them in sync."""
    return len(one.segment.nodes) == one.replicas and set(view.complete_nodes(one)) == set(one.segment.nodes)


def copies_under_way(view: ClusterView, joining: Joining, now: float) -> int:
    """Return the number of copies of open ranges that running shards are making.

    A late shard does not count, because it may be full.
    """
    return sum(
        node in view.known and one.tensor not in view.known[node]
        for one in view.segments
        if one.opened is not None
        for node in set(one.segment.nodes).difference(one.opened.in_sync, joining.late_nodes(one, now))
    )


def lost_rows(view: ClusterView) -> dict[str, str]:
    """Return, for each open range, a shard that is listed as in sync but has lost its rows.

    A loss counts only if the shard's list of segments is newer than the range's record.
    """
    return {
        one.tensor: node
        for one in view.segments
        if one.opened is not None
        for node in one.opened.in_sync
        if node in view.known
        and one.tensor not in view.known[node]
        and view.holdings[node].revision >= view.catalogue.revisions.get(f"ranges/{one.tensor}", 0)
    }
