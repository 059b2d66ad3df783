"""Change the catalogue: insert and remove rows in a transaction, and commit it.

No version number is ever reused: the `last_versions` table holds the highest number that each name has ever had. Of the
names whose tensors have been removed, it holds only the REMEMBERED most recent ones. The highest number among the
forgotten names is kept as a floor, and an unknown name starts above that floor.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import astuple
from typing import Any, Final

import orjson

from app.catalogue.records import Alias
from app.catalogue.versions import next_number
from app.store.catalogue.catalogue_rows import AnsweredKey, LastVersion, Row, RowCounts
from app.store.files import disk_writes

REMEMBERED: Final = 100_000
"""Maximum number of names without a tensor whose last version numbers are kept."""


def next_version(connection: sqlite3.Connection, name: str) -> int:
    """Return a name's next version number. It is higher than any number that the name has ever had."""
    found = connection.execute("SELECT version FROM last_versions WHERE name = ?", (name,)).fetchone()
    return next_number(None if found is None else int(found[0]), _floor(connection))


def record_entered(connection: sqlite3.Connection, name: str, version: int) -> None:
    """Record that a version of a name has been inserted."""
    connection.execute(
        "INSERT INTO last_versions VALUES (?, ?, NULL) "
        "ON CONFLICT (name) DO UPDATE SET version = max(version, excluded.version), removed = NULL",
        (name, version),
    )


def record_removed(connection: sqlite3.Connection, name: str, change: int) -> None:
    """Record that change number `change` has removed a version of a name.

    If there are too many names without a tensor, the ones removed longest ago are forgotten.
    """
    left = connection.execute("SELECT 1 FROM tensors WHERE name = ? LIMIT 1", (name,)).fetchone()
    if left is not None:
        return
    connection.execute("UPDATE last_versions SET removed = ? WHERE name = ? AND removed IS NULL", (change, name))
    removed = "FROM last_versions WHERE removed IS NOT NULL"
    surplus = connection.execute(f"SELECT count(*) {removed}").fetchone()[0] - REMEMBERED
    if surplus > 0:
        oldest = connection.execute(f"SELECT name, version {removed} ORDER BY removed LIMIT ?", (surplus,)).fetchall()
        floor = max([_floor(connection), *(version for _, version in oldest)])
        connection.execute("UPDATE facts SET value = ? WHERE name = 'version_floor'", (floor,))
        connection.executemany("DELETE FROM last_versions WHERE name = ?", [(name,) for name, _ in oldest])


def _floor(connection: sqlite3.Connection) -> int:
    return int(connection.execute("SELECT value FROM facts WHERE name = 'version_floor'").fetchone()[0])


_KEPT_CHANGES: Final = 1024
"""Number of changes kept so that other processes can catch up. A process that is further behind reads all rows."""


