"""The keys of a table on the disk: two files beside that of its rows, named after its content.

tensors/CONTENT.keys    a tensor file (see `tensor_file`): int64[n] or uint64[n]; of strings uint8, the offsets as
                        int64[n + 1] and then all UTF-8
tensors/CONTENT.index   the index from key to row (see `app.keys.index_layout`). It is made of the keys, so it has
                        no checksums; a start makes one that is missing or cut.
"""

from __future__ import annotations

import logging
import mmap
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from app.keys.index_layout import index_bytes
from app.keys.key_column import KeyColumn, KeyType
from app.keys.key_index import Duplicates, IndexDamaged, KeyIndex, new_seed
from app.store.catalogue.catalogue_rows import Row
from app.store.files import disk_writes
from app.store.files.regular_file import open_regular
from app.store.files.tensor_file import PAGE, BadFile, Description, decode_page
from app.tensors.keys_spec import KeysSpec
from app.tensors.string_frames import HEAD, frames_of
from app.tensors.string_tensor import PackedStrings

logger = logging.getLogger("gathernd")
ROWS_AT_ONCE: Final = 1 << 20
"""Rows that are indexed, checked or compared in one step."""
PIECE_BYTES: Final = 1 << 20
"""Bytes of keys that are read at once, but for a longer string."""
_STRINGS_AT_ONCE: Final = 1 << 12


def column_over(keys: Any, dtype: KeyType, count: int) -> KeyColumn:
    """The column whose key file is `keys`, a mapping of it. Copies nothing."""
    items = np.frombuffer(keys, np.uint8, offset=PAGE)
    if dtype != "string":
        return KeyColumn.integers(items[: 8 * count].view(np.int64 if dtype == "int64" else np.uint64))
    offsets = items[: 8 * (count + 1)].view(np.int64)
    end = int(offsets[-1])
    return KeyColumn.strings(offsets, items[8 * (count + 1) :][: max(end, 0)])


class ResidentKeys:
    """The keys of a table, mapped: what requests find rows with (see `store_interface.TableKeys`)."""

    __slots__ = ("_index_file", "_keys_file", "_sizes", "column", "index")

    def __init__(self, keys: mmap.mmap, index: mmap.mmap, dtype: KeyType, count: int) -> None:
        """Raises BadFile for an index that is none of these keys."""
        self._keys_file, self._index_file = keys, index
        self._sizes = keys.size(), index.size()
        self.column = column_over(keys, dtype, count)
        try:
            self.index = KeyIndex.open(np.frombuffer(index, np.uint8))
        except IndexDamaged as problem:
            raise BadFile(f"the index of its keys is unsound: {problem}") from None
        if self.index.dtype != dtype or self.index.capacity < count:
            raise BadFile("the index of its keys is one of other keys")

    @property
    def dtype(self) -> KeyType:
        """See `store_interface.TableKeys`."""
        return self.column.dtype

    @property
    def count(self) -> int:
        """See `store_interface.TableKeys`."""
        return self.column.count

    @property
    def is_whole(self) -> bool:
        """Whether the files are as long as when they were mapped: to read beyond their ends ends the process."""
        return (self._keys_file.size(), self._index_file.size()) == self._sizes

    def find(self, wanted: NDArray[np.int64] | NDArray[np.uint64] | PackedStrings, out: NDArray[np.int64]) -> None:
        """See `store_interface.TableKeys`."""
        of = unframed(wanted) if isinstance(wanted, PackedStrings) else KeyColumn.integers(wanted)
        self.index.find(self.column, of, out)

    def first_lost(self, start: int, stop: int) -> int:
        """The first of rows `start` to `stop` that its key does not find, or -1."""
        rows = np.empty(stop - start, np.int64)
        self.index.find(self.column, self.column.rows(start, stop), rows)
        lost = rows != np.arange(start, stop)
        return start + int(lost.argmax()) if lost.any() else -1


def unframed(strings: PackedStrings) -> KeyColumn:
    """The column of these strings, over the same octets."""
    bounds = np.empty((strings.array.size, 2), np.int64)
    bounds[:, 0] = strings.array + HEAD
    bounds[:, 1] = bounds[:, 0]
    for place in range(HEAD):  # the length, little endian
        bounds[:, 1] += strings.octets[strings.array + place].astype(np.int64) << 8 * place
    return KeyColumn.strings(bounds, strings.octets)


def key_pieces(column: KeyColumn, first: int, last: int) -> Iterator[bytes]:
    """The keys of rows `first` to `last` - 1 as an upload has them: integers, or offsets from 0 and then UTF-8."""
    step = PIECE_BYTES // 8
    if column.dtype != "string":
        for start in range(first, last, step):
            yield column.keys[start : min(start + step, last)].tobytes()
        return
    begin, end = int(column.offsets[first]), int(column.offsets[last])
    for start in range(first, last + 1, step):
        yield (column.offsets[start : min(start + step, last + 1)] - begin).tobytes()
    for start in range(begin, end, PIECE_BYTES):
        yield column.keys[start : min(start + PIECE_BYTES, end)].tobytes()


