"""The rows of the catalogue: versions of tensors, aliases, last numbers and Idempotency-Keys."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from app.catalogue.records import Alias


@dataclass(frozen=True, slots=True)
class Row:
    """A version of a tensor: the id and file of its content, and its metadata. Times are nanoseconds since 1970.

    `size` is the bytes of the items, `file_size` those of the file; `created` is when the name came into being,
    `modified` when this file was stored. `dtype` is empty where the file could not be read when it was entered. `note`
    is what the caller who uploaded it said of it.
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

    @property
    def reference(self) -> str:
        """What names this version and no other: `NAME@7`."""
        return f"{self.name}@{self.number}"


@dataclass(frozen=True, slots=True)
class AnsweredKey:
    """An Idempotency-Key: the digest of its request, and what was answered, an ETag and the number of the version.

    `scope` is the name in the path of the request, as it was written: of a tensor, of one version, or an alias.
    `clock` is when, by the store's clock (see `idempotency`).
    """

    scope: str
    key: str
    digest: str
    etag: str
    clock: int
    version: int = 1


@dataclass(frozen=True, slots=True)
class LastVersion:
    """The highest number that a name ever had.

    `removed` is the number of the change by which its tensor went, None while there is one.
    """

    name: str
    version: int
    removed: int | None


@dataclass(frozen=True, slots=True)
class CatalogueContents:
    """All that the catalogue says at one moment, but for Idempotency-Keys.

    `version_floor` is the highest number of the names that are in `last_versions` no more.
    """

    rows: Sequence[Row] = ()
    aliases: Sequence[Alias] = ()
    last_versions: Sequence[LastVersion] = ()
    version_floor: int = 0


@dataclass(frozen=True, slots=True)
class Change:
    """A change of one version, or of an alias where `version` is 0; `now` is what is there, None if it was removed."""

    sequence: int
    name: str
    version: int
    now: Row | Alias | None


EMPTY: Final = CatalogueContents()


def row_of(found: Sequence[Any]) -> Row:
    """The row of these columns of the table `tensors`."""
    name, version, content, file, dtype, shape, size, file_size, sha256, created, modified, prefault, lock, note = found
    # Shared where they can be, since there may be a hundred thousand rows.
    return Row(
        sys.intern(name), content, content if file == content else file, sys.intern(dtype), tuple(orjson.loads(shape)),
        size, file_size, sha256, created, modified, bool(prefault), bool(lock), version, note,
    )  # fmt: skip
