"""Write an uploaded tensor: check, convert, hash and checksum it while it streams to the disk, in bounded memory.

Nothing is visible until the store commits the upload. Until then, `abandon` removes its files; after a crash, the next
startup removes them.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, ClassVar, Final
from uuid import uuid4

import numpy as np

from app.errors import GatherError, Place
from app.store.catalogue.catalogue_rows import StoredKeys
from app.store.files import disk_writes
from app.store.files.framed_strings import BODY, FramedStrings
from app.store.files.tensor_file import BLOCK, PAGE, BlockChecksums, Description, HeaderWord, encode_page, new_hash
from app.tensors.buffer_type import Buffer
from app.tensors.dtypes import DType
from app.tensors.keys_spec import KeysSpec
from app.tensors.little_endian_items import BOOL_HINT, first_invalid_bool
from app.tensors.shape_limits import NUMPY_BYTES, Limits
from app.tensors.tensor import coordinates

_CHUNK_BYTES: Final = 1 << 22
_FLUSH_BYTES: Final = 1 << 23
"""Number of bytes written before the disk is told to start flushing them."""


@dataclass(frozen=True, slots=True)
class UploadSpec:
    """The description of an upload that will become the next version of tensor `name`, including the encoding of its
    items.

    `keep` is the number of versions to keep, including this one; None means the default from the settings. `origin` is
    a URL or URL#TENSOR from which the items can be read again. `note` is the caller's text for the version. `replicas`
    is the number of shards that should hold each row range, or None to leave that number unchanged. If rows have keys,
    `keys` describes them; the keys are sent before the items. `capacity` is the number of rows to reserve space for, or
    None to reserve space for the uploaded rows only.
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]
    swap: bool = False
    """Whether the items are sent in big-endian order."""
    fortran: bool = False
    """Whether the items are sent in column-major order."""
    prefault: bool = False
    lock: bool = False
    keep: int | None = None
    origin: str = ""
    note: str = ""
    replicas: int | None = None
    has_ranges: bool = False
    """Whether other machines may read ranges of the items at their origin."""
    keys: KeysSpec | None = None
    capacity: int | None = None


