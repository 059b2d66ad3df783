"""The tables of the catalogue, and how a database of an older schema is brought to this one.

1   one content for each name; the scope of an Idempotency-Key is the tensor's name
2   versions and aliases
3   `last_versions` forgets names whose tensors were removed long ago: see `last_versions`
"""

from __future__ import annotations

import sqlite3
from typing import Final

APPLICATION: Final = 1195463752
SCHEMA_VERSION: Final = 3
_VERSIONS_TABLES: Final = """
CREATE TABLE tensors (
    name TEXT NOT NULL, version INTEGER NOT NULL, content TEXT NOT NULL, file TEXT NOT NULL, dtype TEXT NOT NULL,
    shape TEXT NOT NULL, size INTEGER NOT NULL, file_size INTEGER NOT NULL, sha256 TEXT NOT NULL,
    created INTEGER NOT NULL, modified INTEGER NOT NULL, prefault INTEGER NOT NULL, lock INTEGER NOT NULL,
    PRIMARY KEY (name, version)
) WITHOUT ROWID;
CREATE TABLE last_versions (name TEXT PRIMARY KEY, version INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE aliases (
    alias TEXT PRIMARY KEY, name TEXT NOT NULL, version INTEGER NOT NULL, etag TEXT NOT NULL,
    created INTEGER NOT NULL, modified INTEGER NOT NULL
) WITHOUT ROWID;
"""
"""`tensors` has a row for each version. `last_versions` has the highest number that each name ever had."""
_REMOVED_NAMES: Final = """
ALTER TABLE last_versions ADD COLUMN removed INTEGER;
CREATE INDEX last_versions_by_removal ON last_versions (removed) WHERE removed IS NOT NULL;
UPDATE last_versions SET removed = 0 WHERE name NOT IN (SELECT name FROM tensors);
INSERT INTO facts VALUES ('version_floor', 0);
INSERT INTO facts SELECT 'removed_names', count(*) FROM last_versions WHERE removed IS NOT NULL;
"""
"""`removed` is the number of the change by which the last version of a name went, NULL while there is one.

`version_floor` is the highest number of the names that were forgotten, `removed_names` counts the others that have no
tensor.
"""
_SCHEMA: Final = """
CREATE TABLE changes (sequence INTEGER PRIMARY KEY, name TEXT NOT NULL, version INTEGER NOT NULL DEFAULT 1);
CREATE TABLE keys (
    scope TEXT NOT NULL, key TEXT NOT NULL, digest TEXT NOT NULL, etag TEXT NOT NULL, clock INTEGER NOT NULL,
    version INTEGER NOT NULL DEFAULT 1, PRIMARY KEY (scope, key)
) WITHOUT ROWID;
CREATE INDEX keys_by_clock ON keys (clock);
CREATE TABLE facts (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
INSERT INTO changes VALUES (1, '', 1);
INSERT INTO facts VALUES ('keys', 0), ('clock', 0), ('boot', ''), ('boottime', 0);
"""
_RENAMED: Final = "ALTER TABLE tensors RENAME TO tensors_1;\n"
_MOVED: Final = """
INSERT INTO tensors SELECT name, 1, content, file, dtype, shape, size, file_size, sha256, created, modified, prefault,
    lock FROM tensors_1;
INSERT INTO last_versions SELECT name, 1 FROM tensors_1;
DROP TABLE tensors_1;
ALTER TABLE changes ADD COLUMN version INTEGER NOT NULL DEFAULT 1;
ALTER TABLE keys RENAME COLUMN name TO scope;
ALTER TABLE keys ADD COLUMN version INTEGER NOT NULL DEFAULT 1;
"""
_UPGRADES: Final = {1: _RENAMED + _VERSIONS_TABLES + _MOVED, 2: _REMOVED_NAMES}
"""What brings a database from schema n to n + 1, by n."""


def create_tables(connection: sqlite3.Connection) -> None:
    """Make the tables in an empty database, within a transaction of the caller's."""
    _execute(connection, _VERSIONS_TABLES + _SCHEMA + _REMOVED_NAMES)
    connection.execute(f"PRAGMA application_id = {APPLICATION}")
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def upgrade_tables(connection: sqlite3.Connection) -> bool:
    """Bring the tables to this schema, within a transaction of the caller's; False where they are of this one."""
    first = version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    while version in _UPGRADES:
        _execute(connection, _UPGRADES[version])
        version += 1
    if version != first:
        connection.execute(f"PRAGMA user_version = {version}")
    return version != first


def _execute(connection: sqlite3.Connection, statements: str) -> None:
    # Not with `executescript`, which would end the transaction.
    for statement in statements.split(";\n"):
        connection.execute(statement)
