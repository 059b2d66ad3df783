"""The map by which a router serves, made of the catalogue; what has not changed is that of the map before."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from app.cluster.catalogue.records import Catalogue, Table, Version
from app.cluster.catalogue.transitions import replicas_of
from app.cluster.shard_map import Replica, RowRange, ShardedTable, ShardedVersion, ShardMap


class ServingMap:
    """Makes the map of each catalogue in turn: `of` builds anew only tables that have changed since the last one."""

    def __init__(self) -> None:
        self._tables: Mapping[str, Table] = {}
        self._addresses: Mapping[str, str] = {}
        self._replicas = 0
        self._made = ShardMap()

    def of(self, catalogue: Catalogue) -> ShardMap:
        """The map of a catalogue; its generation is the catalogue's revision."""
        addresses = {node: one.address for node, one in catalogue.nodes.items()}
        if (addresses, catalogue.options.replicas) != (self._addresses, self._replicas):
            self._tables = {}
        known = self._tables
        tables = {
            name: self._made.tables[name]
            if known.get(name) is table
            else _table(table, addresses, replicas_of(catalogue, table))
            for name, table in catalogue.tables.items()
            if table.versions
        }
        aliases = {alias: one.reference for alias, one in catalogue.aliases.items()}
        self._tables, self._addresses, self._replicas = catalogue.tables, addresses, catalogue.options.replicas
        self._made = ShardMap(catalogue.revision, tables, aliases, catalogue.aliases)
        return self._made


def _table(table: Table, addresses: Mapping[str, str], replicas: int) -> ShardedTable:
    versions = tuple(_version(one, addresses) for one in table.versions)
    return ShardedTable(versions, created=table.created, replicas=replicas)


def _version(version: Version, addresses: Mapping[str, str]) -> ShardedVersion:
    ranges = tuple(
        RowRange(one.start, one.stop, version.tensor(one), tuple(_replicas(one.nodes, addresses)))
        for one in version.segments
    )
    return ShardedVersion(
        version.number,
        version.content_id,
        version.dtype,
        version.shape,
        ranges,
        version.created,
        version.sha256,
        version.size,
        version.note,
    )


def _replicas(nodes: Iterable[str], addresses: Mapping[str, str]) -> Iterable[Replica]:
    """One for each shard whose address is known."""
    return (Replica(addresses[node], node) for node in sorted(nodes) if node in addresses)
