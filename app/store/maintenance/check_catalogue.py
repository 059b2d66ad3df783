"""What is wrong with a store's catalogue: the database itself, and what it says."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from app.store.catalogue.catalogue_reader import read_database
from app.store.catalogue.catalogue_rows import CatalogueContents
from app.store.catalogue.catalogue_schema import APPLICATION, SCHEMA_VERSION
from app.tensors.tensor_name import RESERVED

_SHOWN_PROBLEMS: Final = 10
_FACTS: Final = frozenset({"keys", "clock", "boot", "boottime", "version_floor", "removed_names"})


def database_problem(path: Path) -> str | None:
    """What is wrong with the database, None where it is sound. Reads all of it, and changes nothing."""
    if not path.exists():
        return "is missing"
    try:
        return read_database(path, _problem)
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
    missing = _FACTS.difference(name for (name,) in connection.execute("SELECT name FROM facts"))
    if missing:
        return f"lacks the value {min(missing)!r}"
    if not one("SELECT max(sequence) FROM changes"):
        return "has no number of the last change"
    counts = {
        "keys": one("SELECT count(*) FROM keys"),
        "removed_names": one("SELECT count(*) FROM last_versions WHERE removed IS NOT NULL"),
    }
    for name, count in counts.items():
        said = connection.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()[0]
        if said != count:
            return f"says that {name} is {said}, and it is {count}"
    return None


def contents_problems(contents: CatalogueContents) -> Iterator[tuple[str, str, str]]:
    """What does not fit together: of which name, what is wrong, and what to do."""
    versions: dict[str, set[int]] = defaultdict(set)
    for row in contents.rows:
        versions[row.name].add(row.version)
    for alias in contents.aliases:
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
    """The names of tensors from before those names were reserved."""
    return sorted({row.name for row in contents.rows if row.name in RESERVED})
