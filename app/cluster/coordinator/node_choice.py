"""Which machines get the replicas of a range: those with the most room, no two replicas on one machine."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence


def choose_nodes(free: Mapping[str, int], size: int, count: int, without: Collection[str] = ()) -> list[str]:
    """`count` machines with room for `size` bytes, most room first, fewer where there are no more.

    `free` has the bytes that each machine may still hold; one in `without` is not taken.
    """
    fitting = [node for node, room in free.items() if room >= size and node not in without]
    return sorted(fitting, key=lambda node: (-free[node], node))[:count]


def place_ranges(free: Mapping[str, int], sizes: Sequence[int], replicas: int) -> list[list[str]] | None:
    """For each range of `sizes` bytes the machines of its replicas, None where there is no room for all of them."""
    left = dict(free)
    chosen = []
    for size in sizes:
        nodes = choose_nodes(left, size, replicas)
        if len(nodes) < replicas:
            return None
        for node in nodes:
            left[node] -= size
        chosen.append(nodes)
    return chosen


def choose_move(
    used: Mapping[str, int], free: Mapping[str, int], on_node: Mapping[str, Sequence[tuple[int, Collection[str]]]]
) -> tuple[str, int, str] | None:
    """A move that evens out what machines hold: from which machine its which range to which machine; None if none does.

    `used` are bytes by machine, of those that may get and give ranges; `on_node` the ranges of each as their size and
    the machines that have them. A range moves only where its old machine still holds as much as the new one afterwards,
    so that no range is moved back.
    """
    for source in sorted(used, key=lambda node: (-used[node], node)):
        for target in sorted(used, key=lambda node: (used[node], node)):
            fitting = [
                (size, number)
                for number, (size, nodes) in enumerate(on_node.get(source, ()))
                if 0 < size <= free[target] and target not in nodes and used[source] - size >= used[target] + size
            ]
            if fitting:
                return source, max(fitting, key=lambda one: (one[0], -one[1]))[1], target
    return None
