"""The keys of a table on disk, in two files next to the file of the table's rows.

    tensors/FILE.keys    a tensor file (see `tensor_file`) that contains the keys: see `KeyLayout`
    tensors/FILE.index   the index from key to row (see `app.keys.index_layout`). It can be rebuilt from the keys, so it
                         has no checksums. Startup rebuilds an index that is missing or truncated.

The header word ROWS in the row file holds the number of rows.
"""

from __future__ import annotations

import logging
import mmap
import os
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.keys.index_layout import index_bytes
from app.keys.key_column import KeyColumn, KeyType
from app.keys.key_index import Duplicates, IndexDamaged, KeyIndex, new_seed
from app.keys.probe import Search
from app.store.catalogue.catalogue_rows import Row
from app.store.files import disk_writes
from app.store.files.regular_file import open_regular
from app.store.files.tensor_file import PAGE, BadFile, Description, HeaderWord, decode_page, page_word
from app.tensors.dtypes import DTYPES, DType
from app.tensors.string_frames import text_bounds
from app.tensors.string_tensor import PackedStrings


@dataclass(frozen=True, slots=True)
class KeyLayout:
    """The layout of a table's key file after its first page: the type of its keys, and its capacity.

        int64, uint64   the keys, 8 bytes each
        string          the start and end of each key in the heap, two int64 each;
                        then the heap, which holds all keys in UTF-8

    A file has room for `capacity` keys and for `heap` bytes of strings. The keys of existing rows come first, followed
    by unused entries. New strings are appended to the heap, so bytes in use never change. The space of removed keys is
    reclaimed when the file is rewritten.
    """

    dtype: KeyType
    capacity: int
    heap: int = 0

    @property
    def width(self) -> int:
        """The size in bytes of one entry: an integer, or the start and end of a string."""
        return 16 if self.dtype == "string" else 8

    @property
    def heap_at(self) -> int:
        """The offset of the heap, counted after the first page."""
        return self.width * self.capacity

    @property
    def size(self) -> int:
        """The total size in bytes."""
        return self.heap_at + self.heap

    @property
    def stored(self) -> tuple[DType, tuple[int, ...]]:
        """The type and shape that the file's description contains."""
        if self.dtype == "string":
            return DTYPES["uint8"], (self.size,)
        return DTYPES[self.dtype], (self.capacity,)

    def column(self, mapping: object, count: int) -> KeyColumn:
        """Return the keys of the first `count` rows, as views into a mapping of the file."""
        octets = np.frombuffer(mapping, np.uint8)[PAGE : PAGE + self.size]  # type: ignore[call-overload]
        if self.dtype != "string":
            kind = np.int64 if self.dtype == "int64" else np.uint64
            return KeyColumn.integers(octets[: 8 * count].view(kind))
        return KeyColumn.strings(octets[: 16 * count].view(np.int64).reshape(-1, 2), octets[self.heap_at :])


logger = logging.getLogger("gathernd")
ROWS_AT_ONCE: Final = 1 << 20
"""Number of rows that are indexed, checked or compared in one step."""


class Access(Enum):
    """How a file is mapped: for reading, for writing, or for private writes that nobody else sees."""

    READ = auto()
    WRITE = auto()
    PRIVATE = auto()


class ResidentKeys:
    """The keys of a table's rows at one version; see `store_interface.TableKeys`."""

    __slots__ = ("column", "index")

    def __init__(self, column: KeyColumn, index: KeyIndex) -> None:
        self.column = column
        self.index = index

    @property
    def dtype(self) -> KeyType:
        return self.column.dtype

    @property
    def count(self) -> int:
        return self.column.count

    def search(self, wanted: KeyColumn | PackedStrings) -> Search:
        return self.index.search(self.column, wanted)

    def first_lost(self, start: int, stop: int) -> int:
        """Return the first row in `start` to `stop` - 1 whose key the index does not map to the row, or -1."""
        rows = self.index.find(self.column, self.column.rows(start, stop))
        lost = rows != np.arange(start, stop)
        return start + int(lost.argmax()) if lost.any() else -1


class MappedKeys:
    """The key file of a table and its index, mapped for reading."""

    def __init__(self, folder: Path, row: Row) -> None:
        """Map the files. Raises BadFile and OSError."""
        self._keys, self.layout = map_key_file(folder, row)
        self._index_file = map_index(folder, row)
        self._sizes = self._keys.size(), self._index_file.size()
        self._index = open_index(self._index_file, self.layout)

    @property
    def is_whole(self) -> bool:
        """Whether the files still have their original sizes.

        Reading past the end of a truncated file would kill the process.
        """
        return (self._keys.size(), self._index_file.size()) == self._sizes

    def read(self, begin: int, end: int) -> bytes:
        """Return bytes of the key file, counted after its first page; see `KeyLayout`."""
        return self._keys[PAGE + begin : PAGE + end]

    def column_of(self, entries: bytes) -> KeyColumn:
        """Return the keys of the rows that have these entries (the bytes that precede the heap)."""
        if self.layout.dtype != "string":
            return KeyColumn.integers(np.frombuffer(entries, np.int64 if self.layout.dtype == "int64" else np.uint64))
        heap = self.layout.column(self._keys, 0).keys
        return KeyColumn.strings(np.frombuffer(entries, np.int64).reshape(-1, 2), heap)

    def of(self, count: int) -> ResidentKeys:
        """Return the keys of the first `count` rows."""
        return ResidentKeys(self.layout.column(self._keys, count), self._index)


def wanted_column(wanted: NDArray[np.int64] | NDArray[np.uint64] | PackedStrings) -> KeyColumn:
    """Return a request's one-dimensional keys as a column, without copying them."""
    if not isinstance(wanted, PackedStrings):
        return KeyColumn.integers(wanted)
    bounds = np.empty((wanted.array.size, 2), np.int64)
    text_bounds.run(wanted.octets, wanted.array, bounds.reshape(-1))
    return KeyColumn.strings(bounds, wanted.octets)