class Upload:
    """An upload in progress.

    `write` and `finish` do blocking disk I/O: call them on a worker thread.
    """

    is_pulled: ClassVar[bool] = False
    """Whether other machines read the items from their origin. If so, `take_pulled` is used instead of `write`."""

    keys: StoredKeys | None = None
    """The keys of the rows, if any. Set by `describe`."""

    def __init__(self, folder: Path, spec: UploadSpec, limits: Limits) -> None:
        """Set up the upload without creating files. Raises limit_exceeded."""
        dtype, shape = spec.dtype, spec.shape
        check_shape(dtype, shape, limits)
        self.id = uuid4().hex
        self.spec = spec
        self.dtype = dtype
        self.shape = shape
        self.items = prod(shape)
        self.expected = None if dtype.kind == "string" else self.items * dtype.item_size
        self.path = folder / self.id
        self.stored = dtype, shape
        """The type and shape of the file at its full capacity."""
        self.padding = 0
        """Number of zero bytes after the uploaded items."""
        self._content = self.id
        self._scratch_path = folder / f"{self.id}.side"
        self._beside: list[str] = []
        # Column-major items are first written to a scratch file as they arrive, and then read in row-major order.
        self._fortran = spec.fortran and self.items > 1 and len(shape) > 1
        self._swap_bytes = (dtype.item_size // 2 if dtype.kind == "complex" else dtype.item_size) if spec.swap else 1
        self._incomplete = b""
        self._size = 0
        self._written = 0
        self._flushed, self._unflushed = PAGE, 0
        """The offset up to which the disk was told to flush, and the number of bytes written after that offset."""
        self._digest = new_hash(dtype, shape)
        self._checksums = BlockChecksums()
        self._strings = FramedStrings(self.items, limits.string_bytes, shape) if dtype.kind == "string" else None
        self._fd = -1
        self._scratch_fd = -1
        self._on_growth: Callable[[], None] | None = None
        self._growth_limit = _CHUNK_BYTES

    @property
    def reserved(self) -> int:
        """The size in bytes that the files have from the beginning. String files grow as data arrives."""
        if self.expected is None:
            return PAGE
        return PAGE + self.room + 4 * -(-self.room // BLOCK) + (self.expected if self._fortran else 0)

    @property
    def room(self) -> int:
        """The total size in bytes of the items that fit in the file."""
        dtype, shape = self.stored
        return self._size if dtype.kind == "string" else prod(shape) * dtype.item_size

    def open(self, on_growth: Callable[[], None] | None = None) -> None:
        """Create the files at their full length, so that the quota counts them. Raises OSError.

        The file at `path` stays locked as long as this process has it open. If the length is unknown, `on_growth` is
        called before the file grows by another 4 MiB, and may raise an error.
        """
        self._fd = disk_writes.create(self.path)
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        self._on_growth = on_growth
        disk_writes.truncate(self._fd, self.reserved)
        os.lseek(self._fd, PAGE, os.SEEK_SET)
        if self._fortran or self._strings is not None:
            self._scratch_fd = disk_writes.create(self._scratch_path)

    def write(self, piece: Buffer) -> None:
        """Write the next bytes. Raises OSError, element_count_mismatch, value_not_representable and limit_exceeded."""
        if self.expected is not None and self._size + len(self._incomplete) + len(piece) > self.expected:
            raise self._wrong_count(f"more than {self.expected} bytes were sent")
        if self._swap_bytes > 1:
            piece = self._to_little_endian(piece)
        if self._fortran:
            disk_writes.write(self._scratch_fd, piece)
            self._size += len(piece)
        else:
            self._append(piece)

    def take_pulled(self) -> Buffer:
        """Return the next bytes that other machines have read, after adding them to the upload.

        Empty if there are none yet.
        """
        raise NotImplementedError

    def _to_little_endian(self, piece: Buffer) -> bytes:
        raw = self._incomplete + bytes(piece)
        whole = len(raw) - len(raw) % self._swap_bytes
        self._incomplete = raw[whole:]
        return np.frombuffer(raw[:whole], f"u{self._swap_bytes}").byteswap().tobytes()

    def _append(self, piece: Buffer) -> None:
        """Append bytes in their final order and encoding."""
        if self.dtype.kind == "bool":
            self._check_bools(piece)
        elif self._strings is not None:
            starts = self._strings.feed(piece)
            if len(starts):
                disk_writes.write(self._scratch_fd, starts.tobytes())
        if self.expected is None and self._on_growth is not None and self._written + len(piece) > self._growth_limit:
            self._on_growth()
            self._growth_limit = self._written + len(piece) + _CHUNK_BYTES
        self._digest.update(piece)
        self.write_out(piece)
        self._written += len(piece)
        if not self._fortran:
            self._size = self._written

    def write_out(self, piece: Buffer) -> None:
        """Write bytes to their final position in the file, after the previous ones. Raises OSError."""
        self._checksums.update(piece)
        disk_writes.write(self._fd, piece)
        self._unflushed += len(piece)
        if self._unflushed >= _FLUSH_BYTES:
            disk_writes.begin_flush(self._fd, self._flushed, self._unflushed)
            self._flushed += self._unflushed
            self._unflushed = 0

    def _check_bools(self, piece: Buffer) -> None:
        octets = np.frombuffer(piece, np.uint8)
        bad = first_invalid_bool(octets)
        if bad >= 0:
            place = Place(BODY, coordinates(self._written + bad, self.shape), int(octets[bad]))
            raise GatherError("value_not_representable", "a bool is one byte, 0 or 1", places=[place], hint=BOOL_HINT)

    def _wrong_count(self, what: str) -> GatherError:
        return GatherError(
            "element_count_mismatch", f"{what}, which is not what shape {list(self.shape)} requires", pointer=BODY
        )

    def finish(self) -> None:
        """Check the number of bytes received, and convert column-major items to row-major order.

        Raises OSError and element_count_mismatch.
        """
        self.check_count()
        if self._fortran:
            self._reorder()
        if self._strings is not None:
            self._strings.finish()
            self._append_offsets()
        self._remove_scratch()
        self.skip(self.padding)
        disk_writes.write(self._fd, self._checksums.finish())

    def skip(self, size: int) -> None:
        """Leave `size` zero bytes at the current position, with disk space reserved. Raises OSError."""
        if size:
            disk_writes.allocate(self._fd, os.lseek(self._fd, size, os.SEEK_CUR))
            self._checksums.skip(size)
            self._unflushed += size

    def check_count(self) -> None:
        """Raise element_count_mismatch if too few bytes were received."""
        if self.expected is not None and self._size + len(self._incomplete) != self.expected:
            raise self._wrong_count(
                f"{self._size + len(self._incomplete)} bytes were sent instead of the required {self.expected}"
            )

    def _reorder(self) -> None:
        mapping = mmap.mmap(self._scratch_fd, self._size, prot=mmap.PROT_READ)
        items = np.frombuffer(mapping, self.dtype.numpy).reshape(self.shape, order="F")
        for block in blocks_of(items):
            self._append(block.tobytes())

    def _append_offsets(self) -> None:
        padding = bytes(-self._size % 8)
        disk_writes.write(self._fd, padding)
        self._checksums.update(padding)
        os.lseek(self._scratch_fd, 0, os.SEEK_SET)
        while piece := os.read(self._scratch_fd, _CHUNK_BYTES):
            self._checksums.update(piece)
            disk_writes.write(self._fd, piece)

    def _remove_scratch(self) -> None:
        if self._scratch_fd >= 0:
            os.close(self._scratch_fd)
            self._scratch_fd = -1
            disk_writes.unlink(self._scratch_path)

    def describe(self) -> Description:
        """Return the file's description. Call `finish` first."""
        spec, digest = self.spec, self._digest.hexdigest()
        dtype, shape = self.stored
        return Description(self._content, spec.name, dtype.name, shape, self.room, digest, spec.prefault, spec.lock)

    def take_identity(self, content: str, sha256: str) -> None:
        """Use the ID and the hash of an existing version instead of hashing the items."""
        self._content = content
        self._digest = _KnownHash(sha256)

    def seal(
        self, description: Description, sequence: int, modified: int, words: Mapping[HeaderWord, int] | None = None
    ) -> None:
        """Write the first page and make the file durable. It can then be renamed.

        `words` is passed to `encode_page`.

        Raises OSError.
        """
        disk_writes.write_at(self._fd, encode_page(description, 2 * sequence, modified, words), 0)
        disk_writes.truncate(self._fd, description.file_size)
        disk_writes.fsync(self._fd)

    def link_beside(self, folder: Path, files: Mapping[str, str]) -> None:
        """Hard-link existing files from a folder into the upload. `files` maps each file name to its link's suffix.

        Raises OSError.
        """
        for name, suffix in files.items():
            self._beside.append(suffix)
            disk_writes.link(folder / name, self.path.with_name(self.id + suffix))

    def places(self, file: str) -> list[tuple[Path, str]]:
        """Return the upload's files and their final names, derived from `file`.

        The row file, whose final name is `file` itself, comes last.
        """
        beside = [(self.path.with_name(self.id + suffix), file + suffix) for suffix in self._beside]
        return [*beside, (self.path, file)]

    def close(self) -> None:
        """Close and unlock the file, after it has been renamed or removed."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def abandon(self) -> None:
        """Remove the files, except those that have been renamed."""
        self._remove_scratch()
        for suffix in self._beside:
            disk_writes.unlink(self.path.with_name(self.id + suffix))
        disk_writes.unlink(self.path)
        self.close()


def check_shape(dtype: DType, shape: Sequence[int], limits: Limits, pointer: str = BODY) -> None:
    """Raise limit_exceeded if the rank, a dimension, the number of items or the size in bytes exceeds its limit."""
    if len(shape) > limits.rank:
        raise _limit_error("rank", limits.rank, pointer)
    if max(shape, default=0) > limits.dimension:
        raise _limit_error("dimension", limits.dimension, pointer)
    if prod(shape) > limits.elements:
        raise _limit_error("elements", limits.elements, pointer)
    if prod(size or 1 for size in shape) * (dtype.item_size or 8) > NUMPY_BYTES:
        raise _limit_error("bytes", NUMPY_BYTES, pointer)


def _limit_error(limit: str, maximum: int, pointer: str) -> GatherError:
    return GatherError(
        "limit_exceeded",
        f"the tensor is over the limit of {maximum} ({limit})",
        pointer=pointer,
        facts={"limit": limit, "maximum": maximum},
    )


def blocks_of(items: np.ndarray[Any, Any]) -> Iterator[np.ndarray[Any, Any]]:
    """Yield parts of an array in row-major order. Each part is at most 4 MiB or a single item."""
    row = items.itemsize
    axis = items.ndim
    while axis > 0 and row * items.shape[axis - 1] <= _CHUNK_BYTES:
        axis -= 1
        row *= items.shape[axis]
    if axis == 0:
        yield items
        return
    axis -= 1
    step = max(1, _CHUNK_BYTES // row)
    for position in np.ndindex(items.shape[:axis]):
        part = items[position]
        for start in range(0, items.shape[axis], step):
            yield part[start : start + step]


class _KnownHash:
    """A stand-in for a hash object whose digest is already known."""

    def __init__(self, digest: str) -> None:
        self._digest = digest

    def update(self, piece: Buffer) -> None:
        """Ignore the bytes."""

    def hexdigest(self) -> str:
        """Return the hash."""
        return self._digest
