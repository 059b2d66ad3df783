"""What a coordinator knows about the machines, from their shards' inventories and the age of these."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Final

from app.cluster.coordinator.cluster_options import ClusterOptions
from app.cluster.coordinator.cluster_state import ClusterState
from app.cluster.coordinator.messages import Held, HeldRange, Inventory, RangeKey

HEARD_AFTER: Final = 3.0
"""After so many seconds every machine that lives has told what it has, some times."""


@dataclass(slots=True)
class _Node:
    inventory: Inventory
    heard_at: float
    held: dict[RangeKey, HeldRange]
    unwanted_since: dict[RangeKey, float] = field(default_factory=dict)


class NodeViews:
    """The machines by name."""

    def __init__(self, options: ClusterOptions) -> None:
        self._options = options
        self._nodes: dict[str, _Node] = {}
        self._began = 0.0
        self._now = 0.0

    def begin(self, now: float) -> None:
        """From now on silence counts."""
        self._began = self._now = now

    def heard(self, inventory: Inventory, now: float) -> None:
        """The newest inventory of a machine; an older one that comes late is not heeded."""
        self._now = max(self._now, now)
        known = self._nodes.get(inventory.node)
        held = {one.key: one for one in inventory.held}
        if known is None:
            self._nodes[inventory.node] = _Node(inventory, now, held)
        elif (known.inventory.started, known.inventory.count) < (inventory.started, inventory.count):
            known.inventory, known.heard_at, known.held = inventory, now, held

    def told_whole(self, message: Held) -> None:
        """A machine has a range whole, which its inventory will say from the next one on."""
        known = self._nodes.get(message.node)
        if known is not None:
            before = known.held.get(message.key)
            size = 0 if before is None else before.size
            known.held[message.key] = HeldRange(message.key, message.stamp, whole=True, size=size)

    def pass_time(self, now: float) -> None:
        """Advance the clock to `now`."""
        self._now = max(self._now, now)

    @property
    def may_lack_some(self) -> bool:
        """Return True if the coordinator began so lately that living machines may not have reported yet."""
        return self._now - self._began < HEARD_AFTER

    @property
    def known(self) -> list[str]:
        """The machines that have been heard at all, sorted."""
        return sorted(self._nodes)

    @property
    def living(self) -> list[str]:
        """The machines that have been heard of late."""
        return [node for node in self._nodes if not self.is_lost(node)]

    def is_lost(self, node: str) -> bool:
        """Whether a machine has been silent for too long."""
        known = self._nodes.get(node)
        heard_at = self._began if known is None else known.heard_at
        return self._now - heard_at > self._options.lost_after

    def is_heard(self, node: str) -> bool:
        """Whether its inventory has come, so that what it holds is known, and it is not lost."""
        return node in self._nodes and not self.is_lost(node)

    def has_whole(self, node: str, key: RangeKey) -> bool:
        """Whether its last inventory has this range whole."""
        known = self._nodes.get(node)
        found = known.held.get(key) if known is not None else None
        return found is not None and found.whole

    def address(self, node: str) -> str:
        """Where its shard answers."""
        return self._nodes[node].inventory.address

    def capacity(self, node: str) -> int:
        """Bytes that its shard may hold."""
        return self._nodes[node].inventory.capacity

    def new_addresses(self, state: ClusterState) -> Iterator[tuple[str, str]]:
        """Machines whose shards answer at another address than the map says, unless another one has that there."""
        listed = {(replica.node, replica.address) for one in state.listed for replica in one.replicas}
        for node in sorted({node for node, _ in listed}):
            if self.is_heard(node):
                address = self.address(node)
                is_taken = any(at == address and other != node for other, at in listed)
                if not is_taken and any(other == node and at != address for other, at in listed):
                    yield node, address

    def leaving(self, wanted: Collection[tuple[str, RangeKey]]) -> dict[str, int]:
        """Bytes of the ranges that each machine has and that are not in `wanted`: they are dropped before long."""
        return {
            node: sum(one.size for key, one in view.held.items() if (node, key) not in wanted)
            for node, view in self._nodes.items()
        }

    def unwanted(
        self, wanted: Collection[tuple[str, RangeKey]], now: float, after: float
    ) -> Iterator[tuple[str, RangeKey]]:
        """Ranges that living machines have and that have been in no `wanted` for `after` seconds."""
        for node, view in self._nodes.items():
            if self.is_lost(node):
                continue
            since = view.unwanted_since
            view.unwanted_since = {key: since.get(key, now) for key in view.held if (node, key) not in wanted}
            for key, at in view.unwanted_since.items():
                if now - at >= after:
                    yield node, key
