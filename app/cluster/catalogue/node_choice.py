"""Choose the shards of a segment.

Shards with the most free space are preferred. No shard gets two replicas, and no zone does if that can be avoided. A
zone is a failure domain; a shard whose zone is "" counts as its own zone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

NO_ZONES: Mapping[str, str] = {}


def choose_nodes(
    free: Mapping[str, int], size: int, count: int, zones: Mapping[str, str] = NO_ZONES, beside: Collection[str] = ()
) -> list[str]:
    """Choose up to `count` shards with room for `size` bytes.

    The shards in `beside` already have the segment and are not chosen again.

    `free` holds the free bytes of each shard, and `zones` holds each shard's zone. Zones with the fewest replicas are
    preferred, then shards with the most room.
    """
    fitting = [node for node, room in free.items() if room >= size and node not in beside]
    chosen: list[str] = []
    while fitting and len(chosen) < count:
        taken = [*beside, *chosen]
        best = min(fitting, key=lambda node: (_count_in_zone(node, taken, zones), -free[node], node))
        fitting.remove(best)
        chosen.append(best)
    return chosen


def place_ranges(
    free: Mapping[str, int], sizes: Sequence[int], replicas: int, zones: Mapping[str, str] = NO_ZONES
) -> list[list[str]] | None:
    """Choose `replicas` shards for each range of `sizes` bytes. Returns None if they do not all fit."""
    left = dict(free)
    chosen = []
    for size in sizes:
        nodes = choose_nodes(left, size, replicas, zones)
        if len(nodes) < replicas:
            return None
        for node in nodes:
            left[node] -= size
        chosen.append(nodes)
    return chosen


def choose_move(
    used: Mapping[str, int],
    free: Mapping[str, int],
    on_node: Mapping[str, Sequence[tuple[int, Collection[str]]]],
    zones: Mapping[str, str] = NO_ZONES,
) -> tuple[str, int, str] | None:
    """Choose a move that balances the shards: (from shard, index of its segment, to shard), or None.

    `used` holds the bytes on each shard that may give and receive segments. `on_node` lists the segments of each shard;
    each segment is given as its size and its shards. A segment moves only if its old shard still holds at least as much
    as its new shard afterwards, so that the segment never moves back. A segment also never moves if more of its
    replicas would then share a zone.
    """
    for source in sorted(used, key=lambda node: (-used[node], node)):
        for target in sorted(used, key=lambda node: (used[node], node)):
            fitting = [
                (size, number)
                for number, (size, nodes) in enumerate(on_node.get(source, ()))
                if 0 < size <= free[target] and target not in nodes and used[source] - size >= used[target] + size
                if count_zone_overlaps((*nodes_except(nodes, source), target), zones)
                <= count_zone_overlaps(nodes, zones)
            ]
            if fitting:
                return source, max(fitting, key=lambda one: (one[0], -one[1]))[1], target
    return None


def choose_spread(
    nodes: Sequence[str], free: Mapping[str, int], size: int, zones: Mapping[str, str]
) -> tuple[str, str] | None:
    """Choose a move from a shared zone to a zone without a replica: (from shard, to shard), or None."""
    crowded = count_zone_overlaps(nodes, zones)
    for node in reversed(nodes) if crowded else ():
        for new in choose_nodes(free, size, 1, zones, nodes):
            if count_zone_overlaps((*nodes_except(nodes, node), new), zones) < crowded:
                return node, new
    return None


def count_zone_mates(node: str, nodes: Collection[str], zones: Mapping[str, str]) -> int:
    """Return the number of replicas that share a zone with the one on `node`."""
    return count_zone_overlaps(nodes, zones) - count_zone_overlaps(nodes_except(nodes, node), zones)


def count_zone_overlaps(nodes: Iterable[str], zones: Mapping[str, str]) -> int:
    """Return the number of replicas that share a zone with an earlier one; 0 if each has its own zone."""
    seen: list[str] = []
    found = 0
    for node in nodes:
        found += _count_in_zone(node, seen, zones) > 0
        seen.append(node)
    return found


def nodes_except(nodes: Iterable[str], node: str) -> list[str]:
    """Return all shards except `node`."""
    return [other for other in nodes if other != node]


def _count_in_zone(node: str, beside: Iterable[str], zones: Mapping[str, str]) -> int:
    zone = zones.get(node, "")
    return sum(zones.get(other, "") == zone for other in beside) if zone else 0
