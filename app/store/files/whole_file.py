"""Replace a small file atomically: after a crash, either the old or the new file is there, and it is complete."""

from __future__ import annotations

import os
from pathlib import Path

from app.store.files import disk_writes
from app.tensors.buffer_type import Buffer


def write_whole_file(path: Path, content: Buffer) -> None:
    """Durably replace a file by renaming a temporary file with the suffix `.new`."""
    new = path.with_name(f"{path.name}.new")
    disk_writes.unlink(new)
    fd = disk_writes.create(new)
    try:
        disk_writes.write(fd, content)
        disk_writes.fsync(fd)
    finally:
        os.close(fd)
    disk_writes.rename(new, path)
    disk_writes.fsync_folder(path.parent)
