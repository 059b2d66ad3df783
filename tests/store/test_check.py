"""`gathernd store check` finds every damage that is made here, and nothing where there is none."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from app.store import LocalStore, StoreRefused
from app.store.catalogue.catalogue_database import FILE
from app.store.files import disk_writes, file_system_check
from app.store.files.tensor_file import BLOCK, PAGE
from app.store.maintenance.check_store import check
from tests.conftest import slow_but_for
from tests.store.helpers import flip, opened, put, put_alias, read, scatter, strings


def filled(store: LocalStore) -> None:
    put(store, "table", np.zeros((3 * BLOCK // 4, 1), np.float32))
    put(store, "table", np.ones((3 * BLOCK // 4, 1), np.float32), keep=2)
    put(store, "words", strings("a", "bé", "", "d" * 300))
    put(store, "gone", np.arange(3))
    store.delete("gone")
    put_alias(store, "live", "table@1")
    for number in range(4):
        scatter(store, "table", [[number]], np.full((1, 1), 5, np.float32), key=f"k{number}")


def run(folder: Path, statement: str) -> None:
    with closing(sqlite3.connect(folder / FILE)) as connection, connection:
        connection.execute(statement)


def file_of(folder: Path, reference: str, member: str = "file") -> Path:
    name, _, version = reference.partition("@")
    with closing(sqlite3.connect(folder / FILE)) as connection:
        query = f"SELECT {member} FROM tensors WHERE name = ? AND version = ?"
        found: str = connection.execute(query, (name, version)).fetchone()[0]
    return folder / ("tensors" if member == "file" else "logs") / found


def log_of(folder: Path, reference: str) -> Path:
    return file_of(folder, reference, "content")


def write_at(path: Path, place: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(place)
        file.write(content)


def damage_pages(folder: Path) -> None:
    with closing(sqlite3.connect(folder / FILE)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    size = (folder / FILE).stat().st_size
    write_at(folder / FILE, 4096, b"\xff" * (size - 4096))


def rename_to_reserved(folder: Path) -> None:
    store = opened(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("app.tensors.tensor_name.RESERVED", ())
        put(store, "lookup", np.arange(3))
    store.close()


def lose_first_change(folder: Path) -> None:
    """Take the first record out of a log, and go back to the file from before it."""
    path = log_of(folder, "table@2")
    content = path.read_bytes()
    second = content.index(b"redo", content.index(b"redo", 16) + 4)
    path.write_bytes(content[:16] + content[second:])
    write_at(file_of(folder, "table@2"), 0, b"\0")


def make_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def table(file: str, place: Callable[[int], int]) -> Callable[[Path], None]:
    """Flip a bit of a tensor's file, at a place that depends on its size."""
    return lambda folder: flip(file_of(folder, file), place(file_of(folder, file).stat().st_size))


def in_catalogue(statement: str) -> Callable[[Path], None]:
    return lambda folder: run(folder, statement)


