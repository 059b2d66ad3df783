"""The tables of a shard map as the tensors of a store: resolved by reference, described and listed, but read-only.

A static map changes only when its file changes. Methods that would change tables raise not_implemented.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, NoReturn

import numpy as np

from app.catalogue.aliases import AliasMove
from app.catalogue.conditions import ALWAYS, Conditions
from app.catalogue.records import Alias, NameRecord
from app.cluster.shard_map import RowRange, ShardedVersion, ShardMap
from app.errors import GatherError
from app.keys.key_column import KeyColumn, KeyType
from app.keys.probe import Search
from app.store import Resident
from app.store.catalogue.catalogue_cache import page_of
from app.store.files.write_uploaded_tensor import Upload, UploadSpec
from app.store.store_errors import not_found
from app.store.tensor_metadata import MOST_RANGES, KeysMetadata, Metadata, RangeMetadata
from app.store.tensor_store_interface import TensorStore
from app.tensors.string_tensor import PackedStrings
from app.tensors.tensor import Tensor
from app.tensors.tensor_name import check_reference, split_reference


class _PlacedKeys:
    """The type and number of the keys of a table in row ranges. The shards look up the keys."""

    def __init__(self, dtype: KeyType, count: int) -> None:
        self.dtype = dtype
        self.count = count

    def search(self, wanted: KeyColumn | PackedStrings) -> Search:
        """Raise NotImplementedError."""
        raise NotImplementedError("the shards of a table look its keys up")


class ShardedResident(Resident):
    """One version of a table in row ranges. `tensor` has the version's type and shape, but no items.

    Its `keys` have only a type and a count.
    """

    __slots__ = ("shard_map", "table", "version_in_map")

    def __init__(self, shard_map: ShardMap, table: str, version: ShardedVersion) -> None:
        if version.dtype.kind == "string":
            tensor: Tensor = PackedStrings(version.dtype, version.shape, np.empty(0, np.int64))
        else:
            tensor = Tensor(version.dtype, version.shape, np.empty(0, version.dtype.numpy))
        keys = None if version.keys is None else _PlacedKeys(version.keys.dtype, version.rows)
        super().__init__(tensor, version.etag, data_version=version.number, keys=keys)
        self.shard_map = shard_map
        self.table = table
        self.version_in_map = version


class _ServedMap(NamedTuple):
    """A map, and the resident tensors found in it so far, by the reference that was looked up."""

    shard_map: ShardMap
    residents: dict[str, ShardedResident]

    def get(self, reference: str) -> ShardedResident | None:
        """Return the version that a reference refers to, or None."""
        resident = self.residents.get(reference)
        if resident is not None:
            return resident
        found = self.shard_map.find(reference)
        if found is None:
            return None
        table, version = found
        own = f"{table}@{version.number}"
        # All references to a version share one object, so that lookups can recognize that they read the same table.
        resident = self.residents.get(own) or ShardedResident(self.shard_map, table, version)
        self.residents[own] = self.residents[reference] = resident
        return resident


class ShardedTensors(TensorStore):
    """The tables of the newest map. `use_map` switches to another map atomically."""

    has_replicas = True

    def __init__(self, shard_map: ShardMap) -> None:
        self.use_map(shard_map)

    @property
    def shard_map(self) -> ShardMap:
        """The current map."""
        return self._served.shard_map

    def use_map(self, shard_map: ShardMap) -> None:
        """Start using the tables of `shard_map`. Running requests keep the earlier map."""
        self._served = _ServedMap(shard_map, {})

    # `app.store.store_interface.Store`
    def get(self, reference: str) -> Resident | None:
        return self._served.get(reference)

    def get_all(self, references: Sequence[str]) -> list[Resident | None]:
        served = self._served
        return [served.get(reference) for reference in references]

    def names(self) -> list[str]:
        return sorted(self.shard_map.tables)

    def alias_names(self) -> list[str]:
        return sorted(self.shard_map.aliases)

    def record_of(self, name: str) -> NameRecord[ShardedVersion]:
        shard_map = self.shard_map
        table = shard_map.tables.get(name)
        return NameRecord(
            name,
            () if table is None else table.versions,
            [self._alias(alias, shard_map) for alias in shard_map.aliases_by_table.get(name, ())],
            self._alias(name, shard_map) if name in shard_map.aliases else None,
        )

    def resolve(self, reference: str) -> str | None:
        found = self.shard_map.find(reference)
        return None if found is None else f"{found[0]}@{found[1].number}"

    def dtype_of(self, reference: str) -> str | None:
        found = self.shard_map.find(reference)
        return None if found is None else found[1].dtype.name

    # Methods for the routes of tensors and aliases

    def metadata(self, reference: str) -> Metadata:
        check_reference(reference)
        shard_map = self.shard_map
        found = shard_map.find(reference)
        if found is None:
            raise not_found(reference, self, tell_names=True)
        ranges = tuple(map(_describe_range, found[1].ranges[:MOST_RANGES], found[1].row_bounds))
        return replace(self._describe(*found, shard_map), ranges=ranges)

    def page(self, limit: int, after: str | None) -> tuple[list[Metadata], str | None]:
        shard_map = self.shard_map
        names, following = page_of(sorted(shard_map.tables), limit, after)
        return [self._describe(name, shard_map.tables[name].current, shard_map) for name in names], following

    def alias_page(self, limit: int, after: str | None) -> tuple[list[Alias], str | None]:
        shard_map = self.shard_map
        names, following = page_of(sorted(shard_map.aliases), limit, after)
        return [self._alias(name, shard_map) for name in names], following

    def _alias(self, alias: str, shard_map: ShardMap) -> Alias:
        known = shard_map.alias_records.get(alias)
        if known is not None:
            return known
        name, number = split_reference(shard_map.aliases[alias])
        version = shard_map.tables[name].version(number or 0)
        assert version is not None, "`ShardMap.check` has looked"
        # The alias keeps its ETag as long as it points to this version.
        etag = f'"{version.content_id}-{alias}"'
        return Alias(alias, name, version.number, etag, version.created, version.created)

    def _describe(self, name: str, version: ShardedVersion, shard_map: ShardMap) -> Metadata:
        table = shard_map.tables[name]
        return Metadata(
            name,
            version.dtype.name,
            version.shape,
            version.nbytes,
            version.etag,
            version.sha256,
            table.created or table.versions[0].created,
            version.created,
            False,
            False,
            version=version.number,
            versions=tuple(one.number for one in table.versions),
            note=version.note,
            replicas=table.replicas,
            keys=None if version.keys is None else KeysMetadata(version.keys.dtype, version.keys.sha256),
            capacity=None if version.keys is None else version.rows,
        )

    # Changes, which are not supported

    def lock_name(self, reference: str) -> str:
        return split_reference(reference)[0]

    def etag_to_replace(self, name: str) -> str | None:
        self._refuse("An upload", name)

    def upload(self, spec: UploadSpec) -> Upload:
        self._refuse("An upload", spec.name)

    def put(self, upload: Upload, conditions: Conditions = ALWAYS) -> tuple[Metadata, bool]:
        del conditions
        self._refuse("An upload", upload.spec.name)

    def delete(self, reference: str, conditions: Conditions = ALWAYS) -> None:
        del conditions
        self.metadata(reference)
        self._refuse("Removal", reference)

    def set_replicas(self, name: str, replicas: int) -> Metadata:
        del replicas
        self.metadata(name)
        self._refuse("A change of replicas", name)

    def put_aliases(self, moves: Sequence[AliasMove]) -> list[tuple[Alias, bool]]:
        self._refuse("A change of aliases", moves[0].alias)

    def delete_alias(self, alias: str, conditions: Conditions = ALWAYS) -> None:
        del conditions
        self.alias(alias)
        self._refuse("A change of aliases", alias)

    @staticmethod
    def _refuse(what: str, name: str) -> NoReturn:
        raise GatherError(
            "not_implemented",
            f"{what} is not available for {name!r}: the tables of this service are in row ranges on other services, as "
            "a map says, and change only with the map",
            hint="Upload the ranges of the new version to their shards, and list them in the map file.",
        )

    def usage(self) -> tuple[int, int]:
        found = [version for table in self.shard_map.tables.values() for version in table.versions]
        return len(self.shard_map.tables), sum(version.nbytes for version in found)

    def version_count(self) -> int:
        return sum(len(table.versions) for table in self.shard_map.tables.values())


def _describe_range(one: RowRange, bounds: tuple[int, int]) -> RangeMetadata:
    serving = tuple(replica.node or replica.address for replica in one.replicas)
    if one.primary is None:
        return RangeMetadata(*bounds, serving)
    return RangeMetadata(*bounds, tuple(sorted(serving + one.behind)), one.primary.node, serving)


def without_positions(name: str, pointer: str | None, hint: str) -> GatherError:
    """Return not_implemented for a request that refers to rows by position in table `name`, whose rows have keys."""
    return GatherError(
        "not_implemented",
        f"the rows of {name!r} have no positions: a cluster places them by key",
        pointer=pointer,
        hint=hint,
    )


def immutable(what: str) -> NoReturn:
    """Raise not_implemented for an operation on a whole table in row ranges."""
    raise GatherError(
        "not_implemented",
        (
            f"{what} is not available for tables in row ranges: they are immutable, and change only when a new version "
            "is published"
        ),
        hint="Publish a new version of the table, or send the data in the request.",
    )
