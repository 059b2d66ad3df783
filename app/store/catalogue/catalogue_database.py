"""The catalogue: the versions of all tensors and their files, aliases, and the Idempotency-Keys of completed requests.

It is the SQLite database `catalogue.sqlite` (write-ahead log, synchronous=FULL). A committed transaction survives a
power loss; an uncommitted one leaves no trace. No request waits for SQLite: every process keeps the rows in memory
(`catalogue_cache`) and reads only changes from the database.

The write-ahead log is allocated at its full length at startup. SQLite checkpoints the log before it is full, and then
reuses it, so a service can remove a tensor even when the disk is full.

All writes, including SQLite's own checkpoints, are made while holding the process group's catalogue lock, so SQLite
never waits for its own locks. Connections are not shared across a fork.

The tables are in `catalogue_schema`, the rows in `catalogue_rows`, and the changes in `catalogue_transaction`.
"""

from __future__ import annotations

import errno
import os
import sqlite3
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from app.catalogue.records import Alias
from app.store.catalogue.catalogue_rows import (
    EMPTY,
    AnsweredKey,
    CatalogueContents,
    Change,
    LastVersion,
    Row,
    answered_key_of,
    row_of,
)
from app.store.catalogue.catalogue_schema import APPLICATION, SCHEMA_VERSION, create_tables
from app.store.catalogue.catalogue_transaction import Transaction, last_change, read_fact
from app.store.files import disk_writes
from app.store.processes.directory_lock import StoreInUse, StoreRefused

FILE: Final = "catalogue.sqlite"
FILES: Final = (FILE, f"{FILE}-wal", f"{FILE}-shm", f"{FILE}-journal")
_MAX_CHECKED_BYTES: Final = 1 << 27
"""Maximum size of a database for which startup checks every page. With a larger one, that would take seconds."""
LOCK_TIMEOUT_S: Final = 10.0
"""Maximum seconds that SQLite waits for a lock held by another program, such as a backup."""
_WAL_BYTES: Final = 1 << 20
_WAL_CHECKPOINT_PAGES: Final = 128
"""Number of pages after which SQLite checkpoints its log: half of the log's capacity."""
_ERRNO: Final = {
    sqlite3.SQLITE_FULL: errno.ENOSPC,
    sqlite3.SQLITE_READONLY: errno.EROFS,
    sqlite3.SQLITE_PERM: errno.EACCES,
    sqlite3.SQLITE_CANTOPEN: errno.EACCES,
    sqlite3.SQLITE_BUSY: errno.EBUSY,
    sqlite3.SQLITE_LOCKED: errno.EBUSY,
    sqlite3.SQLITE_NOMEM: errno.ENOMEM,
    sqlite3.SQLITE_IOERR_SHMSIZE: errno.ENOSPC,
}
"""SQLite result codes, and the errno to which each of them maps."""