OF_FIRST = "(SELECT {} FROM tensors WHERE name = 'table' AND version = 1)"
IN_FILES: dict[str, tuple[Callable[[Path], object], str, str]] = {
    # what is damaged: how, of what it is told, and what is told
    "items flipped": (table("table@1", lambda _: PAGE + BLOCK + 9), "table@1", "block 1 (1 in all) does not match"),
    "checksum flipped": (table("table@1", lambda size: size - 1), "table@1", "block 2"),
    "offset of a string flipped": (table("words@1", lambda size: size - 9), "words@1", "block 0"),
    "description flipped": (table("words@1", lambda _: 100), "words@1", "does not match its checksum"),
    "magic flipped": (table("words@1", lambda _: 64), "words@1", "not one of a tensor"),
    "file cut": (lambda folder: os.truncate(file_of(folder, "table@1"), PAGE + 9), "table@1", "bytes and should have"),
    "first page cut": (lambda folder: os.truncate(file_of(folder, "table@1"), 9), "table@1", "within its first page"),
    "file missing": (lambda folder: file_of(folder, "words@1").unlink(), "words@1", "is missing"),
    "file a folder": (lambda folder: make_folder(file_of(folder, "words@1")), "words@1", "cannot be read"),
    "file exchanged": (
        lambda folder: shutil.copy(file_of(folder, "words@1"), file_of(folder, "table@1")),
        "table@1", "describes another tensor",
    ),
    "marked": (
        lambda folder: write_at(file_of(folder, "words@1"), 7, b"\x80"), "words@1", "the service has found it damaged",
    ),
    "change cut short": (
        lambda folder: write_at(file_of(folder, "words@1"), 0, b"\x01"), "words@1", "a change was cut short",
    ),
    "log torn in its middle": (
        lambda folder: flip(log_of(folder, "table@2"), log_of(folder, "table@2").stat().st_size // 2),
        "table@2", "its log is damaged before its end",
    ),
    "log's id flipped": (lambda folder: flip(log_of(folder, "table@2"), 0), "table@2", "its log is damaged"),
    "log missing": (lambda folder: log_of(folder, "table@2").unlink(), "table@2", "block 0"),
    "log without its beginning": (lose_first_change, "table@2", "its log begins with change 2, and the file has 0"),
    "log a folder": (lambda folder: make_folder(log_of(folder, "table@2")), "table@2", "cannot be read"),
    "catalogue missing": (lambda folder: (folder / FILE).unlink(), FILE, "is missing"),
    "catalogue a folder": (lambda folder: make_folder(folder / FILE), FILE, "cannot be read"),
    "catalogue no database": (lambda folder: (folder / FILE).write_bytes(b"junk" * 5000), FILE, "cannot be read"),
    "catalogue's pages": (damage_pages, FILE, ""),
    "newer format": (lambda folder: (folder / "format").write_text('{"format": 99}'), "format", "a store of format 99"),
    "format no number": (lambda folder: (folder / "format").write_text("{}"), "format", "cannot be read"),
    "format missing": (lambda folder: (folder / "format").unlink(), "format", "it has no file 'format'"),
    "mode of a file": (lambda folder: file_of(folder, "words@1").chmod(0o440), "tensors/", "has mode 440"),
    "mode of a folder": (lambda folder: (folder / "logs").chmod(0o500), "logs", "has mode 500"),
    "folder missing": (lambda folder: (folder / "snapshots").rmdir(), "snapshots", "is missing"),
}  # fmt: skip
IN_CATALOGUE = (
    # the statement, of what it is told, and what is told
    ("UPDATE tensors SET shape = '[7]' WHERE name = 'words'", "words@1", "the catalogue says"),
    ("UPDATE tensors SET size = 7 WHERE name = 'words'", "words@1", "the catalogue says"),
    ("UPDATE tensors SET sha256 = '' WHERE name = 'words'", "words@1", "another hash"),
    ("UPDATE tensors SET content = 'x' WHERE name = 'words'", "words@1", "another"),
    ("UPDATE tensors SET dtype = '' WHERE name = 'words'", "words@1", "the catalogue says"),
    ("UPDATE tensors SET size = 'x'", FILE, "of 'size' in the table 'tensors'"),
    ("UPDATE tensors SET dtype = x'ff'", FILE, "of 'dtype' in the table 'tensors'"),
    ("UPDATE tensors SET shape = '{' WHERE name = 'words'", FILE, "has an invalid shape of words@1"),
    ("UPDATE tensors SET shape = '[-1]' WHERE name = 'words'", FILE, "has an invalid shape of words@1"),
    ("UPDATE tensors SET version = 0 WHERE name = 'words'", "words@0", "a number that no version has"),
    ("UPDATE tensors SET name = '../x' WHERE name = 'words'", "../x", "describes"),
    ("UPDATE tensors SET file = '../format' WHERE name = 'words'", "words@1", "no file of the store"),
    ("UPDATE tensors SET file = 'a' || char(0) WHERE name = 'words'", "words@1", "no file of"),
    (
        f"UPDATE tensors SET file = {OF_FIRST.format('file')}, content = {OF_FIRST.format('content')} "
        "WHERE name = 'table' AND version = 2", "table@2", "has the content of table@1",
    ),
    ("UPDATE aliases SET version = 9", "live", "an alias of table@9, which does not exist"),
    ("UPDATE aliases SET name = 'gone'", "live", "an alias of gone@1, which does not exist"),
    ("UPDATE aliases SET alias = 'words'", "words", "the name of an alias and of a tensor"),
    ("UPDATE aliases SET alias = 'a b'", "a b", "whose name or ETag"),
    ("UPDATE aliases SET etag = ''", "live", "whose name or ETag"),
    ("UPDATE last_versions SET version = 1 WHERE name = 'table'", "table", "remembers of it is 1"),
    ("DELETE FROM last_versions WHERE name = 'table'", "table", "remembers of it is missing"),
    ("UPDATE last_versions SET removed = 3 WHERE name = 'table'", "table", "is remembered as removed"),
    ("UPDATE last_versions SET version = 'x'", FILE, "of 'version' in the table 'last_versions'"),
    ("UPDATE facts SET value = 9 WHERE name = 'keys'", FILE, "keys is 9, and it is"),
    ("UPDATE facts SET value = 'x' WHERE name = 'version_floor'", FILE, "'version_floor'"),
    ("DELETE FROM facts WHERE name = 'clock'", FILE, "lacks the value 'clock'"),
    ("DELETE FROM changes", FILE, "number of the last change"),
    ("PRAGMA user_version = 9", FILE, "schema 9"),
    ("PRAGMA application_id = 9", FILE, "application 9"),
    ("DROP TABLE imports", FILE, "lacks the table 'imports'"),
    ("DROP INDEX keys_by_clock", FILE, "lacks the index 'keys_by_clock'"),
    ("ALTER TABLE keys DROP COLUMN version", FILE, "lacks the column 'version'"),
)  # fmt: skip
DAMAGES = IN_FILES | {statement: (in_catalogue(statement), subject, told) for statement, subject, told in IN_CATALOGUE}
NOTES: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "content without a row": (
        lambda folder: (folder / "tensors" / "abc").touch(), "tensors/abc", "is the content of no tensor",
    ),
    "log without a row": (lambda folder: (folder / "logs" / "abc").touch(), "logs/abc", "is the log of no tensor"),
    "half an upload": (lambda folder: (folder / "incoming" / "abc").touch(), "incoming/abc", "an upload whose process"),
    "its scratch file": (
        lambda folder: (folder / "incoming" / "abc.side").touch(), "incoming/abc.side", "an upload whose process",
    ),
    "another file": (lambda folder: (folder / "holiday.jpg").touch(), "holiday.jpg", "is not of the store"),
    "reserved name": (rename_to_reserved, "lookup", "reserved by now"),
}  # fmt: skip


