"""Backups of a store that is used meanwhile, and stores made of them."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest

from app.store import LocalStore, StoreRefused
from app.store.catalogue.catalogue_database import FILE
from app.store.files import disk_writes, file_system_check
from app.store.files.download_snapshots import Snapshot
from app.store.files.tensor_file import BLOCK, PAGE
from app.store.maintenance import backup, backup_manifest
from app.store.maintenance.backup import BackupResult, DamagedVersions, back_up
from app.store.maintenance.backup_manifest import CONTENTS, MANIFEST, MARKER
from app.store.maintenance.check_store import check
from app.store.maintenance.restore import restore
from tests.store.helpers import answered, flip, opened, put, put_alias, read, scatter, strings


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "backup"


def restored(target: Path, folder: Path) -> LocalStore:
    """The store made of a backup, in which nothing is wrong; the folder has none before."""
    restore(target, folder)
    assert list(check(folder)) == []
    assert list(check(target)) == []
    return opened(folder)


def filled(store: LocalStore) -> None:
    for number in (1, 2, 3):
        put(store, "table", np.full((3, 5), number, np.float32), keep=2, note=f"run {number}")
    put(store, "words", strings("a", "bé", "", "d" * 300), prefault=True, note="über alles")
    put(store, "empty", np.zeros((0, 4), np.int8))
    put(store, "big", np.arange(3 * BLOCK, dtype=np.uint8))
    for _ in range(4):
        put(store, "gone", np.arange(2))
    store.delete("gone")
    put_alias(store, "live", "table@2")
    scatter(store, "live", [[0]], np.full((1, 5), 9, np.float32), key="k")
    scatter(store, "words", [[0]], strings("longer"), key="w")
    scatter(store, "big", [[BLOCK], [2 * BLOCK]], np.full(2, 200, np.uint8), "max")


def check_filled(store: LocalStore) -> None:
    assert store.names() == ["big", "empty", "table", "words"]
    assert store.version_numbers("table") == [2, 3]
    assert store.alias("live").reference == "table@2"
    assert read(store, "live").tolist() == [[9] * 5, [2] * 5, [2] * 5]
    assert read(store, "table").tolist() == [[3] * 5] * 3
    assert read(store, "words").tolist() == ["longer", "bé", "", "d" * 300]
    assert store.metadata("words").prefault
    notes = [store.metadata(reference).note for reference in ("live", "table", "words", "big")]
    assert notes == ["run 2", "run 3", "über alles", ""], "a scatter keeps the note"
    assert read(store, "empty").shape == (0, 4)
    big = np.arange(3 * BLOCK, dtype=np.uint8)
    big[[BLOCK, 2 * BLOCK]] = np.maximum(big[[BLOCK, 2 * BLOCK]], 200)
    assert (read(store, "big") == big).all()


@pytest.mark.parametrize("running", [True, False])
def test_a_restored_store_has_names_versions_aliases_times_and_numbers_and_new_etags(
    store: LocalStore, folder: Path, target: Path, running: bool
) -> None:
    filled(store)
    described = {name: store.metadata(name) for name in ("table@2", "table@3", "words", "empty", "big")}
    old = store.alias("live")
    if not running:
        store.close()
    done = back_up(folder, target)
    assert done == BackupResult(5, 1, 5, done.copied_bytes, {})
    new = restored(target, folder.with_name("new"))
    check_filled(new)
    for name, before in described.items():
        after = new.metadata(name)
        assert after.etag.split("-")[0] != before.etag.split("-")[0]
        assert replace(after, etag=before.etag) == before, name
    now = new.alias("live")
    assert (now.created, now.modified) == (old.created, old.modified)
    assert now.etag != old.etag
    assert answered(new, "live", "k", "digest") is None
    assert answered(new, "words", "w", "digest") is None
    assert put(new, "gone", np.arange(2))[0].version == 5
    assert put(new, "table", np.arange(2))[0].version == 4
    new.verify(Event(), 0)
    assert read(new, "big")[BLOCK] == 200
    new.close()
    if running:
        check_filled(store)


def test_contents_that_are_there_are_not_copied_again_and_those_of_no_use_are_removed(
    store: LocalStore, folder: Path, target: Path
) -> None:
    filled(store)
    back_up(folder, target)
    files = {path.name: path.stat().st_ino for path in (target / CONTENTS).iterdir()}
    assert back_up(folder, target).copied == 0
    assert {path.name: path.stat().st_ino for path in (target / CONTENTS).iterdir()} == files
    scatter(store, "big", [[0]], np.full(1, 7, np.uint8))
    store.delete("empty")
    put(store, "new", np.arange(3))
    assert back_up(folder, target).copied == 2
    names = {path.name for path in (target / CONTENTS).iterdir()}
    assert len(names) == 5
    assert len(names - files.keys()) == 2
    new = restored(target, folder.with_name("new"))
    assert new.names() == ["big", "new", "table", "words"]
    assert read(new, "big")[:2].tolist() == [7, 1]
    new.close()


def test_what_a_scatter_has_logged_and_a_dead_process_not_applied_is_in_the_backup(
    store: LocalStore, folder: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, "x", np.arange(4))
    with monkeypatch.context() as patch:
        patch.setattr(disk_writes, "store_words", failing(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            scatter(store, "x", [[0]], np.array([9]))
    store.close()
    back_up(folder, target)
    new = restored(target, folder.with_name("new"))
    assert read(new, "x").tolist() == [9, 1, 2, 3]
    new.close()
    again = opened(folder)
    assert read(again, "x").tolist() == [9, 1, 2, 3]
    again.close()


def failing(error: type[BaseException]) -> Callable[..., Any]:
    def fail(*_: object) -> None:
        raise error

    return fail


@pytest.mark.parametrize("held_open", [256, 0])
def test_a_content_is_of_one_version_though_it_is_scattered_replaced_or_removed_while_it_is_copied(
    store: LocalStore, folder: Path, target: Path, monkeypatch: pytest.MonkeyPatch, held_open: int
) -> None:
    monkeypatch.setattr(backup, "_OPEN_FILES", held_open)
    put(store, "x", np.zeros((64, BLOCK), np.uint8))
    put(store, "y", np.zeros((64, BLOCK), np.uint8))
    put_alias(store, "live", "y@1")
    real = Snapshot.read
    seen: list[int] = []

    def reading(snapshot: Snapshot, begin: int, end: int) -> bytes:
        if len(seen) == 1:
            scatter(store, "x", [[row] for row in range(64)], np.ones((64, BLOCK), np.uint8))
        if len(seen) == 3:  # while x is copied
            put(store, "y", np.full(3, 5), keep=2)
            put_alias(store, "live", "y@2")
            store.delete("y@1")
            put(store, "x", np.full(3, 6))
            put(store, "z", np.full(3, 7))
        seen.append(begin)
        return real(snapshot, begin, end)

    monkeypatch.setattr(Snapshot, "read", reading)
    back_up(folder, target)
    new = restored(target, folder.with_name("new"))
    if held_open:  # all that there was at the beginning
        assert new.names() == ["x", "y"]
        assert np.unique(read(new, "x")).tolist() == np.unique(read(new, "y")).tolist() == [0]
        assert new.alias("live").reference == "y@1"
    else:
        assert new.names() == ["x", "y", "z"]
        assert [read(new, name).tolist() for name in "xyz"] == [[6] * 3, [5] * 3, [7] * 3]
        assert new.alias("live").reference == "y@2"
    new.close()


def test_a_service_that_starts_meanwhile_spoils_no_copy(
    folder: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(folder)
    put(store, "x", np.zeros((64, BLOCK), np.uint8))
    store.close()
    real = Snapshot.read
    started: list[LocalStore] = []

    def reading(snapshot: Snapshot, begin: int, end: int) -> bytes:
        if not started:
            started.append(opened(folder))  # it removes the snapshots of dead readers
            scatter(started[0], "x", [[row] for row in range(64)], np.ones((64, BLOCK), np.uint8))
        return real(snapshot, begin, end)

    monkeypatch.setattr(Snapshot, "read", reading)
    back_up(folder, target)
    started[0].close()
    new = restored(target, folder.with_name("new"))
    assert np.unique(read(new, "x")).tolist() in ([0], [1])
    new.close()


def test_two_backups_at_once_or_a_restore_of_one_under_way_are_refused(
    store: LocalStore, folder: Path, target: Path
) -> None:
    filled(store)
    back_up(folder, target)
    with (target / MARKER).open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        for work in (lambda: back_up(folder, target), lambda: restore(target, folder.with_name("new"))):
            with pytest.raises(StoreRefused, match="another command is using"):
                work()
    back_up(folder, target)


@pytest.mark.parametrize("what", ["file", "store", "within", "around"])
def test_nothing_but_a_backup_is_written_over(store: LocalStore, folder: Path, target: Path, what: str) -> None:
    put(store, "x", np.arange(3))
    target.mkdir()
    if what == "store":
        target = folder.with_name("other")
        opened(target).close()
    elif what in ("within", "around"):
        target = folder / "backup" if what == "within" else folder.parent
    else:
        (target / "holiday.jpg").touch()
    before = sorted(folder.parent.rglob("*"))
    with pytest.raises(StoreRefused, match=r"holiday|is not a backup|contain each other"):
        back_up(folder, target)
    assert sorted(folder.parent.rglob("*")) == before


@pytest.mark.parametrize("what", ["running", "holiday", "network"])
def test_a_restore_into_anything_but_an_empty_folder_is_refused(
    store: LocalStore, folder: Path, target: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    filled(store)
    back_up(folder, target)
    new = folder.with_name("new")
    other = None
    if what == "running":
        other = opened(new)
    else:
        new.mkdir()
        if what == "holiday":
            (new / "holiday.jpg").touch()
        else:
            monkeypatch.setattr(file_system_check, "file_system_of", lambda _: "nfs")
    before = sorted(new.rglob("*"))
    with pytest.raises(StoreRefused, match=r"has a store already|holiday|network"):
        restore(target, new)
    assert sorted(new.rglob("*")) == before
    if other is not None:
        other.close()


def file_of(target: Path, name: str) -> Path:
    manifest = backup_manifest.read(target)
    assert manifest is not None
    return target / CONTENTS / next(row.file for row in manifest.catalogue.rows if row.name == name)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "marker": lambda target: (target / MARKER).write_text("{}"),
    "newer": lambda target: (target / MARKER).write_text('{"format": 4}'),
    "no manifest": lambda target: (target / MANIFEST).unlink(),
    "manifest": lambda target: flip(target / MANIFEST, 300),
    "manifest cut": lambda target: os.truncate(target / MANIFEST, 400),
    "missing": lambda target: file_of(target, "big").unlink(),
    "cut": lambda target: os.truncate(file_of(target, "big"), PAGE + 3),
    "head": lambda target: flip(file_of(target, "big"), 100),
    "items": lambda target: flip(file_of(target, "big"), PAGE + BLOCK + 5),
    "offsets": lambda target: flip(file_of(target, "words"), file_of(target, "words").stat().st_size - 9),
    "checksums": lambda target: flip(file_of(target, "big"), file_of(target, "big").stat().st_size - 1),
    "exchanged": lambda target: shutil.copy(file_of(target, "words"), file_of(target, "big")),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_backup_is_refused_and_leaves_no_store(
    store: LocalStore, folder: Path, target: Path, damage: str
) -> None:
    filled(store)
    back_up(folder, target)
    DAMAGES[damage](target)
    new = folder.with_name("new")
    with pytest.raises(StoreRefused, match=r"damaged|no backup|not finished|format that"):
        restore(target, new)
    if new.exists():
        with pytest.raises(StoreRefused, match="restore"):
            opened(new)
    if damage not in ("marker", "newer"):
        assert [one.level for one in check(target)] == ["damage"]


def test_a_manifest_cannot_name_files_elsewhere(store: LocalStore, folder: Path, target: Path) -> None:
    put(store, "x", np.arange(3))
    back_up(folder, target)
    body = json.loads((target / MANIFEST).read_bytes().partition(b"\n")[2])
    for member, value in (("file", "../../secret"), ("file", "/etc/passwd"), ("name", "../x"), ("file", None)):
        catalogue = body["catalogue"]
        changed = {**body, "catalogue": {**catalogue, "rows": [{**catalogue["rows"][0], member: value}]}}
        text = json.dumps(changed).encode()
        head = json.dumps({"format": 1, "sha256": hashlib.sha256(text).hexdigest()}).encode()
        (target / MANIFEST).write_bytes(head + b"\n" + text)
        with pytest.raises(StoreRefused, match="damaged or was changed"):
            restore(target, folder.with_name("new"))


def test_a_damaged_version_stops_the_backup_or_is_left_out_with_its_aliases(
    store: LocalStore, folder: Path, target: Path
) -> None:
    filled(store)
    back_up(folder, target)
    manifest = (target / MANIFEST).read_bytes()
    live = store.content("live").path
    scatter(store, "live", [[2]], np.full((1, 5), 8, np.float32))
    big = store.content("big").path
    store.close()
    opened(folder).close()  # with all scatters in the checksums
    flip(live, PAGE + 7)
    flip(big, PAGE + 7)
    os.truncate(opened_path(folder, "empty"), 10)
    with pytest.raises(DamagedVersions) as caught:
        back_up(folder, target)
    assert sorted(caught.value.reasons) == ["empty@1", "table@2"]  # of `big` the backup has the content
    assert (target / MANIFEST).read_bytes() == manifest
    shutil.rmtree(target)
    with pytest.raises(DamagedVersions) as caught:
        back_up(folder, target)
    assert sorted(caught.value.reasons) == ["big@1", "empty@1", "table@2"]
    assert not (target / MANIFEST).exists()
    assert list((target / CONTENTS).iterdir()) == []
    done = back_up(folder, target, skip_damaged=True)
    assert sorted(done.left_out) == ["big@1", "empty@1", "live", "table@2"]
    new = restored(target, folder.with_name("new"))
    assert new.names() == ["table", "words"]
    assert new.version_numbers("table") == [3]
    assert new.alias_names() == []
    assert put(new, "big", np.arange(3))[0].version == 2
    new.close()


def opened_path(folder: Path, name: str) -> Path:
    with sqlite3.connect(folder / FILE) as connection:
        file: str = connection.execute("SELECT file FROM tensors WHERE name = ?", (name,)).fetchone()[0]
    connection.close()
    return folder / "tensors" / file


def test_a_store_of_another_format_or_none_is_not_backed_up(folder: Path, target: Path) -> None:
    for _ in range(2):
        with pytest.raises(StoreRefused, match="no store"):
            back_up(folder, target)
        folder.mkdir(exist_ok=True)
    opened(folder).close()
    for number in (99, 0):
        (folder / "format").write_text(json.dumps({"format": number}))
        with pytest.raises(StoreRefused, match=f"a store of format {number}"):
            back_up(folder, target)
    assert not target.exists()


def test_a_store_of_another_user_is_not_touched(folder: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened(folder).close()
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(StoreRefused, match="as that user"):
        back_up(folder, target)
