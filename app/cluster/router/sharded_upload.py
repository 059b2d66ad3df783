"""Upload a table in row ranges: check and hash it here, as a single machine does, and send the rows to the shards.

`StreamedUpload` sends rows as they arrive, in bounded memory. `KeyedUpload` does the same once all keys have arrived;
the keys are first written to files in the router's store, which checks that they are valid and distinct.
`SpooledUpload` first writes the items to a file in the router's store, in row-major order, and sends them from there.
It is used for strings, because the ends of the ranges are known only after the whole array has arrived. It is also used
for arrays in column-major order, because their rows are complete only at the very end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from app.cluster.router.keyed_version_writer import KeyedVersionWriter
from app.cluster.router.version_writer import BeginWriting, VersionWriter
from app.cluster.shard_map import rows_of
from app.errors import GatherError
from app.keys.key_column import KeyColumn
from app.store.files.keyed_upload import KeyedUpload as StoredKeyedUpload
from app.store.files.keyed_upload import check_key_count
from app.store.files.tensor_file import PAGE, Description
from app.store.files.write_uploaded_tensor import Upload, UploadSpec
from app.tensors.buffer_type import Buffer
from app.tensors.dtypes import DTYPES
from app.tensors.shape_limits import Limits

_CHUNK_BYTES: Final = 1 << 20


Spool: TypeAlias = Callable[[UploadSpec], Upload]
"""Create a file for an upload in the router's own store; see `LocalStore.upload`."""
BeginWritingKeyed: TypeAlias = Callable[[KeyColumn, str], KeyedVersionWriter]
"""Begin to write a version with these keys. The second argument is the digest of the keys."""


class ShardedUpload(Upload):
    """An upload of one table. `writer` publishes it after `finish` has returned. All methods block."""

    def __init__(self, spec: UploadSpec, limits: Limits) -> None:
        super().__init__(Path(), spec, limits)
        self.writer: VersionWriter | None = None

    @property
    def digest(self) -> str:
        """The digest of the type, shape and items. It is valid once all items have arrived."""
        return str(self._digest.hexdigest())

    def abandon(self) -> None:
        """Remove everything that was written."""
        if self.writer is not None:
            self.writer.abandon()


class StreamedUpload(ShardedUpload):
    """Rows that are sent to the shards as they arrive. The shape determines their size."""

    def __init__(self, spec: UploadSpec, limits: Limits, begin: BeginWriting) -> None:
        """Begin the upload. Raises limit_exceeded and the errors of `begin`."""
        super().__init__(spec, limits)
        assert self.expected is not None, "strings have no size of their own"
        rows = rows_of(spec.shape)
        row = self.expected // rows if rows else 0
        self.writer = begin(lambda number: number * row)

    def write_out(self, piece: Buffer) -> None:
        """Send the next bytes in their final form. Raises shard_unavailable and insufficient_storage."""
        assert self.writer is not None
        self.writer.write(piece)

    def finish(self) -> None:
        """Check the number of bytes, and wait until the shards have them.

        Raises element_count_mismatch, shard_unavailable and insufficient_storage.
        """
        self.check_count()
        assert self.writer is not None
        self.writer.finish()


class KeyedUpload(ShardedUpload):
    """Keys, followed by rows that are sent to the shards as they arrive. The shape determines the size of the rows."""

    def __init__(self, spec: UploadSpec, limits: Limits, begin: BeginWritingKeyed, spool: Spool) -> None:
        """Begin the upload. Raises limit_exceeded, element_count_mismatch and insufficient_storage."""
        super().__init__(spec, limits)
        assert spec.keys is not None
        assert self.expected is not None, "no format has keys and strings"
        check_key_count(spec.keys, spec.shape)
        no_rows = replace(spec, dtype=DTYPES["uint8"], shape=(spec.keys.count, 0), swap=False, has_ranges=False)
        self._file = spool(no_rows)
        self._begin = begin
        self._left = spec.keys.size
        """Number of bytes of keys that have not arrived yet."""

    def write(self, piece: Buffer) -> None:
        """Process the next bytes. Raises OSError and the errors of an upload to a single machine."""
        with memoryview(piece) as view:
            of_keys = min(self._left, len(view))
            self._file.write(view[:of_keys])
            self._left -= of_keys
            if not self._left and self.writer is None:
                self._end_keys()
            if of_keys < len(view):
                super().write(view[of_keys:])

    def _end_keys(self) -> None:
        self._file.finish()
        self._file.describe()
        assert isinstance(self._file, StoredKeyedUpload)
        assert self._file.column is not None
        assert self._file.keys is not None
        self.writer = writer = self._begin(self._file.column, self._file.keys.sha256)
        writer.begin()

    def write_out(self, piece: Buffer) -> None:
        """Send the next bytes of rows in their final form. Raises shard_unavailable and insufficient_storage."""
        assert self.writer is not None
        self.writer.write(piece)

    def finish(self) -> None:
        """Check the number of bytes, and wait until the shards have them.

        Raises element_count_mismatch, shard_unavailable, insufficient_storage, and the errors of invalid keys.
        """
        if self.writer is None:
            self._end_keys()
        self.check_count()
        assert self.writer is not None
        self.writer.finish()
        self._file.abandon()

    def abandon(self) -> None:
        """Remove everything that was written."""
        try:
            self._file.abandon()
        finally:
            super().abandon()


