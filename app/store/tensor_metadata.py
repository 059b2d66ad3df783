"""The metadata of a tensor."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from app.store.catalogue.catalogue_rows import Row
from app.store.files.regular_file import open_regular
from app.store.files.tensor_file import (
    DAMAGED,
    PAGE,
    Description,
    HeaderWord,
    decode_page,
    etag_of,
    page_modified,
    page_version,
    page_word,
)

MOST_RANGES: Final = 1000
"""Maximum number of row ranges listed in a table's metadata, starting with the first."""


@dataclass(frozen=True, slots=True)
class RangeMetadata:
    """One range of a table that is split into row ranges: rows `start` to `stop` - 1, and the names of the shards that
    hold them.

    Once the version accepts scatters, `primary` is the shard that orders the scatters to this range, and the shards in
    `in_sync` have all of those scatters.
    """

    start: int
    stop: int
    shards: tuple[str, ...]
    primary: str = ""
    in_sync: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class KeysMetadata:
    """The keys of a table: their type, and the SHA-256 digest of type, shape and keys, in hex."""

    dtype: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Metadata:
    """The metadata of a version of a tensor.

    Times are in nanoseconds since 1970. `size` is the size of the items in bytes. `version` is the version's number;
    `versions` lists the numbers of all kept versions of the tensor, oldest first. `replicas` is the number of shards
    that should hold each row range, or None if the tensor is not split into ranges. `ranges` lists these ranges, but is
    empty unless requested. `keys` describes the version's row keys, or is None if there are none. If there are keys,
    `capacity` is the number of rows that fit in the files.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    size: int
    etag: str
    sha256: str
    created: int
    modified: int
    prefault: bool
    lock: bool
    damaged: bool = False
    version: int = 1
    versions: tuple[int, ...] = (1,)
    note: str = ""
    replicas: int | None = None
    ranges: tuple[RangeMetadata, ...] = ()
    keys: KeysMetadata | None = None
    capacity: int | None = None


def read_first_page(path: Path) -> tuple[Description, bytes]:
    """Return a file's description and its first page. Raises BadFile and OSError."""
    fd = open_regular(path)
    try:
        page = os.pread(fd, PAGE, 0)
        return decode_page(page, os.fstat(fd).st_size), page
    finally:
        os.close(fd)


def metadata_of(row: Row, versions: Sequence[int], page: bytes | None = None) -> Metadata:
    """Return a version's metadata, using the first page of its file, or the catalogue's values if `page` is None."""
    state, modified = (0, row.modified) if page is None else (page_version(page), page_modified(page))
    metadata = Metadata(
        row.name, row.dtype, row.shape, row.size, etag_of(row.content, (state & ~DAMAGED) >> 1), row.sha256,
        row.created, modified, row.prefault, row.lock, bool(state & DAMAGED), row.number, tuple(versions),
        row.note,
    )  # fmt: skip
    if row.keys is None:
        return metadata
    capacity = row.shape[0]
    rows = row.keys.count if page is None else min(page_word(page, HeaderWord.ROWS), capacity)
    return replace(
        metadata, shape=(rows, *row.shape[1:]), size=row.size * rows // capacity if capacity else row.size,
        keys=KeysMetadata(row.keys.dtype, row.keys.sha256), capacity=capacity,
    )  # fmt: skip


def damaged_metadata(row: Row, versions: Sequence[int]) -> Metadata:
    """Return the metadata of a tensor whose file cannot be read. The ETag in this metadata matches no version."""
    return replace(metadata_of(row, versions), damaged=True, etag=f'"{row.content}-damaged"')
