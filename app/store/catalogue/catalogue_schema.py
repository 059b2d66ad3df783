"""The tables of the catalogue."""

from __future__ import annotations

import sqlite3
from typing import Final

APPLICATION: Final = 1195463752
SCHEMA_VERSION: Final = 7
_SCHEMA: Final = """
CREATE TABLE tensors (
    name TEXT NOT NULL, version INTEGER NOT NULL, content TEXT NOT NULL, file TEXT NOT NULL, dtype TEXT NOT NULL,
    shape TEXT NOT NULL, size INTEGER NOT NULL, file_size INTEGER NOT NULL, sha256 TEXT NOT NULL,
    created INTEGER NOT NULL, modified INTEGER NOT NULL, prefault INTEGER NOT NULL, lock INTEGER NOT NULL,
    note TEXT NOT NULL, keys_dtype TEXT, keys_sha256 TEXT, keys_size INTEGER, keys_count INTEGER,
    PRIMARY KEY (name, version)
) WITHOUT ROWID;
CREATE TABLE last_versions (name TEXT PRIMARY KEY, version INTEGER NOT NULL, removed INTEGER) WITHOUT ROWID;
CREATE INDEX last_versions_by_removal ON last_versions (removed) WHERE removed IS NOT NULL;
CREATE TABLE aliases (
    alias TEXT PRIMARY KEY, name TEXT NOT NULL, version INTEGER NOT NULL, etag TEXT NOT NULL,
    created INTEGER NOT NULL, modified INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE changes (sequence INTEGER PRIMARY KEY, name TEXT NOT NULL, version INTEGER NOT NULL);
CREATE TABLE keys (
    scope TEXT NOT NULL, key TEXT NOT NULL, digest TEXT NOT NULL, etag TEXT NOT NULL, clock INTEGER NOT NULL,
    version INTEGER NOT NULL, counts TEXT, PRIMARY KEY (scope, key)
) WITHOUT ROWID;
CREATE INDEX keys_by_clock ON keys (clock);
CREATE TABLE imports (id TEXT PRIMARY KEY, record TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE facts (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
INSERT INTO changes VALUES (1, '', 1);
INSERT INTO facts VALUES
    ('keys', 0), ('clock', 0), ('boot', ''), ('boottime', 0), ('version_floor', 0);
"""
"""`tensors` has a row for each version. Its columns for keys are NULL if the version has no keys.

`keys` holds the Idempotency-Keys. `counts` is NULL except for upserts and removals by key.

`last_versions` holds the highest number that each name has ever had. `removed` is the number of the change that removed
the last version of the name, or NULL while a version exists. `version_floor` is the highest version number of the names
that have been forgotten. `imports` holds the import records as JSON.
"""


def create_tables(connection: sqlite3.Connection) -> None:
    """Create the tables in an empty database, inside the caller's transaction."""
    # Do not use `executescript`: it would end the transaction.
    for statement in _SCHEMA.split(";\n"):
        connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {APPLICATION}")
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