class Catalogue:
    """One process's connections to the database at `path`. All methods block and may raise OSError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._idle: deque[sqlite3.Connection] = deque()

    def create(self, contents: CatalogueContents = EMPTY) -> None:
        """Durably create the database from `contents`, replacing any existing database."""
        for name in FILES:
            disk_writes.unlink(self.path.with_name(name))
        os.close(disk_writes.create(self.path))
        with _disk_errors(self.path), self._connection() as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("BEGIN")
            create_tables(connection)
            transaction = Transaction(connection)
            for row in contents.rows:
                transaction.put(row)
            for alias in contents.aliases:
                transaction.put_alias(alias)
            if contents.last_versions or contents.version_floor:
                transaction.set_last_versions(contents.last_versions, contents.version_floor)
            transaction.commit()
        self.close()
        disk_writes.fsync_folder(self.path.parent)

    def check(self) -> None:
        """Check that the database is usable, and checkpoint SQLite's log. Called at startup. Raises StoreRefused."""
        with self._start_errors(), self._connection() as connection:
            # An empty transaction reveals damage caused by a power loss or by another program.
            connection.execute("BEGIN IMMEDIATE")
            application = connection.execute("PRAGMA application_id").fetchone()[0]
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if (application, version) != (APPLICATION, SCHEMA_VERSION):
                raise StoreRefused(f"{self.path} is not the catalogue of a store that this gathernd can read")
            last_change(connection)
            if self.path.stat().st_size <= _MAX_CHECKED_BYTES:
                found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
                if found != "ok":
                    raise self._damaged(found)
            connection.execute("COMMIT")
            with suppress(sqlite3.OperationalError):  # the disk is full; keep using the log as it is
                connection.execute("PRAGMA wal_checkpoint(RESTART)")

    @contextmanager
    def _start_errors(self) -> Iterator[None]:
        """Convert SQLite's errors at startup to StoreRefused, or to OSError if the disk failed."""
        if not self.path.exists():
            raise StoreRefused(
                f"the catalogue {self.path} is missing: without it nobody knows which tensors the store has; bring it "
                "back from a backup of the folder"
            )
        try:
            yield
        except sqlite3.Error as error:
            if error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise StoreInUse(f"another program has locked the catalogue {self.path}: end it") from None
            if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_IOERR or error.sqlite_errorcode & 0xFF in _ERRNO:
                raise _os_error(error, self.path) from None
            raise self._damaged(str(error)) from None

    @contextmanager
    def refusing_damage(self) -> Iterator[None]:
        """Raise StoreRefused if a record contains a value of the wrong type. This program never writes one."""
        try:
            yield
        except (TypeError, ValueError) as error:
            raise self._damaged(str(error)) from None

    def preallocate_wal(self) -> None:
        """Allocate SQLite's write-ahead log at its full length, as far as disk space allows.

        Called at startup, after `check`. SQLite stops reading at the first frame that it did not write itself, so zeros
        are harmless.
        """
        with _disk_errors(self.path), self._connection() as connection:
            connection.execute("BEGIN IMMEDIATE")  # makes SQLite create its log
            try:
                fd = disk_writes.open_or_create(self.path.with_name(f"{FILE}-wal"))
                try:
                    size = os.fstat(fd).st_size
                    with suppress(OSError):
                        while size < _WAL_BYTES:
                            size += os.pwrite(fd, bytes(min(1 << 16, _WAL_BYTES - size)), size)
                finally:
                    os.close(fd)
            finally:
                connection.execute("ROLLBACK")

    def _damaged(self, why: str) -> StoreRefused:
        return StoreRefused(f"the catalogue {self.path} is damaged ({why}): bring it back from a backup of the folder")

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            database_uri(self.path),
            uri=True,
            timeout=LOCK_TIMEOUT_S,
            isolation_level=None,
            check_same_thread=False,
        )
        try:
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA temp_store = MEMORY")
            connection.execute(f"PRAGMA wal_autocheckpoint = {_WAL_CHECKPOINT_PAGES}")
            connection.execute(f"PRAGMA journal_size_limit = {_WAL_BYTES}")
        except BaseException:
            connection.close()
            raise
        return connection

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        """Yield a connection for exclusive use, reusing an idle one if possible."""
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._connect()
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        self._idle.append(connection)

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Yield a transaction. It is rolled back unless it is committed.

        The caller must hold the group's catalogue lock.
        """
        with _disk_errors(self.path), self._connection() as connection:
            connection.execute("BEGIN IMMEDIATE")
            transaction = Transaction(connection)
            try:
                yield transaction
            finally:
                with suppress(sqlite3.Error):
                    transaction.roll_back()

    @contextmanager
    def _snapshot(self) -> Iterator[sqlite3.Connection]:
        """Yield a connection that sees the catalogue as it is at one moment."""
        with _disk_errors(self.path), self._connection() as connection:
            connection.execute("BEGIN")
            try:
                yield connection
            finally:
                connection.execute("ROLLBACK")

    def _fetch(self, query: str, *values: object) -> list[Any]:
        """Return all rows that a query finds."""
        with _disk_errors(self.path), self._connection() as connection:
            return connection.execute(query, values).fetchall()

    def rows(self) -> tuple[int, list[Row], list[Alias]]:
        """Return the number of the last change, all versions of all tensors, and all aliases."""
        with self._snapshot() as connection:
            return last_change(connection), *_rows_and_aliases(connection)

    def contents(self) -> CatalogueContents:
        """Return the whole catalogue except Idempotency-Keys and import records."""
        with self._snapshot() as connection:
            return CatalogueContents(
                *_rows_and_aliases(connection),
                [LastVersion(*found) for found in connection.execute("SELECT * FROM last_versions")],
                int(read_fact(connection, "version_floor")),
            )

    def row(self, name: str, version: int) -> Row | None:
        """Return a version of a tensor, or None."""
        found = self._fetch("SELECT * FROM tensors WHERE name = ? AND version = ?", name, version)
        return row_of(found[0]) if found else None

    def find_key(self, scope: str, key: str) -> AnsweredKey | None:
        """Return the stored Idempotency-Key, or None."""
        found = self._fetch("SELECT * FROM keys WHERE scope = ? AND key = ?", scope, key)
        return answered_key_of(found[0]) if found else None

    def keys_of(self, scope: str, expired: int) -> list[AnsweredKey]:
        """Return the Idempotency-Keys of a scope whose requests were completed after `expired`."""
        found = self._fetch("SELECT * FROM keys WHERE scope = ? AND clock > ?", scope, expired)
        return [answered_key_of(one) for one in found]

    def find_import(self, number: str) -> str | None:
        """Return the record of the import with this ID, or None."""
        found = self._fetch("SELECT record FROM imports WHERE id = ?", number)
        return str(found[0][0]) if found else None

    def imports(self, after: str, limit: int) -> list[str]:
        """Return at most `limit` import records (-1: all), ordered by ID and starting after the ID `after`."""
        found = self._fetch("SELECT record FROM imports WHERE id > ? ORDER BY id LIMIT ?", after, limit)
        return [record for (record,) in found]

    def facts(self) -> dict[str, Any]:
        """Return the single values: `clock`, `boot` and `boottime` (see `idempotency`), `keys` and `version_floor`.

        `keys` is the number of Idempotency-Keys, and `version_floor` is explained in `catalogue_schema`.
        """
        return dict(self._fetch("SELECT name, value FROM facts"))

    def last_change(self) -> int:
        """Return the number of the last change of a tensor or an alias."""
        with _disk_errors(self.path), self._connection() as connection:
            return last_change(connection)

    def changes_since(self, sequence: int) -> list[Change] | None:
        """Return the changes after number `sequence`, in order, or None if some of them are no longer kept."""
        found = self._fetch(
            "SELECT c.sequence, c.name, c.version, a.name, a.version, a.etag, a.created, a.modified, v.* "
            "FROM changes c LEFT JOIN tensors v ON v.name = c.name AND v.version = c.version "
            "LEFT JOIN aliases a ON c.version = 0 AND a.alias = c.name "
            "WHERE c.sequence >= ? ORDER BY c.sequence",
            sequence,
        )
        if not found or found[0][0] != sequence:
            return None
        return [Change(one[0], one[1], one[2], _current(one[1], one[3:8], one[8:])) for one in found[1:]]

    def close(self) -> None:
        """Close all connections, if any."""
        while self._idle:
            self._idle.pop().close()


def _rows_and_aliases(connection: sqlite3.Connection) -> tuple[list[Row], list[Alias]]:
    """Return all versions of all tensors, and all aliases."""
    rows = [row_of(found) for found in connection.execute("SELECT * FROM tensors")]
    return rows, [Alias(*found) for found in connection.execute("SELECT * FROM aliases")]


def _current(name: str, alias: Sequence[Any], row: Sequence[Any]) -> Row | Alias | None:
    if alias[0] is not None:
        return Alias(name, *alias)
    return None if row[0] is None else row_of(row)


def database_uri(path: Path) -> str:
    """Return the URI that makes SQLite open the existing database at `path` for reading and writing."""
    quoted = str(path.absolute()).replace("%", "%25").replace("?", "%3f").replace("#", "%23")
    return f"file:{quoted}?mode=rw"


def _os_error(error: sqlite3.Error, path: Path) -> OSError:
    """Convert an SQLite error to an OSError. The default is EIO.

    SQLite does not say why it could not create a file, so this function checks whether the disk that holds the database
    at `path` is full.
    """
    code = getattr(error, "sqlite_errorcode", 0)
    number = _ERRNO.get(code) or _ERRNO.get(code & 0xFF, errno.EIO)
    if code & 0xFF == sqlite3.SQLITE_CANTOPEN and _is_full(path.parent):
        number = errno.ENOSPC
    return OSError(number, os.strerror(number), f"the catalogue: {error}")


def _is_full(folder: Path) -> bool:
    try:
        status = os.statvfs(folder)
    except OSError:
        return False
    return not status.f_bavail or (status.f_files > 0 and not status.f_favail)


@contextmanager
def _disk_errors(path: Path) -> Iterator[None]:
    """Re-raise SQLite's errors as OSError. `path` is the database."""
    try:
        yield
    except sqlite3.Error as error:
        raise _os_error(error, path) from error
