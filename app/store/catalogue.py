"""The catalogue: which versions of which tensors there are, in which files, aliases, and answered Idempotency-Keys.

It is the SQLite database `catalogue.sqlite` (write-ahead log, synchronous=FULL): a committed transaction survives a
loss of power, one that was not committed leaves no trace. No request waits for SQLite: every process keeps the rows in
memory (`catalogue_cache`) and reads from the database only what has changed.

The write-ahead log gets its full length at the start and is then reused, since SQLite checkpoints it before it is full:
so a tensor can be removed from a disk that has no room left.

All writes happen within the process group's lock of the catalogue, SQLite's own checkpoints included, so that SQLite
never waits for a lock of its own. Connections are not shared across a fork.

The module stays whole although it is long: one class writes what the other reads, by the same schema.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from app.store import disk_writes, last_versions
from app.store.catalogue_schema import APPLICATION, SCHEMA_VERSION, create_tables, upgrade_tables
from app.store.directory_lock import StoreInUse, StoreRefused
from app.store.tensor_file import digest_of

FILE: Final = "catalogue.sqlite"
FILES: Final = (FILE, f"{FILE}-wal", f"{FILE}-shm", f"{FILE}-journal")
_KEPT_CHANGES: Final = 1024
"""Changes kept for other processes to catch up by; one that is further behind reads all rows."""
_MAX_CHECKED_BYTES: Final = 1 << 27
"""Of a larger database the start does not check every page, which would take seconds."""
_LOCK_TIMEOUT_S: Final = 10.0
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


@dataclass(frozen=True, slots=True)
class Row:
    """A version of a tensor: the id and file of its content, and its metadata. Times are nanoseconds since 1970.

    `size` is the bytes of the items, `file_size` those of the file; `created` is when the name came into being,
    `modified` when this file was stored. `dtype` is empty where the file could not be read when it was entered.
    """

    name: str
    content: str
    file: str
    dtype: str
    shape: tuple[int, ...]
    size: int
    file_size: int
    sha256: str
    created: int
    modified: int
    prefault: bool = False
    lock: bool = False
    version: int = 1

    @property
    def reference(self) -> str:
        """What names this version and no other: `NAME@7`."""
        return f"{self.name}@{self.version}"


@dataclass(frozen=True, slots=True)
class Alias:
    """A name for one version of a tensor. `etag` is new with each move; times are nanoseconds since 1970.

    `created` is when the alias came into being, `modified` when it was last moved.
    """

    alias: str
    name: str
    version: int
    etag: str
    created: int
    modified: int

    @property
    def reference(self) -> str:
        """The version that it names: `NAME@7`."""
        return f"{self.name}@{self.version}"


@dataclass(frozen=True, slots=True)
class AnsweredKey:
    """An Idempotency-Key: the digest of its request, and what was answered, an ETag and the number of the version.

    `scope` is the name in the path of the request, as it was written: of a tensor, of one version, or an alias.
    `clock` is when, by the store's clock (see `idempotency`).
    """

    scope: str
    key: str
    digest: str
    etag: str
    clock: int
    version: int = 1


@dataclass(frozen=True, slots=True)
class LastVersion:
    """The highest number that a name ever had.

    `removed` is the number of the change by which its tensor went, None while there is one.
    """

    name: str
    version: int
    removed: int | None


@dataclass(frozen=True, slots=True)
class CatalogueContents:
    """All that the catalogue says at one moment, but for Idempotency-Keys.

    `version_floor` is the highest number of the names that are in `last_versions` no more.
    """

    rows: Sequence[Row] = ()
    aliases: Sequence[Alias] = ()
    last_versions: Sequence[LastVersion] = ()
    version_floor: int = 0


@dataclass(frozen=True, slots=True)
class Change:
    """A change of one version, or of an alias where `version` is 0; `now` is what is there, None if it was removed."""

    sequence: int
    name: str
    version: int
    now: Row | Alias | None


EMPTY: Final = CatalogueContents()


def placeholder_name(name: str) -> str:
    """The name in the catalogue of a damaged tensor of format 1, of whose name only the digest is known."""
    return f"sha256:{digest_of(name)}"


class Transaction:
    """Changes of the catalogue that become durable together."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._changed: list[tuple[str, int]] = []

    @property
    def changes_tensors(self) -> bool:
        """Whether other processes must look at the rows again."""
        return bool(self._changed)

    def next_version(self, name: str) -> int:
        """The number of the next version of a name: one more than it ever had."""
        with _disk_errors():
            return last_versions.next_version(self._connection, name)

    def put(self, row: Row) -> None:
        """Enter a version of a tensor, replacing the row of its number."""
        with _disk_errors():
            self._connection.execute(
                "INSERT OR REPLACE INTO tensors VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    row.name, row.version, row.content, row.file, row.dtype, orjson.dumps(row.shape).decode(), row.size,
                    row.file_size, row.sha256, row.created, row.modified, row.prefault, row.lock,
                ),
            )  # fmt: skip
            last_versions.note_entered(self._connection, row.name, row.version)
        self._changed.append((row.name, row.version))

    def remove(self, row: Row) -> None:
        """Remove a version of a tensor. Its number is not given again."""
        with _disk_errors():
            self._connection.execute("DELETE FROM tensors WHERE name = ? AND version = ?", (row.name, row.version))
            last_versions.note_removed(self._connection, row.name, self.last_change() + len(self._changed) + 1)
        self._changed.append((row.name, row.version))

    def put_alias(self, alias: Alias) -> None:
        """Enter an alias, or move it."""
        with _disk_errors():
            self._connection.execute(
                "INSERT OR REPLACE INTO aliases VALUES (?, ?, ?, ?, ?, ?)",
                (alias.alias, alias.name, alias.version, alias.etag, alias.created, alias.modified),
            )
        self._changed.append((alias.alias, 0))

    def remove_alias(self, alias: str) -> None:
        """Remove an alias."""
        with _disk_errors():
            self._connection.execute("DELETE FROM aliases WHERE alias = ?", (alias,))
        self._changed.append((alias, 0))

    def store_keys(self, answers: Sequence[AnsweredKey], expired: int) -> None:
        """Enter Idempotency-Keys, and remove some thousands of those answered at `expired` or before."""
        with _disk_errors():
            run = self._connection.execute
            gone = run(
                "DELETE FROM keys WHERE (scope, key) IN (SELECT scope, key FROM keys WHERE clock <= ? LIMIT ?)",
                (expired, 10_000 + 2 * len(answers)),
            ).rowcount
            for one in answers:
                gone += run("DELETE FROM keys WHERE scope = ? AND key = ?", (one.scope, one.key)).rowcount
            self._connection.executemany(
                "INSERT INTO keys VALUES (?, ?, ?, ?, ?, ?)",
                [(one.scope, one.key, one.digest, one.etag, one.clock, one.version) for one in answers],
            )
            if gone != len(answers):
                run("UPDATE facts SET value = value + ? WHERE name = 'keys'", (len(answers) - gone,))

    def set_last_versions(self, found: Sequence[LastVersion], version_floor: int) -> None:
        """Set the highest number of each name, of those in the catalogue too."""
        with _disk_errors():
            self._connection.executemany(
                "INSERT OR REPLACE INTO last_versions VALUES (?, ?, ?)",
                [(one.name, one.version, one.removed) for one in found],
            )
        self.set_facts({"version_floor": version_floor, "removed_names": sum(one.removed is not None for one in found)})

    def set_facts(self, facts: dict[str, Any]) -> None:
        """Set single values, by name."""
        with _disk_errors():
            self._connection.executemany("INSERT OR REPLACE INTO facts VALUES (?, ?)", facts.items())

    def commit(self) -> None:
        """Make it durable. Raises OSError; a crash before the next commit may then still make it durable."""
        with _disk_errors():
            for name, version in self._changed:
                self._connection.execute("INSERT INTO changes (name, version) VALUES (?, ?)", (name, version))
            if self._changed:
                last = self.last_change()
                if last // 256 != (last - len(self._changed)) // 256:
                    self._connection.execute("DELETE FROM changes WHERE sequence <= ?", (last - _KEPT_CHANGES,))
            disk_writes.commit(self._connection)

    def roll_back(self) -> None:
        """Undo what has not been committed."""
        if self._connection.in_transaction:
            with _disk_errors():
                self._connection.execute("ROLLBACK")

    def last_change(self) -> int:
        """The number of the last change of a tensor or an alias."""
        return _last(self._connection)

    def key_count(self) -> int:
        """How many Idempotency-Keys there are."""
        return int(_fact(self._connection, "keys"))