def framed_pieces(column: KeyColumn) -> Iterator[NDArray[np.uint8]]:
    """All keys, which are strings, in BYTES framing (see `app.tensors.string_frames`), some whole ones at a time."""
    stop = 0
    while stop < column.count:
        start = stop
        full = int(column.offsets.searchsorted(column.offsets[start] + PIECE_BYTES, side="right")) - 1
        stop = min(max(full, start + 1), start + _STRINGS_AT_ONCE, column.count)
        frames, _ = frames_of(column.offsets[start : stop + 1], column.keys)
        yield frames


def check_bounds(column: KeyColumn, first: int, last: int) -> None:
    """Look at where the strings of rows `first` to `last` - 1 begin and end, which a damaged file may have wrong.

    Raises BadFile.
    """
    for start in range(first, last, ROWS_AT_ONCE):
        if column.dtype == "string" and column.rows(start, min(start + ROWS_AT_ONCE, last)).first_bad_offset() >= 0:
            raise BadFile("its key file has keys that do not lie one behind the other")


def string_bytes(column: KeyColumn, first: int, last: int) -> int:
    """Bytes of the strings of rows `first` to `last` - 1; 0 for integers."""
    return int(column.offsets[last] - column.offsets[first]) if column.dtype == "string" else 0


def map_keys(folder: Path, row: Row) -> ResidentKeys | None:
    """The keys of a version, None if it has none. Raises BadFile and OSError."""
    if row.keys is None:
        return None
    keys = _mapped_keys(folder, row)
    fd = open_regular(folder / row.index_file)
    try:
        size = os.fstat(fd).st_size
        if size != index_bytes(row.shape[0]):
            raise BadFile("the index of its keys was cut or has grown")
        index = mmap.mmap(fd, size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
    finally:
        os.close(fd)
    return ResidentKeys(keys, index, key_type(row), row.shape[0])


def _mapped_keys(folder: Path, row: Row) -> mmap.mmap:
    fd = open_regular(folder / row.key_file)
    try:
        size = describe_keys(fd, row).file_size
        return mmap.mmap(fd, size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
    finally:
        os.close(fd)


def repair_index(folder: Path, aside: Path, row: Row) -> None:
    """Make the index of a version's keys again if it is missing or cut, in the folder `aside` first.

    At start-up. Logs what cannot be read.
    """
    if row.keys is None:
        return
    with suppress(BadFile, OSError):
        map_keys(folder, row)
        return
    try:
        build_index(folder, aside, row)
        logger.warning("the index of the keys of %s was missing or cut, and has been made again", row.reference)
    except (BadFile, OSError) as problem:
        logger.error("the keys of %s cannot be read: %s", row.reference, problem)


def build_index(folder: Path, aside: Path, row: Row) -> None:
    """Make the index of a version's keys, in the folder `aside` first. Raises BadFile and OSError."""
    column = column_over(_mapped_keys(folder, row), key_type(row), row.shape[0])
    disk_writes.unlink(aside / row.index_file)
    fd = disk_writes.create(aside / row.index_file)
    try:
        make_index(fd, column)
    finally:
        os.close(fd)
    disk_writes.rename(aside / row.index_file, folder / row.index_file)
    disk_writes.fsync_folder(folder)


def check_key_file(folder: Path, row: Row) -> None:
    """Look at the header of the key file of a version, if it has keys. Raises BadFile and OSError."""
    if row.keys is not None:
        fd = open_regular(folder / row.key_file)
        try:
            describe_keys(fd, row)
        finally:
            os.close(fd)


def describe_keys(fd: int, row: Row) -> Description:
    """The description in an open key file, which must be that of the row. Raises BadFile and OSError."""
    assert row.keys is not None
    try:
        description = decode_page(os.pread(fd, PAGE, 0), os.fstat(fd).st_size)
    except BadFile as problem:
        raise BadFile(f"its key file is damaged: {problem}") from None
    least, (items,) = KeysSpec(key_type(row), row.shape[0]).stored
    if (description.id, description.name, description.sha256) != (row.content, row.name, row.keys.sha256):
        raise BadFile("its key file is that of another tensor")
    is_long_enough = items <= description.item_count if row.keys.dtype == "string" else description.shape == (items,)
    if description.dtype != least.name or not is_long_enough:
        raise BadFile("its key file has other keys than the catalogue says")
    return description


def key_type(row: Row) -> KeyType:
    """The type of the keys of a version that has keys. Raises BadFile for one that is not known."""
    known: dict[str, KeyType] = {"int64": "int64", "uint64": "uint64", "string": "string"}
    if row.keys is None or row.keys.dtype not in known or not row.shape:
        raise BadFile("the catalogue says of its keys what cannot be")
    return known[row.keys.dtype]


def make_index(fd: int, column: KeyColumn) -> Duplicates:
    """Write the index of a column into an empty file, durably; the rows that repeat a key. Raises OSError."""
    size = index_bytes(column.count)
    # A store to a mapped page for which the disk has no room would end the process.
    disk_writes.allocate(fd, size)
    index = KeyIndex.create(np.frombuffer(mmap.mmap(fd, size), np.uint8), column.dtype, new_seed())
    found = Duplicates()
    for start in range(0, column.count, ROWS_AT_ONCE):
        found += index.insert(column, start, min(start + ROWS_AT_ONCE, column.count))
    disk_writes.fsync(fd)
    return found
