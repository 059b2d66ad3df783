"""The catalogue: which versions of which tensors there are, in which files, aliases, and answered Idempotency-Keys.

It is the SQLite database `catalogue.sqlite` (write-ahead log, synchronous=FULL): a committed transaction survives a
loss of power, one that was not committed leaves no trace. No request waits for SQLite: every process keeps the rows in
memory (`catalogue_cache`) and reads from the database only what has changed.

The write-ahead log gets its full length at the start and is then reused, since SQLite checkpoints it before it is full:
so a service can remove a tensor from a disk that has no room left.

All writes happen within the process group's lock of the catalogue, SQLite's own checkpoints included, so that SQLite
never waits for a lock of its own. Connections are not shared across a fork.

Its tables are `catalogue_schema`, its rows `catalogue_rows`, what changes them `catalogue_transaction`.
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
from app.store.catalogue.catalogue_transaction import Transaction, fact, last_change
from app.store.files import disk_writes
from app.store.processes.directory_lock import StoreInUse, StoreRefused

FILE: Final = "catalogue.sqlite"
FILES: Final = (FILE, f"{FILE}-wal", f"{FILE}-shm", f"{FILE}-journal")
_MAX_CHECKED_BYTES: Final = 1 << 27
"""Of a larger database the start does not check every page, which would take seconds."""
LOCK_TIMEOUT_S: Final = 10.0
"""How long SQLite waits for a lock of another program, such as a backup."""
_WAL_BYTES: Final = 1 << 20
_WAL_CHECKPOINT_PAGES: Final = 128
"""Pages after which SQLite checkpoints its log: half of what the log has room for."""
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
"""The error numbers of the results that have one."""


class Catalogue:
    """One process's connections to the database at `path`. All methods block and raise OSError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._idle: deque[sqlite3.Connection] = deque()

    def create(self, contents: CatalogueContents = EMPTY) -> None:
        """Make the database anew with these tensors and aliases, durably."""
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
        """At start-up: check that the database can be used, and checkpoint SQLite's log. Raises StoreRefused."""
        with self._refusals(), self._connection() as connection:
            # An empty transaction: damage by a power loss or another program shows here.
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
            with suppress(sqlite3.OperationalError):  # on a full disk, where the log is read on as it is
                connection.execute("PRAGMA wal_checkpoint(RESTART)")

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        """Map SQLite's errors at start-up to StoreRefused, or to OSError if the disk failed."""
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
        """Raise StoreRefused if a record has a value of the wrong type (we never write one)."""
        try:
            yield
        except (TypeError, ValueError) as error:
            raise self._damaged(str(error)) from None

    def preallocate_wal(self) -> None:
        """At start-up, after `check`: give SQLite's write-ahead log its full length, as far as the disk has room.

        SQLite ends reading at the first frame that it did not write itself, so zeros are no harm.
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
        """A connection of the caller's own, from those that are open and idle."""
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
        """A transaction, undone unless it is committed; within the group's lock."""
        with _disk_errors(self.path), self._connection() as connection:
            connection.execute("BEGIN IMMEDIATE")
            transaction = Transaction(connection)
            try:
                yield transaction
            finally:
                with suppress(sqlite3.Error):
                    transaction.roll_back()

    @contextmanager
    def _moment(self) -> Iterator[sqlite3.Connection]:
        """A connection that sees the catalogue as it is at one moment."""
        with _disk_errors(self.path), self._connection() as connection:
            connection.execute("BEGIN")
            try:
                yield connection
            finally:
                connection.execute("ROLLBACK")

    def _fetch(self, query: str, *values: object) -> list[Any]:
        """The rows that a query finds."""
        with _disk_errors(self.path), self._connection() as connection:
            return connection.execute(query, values).fetchall()

    def rows(self) -> tuple[int, list[Row], list[Alias]]:
        """The number of the last change, all versions of all tensors, and all aliases."""
        with self._moment() as connection:
            return last_change(connection), *_rows_and_aliases(connection)

    def contents(self) -> CatalogueContents:
        """The whole catalogue except Idempotency-Keys and records of imports."""
        with self._moment() as connection:
            return CatalogueContents(
                *_rows_and_aliases(connection),
                [LastVersion(*found) for found in connection.execute("SELECT * FROM last_versions")],
                int(fact(connection, "version_floor")),
            )

    def row(self, name: str, version: int) -> Row | None:
        """A version of a tensor, None if there is none."""
        found = self._fetch("SELECT * FROM tensors WHERE name = ? AND version = ?", name, version)
        return row_of(found[0]) if found else None

    def find_key(self, scope: str, key: str) -> AnsweredKey | None:
        """The stored Idempotency-Key, None if there is none."""
        found = self._fetch("SELECT * FROM keys WHERE scope = ? AND key = ?", scope, key)
        return answered_key_of(found[0]) if found else None

    def keys_of(self, scope: str, expired: int) -> list[AnsweredKey]:
        """The Idempotency-Keys of a scope answered after `expired`."""
        found = self._fetch("SELECT * FROM keys WHERE scope = ? AND clock > ?", scope, expired)
        return [answered_key_of(one) for one in found]

    def find_import(self, number: str) -> str | None:
        """The record of the import with this id, None if there is none."""
        found = self._fetch("SELECT record FROM imports WHERE id = ?", number)
        return str(found[0][0]) if found else None

    def imports(self, after: str, limit: int) -> list[str]:
        """At most `limit` records of imports in the order of their ids, those after `after`; -1: all of them."""
        found = self._fetch("SELECT record FROM imports WHERE id > ? ORDER BY id LIMIT ?", after, limit)
        return [record for (record,) in found]

    def facts(self) -> dict[str, Any]:
        """The single values: `clock`, `boot` and `boottime` (see `idempotency`), and the number of `keys`."""
        return dict(self._fetch("SELECT name, value FROM facts"))

    def last_change(self) -> int:
        """The number of the last change of a tensor or an alias."""
        with _disk_errors(self.path), self._connection() as connection:
            return last_change(connection)

    def changes_since(self, sequence: int) -> list[Change] | None:
        """The changes after number `sequence`, in their order; None if they are too many to have been kept."""
        found = self._fetch(
            "SELECT c.sequence, c.name, c.version, a.name, a.version, a.etag, a.created, a.modified, v.* "
            "FROM changes c LEFT JOIN tensors v ON v.name = c.name AND v.version = c.version "
            "LEFT JOIN aliases a ON c.version = 0 AND a.alias = c.name "
            "WHERE c.sequence >= ? ORDER BY c.sequence",
            sequence,
        )
        if not found or found[0][0] != sequence:
            return None
        return [Change(one[0], one[1], one[2], _now(one[1], one[3:8], one[8:])) for one in found[1:]]

    def close(self) -> None:
        """Close the connections; harmless if there are none."""
        while self._idle:
            self._idle.pop().close()


def _rows_and_aliases(connection: sqlite3.Connection) -> tuple[list[Row], list[Alias]]:
    """All versions of all tensors, and all aliases."""
    rows = [row_of(found) for found in connection.execute("SELECT * FROM tensors")]
    return rows, [Alias(*found) for found in connection.execute("SELECT * FROM aliases")]


def _now(name: str, alias: Sequence[Any], row: Sequence[Any]) -> Row | Alias | None:
    if alias[0] is not None:
        return Alias(name, *alias)
    return None if row[0] is None else row_of(row)


def database_uri(path: Path) -> str:
    """The URI by which SQLite opens the database at `path`, which must exist, for reading and writing."""
    quoted = str(path.absolute()).replace("%", "%25").replace("?", "%3f").replace("#", "%23")
    return f"file:{quoted}?mode=rw"


def _os_error(error: sqlite3.Error, path: Path) -> OSError:
    """Map an error of SQLite to an OSError, by default EIO.

    SQLite does not say why it could not make a file, so check whether the disk of `path`, the database, is full.
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
    """Raise SQLite's errors as OSError; `path` is the database."""
    try:
        yield
    except sqlite3.Error as error:
        raise _os_error(error, path) from error
