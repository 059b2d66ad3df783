"""Every call by which the store changes the disk, in one place, so that a test can stop the process at each of them.

The functions are looked up on this module at every call (`disk.fsync(...)`), never imported by name: whoever replaces
one here replaces it everywhere.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import sqlite3
from collections.abc import Callable
from mmap import mmap
from pathlib import Path
from typing import Final

from app.errors import GatherError

Buffer = bytes | bytearray | memoryview
_WRITE_AND_WAIT: Final = 7
_FICLONE: Final = 0x40049409


def create(path: Path) -> int:
    """A new file for reading and writing, which must not exist; its descriptor."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)


def open_or_create(path: Path) -> int:
    """A file for reading and writing, made if it does not exist; its descriptor."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)


def write(fd: int, content: Buffer) -> None:
    """Write all of `content` at the descriptor's position."""
    with memoryview(content) as view:
        place = 0
        while place < len(view):
            place += os.write(fd, view[place:])


def write_at(fd: int, content: Buffer, offset: int) -> None:
    """Write all of `content` at `offset`."""
    with memoryview(content) as view:
        place = 0
        while place < len(view):
            place += os.pwrite(fd, view[place:], offset + place)


def store_words(mapping: mmap, change: Callable[[mmap], None]) -> None:
    """Change the content of a writable mapping: one step of several stores to shared memory."""
    change(mapping)


def fsync(fd: int) -> None:
    """Make a file's content durable."""
    os.fsync(fd)


def flush_range(fd: int, offset: int, size: int) -> None:
    """Wait until the system has written a part of a file; nothing where it cannot do that by parts.

    What it meets is told once, here or by fsync, of which this is no substitute: the disk may still hold it in memory.
    """
    try:
        call = ctypes.CDLL(None, use_errno=True).sync_file_range
    except AttributeError:
        return
    if call(fd, ctypes.c_int64(offset), ctypes.c_int64(size), ctypes.c_uint(_WRITE_AND_WAIT)):
        number = ctypes.get_errno()
        if number not in (errno.ENOSYS, errno.EINVAL, errno.ESPIPE):
            raise OSError(number, os.strerror(number))


def fsync_folder(path: Path) -> None:
    """Make the names in a folder durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def truncate(fd: int, size: int) -> None:
    """Cut a file, or lengthen it with zeros."""
    os.ftruncate(fd, size)


def rename(source: Path, target: Path) -> None:
    """Give a file a new name, in place of the file that has it, if any."""
    source.rename(target)


def unlink(path: Path) -> None:
    """Remove a file; one that is not there is fine."""
    path.unlink(missing_ok=True)


def clone(source: int, target: int) -> bool:
    """Make the empty file `target` a copy of `source` that shares its blocks; False where that cannot be had."""
    try:
        fcntl.ioctl(target, _FICLONE, source)
    except OSError:
        return False
    return True


def commit(connection: sqlite3.Connection) -> None:
    """Make a transaction of the catalogue durable."""
    connection.execute("COMMIT")


def storage_error(error: OSError) -> GatherError:
    """The error for a write that the disk refused. The old content of every tensor is as it was."""
    reason = os.strerror(error.errno) if error.errno else str(error)
    return GatherError("insufficient_storage", f"the store could not be written: {reason}")
