"""The highest number that each name of a tensor ever had, so that no number of a version is given twice.

Those of names without a tensor would grow without bound. At most REMEMBERED of them are kept, those whose tensors were
removed last; the highest number among the others is kept in their place, and a name that is not known starts after it.
"""

from __future__ import annotations

import sqlite3
from typing import Final

REMEMBERED: Final = 100_000
"""Names without a tensor whose last numbers are kept."""


def next_version(connection: sqlite3.Connection, name: str) -> int:
    """The number of the next version of a name: one more than it ever had."""
    found = connection.execute("SELECT version FROM last_versions WHERE name = ?", (name,)).fetchone()
    if found is None:
        found = connection.execute("SELECT value FROM facts WHERE name = 'version_floor'").fetchone()
    return int(found[0]) + 1


def note_entered(connection: sqlite3.Connection, name: str, version: int) -> None:
    """A version of a name has been entered."""
    known = connection.execute("SELECT removed FROM last_versions WHERE name = ?", (name,)).fetchone()
    connection.execute(
        "INSERT INTO last_versions VALUES (?, ?, NULL) "
        "ON CONFLICT (name) DO UPDATE SET version = max(version, excluded.version), removed = NULL",
        (name, version),
    )
    if known is not None and known[0] is not None:
        _count(connection, -1)


def note_removed(connection: sqlite3.Connection, name: str, change: int) -> None:
    """A version of a name has been removed, by change number `change`; forgets other names where they are too many."""
    left = connection.execute("SELECT 1 FROM tensors WHERE name = ? LIMIT 1", (name,)).fetchone()
    if left is not None:
        return
    _count(
        connection,
        connection.execute(
            "UPDATE last_versions SET removed = ? WHERE name = ? AND removed IS NULL", (change, name)
        ).rowcount,
    )
    surplus = _fact(connection, "removed_names") - REMEMBERED
    if surplus > 0:
        oldest = connection.execute(
            "SELECT name, version FROM last_versions WHERE removed IS NOT NULL ORDER BY removed LIMIT ?", (surplus,)
        ).fetchall()
        floor = max([_fact(connection, "version_floor"), *(version for _, version in oldest)])
        connection.execute("UPDATE facts SET value = ? WHERE name = 'version_floor'", (floor,))
        connection.executemany("DELETE FROM last_versions WHERE name = ?", [(name,) for name, _ in oldest])
        _count(connection, -len(oldest))


def _fact(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()[0])


def _count(connection: sqlite3.Connection, more: int) -> None:
    connection.execute("UPDATE facts SET value = value + ? WHERE name = 'removed_names'", (more,))