class PulledUpload(StreamedUpload):
    """Rows that the shards pull from the source of an import.

    The router reads the rows back from the shards to hash them.
    """

    is_pulled = True

    def __init__(self, spec: UploadSpec, limits: Limits, begin: BeginWriting) -> None:
        super().__init__(spec, limits, begin)
        assert self.writer is not None
        self._pieces = self.writer.pulled_from(spec.origin)

    def take_pulled(self) -> Buffer:
        """Return the next bytes that a shard holds, or an empty piece if no shard has them yet.

        Raises shard_unavailable if no shard will ever have them.
        """
        piece = next(self._pieces)
        self.write(piece)
        return piece

    def write_out(self, piece: Buffer) -> None:
        """Do nothing, because the shard already has the bytes."""

    def finish(self) -> None:
        """Check the number of bytes. Raises element_count_mismatch."""
        self.check_count()
        self._pieces.close()

    def abandon(self) -> None:
        """Remove everything that was written."""
        self._pieces.close()
        super().abandon()


class SpooledUpload(ShardedUpload):
    """Items that are first written to a file of the router.

    They are sent to the shards once all of them have arrived.
    """

    def __init__(self, spec: UploadSpec, limits: Limits, begin: BeginWriting, spool: Spool) -> None:
        """Begin the upload. Raises limit_exceeded and insufficient_storage."""
        super().__init__(spec, limits)
        self._file = spool(spec)
        self._begin = begin
        self._described: Description | None = None

    @property
    def digest(self) -> str:
        """The digest of the type, the shape and the items in row-major order.

        It is valid once all items have arrived.
        """
        assert self._described is not None
        return self._described.sha256

    def write(self, piece: Buffer) -> None:
        """Process the next bytes. Raises OSError and the errors of an upload to a single machine."""
        self._file.write(piece)

    def finish(self) -> None:
        """Check the items, and send all of them to the shards.

        Raises OSError, element_count_mismatch, value_not_representable, and the errors of `begin` and the writer.
        """
        self._file.finish()
        found = self._described = self._file.describe()
        starts = self._string_offsets(found)
        rows = rows_of(self.shape)
        row_items = found.item_count // rows if rows else 0
        fixed = row_items * self.dtype.item_size

        def bytes_before(number: int) -> int:
            if self.dtype.kind != "string":
                return number * fixed
            return int(starts[number * row_items]) if number * row_items < len(starts) else found.size

        self.writer = self._begin(bytes_before)
        with self._file.path.open("rb") as file:
            file.seek(PAGE)
            left = found.size
            while left:
                piece = file.read(min(left, _CHUNK_BYTES))
                if not piece:
                    raise GatherError("internal", "the file of an upload has become shorter")
                self.writer.write(piece)
                left -= len(piece)
        self.writer.finish()
        self._file.abandon()

    def _string_offsets(self, found: Description) -> NDArray[np.int64]:
        """Return the offset of each string within the string bytes."""
        if self.dtype.kind != "string" or not found.item_count:
            return np.empty(0, np.int64)
        return np.memmap(self._file.path, np.int64, "r", found.offsets_at, (found.item_count,))

    def abandon(self) -> None:
        """Remove the spooled file, and abandon the upload to the shards."""
        try:
            self._file.abandon()
        finally:
            super().abandon()
