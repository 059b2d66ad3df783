"""Write an uploaded keyed table: the keys arrive first and are checked and indexed, and then the rows arrive."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

import numpy as np

from app.errors import GatherError, Place, invalid_field
from app.keys.index_layout import index_bytes
from app.keys.key_column import KeyColumn
from app.keys.key_index import Duplicates
from app.near_name import shorten
from app.store.catalogue.catalogue_rows import INDEX, KEYS, StoredKeys
from app.store.files import disk_writes
from app.store.files.key_files import ROWS_AT_ONCE, KeyLayout, make_index
from app.store.files.key_pieces import framed_pieces
from app.store.files.tensor_file import PAGE, Description, HeaderWord
from app.store.files.write_uploaded_tensor import Upload, UploadSpec, check_shape
from app.tensors.buffer_type import Buffer
from app.tensors.keys_spec import KeysSpec
from app.tensors.little_endian_items import UTF8_HINT
from app.tensors.shape_limits import Limits
from app.tensors.string_frames import read_frames

KEYS_POINTER: Final = "/keys"
OFFSETS_POINTER: Final = "/keys.offsets"
CAPACITY_POINTER: Final = "/query/capacity"
_NO_STARTS: Final = np.empty(0, np.int64)
_KEY_BYTES: Final = 16
"""Bytes of heap reserved per string key for a table that is uploaded without any keys."""


class KeyedUpload(Upload):
    """An upload of a keyed table in progress: first the bytes of all keys, then those of the rows.

    String keys are sent as their offsets, int64[n + 1], followed by their UTF-8 bytes. If `rows` is given, the caller
    writes only the keys. After all keys have arrived, `rows` is called to get the rows.
    """

    def __init__(
        self,
        folder: Path,
        spec: UploadSpec,
        limits: Limits,
        rows: Callable[[], Iterable[Buffer]] | None = None,
        heap: int | None = None,
    ) -> None:
        """Set up the upload. `heap` is the size of the heap. By default, it is the size of the strings, scaled up to
        the capacity.

        Raises limit_exceeded, invalid_field, and element_count_mismatch unless there is one key for each row.
        """
        super().__init__(folder, spec, limits)
        assert spec.keys is not None
        self._spec = spec.keys
        check_key_count(spec.keys, spec.shape)
        capacity = spec.keys.count if spec.capacity is None else spec.capacity
        check_capacity(spec, capacity, limits)
        if self.expected is not None:
            self.stored = spec.dtype, (capacity, *spec.shape[1:])
            self.padding = self.room - self.expected
        self._limits = limits
        self._rows = rows
        if heap is None:
            heap = heap_room(spec.keys.string_bytes, spec.keys.count, capacity)
        self._keys = _KeyFile(folder, spec, KeyLayout(spec.keys.dtype, capacity, heap), limits, self.id)
        self._index_path = folder / (self.id + INDEX)
        self._index_fd = -1
        self._index_size = index_bytes(capacity)
        self._left = spec.keys.size
        """Number of bytes of keys still to be received, or -1 once the keys are indexed."""
        self.column: KeyColumn | None = None
        """The keys, mapped from their file. Set once all of them have arrived and are known to be valid and
        distinct.
        """

    @property
    def reserved(self) -> int:
        return super().reserved + self._keys.reserved + self._index_size

    def open(self, on_growth: Callable[[], None] | None = None) -> None:
        super().open(on_growth)
        self._keys.open()
        self._index_fd = disk_writes.create(self._index_path)
        disk_writes.truncate(self._index_fd, self._index_size)

    def write(self, piece: Buffer) -> None:
        """Write the next bytes.

        May raise everything that `Upload.write` raises. Invalid keys raise keys_not_unique, invalid_field or
        value_not_representable.
        """
        with memoryview(piece) as view:
            of_keys = max(0, min(self._left, len(view)))
            if of_keys:
                self._keys.write(view[:of_keys])
                self._left -= of_keys
            if self._left == 0:
                self._end_keys()
            if of_keys < len(view):
                super().write(view[of_keys:])

    def _end_keys(self) -> None:
        """Check and index the keys after all of them have arrived."""
        self._keys.finish()
        self._left = -1
        column = self._keys.column()
        if column.dtype == "string":
            self._keys.check_ends()
            _check_strings(column, self._spec.string_bytes, self._limits.string_bytes)
        found = make_index(self._index_fd, column, self._keys.layout.capacity)
        if found.total:
            raise _duplicates_error(found, column)
        self.column = column

    def finish(self) -> None:
        """See `Upload`. Raises element_count_mismatch if keys are missing, and everything that `write` raises."""
        if self._left >= 0:
            self._end_keys()
        if self._rows is not None:
            for piece in self._rows():
                super().write(piece)
        super().finish()

    def take_identity(self, content: str, sha256: str, keys_sha256: str = "") -> None:
        """See `Upload`; `keys_sha256` is the hash of the keys."""
        super().take_identity(content, sha256)
        self._keys.take_identity(content, keys_sha256)

    def describe(self) -> Description:
        keys = self._keys.describe()
        self.keys = StoredKeys(self._spec.dtype, keys.sha256, keys.file_size + self._index_size, self._spec.count)
        return super().describe()

    def seal(
        self, description: Description, sequence: int, modified: int, words: Mapping[HeaderWord, int] | None = None
    ) -> None:
        self._keys.seal(self._keys.describe(), 0, modified)
        of_keys = {
            HeaderWord.ROWS: self._spec.count,
            HeaderWord.HEAP_END: self._spec.string_bytes,
            HeaderWord.HEAP_CHECKED: self._spec.string_bytes,
        }
        super().seal(description, sequence, modified, {**of_keys, **(words or {})})

    def places(self, file: str) -> list[tuple[Path, str]]:
        of_keys = [(self._index_path, file + INDEX), *self._keys.places(file + KEYS)]
        return [*of_keys, *super().places(file)]

    def close(self) -> None:
        self._keys.close()
        if self._index_fd >= 0:
            os.close(self._index_fd)
            self._index_fd = -1
        super().close()

    def abandon(self) -> None:
        self._keys.abandon()
        disk_writes.unlink(self._index_path)
        super().abandon()


class _KeyFile(Upload):
    """The key file of the upload with this ID.

    Converts the offsets of strings to start and end pairs; see `KeyLayout`.
    """

    def __init__(self, folder: Path, table: UploadSpec, layout: KeyLayout, limits: Limits, id_: str) -> None:
        assert table.keys is not None
        spec, self.layout = table.keys, layout
        dtype, shape = spec.stored
        super().__init__(folder, UploadSpec(table.name, dtype, shape, spec.swap), limits)
        self.id = self._content = id_
        self.path = folder / (id_ + KEYS)
        self.stored = self.layout.stored
        self.padding = self.layout.size - (
            self.layout.heap_at + spec.string_bytes if spec.dtype == "string" else spec.size
        )
        self._of = spec
        self._left = 8 * (spec.count + 1) if spec.dtype == "string" else 0
        """Number of bytes of offsets still to be received."""
        self._part = b""
        """The last complete offset, and the bytes of the next one that have been received."""
        self._first: int | None = None
        self._last = 0

    def write_out(self, piece: Buffer) -> None:
        with memoryview(piece) as view:
            of_offsets = min(self._left, len(view))
            if of_offsets:
                self._left -= of_offsets
                self._write_offsets(view[:of_offsets])
                if not self._left:
                    self.skip(16 * (self.layout.capacity - self._of.count))
            if of_offsets < len(view):
                super().write_out(view[of_offsets:])

    def _write_offsets(self, piece: Buffer) -> None:
        raw = self._part + bytes(piece)
        whole = len(raw) // 8
        if not whole:
            self._part = raw
            return
        offsets = np.frombuffer(raw, np.int64, whole)
        if self._first is None:
            self._first = int(offsets[0])
        self._last = int(offsets[-1])
        self._part = raw[8 * (whole - 1) :]
        if whole > 1:
            super().write_out(np.stack((offsets[:-1], offsets[1:]), axis=1).tobytes())

    def check_ends(self) -> None:
        """Raise invalid_field unless the offsets begin with 0 and end with the total size of the strings."""
        size = self._of.string_bytes
        if self._first != 0 or self._last != size:
            raise invalid_field(
                OFFSETS_POINTER,
                f"keys.offsets begins with {self._first} and ends with {self._last}, not with 0 and {size}",
            )

    def column(self) -> KeyColumn:
        """Return the keys. Call this after all of them have arrived."""
        size = PAGE + self.layout.size
        mapping = mmap.mmap(self._fd, size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
        return self.layout.column(mapping, self._of.count)


def heap_room(string_bytes: int, count: int, capacity: int) -> int:
    """Return the heap size in bytes for `capacity` keys, assuming the average length of `count` known keys.

    The known keys take `string_bytes` bytes in total.
    """
    if capacity <= count:
        return string_bytes
    return -(-string_bytes * capacity // count) if count else _KEY_BYTES * capacity


def check_key_count(keys: KeysSpec, shape: tuple[int, ...]) -> None:
    """Raise element_count_mismatch unless there is one key for each row of a table of this shape."""
    if not shape or shape[0] != keys.count:
        rows = f"{shape[0]} rows" if shape else "no rows, since it is a scalar"
        raise GatherError(
            "element_count_mismatch",
            f"{keys.count} keys were sent, but the table has {rows}",
            pointer=KEYS_POINTER,
        )


def check_capacity(spec: UploadSpec, capacity: int, limits: Limits) -> None:
    """Raise invalid_field or limit_exceeded if this keyed table cannot have this capacity."""
    if capacity < spec.shape[0]:
        raise invalid_field(
            CAPACITY_POINTER,
            f"the capacity is {capacity}, but the table has {spec.shape[0]} rows",
            "Leave capacity out, or give at least the number of rows.",
        )
    if capacity > spec.shape[0] and spec.dtype.kind == "string":
        raise invalid_field(
            CAPACITY_POINTER, "a table of strings has room only for its own rows", "Leave capacity out."
        )
    check_shape(spec.dtype, (capacity, *spec.shape[1:]), limits, CAPACITY_POINTER)


def _check_strings(column: KeyColumn, size: int, longest: int) -> None:
    """Raise an error for descending offsets, a key that is too long, or invalid UTF-8.

    The errors are invalid_field, limit_exceeded and value_not_representable, respectively.
    """
    for start in range(0, column.count, ROWS_AT_ONCE):
        starts, stops = column.rows(start, min(start + ROWS_AT_ONCE, column.count)).bounds()
        bad = (stops < starts) | (stops > size)
        if bad.any():
            at = start + int(bad.argmax()) + 1
            raise GatherError(
                "invalid_field",
                f"keys.offsets is less than the one before, or over {size}",
                places=[Place(OFFSETS_POINTER, (at,), int(stops[at - 1 - start]))],
            )
        long = stops - starts > longest
        if long.any():
            raise GatherError(
                "limit_exceeded",
                f"a key is longer than {longest} bytes",
                places=[Place(KEYS_POINTER, (start + int(long.argmax()),))],
                facts={"limit": "string_bytes", "maximum": longest},
            )
    bad_key = _first_not_utf8(column)
    if bad_key >= 0:
        places = [Place(KEYS_POINTER, (bad_key,))]
        raise GatherError("value_not_representable", "a key is not UTF-8", places=places, hint=UTF8_HINT)


def _first_not_utf8(column: KeyColumn) -> int:
    """Return the first key that is not UTF-8, or -1."""
    before = 0
    for frames in framed_pieces(column.rows, 0, column.count):
        count, _, wrong = read_frames.run(frames, column.count, _NO_STARTS)
        if wrong >= 0:
            return before + wrong
        before += count
    return -1


def _duplicates_error(found: Duplicates, column: KeyColumn) -> GatherError:
    rows = np.array(found.first, np.int64)
    values: list[int | bytes] = [*column.take(rows).tolist()]
    places = [
        Place(KEYS_POINTER, (row,), shorten(value.decode()) if isinstance(value, bytes) else value)
        for row, value in zip(found.first, values, strict=True)
    ]
    detail = f"keys[{found.first[0]}] = {places[0].value} is also the key of another row"
    return GatherError("keys_not_unique", detail, places=places, total=found.total)
