"""Remove files that dead processes have left in the store's folder, and sum the sizes of the uploads in progress."""

from __future__ import annotations

import logging
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from app.store.catalogue.catalogue_cache import CatalogueCache
from app.store.files import disk_writes
from app.store.files.regular_file import NotRegular, open_regular
from app.store.processes.store_locks import StoreLocks, try_lock
from app.store.scatters.scatter_log import FULL, NEW

logger = logging.getLogger("gathernd")


def file_names(folder: Path) -> list[str]:
    """Return the names of the files in a folder. Raises OSError."""
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries]


def remove_or_warn(path: Path) -> None:
    """Remove a file, or log a warning if that fails."""
    try:
        disk_writes.unlink(path)
    except OSError as error:
        logger.warning("%s is of no use and could not be removed: %s", path, error.strerror)


@dataclass
class UploadFolder:
    """The folder of uploads in progress. The process that receives an upload holds a lock on its first file."""

    _folder: Path
    _locks: StoreLocks

    def size(self, without: str = "") -> int:
        """Return the total size in bytes of all uploads, except the upload with the ID `without`."""
        total = 0
        with os.scandir(self._folder) as entries:
            for entry in entries:
                if _upload_of(entry.name) != without:
                    with suppress(FileNotFoundError):
                        total += entry.stat(follow_symlinks=False).st_size
        return total

    def remove_abandoned(self) -> None:
        """Remove the files of uploads whose processes have died. Raises OSError."""
        with self._locks.uploads():
            for path in self._abandoned():
                remove_or_warn(path)

    def abandoned(self) -> list[Path]:
        """Return the files of uploads whose processes have died. Raises OSError."""
        with self._locks.uploads():
            found = self._abandoned()
        # Skip the files of uploads that have ended meanwhile.
        return [path for path in found if os.path.lexists(path)]

    def _abandoned(self) -> list[Path]:
        names = sorted(file_names(self._folder))
        living = {name for name in names if name == _upload_of(name) and self._is_locked(self._folder / name)}
        return [self._folder / name for name in names if _upload_of(name) not in living]

    def _is_locked(self, path: Path) -> bool:
        try:
            fd = open_regular(path, os.O_RDWR)
        except (FileNotFoundError, NotRegular):
            return False
        try:
            return not try_lock(fd)
        finally:
            os.close(fd)


def _upload_of(file: str) -> str:
    """Return the ID of the upload that a file belongs to: the part of the file's name before the first dot."""
    return file.partition(".")[0]


@dataclass(slots=True)
class OrphanedFiles:
    """Row files, key files and logs that belong to no tensor.

    They remain when a process dies, fails to remove them, or fails to commit.
    """

    _tensors: Path
    _logs: Path
    _index: CatalogueCache

    def remove_all(self) -> None:
        """Remove the orphaned files. Raises OSError."""
        if not self._find():
            return
        # An upload's file is renamed and gets its row within one transaction. A file that has no row during another
        # transaction is therefore orphaned. Remove it only after that transaction has been committed: until then, an
        # earlier commit that failed on disk could still become durable through a crash.
        with self._index.change() as transaction:
            transaction.set_facts({"cleaned": time.time_ns()})
            found = self._find()
        for path in found:
            remove_or_warn(path)

    def _find(self) -> list[Path]:
        # Read the folders before the rows, so that a tensor created in between is not mistaken for an orphan.
        files, logs = file_names(self._tensors), file_names(self._logs)
        rows = self._index.rows()
        known, contents = {name for row in rows for name in row.files}, {row.content for row in rows}
        return [
            *(self._tensors / name for name in files if name not in known),
            *(self._logs / name for name in logs if name.removesuffix(FULL).removesuffix(NEW) not in contents),
        ]
