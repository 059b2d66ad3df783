"""Decide what a reconciler orders shards to do, based on the catalogue and the segments they hold. Does no I/O.

A `Planner` is the memory of one reconciler: the moves it has begun, and when each unwanted segment became unwanted.
`plan` is called once per round with the results of that round's lists. It returns the pulls that should be running, the
drops to request, and the moves to flip. Three rules protect what the catalogue lists; docs/cluster-protocol.md shows
why they suffice:

- A list counts if it was requested with this reconciler's fencing token and after every earlier drop had received its
  response. A drop without a response is followed by a new fencing token. The catalogue is read after the lists.
- A move is flipped only if lists that count show that all its copies are complete.
- A segment is dropped from a shard only if neither the catalogue nor a running move wants it there. If the catalogue
  lists it on other shards, at least one of those must have it complete.

Open ranges have separate rules, which are in `open_moves`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from app.cluster.catalogue.listed_segments import Listed
from app.cluster.catalogue.node_choice import choose_move, choose_nodes, choose_spread, count_zone_mates, nodes_except
from app.cluster.catalogue.ranges import PROPOSED
from app.cluster.catalogue.records import Segment
from app.cluster.reconciler.cluster_view import ClusterView
from app.cluster.reconciler.moves import Copy, Move, add_replica, move_replica, remove_replica, restore_replica
from app.cluster.reconciler.open_moves import Joining, copies_under_way, is_settled, lost_rows, needed_move
from app.cluster.shard.pull_order import PullOrder, PullSource

COPIES_AT_ONCE: Final = 4
DROP_AFTER_S: Final = 5.0
"""Seconds that an unwanted segment is kept for requests that began under an older catalogue."""
AGAIN_AFTER_S: Final = 5.0
"""Seconds until a failed copy is retried on the same shard."""


@dataclass(frozen=True, slots=True)
class Pull:
    """An order for `node` to pull the segment `tensor`. The order's fencing token is set when it is sent."""

    node: str
    tensor: str
    order: PullOrder


@dataclass(frozen=True, slots=True)
class Drop:
    """An order for `node` to drop the segment `tensor`."""

    node: str
    tensor: str


@dataclass(frozen=True, slots=True)
class Plan:
    """The actions to take. Running pulls that are not in `pulls` must be canceled."""

    pulls: tuple[Pull, ...] = ()
    drops: tuple[Drop, ...] = ()
    flips: tuple[Move, ...] = ()
    lost_rows: Mapping[str, str] = field(default_factory=dict)
    """For each open range, a shard that must leave the in-sync set because it has lost its rows."""


