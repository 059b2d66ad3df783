"""The highest version number that each tensor name ever had, so that no number is reused.

For names without a tensor these records would grow without bound. At most REMEMBERED of them are kept, for the most
recently removed tensors. The highest number among the others is kept as a floor: an unknown name starts above it.
"""

from __future__ import annotations

import sqlite3
from typing import Final

from app.catalogue.versions import next_number

REMEMBERED: Final = 100_000
"""Maximum number of names without a tensor whose last numbers are kept."""


def next_version(connection: sqlite3.Connection, name: str) -> int:
    """Return the number of the next version of a name: one more than it ever had."""
    found = connection.execute("SELECT version FROM last_versions WHERE name = ?", (name,)).fetchone()
    return next_number(None if found is None else int(found[0]), _floor(connection))


def note_entered(connection: sqlite3.Connection, name: str, version: int) -> None:
    """Record that a version of a name has been entered."""
    connection.execute(
        "INSERT INTO last_versions VALUES (?, ?, NULL) "
        "ON CONFLICT (name) DO UPDATE SET version = max(version, excluded.version), removed = NULL",
        (name, version),
    )


def note_removed(connection: sqlite3.Connection, name: str, change: int) -> None:
    """Record that change number `change` has removed a version of a name.

    Forgets the oldest names without a tensor if there are too many.
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
