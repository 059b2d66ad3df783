"""Find damage in a store or a backup, and suggest what to do about it. Nothing is changed.

A service may be using the store at the same time. Each finding is therefore checked again while holding the lock under
which the service makes such changes, and is reported only if the problem is still there.
"""

from __future__ import annotations

import re
import sqlite3
import stat
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import orjson

from app.store import import_records
from app.store.catalogue.catalogue_database import FILE, LOCK_TIMEOUT_S, database_uri
from app.store.catalogue.catalogue_rows import CatalogueContents
from app.store.catalogue.catalogue_schema import APPLICATION, SCHEMA_VERSION, create_tables
from app.store.catalogue.store_format import check_format
from app.store.files.file_system_check import CONTENT_FOLDERS, KNOWN, check_folder, find_misplaced
from app.store.files.regular_file import is_regular, kind_of, mode_of
from app.store.files.remove_leftovers import UploadFolder, file_names
from app.store.files.tensor_file import BadFile
from app.store.maintenance import backup_manifest
from app.store.maintenance.backup_manifest import CONTENTS, MARKER
from app.store.maintenance.check_content import check_content
from app.store.maintenance.restore import open_saved
from app.store.maintenance.unclaimed_store import UnclaimedStore
from app.store.processes.directory_lock import StoreRefused
from app.store.processes.store_locks import STRIPES
from app.store.scatters.scatter_log import FULL, NEW
from app.tensors.tensor_name import RESERVED, TENSOR_NAME

_SHOWN_PROBLEMS: Final = 10
_NUMBERS: Final = frozenset({"keys", "clock", "boottime", "version_floor"})
"""Names of values in the table `facts` that are integers."""
_FACTS: Final = _NUMBERS | {"boot"}
_ETAG: Final = re.compile(r'"[!#-~]+"')


def database_problem(path: Path) -> str | None:
    """Return the first problem of the database, or None if it is sound.

    Reads the whole database and changes nothing.
    """
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
            return f"has a value {name!r} that is not an integer"
    if not one("SELECT max(sequence) FROM changes"):
        return "has no number of the last change"
    said, count = one("SELECT value FROM facts WHERE name = 'keys'"), one("SELECT count(*) FROM keys")
    if said != count:
        return f"says that keys is {said}, and it is {count}"
    return None


def _table_problem(connection: sqlite3.Connection) -> str | None:
    """Return the first problem of the tables, their indexes or the types of their values, or None."""
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
                    return f"has {wrong} values of {column!r} in the table {table!r} that do not have the type {kind}"
    return None


def _columns_of(table: str) -> str:
    return f"PRAGMA table_info({table})"


def _values_of_other_types(connection: sqlite3.Connection, table: str, column: str, kind: str, *, must: bool) -> int:
    """Return the number of values that do not have the column's type.

    If `must` is true, NULL counts as such a value.
    """
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
            return f"has an invalid shape of {name}@{version}"
    return None


def contents_problems(contents: CatalogueContents) -> Iterator[tuple[str, str, str]]:
    """Yield each inconsistency in the catalogue: the name concerned, the problem, and advice."""
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
                f"is an alias of {alias.reference}, which does not exist",
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
    """Return the tensors whose names have become reserved since their upload."""
    return sorted({row.name for row in contents.rows if row.name in RESERVED})


_AGAIN: Final = "upload the tensor again, or restore a backup"


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem with `subject`, and advice. A finding at level `note` is informational and requires no action."""

    level: Literal["damage", "note"]
    subject: str
    problem: str
    advice: str


def check(folder: Path) -> Iterator[Finding]:
    """Yield the problems of the store or the backup in `folder`. Raises StoreRefused and OSError."""
    if mode_of(folder / MARKER) is not None:
        yield from _check_backup(folder)
        return
    if not folder.is_dir() or not file_names(folder):
        raise StoreRefused(f"{folder} has no store")
    try:
        check_folder(folder)
    except StoreRefused as problem:
        yield Finding("damage", str(folder), str(problem), "move the folder to a local disk")
    try:
        check_format(folder)
    except (StoreRefused, OSError) as problem:
        why = str(problem) if isinstance(problem, StoreRefused) else f"cannot be read: {problem.strerror}"
        yield Finding("damage", "format", why, "use the gathernd that the store is of, or restore a backup of the file")
        return
    yield from _check_permissions(folder)
    out_of_place = list(find_misplaced(folder))
    for name, wrong in out_of_place:
        yield Finding("damage", name, wrong, _advice(name))
    if out_of_place:
        return
    damage = database_problem(folder / FILE)
    if damage is not None:
        yield Finding("damage", FILE, damage, "stop the service, and restore a backup into a new folder")
        return
    with closing(UnclaimedStore(folder)) as store:
        yield from _check_contents(store)
        yield from _check_files(store)


def _advice(name: str) -> str:
    """Return advice about an entry of the wrong type in the store's folder."""
    if name in (FILE, f"{FILE}-wal", f"{FILE}-journal"):
        return "stop the service, and restore a backup into a new folder"
    if name in ("tensors", "logs"):
        return "stop the service, and put the folder back, or restore a backup into a new folder"
    return "stop the service, move it away, and start the service, which creates a new one"