@dataclass
class Planner:
    """The moves that a reconciler has begun; see the module docstring."""

    copies_at_once: int = COPIES_AT_ONCE
    drop_after: float = DROP_AFTER_S
    moves: dict[str, Move] = field(default_factory=dict)
    """Moves, by the name of the segment that is moved."""
    _joining: Joining = field(default_factory=Joining)
    _unwanted_since: dict[Drop, float] = field(default_factory=dict)
    _not_before: dict[tuple[str, str], float] = field(default_factory=dict)
    """When a failed copy may be retried, by shard and segment."""

    def plan(self, view: ClusterView, now: float) -> Plan:
        """Return the actions to take now. `now` is in seconds of a monotonic clock."""
        self._not_before = {copy: at for copy, at in self._not_before.items() if at > now}
        self._joining.update(view, now)
        self._choose_moves(view, now)
        flips = [move for move in self.moves.values() if self.is_ready(move, view)]
        for move in flips:
            if not move.changes_catalogue:
                del self.moves[move.of.tensor]
        return Plan(
            tuple(self._pulls(view)),
            tuple(self._drops(view, now)),
            tuple(
                replace(move, parts=tuple(_with_digest(move, part, view) for part in move.parts))
                for move in flips
                if move.changes_catalogue
            ),
            lost_rows(view),
        )

    def is_ready(self, move: Move, view: ClusterView) -> bool:
        """Return whether all copies of a move are complete, so that the catalogue may list its parts."""
        return all(is_complete(copy, move, view) for copy in move.copies)

    def pull_failed(self, node: str, tensor: str, now: float) -> None:
        """Record that a shard failed to pull a segment. The move is planned again, on another shard if possible."""
        self._not_before[node, tensor] = now + AGAIN_AFTER_S
        for name, move in list(self.moves.items()):
            if any((copy.node, _segment_name(move, copy.part)) == (node, tensor) for copy in move.copies):
                del self.moves[name]

    # Moves

    def _choose_moves(self, view: ClusterView, now: float) -> None:
        listed = {one.tensor: one for one in view.segments}
        self.moves = {
            name: move for name, move in self.moves.items() if name in listed and _is_needed(move, listed[name], view)
        }
        free = view.room()
        under_way = copies_under_way(view, self._joining, now)
        for move in self.moves.values():
            under_way += _reserve_room(free, move)
        for one in sorted(view.segments, key=lambda one: len(view.complete_nodes(one))):
            if under_way >= self.copies_at_once:
                break
            if one.tensor not in self.moves and (needed := self._needed_move(one, view, free, now)) is not None:
                self.moves[one.tensor] = needed
                under_way += _reserve_room(free, needed)
        if not self.moves and not under_way and (evening := self._balancing_move(view, free)) is not None:
            self.moves[evening.of.tensor] = evening

    def _needed_move(self, one: Listed, view: ClusterView, free: Mapping[str, int], now: float) -> Move | None:
        """Return the most urgent move of a segment, or None if it needs none."""
        able = {node: room for node, room in free.items() if self._may_copy(node, one.tensor)}
        if one.opened is not None:
            if (
                one.opened.epoch == PROPOSED
                and not view.complete_nodes(one)
                and (back := self._restoring_move(one, view)) is not None
            ):
                return back
            return needed_move(one, one.opened, self._joining.late_nodes(one, now), able, view)
        nodes, size = one.segment.nodes, one.segment.size
        whole = view.complete_nodes(one)
        for node in nodes:
            left = nodes_except(nodes, node)
            if len(set(whole) & set(left)) >= one.replicas and (view.is_leaving(node) or node not in whole):
                return remove_replica(one, node)
            if view.is_leaving(node) and (new := choose_nodes(able, size, 1, view.zones, left)):
                return move_replica(one, node, new[0], "replace")
            if view.has_lost(node, one) and self._may_copy(node, one.tensor):
                return restore_replica(one, node)
        if len(nodes) < one.replicas and (new := choose_nodes(able, size, 1, view.zones, nodes)):
            return add_replica(one, new[0])
        if len(whole) > one.replicas:
            return remove_replica(
                one, max(whole, key=lambda node: (count_zone_mates(node, nodes, view.zones), -free.get(node, 0)))
            )
        limit = view.catalogue.options.segment_bytes
        may_split = one.version.keys is None and one.segment.row_count > 1
        if limit is not None and size > limit and whole == nodes and may_split:
            return self._splitting_move(one, view, free)
        spread = choose_spread(nodes, able, size, view.zones)
        return None if spread is None else move_replica(one, *spread, "spread")

    def _restoring_move(self, one: Listed, view: ClusterView) -> Move | None:
        """Return a move that restores uploaded rows on a shard, or None.

        The rows are unchanged until a primary has begun.
        """
        lacking = (node for node in one.segment.nodes if view.has_lost(node, one) and self._may_copy(node, one.tensor))
        return next((restore_replica(one, node) for node in lacking), None)

    def _splitting_move(self, one: Listed, view: ClusterView, free: Mapping[str, int]) -> Move | None:
        """Return a move that splits a segment in two, or None.

        Parts stay on the segment's shards if both parts fit there.
        """
        middle = (one.segment.start + one.segment.stop) // 2
        left = dict(free)
        parts = []
        for start, stop in ((one.segment.start, middle), (middle, one.segment.stop)):
            size = one.segment.size * (stop - start) // (one.segment.stop - one.segment.start)
            part = Segment(start, stop, size, ())
            name = one.version.tensor(part)
            able = {node: room for node, room in left.items() if self._may_copy(node, name)}
            stay = [node for node in one.segment.nodes if able.get(node, -1) >= size]
            stay += choose_nodes(able, size, len(one.segment.nodes) - len(stay), view.zones, stay)
            if len(stay) < len(one.segment.nodes):
                return None
            for node in stay:
                left[node] -= size
            parts.append(replace(part, nodes=tuple(stay)))
        copies = tuple(Copy(node, part) for part in parts for node in part.nodes)
        return Move(one, "split", tuple(parts), copies)

    def _balancing_move(self, view: ClusterView, free: Mapping[str, int]) -> Move | None:
        on_node: dict[str, list[Listed]] = {node: [] for node in free}
        for one in view.segments:
            may_move = one.opened is None or is_settled(one, view)
            if may_move and all(self._may_copy(node, one.tensor) for node in free):
                for node in view.complete_nodes(one):
                    if node in on_node:
                        on_node[node].append(one)
        used = {node: view.used[node] for node in free}
        sizes = {node: [(one.segment.size, one.segment.nodes) for one in own] for node, own in on_node.items()}
        move = choose_move(used, free, sizes, view.zones)
        if move is None:
            return None
        old, number, new = move
        one = on_node[old][number]
        return move_replica(one, old, new, "even out") if one.opened is None else add_replica(one, new, "even out")

    def _may_copy(self, node: str, tensor: str) -> bool:
        return (node, tensor) not in self._not_before

    # Pulls and drops

    def _pulls(self, view: ClusterView) -> Iterator[Pull]:
        holders: dict[str, list[str]] = defaultdict(list)
        for node, held in view.known.items():
            for tensor in held:
                holders[tensor].append(node)
        for move in self.moves.values():
            for copy in move.copies:
                if not is_complete(copy, move, view):
                    yield _pull(move, copy, holders[move.of.tensor], view)

    def _drops(self, view: ClusterView, now: float) -> Iterable[Drop]:
        wanted = view.wanted | {
            (node, _segment_name(move, part))
            for move in self.moves.values()
            for part in move.parts
            for node in part.nodes
        }
        unreplaced = {one.tensor for one in view.segments if not view.complete_nodes(one)}
        unwanted = [
            Drop(node, tensor)
            for node, held in view.known.items()
            for tensor in held
            if (node, tensor) not in wanted and tensor not in unreplaced
        ]
        since = self._unwanted_since
        unlisted = {drop: at for drop, at in since.items() if drop.node not in view.known and view.is_alive(drop.node)}
        self._unwanted_since = unlisted | {drop: since.get(drop, now) for drop in unwanted}
        return (drop for drop in unwanted if now - self._unwanted_since[drop] >= self.drop_after)


