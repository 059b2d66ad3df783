"""A tensor's file, mapped into this process: shared with every other worker through the page cache, never copied."""

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

from app.errors import GatherError
from app.store.catalogue import Row
from app.store.store_protocol import Resident
from app.store.tensor_file import DAMAGED, PAGE, BadFile, HeaderWord, decode_page
from app.tensors.dtypes import DTYPES
from app.tensors.packed_strings import PackedStrings
from app.tensors.tensor import Tensor

logger = logging.getLogger("gathernd")
ExcludeWriters = Callable[[], AbstractContextManager[object]]
_POPULATE_READ: Final = 22


def damaged(name: str, why: str) -> GatherError:
    """The error for tensor `name`."""
    return GatherError("tensor_damaged", f"the content of {name!r} is damaged: {why}")


class MappedContent:
    """One mapped content. Lives as long as somebody reads it, also after its file was replaced or removed."""

    __slots__ = ("_exclude_writers", "_size", "_tensor", "cold", "description", "mapping", "path", "words")

    def __init__(self, path: Path, row: Row, hold: ExcludeWriters, memory: int | None = None) -> None:
        """Map the file. Raises OSError, and tensor_damaged where it is not whole.

        `memory` is about what the system has for contents: in a larger one a lookup reads the pages that it needs and
        not those around them, which would only push out others.
        """
        self.path = path
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
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

    def _make_tensor(self) -> Tensor:
        about, mapping = self.description, self.mapping
        dtype = DTYPES[about.dtype]
        if dtype.kind == "string":
            starts = (
                np.frombuffer(mapping, np.uint64, about.item_count, about.offsets_at)
                if about.item_count
                else _NO_STARTS
            )
            octets = np.frombuffer(mapping, np.uint8, about.size, PAGE) if about.size else _NO_OCTETS
            return PackedStrings(dtype, about.shape, starts, octets=octets)
        if not about.item_count:
            return Tensor(dtype, about.shape, np.empty(0, dtype.numpy))
        return Tensor(dtype, about.shape, np.frombuffer(mapping, dtype.numpy, about.item_count, PAGE))

    def resident(self, last: Resident | None = None) -> Resident:
        """The content as it is now; `last`, what this returned before, where nothing has changed since.

        Raises tensor_damaged. It is not kept here: a content must go with the last one who reads it.
        """
        if self.mapping.size() != self._size:
            # Judged before anything is read: what lies beyond the end of a file that was cut ends the process.
            raise damaged(self.description.name, "its file was cut or has grown")
        stamp = self.words[HeaderWord.VERSION]
        if last is not None and stamp == last.stamp:
            return last
        if stamp & DAMAGED:
            raise damaged(self.description.name, "its checksums or its log do not match")
        return _MappedResident(self, stamp)

    def tensor_and_etag(self, stamp: int) -> tuple[Tensor, str]:
        """The tensor and the ETag at `stamp`."""
        return self._tensor, self.description.etag(stamp >> 1)

    def exclude_writers(self) -> AbstractContextManager[object]:
        """A context without writers; entering blocks."""
        return self._exclude_writers()

    def populate(self) -> None:
        """Do what the upload asked for: read the content ahead, keep it in memory. Best effort, on a thread."""
        about = self.description
        if not about.size or not (about.prefault or about.lock):
            return
        libc = ctypes.CDLL(None, use_errno=True)  # which, unlike mmap's methods, lets other threads run meanwhile
        region = ctypes.c_void_p(np.frombuffer(self.mapping, np.uint8).ctypes.data), ctypes.c_size_t(len(self.mapping))
        if libc.madvise(*region, _POPULATE_READ):
            libc.madvise(*region, mmap.MADV_WILLNEED)
        if about.lock and libc.mlock(*region):
            reason = os.strerror(ctypes.get_errno() or errno.ENOMEM)
            logger.warning("%s could not be locked in memory: %s", about.name, reason)

    def row_span(self, first: int, last: int) -> tuple[int, int]:
        """Where the bytes of rows `first` to `last` begin and end."""
        about = self.description
        width = prod(about.shape[1:])
        if isinstance(self._tensor, PackedStrings):
            starts = self._tensor.array
            begin, end = (
                int(starts[row * width]) if row * width < about.item_count else about.size for row in (first, last)
            )
            return begin, end
        width *= self._tensor.dtype.item_size
        return first * width, last * width

    def read(self, begin: int, end: int) -> bytes:
        """Bytes of the items, `begin` to `end`."""
        return self.mapping[PAGE + begin : PAGE + end]


class _MappedResident(Resident):
    """A resident tensor whose stamp lies in its file's first page."""

    __slots__ = ("_content",)

    def __init__(self, content: MappedContent, stamp: int) -> None:
        tensor, etag = content.tensor_and_etag(stamp)
        super().__init__(tensor, etag, stamp, content.words, content.cold)
        self._content = content

    def refreshed(self) -> Resident:
        """See `Resident`."""
        return self._content.resident()

    def exclude_writers(self) -> AbstractContextManager[object]:
        """See `Resident`."""
        return self._content.exclude_writers()


class CurrentContent:
    """A content that is the one of its name, and what the last lookup made of it."""

    __slots__ = ("content", "resident")

    def __init__(self, content: MappedContent) -> None:
        self.content = content
        self.resident: Resident | None = None


_NO_STARTS: Final = np.empty(0, np.uint64)
_NO_OCTETS: Final = np.empty(0, np.uint8)
