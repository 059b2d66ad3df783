"""The catalogue's rows: tensor versions, aliases, last version numbers and Idempotency-Keys."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import orjson

from app.catalogue.records import Alias


class RowCounts(NamedTuple):
    """The number of rows after a change, and how many distinct keys were inserted, removed or missing."""

    rows: int
    inserted: int = 0
    removed: int = 0
    missing: int = 0


KEYS: Final = ".keys"
INDEX: Final = ".index"
"""Suffixes of the files that belong to keys; see `key_files`."""


@dataclass(frozen=True, slots=True)
class StoredKeys:
    """The keys of a version: their type, their SHA-256 digest, and the total size of key file and index in bytes.

    `count` is the number of keys when the files were stored.
    """

    dtype: str
    sha256: str
    size: int
    count: int


@dataclass(frozen=True, slots=True)
class Row:
    """A version of a tensor: the ID and file of its content, and its metadata. Times are nanoseconds since 1970.

    `shape` and `size` (in bytes) describe the items or, for a keyed table, its capacity. `file_size` is the size of the
    file of rows in bytes. `created` is when the name was first used, and `modified` is when this file was stored.
    `dtype` is empty if the file could not be read when the row was inserted. `note` is the uploader's text.
    """

    name: str
    content: str
    file: str
    dtype: str
    shape: tuple[int, ...]
    size: int
    file_size: int
    sha256: str
    created: int
    modified: int
    prefault: bool = False
    lock: bool = False
    number: int = 1
    note: str = ""
    keys: StoredKeys | None = None

    @property
    def reference(self) -> str:
        """The unique name of this version: `NAME@7`."""
        return f"{self.name}@{self.number}"

    @property
    def key_file(self) -> str:
        """The name of the version's key file, if it has keys."""
        return self.file + KEYS

    @property
    def index_file(self) -> str:
        """The name of the version's index file, if it has keys."""
        return self.file + INDEX

    @property
    def files(self) -> tuple[str, ...]:
        """The names of all of the version's files in the tensors folder."""
        return (self.file,) if self.keys is None else (self.file, self.key_file, self.index_file)

    @property
    def total_size(self) -> int:
        """The total size of the version's files in bytes."""
        return self.file_size + (0 if self.keys is None else self.keys.size)


@dataclass(frozen=True, slots=True)
class AnsweredKey:
    """An Idempotency-Key: the digest of its request, and the response (an ETag and a version number).

    `scope` is the name exactly as it appears in the request's path: a tensor, one version, or an alias. `clock` is the
    time of the response on the store's clock (see `idempotency`). `counts` holds the row counts that were returned for
    an upsert or a removal.
    """

    scope: str
    key: str
    digest: str
    etag: str
    clock: int
    version: int = 1
    counts: RowCounts | None = None


@dataclass(frozen=True, slots=True)
class LastVersion:
    """The highest version number that a name has ever had.

    `removed` is the number of the change that removed the name's last remaining version, or None while a version
    exists.
    """

    name: str
    version: int
    removed: int | None


@dataclass(frozen=True, slots=True)
class CatalogueContents:
    """The whole catalogue at one moment, except Idempotency-Keys and import records.

    `version_floor` is the highest version number among the names dropped from `last_versions`.
    """

    rows: Sequence[Row] = ()
    aliases: Sequence[Alias] = ()
    last_versions: Sequence[LastVersion] = ()
    version_floor: int = 0


@dataclass(frozen=True, slots=True)
class Change:
    """A change to one version, or to an alias if `version` is 0.

    `now` is the current value, or None if it was removed.
    """

    sequence: int
    name: str
    version: int
    now: Row | Alias | None


EMPTY: Final = CatalogueContents()


def answered_key_of(found: Sequence[Any]) -> AnsweredKey:
    """Return the Idempotency-Key that these columns of the `keys` table hold."""
    scope, key, digest, etag, clock, version, counts = found
    told = None if counts is None else RowCounts(*orjson.loads(counts))
    return AnsweredKey(scope, key, digest, etag, clock, version, told)


def row_of(found: Sequence[Any]) -> Row:
    """Return the row that these columns of the `tensors` table hold."""
    (
        name, version, content, file, dtype, shape, size, file_size, sha256, created, modified, prefault, lock, note,
        keys_dtype, keys_sha256, keys_size, keys_count,
    ) = found  # fmt: skip
    keys = None if keys_dtype is None else StoredKeys(sys.intern(keys_dtype), keys_sha256, keys_size, keys_count)
    # Share equal strings, because there may be a hundred thousand rows.
    return Row(
        sys.intern(name), content, content if file == content else file, sys.intern(dtype), tuple(orjson.loads(shape)),
        size, file_size, sha256, created, modified, bool(prefault), bool(lock), version, note,
        keys,
    )  # fmt: skip