class Catalogue:
    """One process's connections to the database at `path`. All methods block and raise OSError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._idle: deque[sqlite3.Connection] = deque()
        self._index_connection: sqlite3.Connection | None = None
        self._index_connections = 0

    def create(self, contents: CatalogueContents = EMPTY) -> None:
        """Make the database anew with these tensors and aliases, durably."""
        for name in FILES:
            disk_writes.unlink(self.path.with_name(name))
        os.close(disk_writes.create(self.path))
        with _disk_errors(), self._connection() as connection:
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

    def upgrade(self) -> None:
        """At start-up: bring the database to this schema, in one transaction; changes nothing if it is of this one.

        Raises StoreRefused where the database cannot be used, and OSError.
        """
        with self._refusals(), self._connection() as connection:
            connection.execute("BEGIN IMMEDIATE")
            transaction = Transaction(connection)
            try:
                if upgrade_tables(connection):
                    transaction.commit()
            finally:
                with suppress(OSError):
                    transaction.roll_back()
        self.close()

    def check(self) -> None:
        """At start-up: check that the database can be used, and checkpoint SQLite's log. Raises StoreRefused."""
        with self._refusals(), self._connection() as connection:
            # An empty transaction: damage by a power loss or another program shows here.
            connection.execute("BEGIN IMMEDIATE")
            application = connection.execute("PRAGMA application_id").fetchone()[0]
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if (application, version) != (APPLICATION, SCHEMA_VERSION):
                raise StoreRefused(f"{self.path} is not the catalogue of a store that this gathernd can read")
            _last(connection)
            if self.path.stat().st_size <= _MAX_CHECKED_BYTES:
                found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
                if found != "ok":
                    raise self._damaged(found)
            connection.execute("COMMIT")
            connection.execute("PRAGMA wal_checkpoint(RESTART)")

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        """Turn what SQLite raises at the start into StoreRefused, or OSError where it is the disk's fault."""
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
                raise os_error(error) from None
            raise self._damaged(str(error)) from None

    def preallocate_wal(self) -> None:
        """At start-up, after `check`: give SQLite's write-ahead log its full length, as far as the disk has room.

        SQLite ends reading at the first frame that it did not write itself, so zeros are no harm.
        """
        with _disk_errors(), self._connection() as connection:
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
            timeout=_LOCK_TIMEOUT_S,
            isolation_level=None,
            check_same_thread=False,
        )
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA temp_store = MEMORY")
        connection.execute(f"PRAGMA wal_autocheckpoint = {_WAL_CHECKPOINT_PAGES}")
        connection.execute(f"PRAGMA journal_size_limit = {_WAL_BYTES}")
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
        with _disk_errors(), self._connection() as connection:
            connection.execute("BEGIN IMMEDIATE")
            transaction = Transaction(connection)
            try:
                yield transaction
            finally:
                with suppress(OSError):
                    transaction.roll_back()

    def rows(self) -> tuple[int, list[Row], list[Alias]]:
        """The number of the last change, all versions of all tensors, and all aliases."""
        with _disk_errors(), self._connection() as connection:
            connection.execute("BEGIN")
            try:
                last = _last(connection)
                rows = [_row(found) for found in connection.execute("SELECT * FROM tensors")]
                return last, rows, [Alias(*found) for found in connection.execute("SELECT * FROM aliases")]
            finally:
                connection.execute("ROLLBACK")

    def contents(self) -> CatalogueContents:
        """All that there is, but for Idempotency-Keys."""
        with _disk_errors(), self._connection() as connection:
            connection.execute("BEGIN")
            try:
                return CatalogueContents(
                    [_row(found) for found in connection.execute("SELECT * FROM tensors")],
                    [Alias(*found) for found in connection.execute("SELECT * FROM aliases")],
                    [LastVersion(*found) for found in connection.execute("SELECT * FROM last_versions")],
                    int(_fact(connection, "version_floor")),
                )
            finally:
                connection.execute("ROLLBACK")

    def row(self, name: str, version: int) -> Row | None:
        """A version of a tensor, None if there is none."""
        with _disk_errors(), self._connection() as connection:
            found = connection.execute(
                "SELECT * FROM tensors WHERE name = ? AND version = ?", (name, version)
            ).fetchone()
            return None if found is None else _row(found)

    def find_key(self, scope: str, key: str) -> AnsweredKey | None:
        """The stored Idempotency-Key, None if there is none."""
        # Every scatter with a key comes here: without the two context managers, which cost as much as the query.
        try:
            connection = self._idle.pop()
        except IndexError:
            with _disk_errors():
                connection = self._connect()
        try:
            found = connection.execute(
                "SELECT scope, key, digest, etag, clock, version FROM keys WHERE scope = ? AND key = ?", (scope, key)
            ).fetchone()
        except sqlite3.Error as error:
            connection.close()
            raise os_error(error) from error
        self._idle.append(connection)
        return None if found is None else AnsweredKey(*found)

    def count_keys(self, keys: Iterable[tuple[str, str]]) -> int:
        """How many of these Idempotency-Keys, each with its scope, there are."""
        with _disk_errors(), self._connection() as connection:
            count = "SELECT count(*) FROM keys WHERE scope = ? AND key = ?"
            return sum(connection.execute(count, key).fetchone()[0] for key in keys)

    def facts(self) -> dict[str, Any]:
        """The single values: `clock`, `boot` and `boottime` (see `idempotency`), and the number of `keys`."""
        with _disk_errors(), self._connection() as connection:
            return dict(connection.execute("SELECT name, value FROM facts").fetchall())

    # For `catalogue_cache`, which calls from one thread at a time

    def _connection_of_index(self) -> sqlite3.Connection:
        if self._index_connection is None:
            self._index_connection = self._connect()
            self._index_connections += 1
        return self._index_connection

    def data_version(self) -> tuple[int, int]:
        """Changes whenever another connection, of any process, has committed. Takes some microseconds."""
        with _disk_errors():
            # SQLite counts for each connection anew.
            found = self._connection_of_index().execute("PRAGMA data_version").fetchone()[0]
            return self._index_connections, found

    def last_change(self) -> int:
        """The number of the last change of a tensor or an alias."""
        with _disk_errors():
            return _last(self._connection_of_index())

    def changes_since(self, sequence: int) -> list[Change] | None:
        """The changes after number `sequence`, in their order; None where they are too many to have been kept."""
        with _disk_errors():
            found = (
                self._connection_of_index()
                .execute(
                    "SELECT c.sequence, c.name, c.version, a.name, a.version, a.etag, a.created, a.modified, v.* "
                    "FROM changes c LEFT JOIN tensors v ON v.name = c.name AND v.version = c.version "
                    "LEFT JOIN aliases a ON c.version = 0 AND a.alias = c.name "
                    "WHERE c.sequence >= ? ORDER BY c.sequence",
                    (sequence,),
                )
                .fetchall()
            )
        if not found or found[0][0] != sequence:
            return None
        return [Change(one[0], one[1], one[2], _now(one[1], one[3:8], one[8:])) for one in found[1:]]

    def close(self) -> None:
        """Close the connections; harmless if there are none."""
        if self._index_connection is not None:
            self._index_connection.close()
            self._index_connection = None
        while self._idle:
            self._idle.pop().close()