def map_key_file(folder: Path, row: Row, access: Access = Access.READ) -> tuple[mmap.mmap, KeyLayout]:
    """Map the key file of a version that has keys. Raises BadFile and OSError."""
    fd = open_regular(folder / row.key_file, os.O_RDONLY if access is Access.READ else os.O_RDWR)
    try:
        description, layout = describe_keys(fd, row)
        return _map(fd, description.file_size, access), layout
    finally:
        os.close(fd)


def map_index(folder: Path, row: Row, access: Access = Access.READ) -> mmap.mmap:
    """Map the index of a version that has keys. Raises BadFile and OSError."""
    fd = open_regular(folder / row.index_file, os.O_RDONLY if access is Access.READ else os.O_RDWR)
    try:
        size = os.fstat(fd).st_size
        if size != index_bytes(row.shape[0]):
            raise BadFile("the index of its keys was cut or has grown")
        return _map(fd, size, access)
    finally:
        os.close(fd)


def _map(fd: int, size: int, access: Access) -> mmap.mmap:
    flags = mmap.MAP_PRIVATE if access is Access.PRIVATE else mmap.MAP_SHARED
    return mmap.mmap(fd, size, flags, mmap.PROT_READ if access is Access.READ else mmap.PROT_READ | mmap.PROT_WRITE)


def open_index(mapping: mmap.mmap, layout: KeyLayout) -> KeyIndex:
    """Return the index in a mapping. Raises BadFile if the index does not match the keys."""
    try:
        index = KeyIndex.open(np.frombuffer(mapping, np.uint8))
    except IndexDamaged as problem:
        raise BadFile(f"the index of its keys is unsound: {problem}") from None
    if index.dtype != layout.dtype or index.capacity < layout.capacity:
        raise BadFile("the index of its keys is one of other keys")
    return index


def repair_index(folder: Path, aside: Path, row: Row) -> None:
    """Rebuild the index of a version's keys if it is missing or truncated. The new index is first written to `aside`.

    Called at startup. Logs an error if the keys cannot be read.
    """
    if row.keys is None:
        return
    with suppress(BadFile, OSError):
        MappedKeys(folder, row)
        return
    try:
        build_index(folder, aside, row)
        logger.warning("the index of the keys of %s was missing or cut, and has been made again", row.reference)
    except (BadFile, OSError) as problem:
        logger.error("the keys of %s cannot be read: %s", row.reference, problem)


def build_index(folder: Path, aside: Path, row: Row) -> None:
    """Build the index of a version's keys. The file is first written to `aside`. Raises BadFile and OSError."""
    mapping, layout = map_key_file(folder, row)
    fd = open_regular(folder / row.file)
    try:
        count = min(page_word(os.pread(fd, PAGE, 0), HeaderWord.ROWS), layout.capacity)
    finally:
        os.close(fd)
    disk_writes.unlink(aside / row.index_file)
    fd = disk_writes.create(aside / row.index_file)
    try:
        make_index(fd, layout.column(mapping, count), layout.capacity)
    finally:
        os.close(fd)
    disk_writes.rename(aside / row.index_file, folder / row.index_file)
    disk_writes.fsync_folder(folder)


def check_key_file(folder: Path, row: Row) -> None:
    """Check the header of a version's key file, if it has keys. Raises BadFile and OSError."""
    if row.keys is not None:
        fd = open_regular(folder / row.key_file)
        try:
            describe_keys(fd, row)
        finally:
            os.close(fd)


def describe_keys(fd: int, row: Row) -> tuple[Description, KeyLayout]:
    """Return the description in an open key file, and its layout.

    Raises OSError, and BadFile unless `row` describes this file.
    """
    assert row.keys is not None
    try:
        description = decode_page(os.pread(fd, PAGE, 0), os.fstat(fd).st_size)
    except BadFile as problem:
        raise BadFile(f"its key file is damaged: {problem}") from None
    if (description.id, description.name, description.sha256) != (row.content, row.name, row.keys.sha256):
        raise BadFile("its key file is that of another tensor")
    bare = KeyLayout(key_type(row), row.shape[0])
    layout = KeyLayout(bare.dtype, bare.capacity, description.size - bare.size) if bare.dtype == "string" else bare
    dtype, shape = layout.stored
    if (description.dtype, description.shape) != (dtype.name, shape) or layout.heap < 0:
        raise BadFile("its key file has other keys than the catalogue says")
    return description, layout


def key_type(row: Row) -> KeyType:
    """Return the type of the keys of a version that has keys. Raises BadFile if the type is unknown."""
    known: dict[str, KeyType] = {"int64": "int64", "uint64": "uint64", "string": "string"}
    if row.keys is None or row.keys.dtype not in known or not row.shape:
        raise BadFile("the catalogue says of its keys what cannot be")
    return known[row.keys.dtype]


def make_index(fd: int, column: KeyColumn, capacity: int) -> Duplicates:
    """Durably write a column's index to an empty file. Returns the rows that repeat a key. Raises OSError.

    `capacity` is the number of keys for which the index has room.
    """
    size = index_bytes(capacity)
    # Allocate the blocks first: writing to a mapped page for which there is no disk space would kill the process.
    disk_writes.allocate(fd, size)
    index = KeyIndex.create(np.frombuffer(mmap.mmap(fd, size), np.uint8), column.dtype, new_seed())
    found = Duplicates()
    for start in range(0, column.count, ROWS_AT_ONCE):
        found += index.insert(column, start, min(start + ROWS_AT_ONCE, column.count))
    disk_writes.fsync(fd)
    return found
