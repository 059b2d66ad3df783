"""Build a router's shard map from the catalogue, reusing unchanged parts of the previous map."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from app.cluster.catalogue.records import Catalogue, RangeRecord, Table, Version
from app.cluster.catalogue.transitions import replicas_of
from app.cluster.shard_map import Primary, Replica, RowRange, ShardedTable, ShardedVersion, ShardMap, content_of


class ServingMap:
    """Build the map of each catalogue in turn.

    Only the tables that have changed since the last catalogue are rebuilt.
    """

    def __init__(self) -> None:
        self._known = Catalogue()
        self._addresses: Mapping[str, str] = {}
        self._made = ShardMap()

    def of(self, catalogue: Catalogue) -> ShardMap:
        """Return the map of a catalogue. Its generation is the catalogue's revision."""
        known, made, opened = self._known, self._made.tables, catalogue.ranges
        addresses = {node: one.address for node, one in catalogue.nodes.items()}
        is_unchanged = addresses == self._addresses and catalogue.options.replicas == known.options.replicas
        changed = _changed_contents(known.ranges, opened)

        def table_of(name: str, table: Table) -> ShardedTable:
            if (
                is_unchanged
                and known.tables.get(name) is table
                and changed.isdisjoint(one.content_id for one in table.versions)
            ):
                return made[name]
            versions = tuple(_version(one, addresses, opened) for one in table.versions)
            return ShardedTable(versions, created=table.created, replicas=replicas_of(catalogue, table))

        tables = {name: table_of(name, table) for name, table in catalogue.tables.items() if table.versions}
        aliases = {alias: one.reference for alias, one in catalogue.aliases.items()}
        self._known, self._addresses = catalogue, addresses
        self._made = ShardMap(catalogue.revision, tables, aliases, catalogue.aliases)
        return self._made


def _changed_contents(before: Mapping[str, RangeRecord], after: Mapping[str, RangeRecord]) -> frozenset[str]:
    """Return the content IDs of ranges whose records differ."""
    tensors = before.keys() | after.keys() if before is not after else ()
    return frozenset(content_of(tensor) for tensor in tensors if before.get(tensor) is not after.get(tensor))


def _version(version: Version, addresses: Mapping[str, str], opened: Mapping[str, RangeRecord]) -> ShardedVersion:
    ranges = []
    for one in version.segments:
        tensor = version.tensor(one)
        record = opened.get(tensor)
        nodes, primary = one.nodes, None
        behind: tuple[str, ...] = ()
        if record is not None:
            # Shards get no requests if they have left the in-sync set or have no known address.
            nodes = tuple(node for node in record.in_sync if node in one.nodes)
            primary = Primary(record.primary, addresses.get(record.primary, ""), record.epoch)
            behind = tuple(sorted(set(one.nodes) - set(nodes)))
        replicas = tuple(_replicas(nodes, addresses))
        ranges.append(RowRange(one.start, one.stop, tensor, replicas, primary, behind, one.rows))
    return ShardedVersion(
        version.number,
        version.content_id,
        version.dtype,
        version.shape,
        tuple(ranges),
        version.created,
        version.sha256,
        version.size,
        version.note,
        version.keys,
    )


def _replicas(nodes: Iterable[str], addresses: Mapping[str, str]) -> Iterable[Replica]:
    """Return a replica for each shard with a known address."""
    return (Replica(addresses[node], node) for node in sorted(nodes) if node in addresses)
