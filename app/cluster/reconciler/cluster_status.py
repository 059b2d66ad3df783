"""Describe a cluster's shards and segments for human readers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.cluster.catalogue.listed_segments import Listed, listed_segments
from app.cluster.catalogue.records import Catalogue
from app.cluster.catalogue.transitions import replicas_of, used_bytes
from app.cluster.reconciler.cluster_view import HeldSegment


def status_of(catalogue: Catalogue, held: Mapping[str, Mapping[str, HeldSegment]]) -> dict[str, Any]:
    """Return the shards and tables of a cluster as plain values.

    `held` holds the segment list of each shard that responded. A shard is `lost` if it is not running, and `draining`
    if it is giving up its segments. A replica is `whole` if it is in its shard's list. For an open range, the result
    also includes its `primary`, the in-sync replicas as `in_sync`, and its `epoch`.
    """
    used = used_bytes(catalogue)
    return {
        "generation": catalogue.revision,
        "options": {name: getattr(catalogue.options, name) for name in ("ranges", "replicas", "segment_bytes")},
        "reconciler": None if catalogue.reconciler is None else catalogue.reconciler.of,
        "short": sum(living_replicas(one, catalogue, held) < one.replicas for one in listed_segments(catalogue)),
        "nodes": [
            {
                "node": name,
                "address": node.address,
                "zone": node.zone,
                "state": state_of(name, catalogue),
                "ranges": sum(name in one.segment.nodes for one in listed_segments(catalogue)),
                "bytes": used[name],
                "capacity": node.capacity,
            }
            for name, node in sorted(catalogue.nodes.items())
        ],
        "tables": [
            {
                "table": name,
                "replicas": replicas_of(catalogue, table),
                "version": version.number,
                "live": version is table.versions[-1],
                "dtype": version.dtype.name,
                "shape": list(version.shape),
                "ranges": [
                    {
                        "start": start,
                        "stop": stop,
                        "bytes": segment.size,
                        "replicas": [
                            {"node": node, "whole": version.tensor(segment) in held.get(node, {})}
                            for node in segment.nodes
                        ],
                        **_describe_record(catalogue, version.tensor(segment)),
                    }
                    for segment, (start, stop) in zip(version.segments, version.row_bounds, strict=True)
                ],
            }
            for name, table in sorted(catalogue.tables.items())
            for version in table.versions
        ],
        "draining": sorted(catalogue.drained),
        "aliases": {name: alias.reference for name, alias in sorted(catalogue.aliases.items())},
    }


def state_of(node: str, catalogue: Catalogue) -> str:
    """Return the state of a shard: serving, draining or lost."""
    if node not in catalogue.alive:
        return "lost"
    return "draining" if node in catalogue.drained else "serving"


def _describe_record(catalogue: Catalogue, tensor: str) -> dict[str, Any]:
    record = catalogue.ranges.get(tensor)
    if record is None:
        return {}
    return {"primary": record.primary, "in_sync": list(record.in_sync), "epoch": record.epoch}


def living_replicas(one: Listed, catalogue: Catalogue, held: Mapping[str, Mapping[str, HeldSegment]]) -> int:
    """Return the number of running shards that have a segment or, for an open range, that are in sync.

    For a shard that did not respond, the catalogue's list is trusted.
    """
    nodes = one.segment.nodes if one.opened is None else one.opened.in_sync
    living = [node for node in nodes if node in catalogue.alive]
    return sum(node not in held or one.tensor in held[node] for node in living)