def _check_permissions(folder: Path) -> Iterator[Finding]:
    owner = (folder / "format").stat().st_uid
    for path in (folder, *sorted(folder.rglob("*"))):
        try:
            status = path.lstat()
        except FileNotFoundError:
            continue
        name = str(path.relative_to(folder))
        needed = 0o700 if stat.S_ISDIR(status.st_mode) else 0o600
        if status.st_uid != owner:
            yield Finding(
                "damage", name, f"belongs to user {status.st_uid}, and the store to {owner}", f"chown it to {owner}"
            )
        elif status.st_mode & needed != needed and path.name != "lost+found":
            yield Finding(
                "damage",
                name,
                f"has mode {stat.S_IMODE(status.st_mode):o}",
                "let its owner read and write it: chmod u+rwX",
            )


def _check_contents(store: UnclaimedStore) -> Iterator[Finding]:
    contents = store.catalogue.contents()
    for name, problem, advice in contents_problems(contents):
        yield Finding("damage", name, problem, advice)
    for name in reserved_names(contents):
        yield Finding(
            "note", name, "has a name that is reserved by now: it is read and changed, but cannot be replaced",
            "download it, upload it under another name and remove it",
        )  # fmt: skip
    for row in sorted(contents.rows, key=lambda row: (row.name, row.number)):
        try:
            check_content(store.folder, store.locks, store.catalogue, row)
        except BadFile as problem:
            yield Finding("damage", row.reference, str(problem), _AGAIN)


def _check_files(store: UnclaimedStore) -> Iterator[Finding]:
    """Yield missing folders, and files that nothing refers to."""
    for name in CONTENT_FOLDERS:
        if not (store.folder / name).is_dir():
            yield Finding("damage", name, "is missing", "start the service on the folder, which makes it")
    left = "nothing: the service removes it, within a minute or when it starts"
    yield from _check_strays(store)
    for path in _orphans(store):
        kind = "the content" if path.parent == store.tensor_folder else "the log"
        yield Finding("note", str(path.relative_to(store.folder)), f"is {kind} of no tensor", left)
    if store.upload_folder.is_dir():
        for path in filter(is_regular, UploadFolder(store.upload_folder, store.locks).abandoned()):
            yield Finding("note", f"incoming/{path.name}", "is of an upload whose process has died", left)
    for name in sorted(set(file_names(store.folder)) - KNOWN):
        if not name.endswith(".new"):
            yield Finding("note", name, "is not of the store", "keep other files elsewhere")


def _check_strays(store: UnclaimedStore) -> Iterator[Finding]:
    """Yield entries that should be regular files but are not, except for the files and logs of tensors."""
    folder = store.folder
    paths = {folder / name for name in file_names(folder) if name.endswith(".new")}
    for part in (store.upload_folder, store.snapshot_folder, folder / import_records.FOLDER):
        paths.update(_paths(part))
    for path in sorted(paths | _files_without_rows(store)):
        mode = mode_of(path)
        if mode is not None and not stat.S_ISREG(mode):
            what = f"is {kind_of(mode)}, not a file"
            yield Finding("damage", str(path.relative_to(folder)), what, "move it away; the store does not need it")


def _orphans(store: UnclaimedStore) -> list[Path]:
    found = _files_without_rows(store)
    if found:
        # A file is removed after its row, while holding its tensor's lock. After each lock has been taken once, no
        # process is still removing any of the remaining files.
        for number in range(STRIPES):
            with store.locks.tensors_of(number):
                pass
        found &= _files_without_rows(store)
    return sorted(filter(is_regular, found))


def _files_without_rows(store: UnclaimedStore) -> set[Path]:
    # An upload's file is renamed and gets its row while the catalogue's lock is held.
    with store.locks.catalogue():
        files = {path for folder in (store.tensor_folder, store.log_folder) for path in _paths(folder)}
        rows = store.catalogue.contents().rows
    known = {store.tensor_folder / name for row in rows for name in row.files}
    known |= {store.log_folder / f"{row.content}{suffix}" for row in rows for suffix in ("", FULL, NEW)}
    return files - known


def _paths(folder: Path) -> list[Path]:
    return [folder / name for name in file_names(folder)] if folder.is_dir() else []


def _check_backup(folder: Path) -> Iterator[Finding]:
    advice = "make another backup, in another folder"
    backup_manifest.check_marker(folder)
    with backup_manifest.lock_backup(folder):
        try:
            manifest = backup_manifest.read(folder)
        except StoreRefused as problem:
            yield Finding("damage", backup_manifest.MANIFEST, str(problem), advice)
            return
        if manifest is None:
            yield Finding("damage", str(folder), "is a backup that was not finished", "make it again")
            return
        for row in manifest.catalogue.rows:
            try:
                for source in open_saved(folder / CONTENTS, row):
                    with closing(source):
                        source.check()
            except (BadFile, OSError) as problem:
                why = str(problem.strerror) if isinstance(problem, OSError) else str(problem)
                yield Finding("damage", row.reference, why, advice)
        new = folder / f"{backup_manifest.MANIFEST}.new"
        strays = set(file_names(folder / CONTENTS)) - backup_manifest.files_of(manifest)
        for path in [new, *sorted(folder / CONTENTS / name for name in strays)]:
            mode = mode_of(path)
            if mode is None or (path == new and stat.S_ISREG(mode)):
                continue
            advice = "move it away" if stat.S_ISDIR(mode) else "nothing: the next backup removes it"
            yield Finding("note", str(path.relative_to(folder)), "is not of the backup", advice)
