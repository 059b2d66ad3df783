"""New versions on their way into the map: placed on machines, written by a router, whole everywhere, then published.

All of this is forgotten when the coordinator restarts: the router asks again, and the rows are written anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from app.cluster.coordinator import cluster_state
from app.cluster.coordinator.cluster_options import ClusterOptions
from app.cluster.coordinator.cluster_state import ChangeRefused, ClusterState, Content, find_content, range_bounds
from app.cluster.coordinator.messages import (
    Held,
    Hold,
    NotHeld,
    Placed,
    Publish,
    Published,
    RangeKey,
    Refused,
    Send,
    Stamp,
    Target,
)
from app.cluster.coordinator.node_choice import place_ranges
from app.cluster.coordinator.node_views import NodeViews
from app.cluster.shard_map import Replica, rows_of


@dataclass(slots=True)
class Publication:
    """A version that is being written; `held` has the digest that each target has told."""

    asked: Publish
    router: str
    targets: dict[tuple[str, RangeKey], Target]
    heard_at: float
    held: dict[tuple[str, RangeKey], str] = field(default_factory=dict)
    queued: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether every replica of every range has said that it is whole and durable."""
        return all(one in self.held for one in self.targets)

    @property
    def digests(self) -> dict[RangeKey, set[str]]:
        """What the replicas of each range have told."""
        found: dict[RangeKey, set[str]] = {}
        for (_, key), digest in self.held.items():
            found.setdefault(key, set()).add(digest)
        return found

    def apply(self, state: ClusterState, address: Callable[[str], str]) -> ClusterState:
        """The state with this version in the map; `address` says where a machine's shard answers now, for it may have
        been restarted since the rows were placed. Raises ChangeRefused.
        """
        if find_content(state.map, self.asked.content_id) is not None:
            return state
        replicas: dict[RangeKey, tuple[Replica, ...]] = {}
        for target in self.targets.values():
            replicas[target.key] = (*replicas.get(target.key, ()), Replica(address(target.node), target.node))
        digests = self.digests
        if any(len(found) > 1 for found in digests.values()):
            raise ChangeRefused("internal", "the replicas of a range have different rows")
        table = state.map.tables.get(self.asked.table)
        current = "" if table is None else table.current.content_id
        if self.asked.expected not in ("*", current):
            raise ChangeRefused("precondition_failed", f"another version of {self.asked.table!r} is current now")
        content = _content(self.asked, tuple(min(digests.get(key, {""})) for key in replicas))
        return cluster_state.publish(state, content, replicas, self.asked.keep)


