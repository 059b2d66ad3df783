"""Writes an uploaded table with keys: the keys come first, are checked and indexed, and then the rows come."""

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
from app.store.files.key_files import ROWS_AT_ONCE, column_over, framed_pieces, make_index
from app.store.files.tensor_file import PAGE, Description, HeaderWord
from app.store.files.write_uploaded_tensor import Upload, UploadSpec
from app.tensors.buffer_type import Buffer
from app.tensors.keys_spec import KeysSpec
from app.tensors.little_endian_items import UTF8_HINT
from app.tensors.shape_limits import Limits
from app.tensors.string_frames import read_frames

KEYS_POINTER: Final = "/keys"
OFFSETS_POINTER: Final = "/keys.offsets"
BYTES_POINTER: Final = "/keys.bytes"
_NO_STARTS: Final = np.empty(0, np.int64)


class KeyedUpload(Upload):
    """A table with keys being received: the bytes of all keys, then those of the rows.

    Strings come as their offsets, int64[n + 1], and then their UTF-8. `rows`, if given, gives the rows once all keys
    have come, and nobody writes them.
    """

    def __init__(
        self, folder: Path, spec: UploadSpec, limits: Limits, rows: Callable[[], Iterable[Buffer]] | None = None
    ) -> None:
        """Raises limit_exceeded, and element_count_mismatch unless there is one key for each row."""
        super().__init__(folder, spec, limits)
        assert spec.keys is not None
        self._spec = spec.keys
        check_key_count(spec.keys, spec.shape)
        self._limits = limits
        self._rows = rows
        self._keys = _KeyFile(folder, spec, spec.keys, limits, self.id)
        self._index_path = folder / (self.id + INDEX)
        self._index_fd = -1
        self._left = spec.keys.size
        """Bytes of keys that are still to come; -1 once they are indexed."""
        self.column: KeyColumn | None = None
        """The keys, over their file, once all have come and are known to be sound and distinct."""

    @property
    def reserved(self) -> int:
        """See `Upload`."""
        return super().reserved + self._keys.reserved + index_bytes(self._spec.count)

    def open(self, on_growth: Callable[[], None] | None = None) -> None:
        """See `Upload`."""
        super().open(on_growth)
        self._keys.open()
        self._index_fd = disk_writes.create(self._index_path)
        disk_writes.truncate(self._index_fd, index_bytes(self._spec.count))

    def write(self, piece: Buffer) -> None:
        """Take the next bytes.

        Raises what `Upload.write` does, and keys_not_unique, invalid_field and value_not_representable for keys.
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
        """All keys have come: check and index them."""
        self._keys.finish()
        self._left = -1
        column = self._keys.column()
        if column.dtype == "string":
            _check_strings(column, self._keys.string_bytes, self._limits.string_bytes)
        found = make_index(self._index_fd, column)
        if found.total:
            raise _not_unique(found, column)
        self.column = column

    def finish(self) -> None:
        """See `Upload`. Raises element_count_mismatch where keys are missing, and what `write` raises."""
        if self._left >= 0:
            self._end_keys()
        if self._rows is not None:
            for piece in self._rows():
                super().write(piece)
        super().finish()

    def describe(self) -> Description:
        """See `Upload`."""
        keys = self._keys.describe()
        self.keys = StoredKeys(self._spec.dtype, keys.sha256, keys.file_size + index_bytes(self._spec.count))
        return super().describe()

    def seal(
        self, description: Description, sequence: int, modified: int, words: Mapping[HeaderWord, int] | None = None
    ) -> None:
        """See `Upload`."""
        self._keys.seal(self._keys.describe(), 0, modified)
        super().seal(description, sequence, modified, words)

    def places(self, file: str) -> list[tuple[Path, str]]:
        """See `Upload`."""
        of_keys = [(self._index_path, self.id + INDEX), *self._keys.places(self.id + KEYS)]
        return [*of_keys, *super().places(file)]

    def close(self) -> None:
        """See `Upload`."""
        self._keys.close()
        if self._index_fd >= 0:
            os.close(self._index_fd)
            self._index_fd = -1
        super().close()

    def abandon(self) -> None:
        """See `Upload`."""
        self._keys.abandon()
        disk_writes.unlink(self._index_path)
        super().abandon()


class _KeyFile(Upload):
    """The key file of the upload with this id."""

    def __init__(self, folder: Path, table: UploadSpec, spec: KeysSpec, limits: Limits, id_: str) -> None:
        dtype, shape = spec.stored
        super().__init__(folder, UploadSpec(table.name, dtype, shape, spec.swap), limits)
        self.id = id_
        self.path = folder / (id_ + KEYS)
        self.string_bytes = spec.string_bytes
        self._of = spec

    def column(self) -> KeyColumn:
        """The keys, once they are all there."""
        mapping = mmap.mmap(self._fd, PAGE + self._of.size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
        return column_over(mapping, self._of.dtype, self._of.count)


def check_key_count(keys: KeysSpec, shape: tuple[int, ...]) -> None:
    """Raises element_count_mismatch unless there is one key for each row of a table of this shape."""
    if not shape or shape[0] != keys.count:
        rows = f"{shape[0]} rows" if shape else "no rows, since it is a scalar"
        raise GatherError(
            "element_count_mismatch", f"{keys.count} keys are given, and the table has {rows}", pointer=KEYS_POINTER
        )


def _check_strings(column: KeyColumn, size: int, longest: int) -> None:
    """Raises invalid_field for offsets that are none, limit_exceeded, and value_not_representable for no UTF-8."""
    offsets = column.offsets
    if offsets[0] != 0 or offsets[-1] != size:
        raise invalid_field(
            OFFSETS_POINTER, f"keys.offsets begins with {offsets[0]} and ends with {offsets[-1]}, not with 0 and {size}"
        )
    for start in range(0, column.count, ROWS_AT_ONCE):
        part = column.rows(start, min(start + ROWS_AT_ONCE, column.count))
        bad = part.first_bad_offset()
        if bad >= 0:
            at = start + bad
            raise GatherError(
                "invalid_field",
                f"keys.offsets is less than the one before, or over {size}",
                places=[Place(OFFSETS_POINTER, (at,), int(offsets[at]))],
            )
        long = np.diff(part.offsets) > longest
        if long.any():
            raise GatherError(
                "limit_exceeded",
                f"a key is longer than {longest} bytes",
                places=[Place(KEYS_POINTER, (start + int(long.argmax()),))],
                facts={"limit": "string_bytes", "maximum": longest},
            )
    bad = _first_not_utf8(column)
    if bad >= 0:
        places = [Place(KEYS_POINTER, (bad,))]
        raise GatherError("value_not_representable", "a key is not UTF-8", places=places, hint=UTF8_HINT)


def _first_not_utf8(column: KeyColumn) -> int:
    """The first key that is not UTF-8, or -1."""
    before = 0
    for frames in framed_pieces(column):
        count, _, wrong = read_frames.run(frames, column.count, _NO_STARTS)
        if wrong >= 0:
            return before + wrong
        before += count
    return -1


def _not_unique(found: Duplicates, column: KeyColumn) -> GatherError:
    rows = np.array(found.first, np.int64)
    values: list[int | bytes] = [*column.take(rows).tolist()]
    places = [
        Place(KEYS_POINTER, (row,), shorten(value.decode()) if isinstance(value, bytes) else value)
        for row, value in zip(found.first, values, strict=True)
    ]
    detail = f"keys[{found.first[0]}] = {places[0].value} is the key of another row, too"
    return GatherError("keys_not_unique", detail, places=places, total=found.total)