def _last(connection: sqlite3.Connection) -> int:
    return int(connection.execute("SELECT max(sequence) FROM changes").fetchone()[0])


def _fact(connection: sqlite3.Connection, name: str) -> Any:
    return connection.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()[0]


def _now(name: str, alias: Sequence[Any], row: Sequence[Any]) -> Row | Alias | None:
    if alias[0] is not None:
        return Alias(name, *alias)
    return None if row[0] is None else _row(row)


def _row(found: Sequence[Any]) -> Row:
    name, version, content, file, dtype, shape, size, file_size, sha256, created, modified, prefault, lock = found
    # Shared where they can be, since there may be a hundred thousand rows.
    return Row(
        sys.intern(name), content, content if file == content else file, sys.intern(dtype), tuple(orjson.loads(shape)),
        size, file_size, sha256, created, modified, bool(prefault), bool(lock), version,
    )  # fmt: skip


def database_uri(path: Path) -> str:
    """The URI by which SQLite opens the database at `path`, which must exist, for reading and writing."""
    quoted = str(path.absolute()).replace("%", "%25").replace("?", "%3f").replace("#", "%23")
    return f"file:{quoted}?mode=rw"


def os_error(error: sqlite3.Error) -> OSError:
    """An error of SQLite as the OSError that it stands for, EIO where it stands for none."""
    code = getattr(error, "sqlite_errorcode", 0)
    number = _ERRNO.get(code) or _ERRNO.get(code & 0xFF, errno.EIO)
    return OSError(number, os.strerror(number), f"the catalogue: {error}")


@contextmanager
def _disk_errors() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise os_error(error) from error