class Transaction:
    """Changes to the catalogue that become durable together. All methods may raise sqlite3.Error."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._changed: list[tuple[str, int]] = []

    @property
    def changes_tensors(self) -> bool:
        """Whether other processes must update their copies of the rows."""
        return bool(self._changed)

    def next_version(self, name: str) -> int:
        """Return a name's next version number. It is higher than any number that the name has ever had."""
        return next_version(self._connection, name)

    def put(self, row: Row) -> None:
        """Insert a version of a tensor, replacing any row with the same name and number."""
        keys = (None,) * 4 if row.keys is None else astuple(row.keys)
        self._connection.execute(
            "INSERT OR REPLACE INTO tensors VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                row.name, row.number, row.content, row.file, row.dtype, orjson.dumps(row.shape).decode(), row.size,
                row.file_size, row.sha256, row.created, row.modified, row.prefault, row.lock, row.note,
                *keys,
            ),
        )  # fmt: skip
        record_entered(self._connection, row.name, row.number)
        self._changed.append((row.name, row.number))

    def remove(self, row: Row) -> None:
        """Remove a version of a tensor. Its number is never reused."""
        self._connection.execute("DELETE FROM tensors WHERE name = ? AND version = ?", (row.name, row.number))
        record_removed(self._connection, row.name, self.last_change() + len(self._changed) + 1)
        self._changed.append((row.name, row.number))

    def put_alias(self, alias: Alias) -> None:
        """Insert or move an alias."""
        self._connection.execute(
            "INSERT OR REPLACE INTO aliases VALUES (?, ?, ?, ?, ?, ?)",
            (alias.alias, alias.name, alias.version, alias.etag, alias.created, alias.modified),
        )
        self._changed.append((alias.alias, 0))

    def remove_alias(self, alias: str) -> None:
        """Remove an alias."""
        self._connection.execute("DELETE FROM aliases WHERE alias = ?", (alias,))
        self._changed.append((alias, 0))

    def store_keys(self, answers: Sequence[AnsweredKey], expired: int) -> None:
        """Insert Idempotency-Keys, and remove up to several thousand that were completed at or before `expired`."""
        run = self._connection.execute
        gone = run(
            "DELETE FROM keys WHERE (scope, key) IN (SELECT scope, key FROM keys WHERE clock <= ? LIMIT ?)",
            (expired, 10_000 + 2 * len(answers)),
        ).rowcount
        for one in answers:
            gone += run("DELETE FROM keys WHERE scope = ? AND key = ?", (one.scope, one.key)).rowcount
        self._connection.executemany(
            "INSERT INTO keys VALUES (?, ?, ?, ?, ?, ?, ?)",
            [(one.scope, one.key, one.digest, one.etag, one.clock, one.version, _text(one.counts)) for one in answers],
        )
        if gone != len(answers):
            run("UPDATE facts SET value = value + ? WHERE name = 'keys'", (len(answers) - gone,))

    def put_import(self, number: str, record: bytes) -> None:
        """Insert an import record, replacing any record with the same ID."""
        self._connection.execute("INSERT OR REPLACE INTO imports VALUES (?, ?)", (number, record.decode()))

    def remove_import(self, number: str) -> None:
        """Remove an import record."""
        self._connection.execute("DELETE FROM imports WHERE id = ?", (number,))

    def forget_imports(self, most: int) -> None:
        """Remove the records of finished imports that are not among the newest `most` imports."""
        self._connection.execute(
            "DELETE FROM imports WHERE id IN (SELECT id FROM imports ORDER BY id DESC LIMIT -1 OFFSET ?) "
            "AND json_extract(record, '$.state') != 'running'",
            (most,),
        )

    def set_last_versions(self, found: Sequence[LastVersion], version_floor: int) -> None:
        """Set the highest version number of each of these names, including names already in the catalogue."""
        self._connection.executemany(
            "INSERT OR REPLACE INTO last_versions VALUES (?, ?, ?)",
            [(one.name, one.version, one.removed) for one in found],
        )
        self.set_facts({"version_floor": version_floor})

    def set_facts(self, facts: dict[str, Any]) -> None:
        """Set single values, by name."""
        self._connection.executemany("INSERT OR REPLACE INTO facts VALUES (?, ?)", facts.items())

    def commit(self) -> None:
        """Make the transaction durable. If that fails, a crash before the next commit may still make it durable."""
        for name, version in self._changed:
            self._connection.execute("INSERT INTO changes (name, version) VALUES (?, ?)", (name, version))
        if self._changed:
            last = self.last_change()
            if last // 256 != (last - len(self._changed)) // 256:
                self._connection.execute("DELETE FROM changes WHERE sequence <= ?", (last - _KEPT_CHANGES,))
        disk_writes.commit(self._connection)

    def roll_back(self) -> None:
        """Undo uncommitted changes."""
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    def last_change(self) -> int:
        """Return the number of the last change of a tensor or an alias."""
        return last_change(self._connection)

    def key_count(self) -> int:
        """Return the number of Idempotency-Keys."""
        return int(read_fact(self._connection, "keys"))


def _text(counts: RowCounts | None) -> str | None:
    return None if counts is None else orjson.dumps([*counts]).decode()


def last_change(connection: sqlite3.Connection) -> int:
    """Return the number of the last change of a tensor or an alias."""
    return int(connection.execute("SELECT max(sequence) FROM changes").fetchone()[0])


def read_fact(connection: sqlite3.Connection, name: str) -> Any:
    """Return a single value of the catalogue by its name."""
    return connection.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()[0]
