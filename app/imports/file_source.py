"""Read sources at file://: regular files that are inside an allowed folder after resolving links."""

from __future__ import annotations

import asyncio
import os
import stat
from io import FileIO
from pathlib import Path
from threading import Lock

from app.imports.source import CHANGED, HEAD_BYTES, Checksum, SourceFailed
from app.imports.source_urls import AllowedSources, SourceUrl


class FileSource:
    """A file on the service's machine."""

    def __init__(self, url: SourceUrl, allowed: AllowedSources) -> None:
        self.size: int | None = 0
        self.checksum: Checksum | None = None
        self._path = url.path
        self._folders = [prefix.url.path for prefix in allowed.find_prefixes(url)]
        self._lock = Lock()
        self._file: FileIO | None = None
        self._identity: tuple[int, ...] = ()

    @property
    def has_ranges(self) -> bool:
        """Always False: shards run on other machines and cannot read this file."""
        return False

    async def open(self) -> bytes:
        """See `Source`."""
        return await asyncio.to_thread(self._open)

    def _open(self) -> bytes:
        with self._lock:  # `close` always follows, even if `open` was canceled
            return self._open_checked()

    def _open_checked(self) -> bytes:
        try:
            # Open with O_PATH first, which reads nothing and never blocks, whatever kind of file this is. The real path
            # comes from the descriptor, so it does not matter if a link is changed in the meantime.
            place = os.open(self._path, os.O_PATH | os.O_CLOEXEC)
            try:
                found = os.fstat(place)
                itself = f"/proc/self/fd/{place}"
                real = os.readlink(itself)  # noqa: PTH115
                if not any(_is_below(real, folder) for folder in self._folders):
                    raise SourceFailed("its links lead outside the folders in GATHERND_IMPORT_FROM")
                if not stat.S_ISREG(found.st_mode):
                    raise SourceFailed("it is not a regular file")
                file = FileIO(itself)
            finally:
                os.close(place)
        except OSError as error:
            raise SourceFailed(f"the file could not be opened: {os.strerror(error.errno or 0)}") from None
        self._file, self._identity = file, _file_identity(file)
        self.size = size = os.fstat(file.fileno()).st_size
        return _read(file, self._identity, 0, min(HEAD_BYTES, size))

    async def read(self, begin: int, end: int) -> bytes:
        """See `Source`."""
        return await asyncio.to_thread(self._read, begin, end)

    async def close(self) -> None:
        """See `Source`. Waits for threads that are still reading."""
        await asyncio.to_thread(self._close)

    def _read(self, begin: int, end: int) -> bytes:
        with self._lock:
            if self._file is None:
                raise SourceFailed("it was closed")
            return _read(self._file, self._identity, begin, end)

    def _close(self) -> None:
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None


def _file_identity(file: FileIO) -> tuple[int, ...]:
    found = os.fstat(file.fileno())
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _read(file: FileIO, identity: tuple[int, ...], begin: int, end: int) -> bytes:
    content = bytearray()
    try:
        while len(content) < end - begin:
            piece = os.pread(file.fileno(), end - begin - len(content), begin + len(content))
            if not piece:
                raise SourceFailed(CHANGED)
            content += piece
    except OSError as error:
        raise SourceFailed(f"the file could not be read: {os.strerror(error.errno or 0)}") from None
    if _file_identity(file) != identity:
        raise SourceFailed(CHANGED)
    return bytes(content)


def _is_below(real: str, folder: str) -> bool:
    """Return whether a file's resolved path is inside an allowed folder. The folder's links are resolved first."""
    root = os.path.realpath(folder)
    return Path(real).is_relative_to(root)
