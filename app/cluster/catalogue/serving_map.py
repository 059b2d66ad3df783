"""Build a router's shard map from the catalogue, reusing unchanged parts of the previous map."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from app.cluster.catalogue.records import EMPTY, Catalogue, RangeRecord, Table, Version
from app.cluster.catalogue.transitions import replicas_of
from app.cluster.shard_map import Primary, Replica, RowRange, ShardedTable, ShardedVersion, ShardMap, content_of


class ServingMap:
    """Builds the map of each catalogue in turn. Only the tables that have changed since the last one are rebuilt."""

    def __init__(self) -> None:
        self._tables: Mapping[str, Table] = {}
        self._addresses: Mapping[str, str] = {}
        self._replicas = 0
        self._opened: Mapping[str, RangeRecord] = EMPTY
        self._made = ShardMap()

    def of(self, catalogue: Catalogue) -> ShardMap:
        """Return the map of a catalogue. Its generation is the catalogue's revision."""
        addresses = {node: one.address for node, one in catalogue.nodes.items()}
        if (addresses, catalogue.options.replicas) != (self._addresses, self._replicas):
            self._tables = {}
        known, opened = self._tables, catalogue.ranges
        changed = _contents_of_changed(self._opened, opened)
        tables = {
            name: self._made.tables[name]
            if known.get(name) is table and not (changed and _has_one(table, changed))
            else _table(table, addresses, replicas_of(catalogue, table), opened)
            for name, table in catalogue.tables.items()
            if table.versions
        }
        aliases = {alias: one.reference for alias, one in catalogue.aliases.items()}
        self._tables, self._addresses, self._replicas = catalogue.tables, addresses, catalogue.options.replicas
        self._opened = opened
        self._made = ShardMap(catalogue.revision, tables, aliases, catalogue.aliases)
        return self._made


def _contents_of_changed(before: Mapping[str, RangeRecord], after: Mapping[str, RangeRecord]) -> Collection[str]:
    """Return the content ids of ranges whose records differ."""
    if before is after:
        return ()
    return {
        content_of(tensor) for tensor in before.keys() | after.keys() if before.get(tensor) is not after.get(tensor)
    }


def _has_one(table: Table, contents: Collection[str]) -> bool:
    return any(version.content_id in contents for version in table.versions)


def _table(
    table: Table, addresses: Mapping[str, str], replicas: int, opened: Mapping[str, RangeRecord]
) -> ShardedTable:
    versions = tuple(_version(one, addresses, opened) for one in table.versions)
    return ShardedTable(versions, created=table.created, replicas=replicas)


def _version(version: Version, addresses: Mapping[str, str], opened: Mapping[str, RangeRecord]) -> ShardedVersion:
    ranges = []
    for one in version.segments:
        tensor = version.tensor(one)
        record = opened.get(tensor)
        nodes, primary = one.nodes, None
        behind: tuple[str, ...] = ()
        if record is not None:
            # Shards that have left the in-sync set, or are unknown, get no requests.
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
