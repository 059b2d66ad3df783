"""Faults that are planted into the parts of the protocol, to show that the simulation finds them."""

from __future__ import annotations

from dataclasses import replace

from app.cluster.coordinator.cluster_options import ClusterOptions
from app.cluster.coordinator.cluster_state import ClusterState
from app.cluster.coordinator.coordinator import Coordinator, CoordinatorAction
from app.cluster.coordinator.messages import Drop, Send
from app.cluster.coordinator.publications import Publication, Publications
from app.cluster.router.newest_map import NewestMap
from app.cluster.shard.held_ranges import HeldRanges, ShardAction
from app.cluster.shard_map import ShardMap
from tests.cluster.simulation.records import CoordinatorProcess
from tests.cluster.simulation.router import Router
from tests.cluster.simulation.schedule import Parts
from tests.cluster.simulation.shard import Shard


class _AllButOne(Publications):
    def may_publish(self, publication: Publication) -> bool:
        return len(publication.held) >= len(publication.targets) - 1


class _FlipsEarly(Coordinator):
    """Publishes a version before its last replica is whole."""

    def __init__(self, identity: str, options: ClusterOptions) -> None:
        super().__init__(identity, options)
        self.publications = _AllButOne(options)


class _AnyMap(NewestMap):
    """Takes whichever map comes last."""

    def offer(self, found: ShardMap) -> bool:
        self.current = found
        return True


class _TakesOverNothing(Coordinator):
    """Begins with the record that it has read, without one of its own, and so with the term of the one before it."""

    def latest(self, found: ClusterState | None, now: float) -> list[CoordinatorAction]:
        if found is None or self._term:
            return super().latest(found, now)
        self.state, self._term = found, found.term
        self.nodes.begin(now)
        return []


class _DropsFirst(Coordinator):
    """Has a machine drop what it has as soon as it is drained, and copies afterwards."""

    def tick(self, now: float) -> list[CoordinatorAction]:
        actions = super().tick(now)
        if self._term and not self.stopped and self._pending is None:
            for one in self.state.listed:
                for replica in one.replicas:
                    if replica.node in self.state.draining:
                        actions.append(Send(replica.address, Drop(one.key, self._stamp())))
        return actions


class _HeedsOldDrops(HeldRanges):
    """Drops what it is told to, however old the order."""

    def drop(self, order: Drop) -> list[ShardAction]:
        found = self._ranges.get(order.key)
        return super().drop(replace(order, stamp=max(order.stamp, found.stamp)) if found is not None else order)


def _coordinator(made: type[Coordinator]) -> Parts:
    class Planted(CoordinatorProcess):
        def make_coordinator(self, identity: str, options: ClusterOptions) -> Coordinator:
            return made(identity, options)

    return Parts(coordinator=Planted)


class _PlantedRouter(Router):
    def make_newest(self) -> NewestMap:
        return _AnyMap(ShardMap())


class _PlantedShard(Shard):
    def make_ranges(self, node: str, capacity: int) -> HeldRanges:
        return _HeedsOldDrops(node, self.address, self.disk.started, capacity)


PLANTED = {
    "flip before the last replica is whole": _coordinator(_FlipsEarly),
    "a map that goes backwards": Parts(router=_PlantedRouter),
    "a coordinator that takes over without a record": _coordinator(_TakesOverNothing),
    "a drain that deletes first": _coordinator(_DropsFirst),
    "a shard that heeds old drops": Parts(shard=_PlantedShard),
}