def _segment_name(move: Move, part: Segment) -> str:
    return move.of.version.tensor(part)


def _reserve_room(free: dict[str, int], move: Move) -> int:
    """Subtract the sizes of a move's copies from `free`. Returns the number of copies."""
    known = set(move.of.segment.nodes)
    if move.of.opened is not None:  # the new shards copy the rows on their own
        new = [(node, move.of.segment.size) for node in set(move.parts[0].nodes) - known]
    else:
        new = [(copy.node, copy.part.size) for copy in move.copies if copy.node not in known or move.reason == "split"]
    for node, size in new:
        if node in free:
            free[node] -= size
    return len(new) if move.of.opened is not None else len(move.copies)


def _is_needed(move: Move, now_listed: Listed, view: ClusterView) -> bool:
    """Return whether the reason for a running move still holds and its shards may still receive their copies."""
    if now_listed.segment != move.of.segment or now_listed.opened is not None:
        return False  # moves of open ranges are chosen anew in each round
    if move.reason == "restore":
        return view.is_alive(move.copies[0].node)
    if any(view.is_leaving(copy.node) for copy in move.copies):
        return False
    match move.reason:
        case "replace":
            return view.is_leaving(move.leaving)
        case "add":
            return len(move.of.segment.nodes) < now_listed.replicas
        case "remove":
            return False  # a removal has no copies; if it is still needed, it is chosen again
        case _:
            return True


def _pull(move: Move, copy: Copy, further: Collection[str], view: ClusterView) -> Pull:
    """Return the order for a copy.

    The sources, in order, are the shards that have the complete segment, the segment's other shards, the `further`
    shards, and the origin.
    """
    one, part = move.of, _with_digest(move, copy.part, view)
    whole = view.complete_nodes(one)
    nodes = [*whole, *(node for node in one.segment.nodes if node not in whole), *further]
    nodes = [node for node in dict.fromkeys(nodes) if node in view.catalogue.nodes]
    if move.reason != "split":
        nodes = nodes_except(nodes, copy.node)
    living = [node for node in nodes if view.is_alive(node)]
    is_all = (part.start, part.stop) == (one.segment.start, one.segment.stop)
    rows = None if is_all else (part.start - one.segment.start, part.stop - one.segment.start)
    sources = (PullSource(view.catalogue.nodes[node].address, one.tensor, rows, node) for node in living or nodes)
    item_size, keys = one.version.dtype.item_size, one.version.keys
    return Pull(
        copy.node,
        _segment_name(move, copy.part),
        PullOrder(
            view.fence,
            one.version.dtype,
            part.shape(one.version.shape),
            part.size if is_all or part.sha256 or item_size else 0,
            part.sha256,
            tuple(sources),
            one.version.origin,
            (part.start, part.stop) if keys is None else (0, 0),
            None if keys is None else keys.dtype,
        ),
    )


def is_complete(copy: Copy, move: Move, view: ClusterView) -> bool:
    """Return whether the copy is complete on its shard."""
    return view.has_copy(copy.node, _segment_name(move, copy.part), _with_digest(move, copy.part, view).sha256)


def _with_digest(move: Move, part: Segment, view: ClusterView) -> Segment:
    """Return a part with its size and digest.

    For one half of a split, they come from the first shard that has the half complete.
    """
    if part.sha256:
        return part
    name = _segment_name(move, part)
    found = next((held for node in part.nodes if (held := view.known.get(node, {}).get(name))), None)
    return part if found is None else replace(part, size=found.size, sha256=found.sha256)
