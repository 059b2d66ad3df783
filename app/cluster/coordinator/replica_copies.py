"""Copies of ranges on their way into the map: for machines that are lost or draining, and to even out what all hold.

The map lists the new replica in the place of the old one when the new one is whole and durable; until then the old one
stays, and only when that map is durable is the old one dropped. A machine that lives and lacks what the map says it
has, after the loss of its disk, gets it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from app.cluster.coordinator.cluster_options import ClusterOptions
from app.cluster.coordinator.cluster_state import ClusterState, ListedRange
from app.cluster.coordinator.messages import Held, Hold, NotHeld, RangeKey, Send, Stamp
from app.cluster.coordinator.node_choice import choose_move, choose_nodes
from app.cluster.coordinator.node_views import NodeViews


@dataclass(slots=True)
class RangeCopy:
    """A range that `target` is to get, in the place of `replaces`; the same machine where it has lost its own."""

    key: RangeKey
    target: str
    replaces: str
    stamp: Stamp
    size: int
    is_balance: bool = False
    """Whether it only evens out what machines hold."""
    queued: bool = False


class ReplicaCopies:
    """The copies that are under way, one for a range at most."""

    def __init__(self, options: ClusterOptions) -> None:
        self._options = options
        self._copies: dict[RangeKey, RangeCopy] = {}

    def plan(self, state: ClusterState, nodes: NodeViews, free: Mapping[str, int], stamp: Callable[[], Stamp]) -> None:
        """Give up the copies that nobody needs any more, and begin those that are needed."""
        ranges = {one.key: one for one in state.listed}
        for key, copy in list(self._copies.items()):
            if not copy.queued and not _is_needed(copy, ranges.get(key), state, nodes):
                del self._copies[key]
        left = dict(free)
        for key, one in ranges.items():
            if len(self._copies) >= self._options.copies_at_once:
                return
            if key not in self._copies and (move := _needed(one, state, nodes, left)) is not None:
                replaces, target = move
                left[target] = left.get(target, 0) - one.size
                self._copies[key] = RangeCopy(key, target, replaces, stamp(), one.size)
        if not self._copies:
            self._even_out(list(ranges.values()), free, stamp)

    def _even_out(self, ranges: Sequence[ListedRange], free: Mapping[str, int], stamp: Callable[[], Stamp]) -> None:
        on_node = {node: [one for one in ranges if node in one.nodes] for node in free}
        used = {node: sum(one.size for one in own) for node, own in on_node.items()}
        sizes = {node: [(one.size, one.nodes) for one in own] for node, own in on_node.items()}
        move = choose_move(used, free, sizes)
        if move is not None:
            source, number, target = move
            one = on_node[source][number]
            self._copies[one.key] = RangeCopy(one.key, target, source, stamp(), one.size, is_balance=True)

    def orders(self, state: ClusterState, nodes: NodeViews) -> Iterator[Send]:
        """The orders of all copies that have not been told whole."""
        ranges = {one.key: one for one in state.listed}
        for key, copy in self._copies.items():
            if not copy.queued:
                one = ranges[key]
                others = [replica for replica in one.replicas if replica.node != copy.target]
                living = [replica for replica in others if not nodes.is_lost(replica.node)]
                living.sort(key=lambda replica: not nodes.has_whole(replica.node, key))
                sources = tuple(replica.address for replica in (living if living or one.url else others))
                hold = Hold(key, copy.stamp, copy.size, sources, one.url, one.digest)
                yield Send(nodes.address(copy.target), hold)

    def held(self, message: Held) -> RangeCopy | None:
        """A shard has a range whole: the copy that may now take its place in the map, once."""
        copy = self._copies.get(message.key)
        if copy is None or copy.queued or (copy.target, copy.stamp) != (message.node, message.stamp):
            return None
        copy.queued = True
        return copy

    def moved(self, copy: RangeCopy) -> list[Send]:
        """The map that lists the copy is durable, or does not need it any more, or cannot list it now."""
        self._copies.pop(copy.key, None)
        return []

    def failed(self, message: NotHeld) -> None:
        """There is no room for a copy: it is given up, and planned anew."""
        copy = self._copies.get(message.key)
        if copy is not None and not copy.queued and (copy.target, copy.stamp) == (message.node, message.stamp):
            del self._copies[message.key]

    def wanted(self) -> set[tuple[str, RangeKey]]:
        """The ranges that are being copied, with the machines that get them."""
        return {(copy.target, key) for key, copy in self._copies.items()}

    def sizes(self) -> Iterator[tuple[str, int]]:
        """How many bytes each machine is to get."""
        for copy in self._copies.values():
            if copy.target != copy.replaces:
                yield copy.target, copy.size


def _needed(one: ListedRange, state: ClusterState, nodes: NodeViews, free: Mapping[str, int]) -> tuple[str, str] | None:
    """Which machine's replica of a range has to be made anew, and on which machine."""
    for node in one.nodes:
        if nodes.is_heard(node) and not nodes.has_whole(node, one.key):
            return node, node
    for node in one.nodes:
        if nodes.is_lost(node) or node in state.draining:
            chosen = choose_nodes(free, one.size, 1, without=one.nodes)
            if chosen:
                return node, chosen[0]
    return None


def _is_needed(copy: RangeCopy, one: ListedRange | None, state: ClusterState, nodes: NodeViews) -> bool:
    if one is None or copy.replaces not in one.nodes or not nodes.is_heard(copy.target):
        return False
    if copy.target == copy.replaces:
        return not nodes.has_whole(copy.target, copy.key)
    if copy.target in one.nodes or copy.target in state.draining:
        return False
    return copy.is_balance or nodes.is_lost(copy.replaces) or copy.replaces in state.draining
