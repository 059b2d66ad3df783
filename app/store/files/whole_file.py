"""Writing a small file whole: after a crash the old one is there, or the new one."""

from __future__ import annotations

import os
from pathlib import Path

from app.store.files import disk_writes
from app.store.files.regular_file import open_regular
from app.tensors.buffer_type import Buffer


def write_whole_file(path: Path, content: Buffer) -> None:
    """Write a file durably in place of the one that is there, by way of a file with the suffix `.new`."""
    new = _new(path)
    disk_writes.unlink(new)
    fd = disk_writes.create(new)
    try:
        disk_writes.write(fd, content)
        disk_writes.fsync(fd)
    finally:
        os.close(fd)
    disk_writes.rename(new, path)
    disk_writes.fsync_folder(path.parent)


def keep_room(path: Path, size: int) -> None:
    """Make a file with the suffix `.new`, of `size` bytes, for `write_into_room` to write when the disk is full."""
    new = _new(path)
    disk_writes.unlink(new)
    fd = disk_writes.create(new)
    try:
        disk_writes.write(fd, bytes(size))  # not a hole
        disk_writes.fsync(fd)
    finally:
        os.close(fd)


def write_into_room(path: Path, content: Buffer) -> None:
    """`write_whole_file`, in the room that `keep_room` has made for it, if it did."""
    new = _new(path)
    try:
        fd = open_regular(new, os.O_RDWR)
    except FileNotFoundError:
        write_whole_file(path, content)
        return
    try:
        disk_writes.write_at(fd, content, 0)
        disk_writes.truncate(fd, len(memoryview(content).cast("B")))
        disk_writes.fsync(fd)
    finally:
        os.close(fd)
    disk_writes.rename(new, path)
    disk_writes.fsync_folder(path.parent)


def _new(path: Path) -> Path:
    return path.with_name(f"{path.name}.new")
