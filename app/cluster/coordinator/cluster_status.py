"""What a coordinator knows, for people: its machines, and which of them have which ranges."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.cluster.coordinator.coordinator import Coordinator
from app.cluster.coordinator.messages import RangeKey


def status_of(coordinator: Coordinator) -> Mapping[str, Any]:
    """The machines and the tables of a cluster, as plain values.

    A machine is `lost` where nothing has been heard of it for long, and is told of if the map lists ranges there;
    `draining` where it is to give its ranges up. A replica is `whole` where its machine says so now.
    """
    state, nodes = coordinator.state, coordinator.nodes
    used: dict[str, int] = {}
    sizes = {}
    for one in state.listed:
        sizes[one.key] = one.size
        for node in one.nodes:
            used[node] = used.get(node, 0) + one.size
    return {
        "generation": state.generation,
        "copies": len(coordinator.copies.wanted()),
        "nodes": [
            {
                "node": node,
                "address": nodes.address(node),
                "state": "lost" if nodes.is_lost(node) else "draining" if node in state.draining else "serving",
                "ranges": sum(node in one.nodes for one in state.listed),
                "bytes": used.get(node, 0),
                "capacity": nodes.capacity(node),
            }
            for node in nodes.known
            if node in used or not nodes.is_lost(node)
        ],
        "tables": [
            {
                "table": name,
                "version": version.number,
                "live": version.number == table.live,
                "dtype": version.dtype.name,
                "shape": list(version.shape),
                "ranges": [
                    {
                        "start": one.start,
                        "stop": one.stop,
                        "bytes": sizes[RangeKey(version.content_id, one.start, one.stop)],
                        "replicas": [
                            {
                                "node": replica.node,
                                "address": replica.address,
                                "whole": not nodes.is_lost(replica.node)
                                and nodes.has_whole(replica.node, RangeKey(version.content_id, one.start, one.stop)),
                            }
                            for replica in one.replicas
                        ],
                    }
                    for one in version.ranges
                ],
            }
            for name, table in sorted(state.map.tables.items())
            for version in table.versions
        ],
        "draining": sorted(state.draining),
        "aliases": dict(sorted(state.map.aliases.items())),
    }