@pytest.fixture
def stopped(store: LocalStore, folder: Path) -> Path:
    """The folder of a store that was stopped while a log had changes."""
    filled(store)
    store.close()
    assert list(check(folder)) == []
    return folder


@pytest.mark.parametrize("damage", slow_but_for([*DAMAGES][::3], DAMAGES))
def test_damage_is_found_and_named(stopped: Path, damage: str) -> None:
    make, subject, problem = DAMAGES[damage]
    make(stopped)
    found = [one for one in check(stopped) if one.level == "damage"]
    assert found
    for one in found:
        if one.subject.startswith(subject) and problem in one.problem:
            assert one.advice
            break
    else:
        raise AssertionError(found)
    of_others = [one for one in found if not one.subject.startswith(subject) and "table" in one.subject]
    assert damage == "file exchanged" or not of_others, found
    assert found == [one for one in check(stopped) if one.level == "damage"]


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE tensors SET shape = '{'",
        "UPDATE tensors SET shape = '7'",
        "UPDATE tensors SET name = x'ff' WHERE name = 'words'",
        "UPDATE facts SET value = 'x' WHERE name = 'clock'",
    ],
)
def test_a_service_refuses_a_catalogue_whose_values_cannot_be_read(stopped: Path, statement: str) -> None:
    run(stopped, statement)
    with pytest.raises(StoreRefused, match=r"catalogue.sqlite is damaged"):
        opened(stopped)


@pytest.mark.parametrize("what", NOTES)
def test_what_needs_nobody_to_act_is_a_note(stopped: Path, what: str) -> None:
    make, subject, problem = NOTES[what]
    make(stopped)
    (found,) = check(stopped)
    assert (found.level, found.subject) == ("note", subject)
    assert problem in found.problem
    assert found.advice


def test_files_of_another_user_and_a_network_file_system_are_found(
    stopped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_system_check, "file_system_of", lambda _: "nfs4")
    (found,) = check(stopped)
    assert "network file system (nfs4)" in found.problem
    monkeypatch.undo()
    if os.geteuid() == 0:
        os.chown(file_of(stopped, "words@1"), 12345, -1)
        (found,) = check(stopped)
        assert "belongs to user 12345" in found.problem


def test_the_folder_of_a_shard_is_of_the_store(stopped: Path) -> None:
    (stopped / "shard").mkdir()
    assert list(check(stopped)) == []


def test_a_check_changes_nothing(stopped: Path) -> None:
    with (log_of(stopped, "table@2")).open("ab") as file:
        file.write(b"redo torn")
    before = {path: path.read_bytes() for path in stopped.rglob("*") if path.is_file() and FILE not in path.name}
    assert list(check(stopped)) == []
    after = {path: path.read_bytes() for path in stopped.rglob("*") if path.is_file() and FILE not in path.name}
    assert after == before


def test_a_torn_end_and_what_a_dead_process_left_to_be_replayed_are_no_damage(
    store: LocalStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(store)
    for step in (1, 2, 4):
        steps = 0
        real = disk_writes.store_words

        def dying(*arguments: object, step: int = step, real: Callable[..., None] = real) -> None:
            nonlocal steps
            steps += 1
            if steps == step:
                raise KeyboardInterrupt
            real(*arguments)

        with monkeypatch.context() as patch:
            patch.setattr(disk_writes, "store_words", dying)
            with pytest.raises(KeyboardInterrupt):
                scatter(store, "table", [[2 * BLOCK // 4], [0]], np.full((2, 1), step, np.float32))
        assert list(check(folder)) == []
    store.close()
    assert list(check(folder)) == []
    again = opened(folder)
    assert read(again, "table")[0] == 1  # the later ones died while they replayed the first
    assert list(check(folder)) == []
    again.close()
