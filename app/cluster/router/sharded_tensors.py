"""The tables of a shard map as a store has tensors: found by reference, described and listed, and changed by no one.

A static map changes when its file does. So does each method that would change it: it says `not_implemented`.
"""

from __future__ import annotations

from typing import NoReturn

import numpy as np

from app.cluster.shard_map import ShardedVersion, ShardMap
from app.errors import GatherError
from app.store import Resident
from app.store.catalogue.catalogue_cache import page_of
from app.store.catalogue.catalogue_rows import Alias
from app.store.files.write_uploaded_tensor import Upload, UploadSpec
from app.store.store_errors import no_alias, not_found
from app.store.tensor_metadata import ALWAYS, Conditions, Metadata
from app.tensors.string_tensor import PackedStrings
from app.tensors.tensor import Tensor
from app.tensors.tensor_name import check_name, check_reference, split_reference


class ShardedResident(Resident):
    """One version of a table in row ranges, as a map has it: `tensor` has its type and shape, and no items."""

    __slots__ = ("shard_map", "table", "version_in_map")

    def __init__(self, shard_map: ShardMap, table: str, version: ShardedVersion) -> None:
        if version.dtype.kind == "string":
            tensor: Tensor = PackedStrings(version.dtype, version.shape, np.empty(0, np.int64))
        else:
            tensor = Tensor(version.dtype, version.shape, np.empty(0, version.dtype.numpy))
        super().__init__(tensor, version.etag, data_version=version.number)
        self.shard_map = shard_map
        self.table = table
        self.version_in_map = version


