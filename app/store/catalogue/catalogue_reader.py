"""Reading the catalogue of a store that a service may have open or not, on a disk that may be full.

SQLite makes two files beside a database that nobody has open, a log and the log's index, and removes them afterwards.
Where the disk has no room for them the database is read without: a log that there is with its index in this process's
memory, under SQLite's lock on the whole database; a database without a log as a file that nothing changes, which is
looked at again afterwards.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final, TypeVar

from app.store.catalogue.catalogue import LOCK_TIMEOUT_S, contents_of, database_uri, row_in
from app.store.catalogue.catalogue_rows import CatalogueContents, Row
from app.store.catalogue.sqlite_errors import disk_errors

_ATTEMPTS: Final = 10
_NO_ROOM: Final = frozenset({sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE})
"""What SQLite says where it cannot make a file, or not give it its size."""

Result = TypeVar("Result")


class CatalogueReader:
    """Reads the database at `path`. All methods block and raise OSError."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def contents(self) -> CatalogueContents:
        """All that there is, but for Idempotency-Keys."""
        with disk_errors():
            return read_database(self._path, contents_of)

    def row(self, name: str, version: int) -> Row | None:
        """A version of a tensor, None if there is none."""
        with disk_errors():
            return read_database(self._path, lambda connection: row_in(connection, name, version))


def read_database(path: Path, read: Callable[[sqlite3.Connection], Result]) -> Result:
    """What `read` finds in the database at `path`; it may be called several times. Raises sqlite3.Error."""
    for _ in range(_ATTEMPTS):
        try:
            with closing(_connect(database_uri(path))) as connection:
                return read(connection)
        except sqlite3.Error as error:
            if not _is_for_want_of_room(error):
                raise
            problem = error
        before = _files(path)
        # Whoever opens the database for writing makes the log, and gives it a length, before anything else.
        alone = before[1] is None or not before[1][1]
        try:
            with closing(_connect(database_uri(path) + ("&immutable=1" if alone else ""))) as connection:
                if not alone:
                    connection.execute("PRAGMA locking_mode = EXCLUSIVE")
                result = read(connection)
            if not alone or _files(path) == before:
                return result
        except sqlite3.Error as error:
            if not alone or _files(path) == before:
                problem = error
                if error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_CANTOPEN):
                    raise
    raise problem


def _connect(uri: str) -> sqlite3.Connection:
    return sqlite3.connect(uri, uri=True, timeout=LOCK_TIMEOUT_S, isolation_level=None)


def _is_for_want_of_room(error: sqlite3.Error) -> bool:
    return bool(_NO_ROOM & {error.sqlite_errorcode, error.sqlite_errorcode & 0xFF})


def _files(path: Path) -> list[tuple[int, int, int] | None]:
    """What tells the database and its log from others: inode, size, and time of the last change; None for no file."""
    found: list[tuple[int, int, int] | None] = []
    for one in (path, path.with_name(f"{path.name}-wal")):
        try:
            status = one.stat()
        except FileNotFoundError:
            found.append(None)
        else:
            found.append((status.st_ino, status.st_size, status.st_mtime_ns))
    return found
