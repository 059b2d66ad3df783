"""Find problems in a store's catalogue: the database itself, its tables, and their contents."""

from __future__ import annotations

import re
import sqlite3
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

import orjson

from app.store.catalogue.catalogue_database import LOCK_TIMEOUT_S, database_uri
from app.store.catalogue.catalogue_rows import CatalogueContents
from app.store.catalogue.catalogue_schema import APPLICATION, SCHEMA_VERSION, create_tables
from app.tensors.tensor_name import RESERVED, TENSOR_NAME

_SHOWN_PROBLEMS: Final = 10
_NUMBERS: Final = frozenset({"keys", "clock", "boottime", "version_floor"})
"""Names in the table `facts` whose values are integers."""
_FACTS: Final = _NUMBERS | {"boot"}
_ETAG: Final = re.compile(r'"[!#-~]+"')


def database_problem(path: Path) -> str | None:
    """Return the first problem of the database, or None if it is sound. Reads all of it and changes nothing."""
    if not path.exists():
        return "is missing"
    try:
        uri = database_uri(path)
        with closing(sqlite3.connect(uri, uri=True, timeout=LOCK_TIMEOUT_S, isolation_level=None)) as connection:
            return _problem(connection)
    except sqlite3.Error as error:
        return f"cannot be read: {error}"


def _problem(connection: sqlite3.Connection) -> str | None:
    def one(query: str) -> int:
        return int(connection.execute(query).fetchone()[0] or 0)

    connection.execute("BEGIN")
    application, version = one("PRAGMA application_id"), one("PRAGMA user_version")
    if (application, version) != (APPLICATION, SCHEMA_VERSION):
        return f"is of application {application} and schema {version}, not {APPLICATION} and {SCHEMA_VERSION}"
    found = [row[0] for row in connection.execute(f"PRAGMA integrity_check({_SHOWN_PROBLEMS})")]
    if found != ["ok"]:
        return f"has damaged pages: {found[0].splitlines()[-1]}"
    wrong = _table_problem(connection) or _shape_problem(connection)
    if wrong is not None:
        return wrong
    types = dict(connection.execute("SELECT name, typeof(value) FROM facts"))
    missing = _FACTS.difference(types)
    if missing:
        return f"lacks the value {min(missing)!r}"
    for name in sorted(_NUMBERS):
        if types[name] != "integer":
            return f"has a value {name!r} that is no integer"
    if not one("SELECT max(sequence) FROM changes"):
        return "has no number of the last change"
    said, count = one("SELECT value FROM facts WHERE name = 'keys'"), one("SELECT count(*) FROM keys")
    if said != count:
        return f"says that keys is {said}, and it is {count}"
    return None


def _table_problem(connection: sqlite3.Connection) -> str | None:
    """Return the first problem of the tables, their indexes and the types of their values, or None."""
    with closing(sqlite3.connect(":memory:")) as sound:
        create_tables(sound)
        of_kind = "SELECT name FROM sqlite_master WHERE type = ? AND sql IS NOT NULL ORDER BY name"
        for kind in ("table", "index"):
            there = {name for (name,) in connection.execute(of_kind, (kind,))}
            for (name,) in sound.execute(of_kind, (kind,)):
                if name not in there:
                    return f"lacks the {kind} {name!r}"
        for (table,) in sound.execute(of_kind, ("table",)).fetchall():
            columns = {name: (kind, bool(must)) for _, name, kind, must, _, _ in sound.execute(_columns_of(table))}
            missing = sorted(columns.keys() - {row[1] for row in connection.execute(_columns_of(table))})
            if missing:
                return f"lacks the column {missing[0]!r} of the table {table!r}"
            for column, (kind, must) in columns.items():
                wrong = _values_of_other_types(connection, table, column, kind, must=must)
                if wrong:
                    return f"has {wrong} values of {column!r} in the table {table!r} that are no {kind}"
    return None


def _columns_of(table: str) -> str:
    return f"PRAGMA table_info({table})"


def _values_of_other_types(connection: sqlite3.Connection, table: str, column: str, kind: str, *, must: bool) -> int:
    """Return the number of values that do not have the column's type. If `must`, NULL counts as such a value."""
    if not kind:
        return 0
    query = f"SELECT count(*) FROM {table} WHERE typeof({column}) NOT IN (?, ?)"  # noqa: S608  (names of the schema)
    return int(connection.execute(query, (kind.lower(), kind.lower() if must else "null")).fetchone()[0])


def _shape_problem(connection: sqlite3.Connection) -> str | None:
    for name, version, text in connection.execute("SELECT name, version, shape FROM tensors"):
        try:
            shape = orjson.loads(text)
        except ValueError:
            shape = None
        if not isinstance(shape, list) or not all(type(size) is int and size >= 0 for size in shape):
            return f"has a shape of {name}@{version} that is none"
    return None


def contents_problems(contents: CatalogueContents) -> Iterator[tuple[str, str, str]]:
    """Yield inconsistencies of the catalogue: the name concerned, the problem, and advice."""
    versions: dict[str, set[int]] = defaultdict(set)
    for row in contents.rows:
        versions[row.name].add(row.number)
    files: dict[str, str] = {}
    for row in sorted(contents.rows, key=lambda row: (row.name, row.number)):
        if row.number < 1:
            yield row.reference, "has a number that no version has", "restore a backup"
        for what in {row.file, row.content}:
            other = files.setdefault(what, row.reference)
            if other != row.reference:
                yield row.reference, f"has the content of {other}", f"remove {row.reference}, or restore a backup"
    for alias in contents.aliases:
        if not TENSOR_NAME.fullmatch(alias.alias) or not _ETAG.fullmatch(alias.etag):
            yield alias.alias, "is an alias whose name or ETag cannot be one", "restore a backup"
        if alias.version not in versions.get(alias.name, ()):
            yield (
                alias.alias,
                f"is an alias of {alias.reference}, which there is not",
                f"move it to another version with PUT /aliases/{alias.alias}, or remove it",
            )
        if alias.alias in versions:
            yield (
                alias.alias,
                "is the name of an alias and of a tensor",
                f"remove the alias with DELETE /aliases/{alias.alias}; readers by that name have been given the tensor",
            )
    last = {one.name: one for one in contents.last_versions}
    for name, numbers in sorted(versions.items()):
        known = last.get(name)
        if known is None or known.version < max(numbers):
            yield (
                name,
                f"has version {max(numbers)}, and the last number that the catalogue remembers of it is "
                + (str(known.version) if known is not None else "missing"),
                "upload no new version of it, which could take the number of one that is there: restore a backup",
            )
        elif known.removed is not None:
            yield name, "is remembered as removed, and has versions", "restore a backup, or upload its next version"
    for name, known in sorted(last.items()):
        if known.removed is None and name not in versions:
            yield name, "is remembered as a tensor, and has no version", "upload a version of the name, and remove it"


def reserved_names(contents: CatalogueContents) -> list[str]:
    """Return the tensors whose names became reserved after they were uploaded."""
    return sorted({row.name for row in contents.rows if row.name in RESERVED})