class ShardedTensors:
    """The tables of the newest map. `use_map` takes another one into use, whole and at once."""

    def __init__(self, shard_map: ShardMap) -> None:
        self.shard_map = shard_map
        self._residents: dict[str, ShardedResident] = {}

    def use_map(self, shard_map: ShardMap) -> None:
        """Serve the tables of `shard_map` from now on; requests under way keep what they have found."""
        self.shard_map = shard_map
        self._residents = {}

    # As `app.store.Store`

    def get(self, reference: str) -> Resident | None:
        """The version that a reference names, or None."""
        residents = self._residents  # first: threads look up, too, and those of a map have nothing of an older one
        resident = residents.get(reference)
        if resident is not None:
            return resident
        shard_map = self.shard_map
        found = shard_map.find(reference)
        if found is None:
            return None
        table, version = found
        own = f"{table}@{version.number}"
        # One object for all references to a version, by which lookups know that they read the same table.
        resident = residents.get(own) or ShardedResident(shard_map, table, version)
        residents[own] = residents[reference] = resident
        return resident

    def names(self) -> list[str]:
        """The names of all tables, sorted."""
        return sorted(self.shard_map.tables)

    def alias_names(self) -> list[str]:
        """The names of all aliases, sorted."""
        return sorted(self.shard_map.aliases)

    def version_numbers(self, name: str) -> list[int]:
        """The numbers of the versions of a table, or of the one that an alias names; else none."""
        target = self.shard_map.aliases.get(name)
        if target is not None:
            return [split_reference(target)[1] or 0]
        table = self.shard_map.tables.get(name)
        return [] if table is None else [version.number for version in table.versions]

    def resolve(self, reference: str) -> str | None:
        """The version that a reference names now, written `NAME@7`; None if there is none."""
        found = self.shard_map.find(reference)
        return None if found is None else f"{found[0]}@{found[1].number}"

    def dtype_of(self, reference: str) -> str | None:
        """The element type of the version that a reference names; None if there is none."""
        found = self.shard_map.find(reference)
        return None if found is None else found[1].dtype.name

    # What the routes of tensors and aliases ask for

    def metadata(self, reference: str) -> Metadata:
        """What the map says of a version of a table. Raises invalid_field and tensor_not_found."""
        check_reference(reference)
        shard_map = self.shard_map
        found = shard_map.find(reference)
        if found is None:
            raise not_found(reference, self, tell_names=True)
        return self._describe(*found, shard_map)

    def page(self, limit: int, after: str | None) -> tuple[list[Metadata], str | None]:
        """At most `limit` tables in the order of their names, those after `after`; the last name if more follow."""
        shard_map = self.shard_map
        names, following = page_of(sorted(shard_map.tables), limit, after)
        return [self._describe(name, shard_map.tables[name].current, shard_map) for name in names], following

    def alias(self, alias: str) -> Alias:
        """The alias of this name. Raises tensor_not_found."""
        check_name(alias)
        shard_map = self.shard_map
        if alias not in shard_map.aliases:
            raise no_alias(alias, is_tensor=alias in shard_map.tables, names=sorted(shard_map.aliases))
        return self._alias(alias, shard_map)

    def alias_page(self, limit: int, after: str | None) -> tuple[list[Alias], str | None]:
        """At most `limit` aliases in the order of their names, those after `after`; the last name if more follow."""
        shard_map = self.shard_map
        names, following = page_of(sorted(shard_map.aliases), limit, after)
        return [self._alias(name, shard_map) for name in names], following

    def _alias(self, alias: str, shard_map: ShardMap) -> Alias:
        name, number = split_reference(shard_map.aliases[alias])
        version = shard_map.tables[name].version(number or 0)
        assert version is not None, "`ShardMap` has checked it"
        # As long as it names this content it is the same alias.
        etag = f'"{version.content_id}-{alias}"'
        created, modified = shard_map.alias_times.get(alias, (version.created, version.created))
        return Alias(alias, name, version.number, etag, created, modified)

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
        )

    # Changes, of which there is none

    def lock_name(self, reference: str) -> str:
        """The name of the table."""
        return split_reference(reference)[0]

    def etag_to_replace(self, name: str) -> str | None:
        """Raises not_implemented."""
        self._refuse("An upload", name)

    def upload(self, spec: UploadSpec) -> Upload:
        """Raises not_implemented."""
        self._refuse("An upload", spec.name)

    def put(self, upload: Upload, conditions: Conditions = ALWAYS) -> tuple[Metadata, bool]:
        """Raises not_implemented."""
        del conditions
        self._refuse("An upload", upload.spec.name)

    def delete(self, reference: str, conditions: Conditions = ALWAYS) -> None:
        """Raises not_implemented, and invalid_field and tensor_not_found before."""
        del conditions
        self.metadata(reference)
        self._refuse("Removal", reference)

    def put_alias(self, alias: str, target: str, conditions: Conditions = ALWAYS) -> tuple[Alias, bool]:
        """Raises not_implemented."""
        del target, conditions
        self._refuse("A change of aliases", alias)

    def delete_alias(self, alias: str, conditions: Conditions = ALWAYS) -> None:
        """Raises not_implemented, and tensor_not_found before."""
        del conditions
        self.alias(alias)
        self._refuse("A change of aliases", alias)

    @staticmethod
    def _refuse(what: str, name: str) -> NoReturn:
        raise GatherError(
            "not_implemented",
            f"{what} is not there for {name!r}: the tables of this service are in row ranges on other services, which "
            "a map says, and change with the map",
            hint="Put the ranges of the new version to their shards, and name them in the map's file.",
        )

    def usage(self) -> tuple[int, int]:
        """How many tables there are, and the bytes of all their versions, each counted once."""
        found = [version for table in self.shard_map.tables.values() for version in table.versions]
        return len(self.shard_map.tables), sum(version.nbytes for version in found)

    def version_count(self) -> int:
        """How many versions all tables have together."""
        return sum(len(table.versions) for table in self.shard_map.tables.values())


def immutable(what: str) -> NoReturn:
    """Raise not_implemented for what reads or changes a table in row ranges as a whole."""
    raise GatherError(
        "not_implemented",
        f"{what} is not there for tables in row ranges: they are immutable, and change by publishing a new version",
        hint="Publish a new version of the table, or send the data in the request.",
    )
