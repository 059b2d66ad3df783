"""A tensor's file, mapped into this process. All workers share it through the page cache; it is never copied."""

from __future__ import annotations

import ctypes
import errno
import logging
import mmap
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from math import prod
from pathlib import Path
from typing import Final

import numpy as np

from app.store.catalogue.catalogue_rows import Row
from app.store.files.key_files import MappedKeys, ResidentKeys
from app.store.files.regular_file import open_regular
from app.store.files.tensor_file import DAMAGED, PAGE, BadFile, HeaderWord, decode_page
from app.store.store_errors import damaged
from app.store.store_interface import Resident
from app.tensors.dtypes import DTYPES
from app.tensors.string_tensor import PackedStrings
from app.tensors.tensor import Tensor

logger = logging.getLogger("gathernd")
ExcludeWriters = Callable[[], AbstractContextManager[object]]
_SPINS: Final = 100
"""Number of attempts to read a table's state while it changes by key. After that, the reader treats it as
inconsistent.
"""
_POPULATE_READ: Final = 22  # MADV_POPULATE_READ, linux/mman.h


class MappedContent:
    """A version's mapped content. It stays mapped as long as anything refers to it, even after the file is removed."""

    __slots__ = (
        "_exclude_writers",
        "_size",
        "_tensor",
        "cold",
        "data_version",
        "description",
        "keys",
        "mapping",
        "path",
        "words",
    )

    def __init__(self, path: Path, row: Row, hold: ExcludeWriters, memory: int | None = None) -> None:
        """Map the files. Raises OSError, and tensor_damaged if a file is incomplete.

        `memory` is the number of bytes that the page cache can hold. Larger content is mapped without read-ahead,
        because the extra pages would only evict others.
        """
        self.path = path
        self.data_version = row.number
        fd = open_regular(path)
        try:
            status = os.fstat(fd)
            try:
                self.description = decode_page(os.pread(fd, PAGE, 0), status.st_size)
            except BadFile as problem:
                raise damaged(row.name, str(problem)) from None
            if (self.description.id, self.description.name) != (row.content, row.name):
                raise damaged(row.name, "its file describes another tensor")
            self.mapping = mmap.mmap(fd, status.st_size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
        finally:
            os.close(fd)
        self.cold = memory is not None and status.st_size > memory
        if self.cold:
            self.mapping.madvise(mmap.MADV_RANDOM)
        self.words = memoryview(self.mapping)[:PAGE].cast("Q")
        self._exclude_writers = hold
        self._size = self.description.file_size
        self._tensor = self._make_tensor()
        self.keys: MappedKeys | None = None
        if row.keys is not None:
            try:
                self.keys = MappedKeys(path.parent, row)
            except BadFile as problem:
                raise damaged(row.name, str(problem)) from None

    def _make_tensor(self) -> Tensor:
        """Return the tensor over the file's full capacity."""
        description, mapping = self.description, self.mapping
        dtype = DTYPES[description.dtype]
        if dtype.kind == "string":
            starts = (
                np.frombuffer(mapping, np.int64, description.item_count, description.offsets_at)
                if description.item_count
                else _NO_STARTS
            )
            octets = np.frombuffer(mapping, np.uint8, description.size, PAGE) if description.size else _NO_OCTETS
            return PackedStrings(dtype, description.shape, starts, octets=octets, on_disk=self.cold)
        if not description.item_count:
            return Tensor(dtype, description.shape, np.empty(0, dtype.numpy))
        return Tensor(dtype, description.shape, np.frombuffer(mapping, dtype.numpy, description.item_count, PAGE))

    def resident(self, last: Resident | None = None) -> Resident:
        """Return the content in its current state. If that has not changed since the earlier result `last`, return
        `last`.

        Raises tensor_damaged. The result is not stored here, because that would create a reference cycle and keep the
        file mapped.
        """
        if self.mapping.size() != self._size:
            # Check this before reading anything: reading past the end of a truncated file kills the process (SIGBUS).
            raise damaged(self.description.name, "its file was cut or has grown")
        if self.keys is not None and not self.keys.is_whole:
            raise damaged(self.description.name, "a file of its keys was cut or has grown")
        version = self.words[HeaderWord.VERSION]
        if last is not None and version == last.version:
            return last
        if version & DAMAGED:
            raise damaged(self.description.name, "its checksums or its log do not match")
        if self.keys is None:
            return _MappedResident(self, version, self._tensor)
        for _ in range(_SPINS):
            rows = min(self.words[HeaderWord.ROWS], self.keys.layout.capacity)
            if not version & 1 and self.words[HeaderWord.VERSION] == version:
                break
            version = self.words[HeaderWord.VERSION]
        else:
            version |= 1  # no consistent state was found, so treat all reads as inconsistent
        return _MappedResident(self, version, self._first_rows(rows), self.keys.of(rows))

    def _first_rows(self, rows: int) -> Tensor:
        """Return the first `rows` rows of a keyed table."""
        whole = self._tensor
        if rows == whole.shape[0]:
            return whole
        assert not isinstance(whole, PackedStrings)
        width = prod(whole.shape[1:])
        return Tensor(whole.dtype, (rows, *whole.shape[1:]), whole.array[: rows * width])

    def exclude_writers(self) -> AbstractContextManager[object]:
        """Return a context in which no scatter changes the content. Entering the context blocks."""
        return self._exclude_writers()

    def populate(self) -> None:
        """Read the content ahead (`prefault`) and lock it in memory (`lock`), as the upload requested. Blocks."""
        description = self.description
        if not description.size or not (description.prefault or description.lock):
            return
        libc = ctypes.CDLL(None, use_errno=True)  # unlike mmap's methods, these calls release the GIL
        region = ctypes.c_void_p(np.frombuffer(self.mapping, np.uint8).ctypes.data), ctypes.c_size_t(len(self.mapping))
        if libc.madvise(*region, _POPULATE_READ):
            libc.madvise(*region, mmap.MADV_WILLNEED)
        if description.lock and libc.mlock(*region):
            reason = os.strerror(ctypes.get_errno() or errno.ENOMEM)
            logger.warning("%s could not be locked in memory: %s", description.name, reason)

    def row_span(self, first: int, last: int) -> tuple[int, int]:
        """Return the offsets at which rows `first` and `last` begin."""
        description = self.description
        width = prod(description.shape[1:])
        if isinstance(self._tensor, PackedStrings):
            starts = self._tensor.array
            begin, end = (
                int(starts[row * width]) if row * width < description.item_count else description.size
                for row in (first, last)
            )
            return begin, end
        width *= self._tensor.dtype.item_size
        return first * width, last * width

    def read(self, begin: int, end: int) -> bytes:
        """Return bytes `begin` to `end` of the items."""
        return self.mapping[PAGE + begin : PAGE + end]


class _MappedResident(Resident):
    """A resident tensor whose version is read from its file's first page."""

    __slots__ = ("_content",)

    def __init__(self, content: MappedContent, version: int, tensor: Tensor, keys: ResidentKeys | None = None) -> None:
        etag = content.description.etag(version >> 1)
        super().__init__(tensor, etag, version, content.words, content.cold, content.data_version, keys)
        self._content = content

    def refreshed(self) -> Resident:
        return self._content.resident()

    def exclude_writers(self) -> AbstractContextManager[object]:
        return self._content.exclude_writers()


class CurrentContent:
    """Content that lookups use, and the last `Resident` returned for it.

    All references to the content share this object.
    """

    __slots__ = ("content", "resident")

    def __init__(self, content: MappedContent) -> None:
        self.content = content
        self.resident: Resident | None = None


_NO_STARTS: Final = np.empty(0, np.int64)
_NO_OCTETS: Final = np.empty(0, np.uint8)