class Publications:
    """The versions that are being written, by content id."""

    def __init__(self, options: ClusterOptions) -> None:
        self._options = options
        self._publications: dict[str, Publication] = {}

    def asked(
        self,
        sender: str,
        asked: Publish,
        state: ClusterState,
        nodes: NodeViews,
        free: Mapping[str, int],
        leaving: Mapping[str, int],
        stamp: Callable[[], Stamp],
        now: float,
    ) -> Iterator[Send]:
        """A router asks to publish, or whether it is done.

        `free` are the bytes that each machine may be given, of which it still has `leaving` that are to be dropped.
        """
        known = self._publications.get(asked.content_id)
        if known is None:
            try:
                known = self._place(sender, asked, state, nodes, free, leaving, stamp, now)
            except ChangeRefused as refused:
                yield Send(sender, Refused(asked.content_id, refused.code, refused.detail))
                return
            if known is None:
                return
            self._publications[asked.content_id] = known
        known.heard_at, known.router = now, sender
        if asked.expected != "*":
            known.asked = replace(known.asked, expected=asked.expected)
        created = max(asked.created, known.asked.created)
        known.asked = replace(known.asked, sha256=asked.sha256 or known.asked.sha256, created=created)
        targets = (replace(one, address=nodes.address(one.node)) for one in known.targets.values())
        yield Send(sender, Placed(asked.content_id, tuple(targets)))
        yield from self._orders(known, nodes)

    def _place(
        self,
        sender: str,
        asked: Publish,
        state: ClusterState,
        nodes: NodeViews,
        free: Mapping[str, int],
        leaving: Mapping[str, int],
        stamp: Callable[[], Stamp],
        now: float,
    ) -> Publication | None:
        """None where there may be room soon: the router asks again. Raises ChangeRefused."""
        if asked.known < state.table_record(asked.table).removed_at:
            # It may be a late repetition of what was published, and removed, long ago.
            raise ChangeRefused("stale_map", "versions of this table have been removed meanwhile")
        cluster_state.check_publishable(state, _content(asked, ()))
        bounds = range_bounds(rows_of(asked.shape), self._options.ranges)
        keys = [RangeKey(asked.content_id, start, stop) for start, stop in bounds]
        sizes = [(key.stop - key.start) * asked.row_bytes for key in keys]
        now_free = {node: room - leaving.get(node, 0) for node, room in free.items()}
        chosen = place_ranges(now_free, sizes, self._options.replicas)
        if chosen is None and (nodes.may_lack_some or place_ranges(free, sizes, self._options.replicas) is not None):
            return None
        if chosen is None:
            detail = f"no {self._options.replicas} machines have room for each range"
            raise ChangeRefused("insufficient_storage", detail)
        targets = {
            (node, key): Target(key, node, nodes.address(node), stamp())
            for key, own in zip(keys, chosen, strict=True)
            for node in own
        }
        return Publication(asked, sender, targets, now)

    def held(self, message: Held) -> None:
        """A shard has a range whole."""
        known = self._publications.get(message.key.content_id)
        target = known.targets.get((message.node, message.key)) if known is not None else None
        if known is not None and target is not None and target.stamp == message.stamp:
            known.held[message.node, message.key] = message.digest

    def ready(self) -> Iterator[Publication]:
        """The versions that may go into the map, each told once."""
        for known in self._publications.values():
            if not known.queued and self.may_publish(known):
                known.queued = True
                yield known

    def may_publish(self, publication: Publication) -> bool:
        """Whether the version may go into the map."""
        return publication.is_whole

    def failed(self, message: NotHeld) -> None:
        """A shard has no room: the version is given up, and its router learns so when it asks again."""
        known = self._publications.get(message.key.content_id)
        target = known.targets.get((message.node, message.key)) if known is not None else None
        if target is not None and target.stamp == message.stamp:
            del self._publications[message.key.content_id]

    def tick(self, nodes: NodeViews, now: float) -> Iterator[Send]:
        """Orders again for what has not been told whole; versions that nobody writes any more are given up."""
        for content_id, known in list(self._publications.items()):
            if known.queued:
                continue
            silent = now - known.heard_at > self._options.publish_timeout
            lost = any(nodes.is_lost(node) for node, _ in known.targets)
            if silent or lost:
                del self._publications[content_id]
                if lost:
                    why = "a machine was lost while the rows were written"
                    yield Send(known.router, Refused(content_id, "shard_unavailable", why))
                continue
            yield from self._orders(known, nodes)

    def _orders(self, known: Publication, nodes: NodeViews) -> Iterator[Send]:
        for (node, key), target in known.targets.items():
            if (node, key) not in known.held:
                size = (key.stop - key.start) * known.asked.row_bytes
                yield Send(nodes.address(node), Hold(key, target.stamp, size, url=known.asked.url))

    def wanted(self) -> set[tuple[str, RangeKey]]:
        """The ranges that are being written, with their machines."""
        return {one for known in self._publications.values() for one in known.targets}

    def sizes(self) -> Iterator[tuple[str, int]]:
        """How many bytes each machine is to get."""
        for known in self._publications.values():
            for node, key in known.targets:
                yield node, (key.stop - key.start) * known.asked.row_bytes

    def published(self, publication: Publication, state: ClusterState) -> list[Send]:
        """The version is in a record that is durable: what its router is told."""
        content_id = publication.asked.content_id
        self._publications.pop(content_id, None)
        found = find_content(state.map, content_id)
        return [Send(publication.router, Published(content_id, found[1].number, state.map))] if found else []

    def refused(self, publication: Publication, refused: ChangeRefused) -> list[Send]:
        """The version cannot go into the map: what its router is told."""
        content_id = publication.asked.content_id
        self._publications.pop(content_id, None)
        return [Send(publication.router, Refused(content_id, refused.code, refused.detail))]


def _content(asked: Publish, digests: tuple[str, ...]) -> Content:
    return Content(
        asked.content_id,
        asked.table,
        asked.dtype,
        asked.shape,
        asked.row_bytes,
        asked.url or asked.origin,
        asked.sha256,
        asked.created,
        digests,
        asked.size,
    )
