"""What processes that died have left in the store's folder, and what uploads take there meanwhile."""

from __future__ import annotations

import fcntl
import logging
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from app.store import disk_writes
from app.store.directory_lock import ProcessGroup
from app.store.tensor_index import TensorIndex

logger = logging.getLogger("gathernd")
SIDE: Final = ".side"
"""How the name of an upload's second file ends; the first one's is that without it."""


def file_names(folder: Path) -> list[str]:
    """The names of the files in a folder. Raises OSError."""
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries]


def remove_or_warn(path: Path) -> None:
    """Remove a file that nobody needs; one that cannot be removed stays, and is told of."""
    try:
        disk_writes.unlink(path)
    except OSError as error:
        logger.warning("%s is of no use and could not be removed: %s", path, error.strerror)


class UploadFolder:
    """The folder of contents that are not yet whole. Whoever receives one has its first file locked."""

    def __init__(self, folder: Path, group: ProcessGroup) -> None:
        self._folder = folder
        self._group = group

    def size(self, without: str = "") -> int:
        """The bytes that uploads take, but for the one of this id."""
        total = 0
        with os.scandir(self._folder) as entries:
            for entry in entries:
                if entry.name.removesuffix(SIDE) != without:
                    with suppress(FileNotFoundError):
                        total += entry.stat().st_size
        return total

    def remove_abandoned(self) -> None:
        """Remove the files of uploads whose process has died. Raises OSError."""
        with self._group.lock_uploads():
            names = file_names(self._folder)
            living = {name for name in names if not name.endswith(SIDE) and self._is_locked(self._folder / name)}
            for name in names:
                if name.removesuffix(SIDE) not in living:
                    remove_or_warn(self._folder / name)

    def _is_locked(self, path: Path) -> bool:
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(fd)
        return False


class OrphanedFiles:
    """Files of contents and logs that no tensor has: their owner died, or could not remove them, or not commit."""

    def __init__(self, tensors: Path, logs: Path, index: TensorIndex) -> None:
        self._tensors = tensors
        self._logs = logs
        self._index = index

    def remove_all(self) -> None:
        """Remove them. Raises OSError."""
        if not self._find():
            return
        # Contents are renamed and entered within one change, so that those found within another are nobody's. They go
        # once that one is committed: a commit that the disk refused can only come to life in a crash before then.
        with self._index.change() as transaction:
            transaction.set_facts({"cleaned": time.time_ns()})
            found = self._find()
        for path in found:
            remove_or_warn(path)

    def _find(self) -> list[Path]:
        # The folders are read first: what comes into being meanwhile is not taken for an orphan.
        files, logs = file_names(self._tensors), file_names(self._logs)
        rows = self._index.rows()
        known, contents = {row.file for row in rows}, {row.content for row in rows}
        return [
            *(self._tensors / name for name in files if name not in known),
            *(self._logs / name for name in logs if name not in contents),
        ]
