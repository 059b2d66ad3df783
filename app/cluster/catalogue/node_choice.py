"""Choose the shards of a segment: most room first, never two replicas on one shard, nor in one zone if avoidable.

A zone is a failure domain. A shard whose zone is "" has a zone of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

NO_ZONES: Mapping[str, str] = {}


def choose_nodes(
    free: Mapping[str, int], size: int, count: int, zones: Mapping[str, str] = NO_ZONES, beside: Collection[str] = ()
) -> list[str]:
    """Choose up to `count` shards with room for `size` bytes, for a segment that the shards in `beside` already have.

    `free` has the bytes that each shard may still hold, `zones` the zone of each shard. Zones with the fewest replicas
    come first, then shards with the most room.
    """
    fitting = [node for node, room in free.items() if room >= size and node not in beside]
    chosen: list[str] = []
    while fitting and len(chosen) < count:
        taken = [*beside, *chosen]
        best = min(fitting, key=lambda node: (_in_zone(node, taken, zones), -free[node], node))
        fitting.remove(best)
        chosen.append(best)
    return chosen


def place_ranges(
    free: Mapping[str, int], sizes: Sequence[int], replicas: int, zones: Mapping[str, str] = NO_ZONES
) -> list[list[str]] | None:
    """Choose `replicas` shards for each range of `sizes` bytes. Returns None if there is no room for all of them."""
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
    """Choose a move that balances shards: (from shard, number of its segment, to shard).

    `used` are bytes by shard, of those that may get and give segments; `on_node` has the segments of each shard as
    their size and their shards. A segment moves only if its old shard still holds at least as much as the new one
    afterwards, so that it never moves back, and never into a zone that has another replica of it.
    """
    for source in sorted(used, key=lambda node: (-used[node], node)):
        for target in sorted(used, key=lambda node: (used[node], node)):
            fitting = [
                (size, number)
                for number, (size, nodes) in enumerate(on_node.get(source, ()))
                if 0 < size <= free[target] and target not in nodes and used[source] - size >= used[target] + size
                if crowding((*_without(nodes, source), target), zones) <= crowding(nodes, zones)
            ]
            if fitting:
                return source, max(fitting, key=lambda one: (one[0], -one[1]))[1], target
    return None


def crowding(nodes: Iterable[str], zones: Mapping[str, str]) -> int:
    """Count the replicas that share their zone with an earlier one: 0 if each has its own zone."""
    seen: list[str] = []
    found = 0
    for node in nodes:
        found += _in_zone(node, seen, zones) > 0
        seen.append(node)
    return found


def _in_zone(node: str, others: Iterable[str], zones: Mapping[str, str]) -> int:
    zone = zones.get(node, "")
    return sum(zones.get(other, "") == zone for other in others) if zone else 0


def _without(nodes: Iterable[str], left_out: str) -> tuple[str, ...]:
    return tuple(node for node in nodes if node != left_out)
