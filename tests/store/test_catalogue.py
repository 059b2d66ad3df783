from __future__ import annotations

import sqlite3
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest

from app.errors import GatherError
from app.store import LocalStore, Quota, StoreInUse, StoreRefused
from app.store.catalogue import catalogue_database
from app.store.catalogue.catalogue_database import FILE, FILES, Catalogue
from app.store.files import disk_writes
from app.store.files.write_uploaded_tensor import UploadSpec
from app.store.processes.directory_lock import StateWord
from app.tensors.dtypes import DTYPES
from tests.store.helpers import files, opened, put, read, scatter, strings


def test_a_lookup_during_a_commit_asks_the_catalogue_and_serves_what_it_says(
    store: LocalStore, other: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, "x", np.arange(3))
    assert read(other, "x").tolist() == [0, 1, 2]
    real = disk_writes.commit
    seen = []

    def committing(connection: sqlite3.Connection) -> None:
        assert other.group.state[StateWord.GENERATION] & 1
        seen.append(read(other, "x").tolist())
        real(connection)
        seen.append(read(other, "x").tolist())

    monkeypatch.setattr(disk_writes, "commit", committing)
    put(store, "x", np.arange(2))
    assert seen == [[0, 1, 2], [0, 1]]
    assert not other.group.state[StateWord.GENERATION] & 1


def test_the_catalogue_is_damaged_missing_or_locked_and_the_start_says_so(folder: Path) -> None:
    store = opened(folder)
    for number in range(50):
        put(store, f"x{number}", np.arange(3))
    store.close()
    path = folder / FILE
    whole = path.read_bytes()

    locking = sqlite3.connect(path, isolation_level=None)
    locking.execute("BEGIN IMMEDIATE")
    catalogue_database.LOCK_TIMEOUT_S, before = 0.1, catalogue_database.LOCK_TIMEOUT_S  # type: ignore[misc]
    try:
        with pytest.raises(StoreInUse, match="locked"):
            opened(folder)
    finally:
        catalogue_database.LOCK_TIMEOUT_S = before  # type: ignore[misc]
        locking.close()

    for content in (b"", b"junk" * 5000, whole[:5000], whole[:4096] + bytes(len(whole) - 4096)):
        path.write_bytes(content)
        with pytest.raises(StoreRefused, match=FILE):
            opened(folder)
    for name in FILES:
        (folder / name).unlink(missing_ok=True)
    with pytest.raises(StoreRefused, match="missing"):
        opened(folder)
    assert len(files(folder)) == 50  # nothing was taken for nobody's
    path.write_bytes(whole)
    store = opened(folder)
    assert len(store.names()) == 50
    assert read(store, "x7").tolist() == [0, 1, 2]
    store.close()


def test_what_a_dead_process_has_left_is_removed_while_the_group_runs(
    store: LocalStore, other: LocalStore, folder: Path
) -> None:
    put(store, "x", np.arange(3))
    scatter(store, "x", [[0]], np.array([1]))
    before = files(folder)
    (folder / "tensors" / ("a" * 32)).write_bytes(b"renamed and never entered, or replaced and never removed")
    (folder / "logs" / ("a" * 32)).write_bytes(b"the log of a content that is gone")
    (folder / "incoming" / ("b" * 32)).write_bytes(b"half an upload")
    (folder / "incoming" / ("c" * 32 + ".side")).write_bytes(b"half of half an upload")
    mine = store.upload(UploadSpec("s", DTYPES["string"], (3,)))
    other.remove_leftovers()  # not yet time
    assert len(files(folder)) == len(before) + 6
    other.remove_leftovers(at_once=True)
    assert files(folder) == before | {f"incoming/{mine.id}", f"incoming/{mine.id}.side"}
    mine.abandon()
    assert files(folder) == before
    assert read(store, "x").tolist() == [1, 1, 2]


def test_uploads_under_way_count_in_the_quota_and_a_replaced_tensor_does_not(folder: Path) -> None:
    store = opened(folder, Quota(total=100_000))
    put(store, "a", np.zeros(30_000, np.uint8))
    first = store.upload(UploadSpec("b", DTYPES["uint8"], (50_000,)))
    for name, size in (("c", 20_000), ("a", 50_000)):
        with pytest.raises(GatherError, match="insufficient_storage"):
            store.upload(UploadSpec(name, DTYPES["uint8"], (size,)))
    second = store.upload(UploadSpec("a", DTYPES["uint8"], (30_000,)))
    second.abandon()
    first.abandon()
    words = store.upload(UploadSpec("s", DTYPES["string"], (10_000,)))
    words.write(((996).to_bytes(4, "little") + b"x" * 996) * 100)
    with pytest.raises(GatherError, match="insufficient_storage"):
        words.write(((996).to_bytes(4, "little") + b"x" * 996) * 5000)
    words.abandon()
    put(store, "s", strings("a" * 50_000))
    assert store.usage()[0] == 2
    store.close()


def test_strings_that_grow_beyond_the_quota_by_a_scatter_are_refused(folder: Path) -> None:
    store = opened(folder, Quota(total=100_000))
    put(store, "s", strings("a", "b"))
    with pytest.raises(GatherError, match="insufficient_storage"):
        scatter(store, "s", [[0]], strings("x" * 100_000))
    scatter(store, "s", [[0]], strings("x" * 80_000))
    assert read(store, "s").tolist() == ["x" * 80_000, "b"]
    store.close()


def test_many_other_tensors_do_not_make_a_log_forgotten_while_it_is_in_use(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scatters of more others than are remembered, while one stands between reading its log and writing to it."""
    from app.store.scatters import log_replay, scatter_execution, scatter_reductions

    monkeypatch.setattr(disk_writes, "fsync", lambda _: None)
    monkeypatch.setattr(disk_writes, "fsync_folder", lambda _: None)
    monkeypatch.setattr(log_replay, "_MAX_KNOWN_LOGS", 20)
    count = 30
    store = opened(folder)
    for number in range(count):
        put(store, f"n{number}", np.zeros(1, np.int64))
    put(store, "hot", np.zeros(8, np.int64))
    for number in range(3):
        scatter(store, "hot", [[0], [number]], np.array([number + 1, number + 1]))
    real = scatter_reductions.new_rows
    busy = [True]

    def compute(items: Any, *arguments: Any) -> Any:
        if busy and items.__self__.description.name == "hot":
            busy.clear()
            others = Thread(
                target=lambda: [scatter(store, f"n{number}", [[0]], np.array([7])) for number in range(count)]
            )
            others.start()
            others.join()
        return real(items, *arguments)

    monkeypatch.setattr(scatter_execution, "new_rows", compute)
    scatter(store, "hot", [[0], [3]], np.array([4, 4]))
    store.close()
    store = opened(folder)
    assert read(store, "hot").tolist() == [4, 2, 3, 4, 0, 0, 0, 0]
    assert store.metadata("hot").etag.endswith('-4"')
    store.close()


def test_the_catalogue_is_made_anew_where_its_making_was_cut_short(folder: Path) -> None:
    folder.mkdir()
    Catalogue(folder / FILE).create()  # and the power fails before the folder has a format
    store = opened(folder)
    put(store, "x", np.arange(3))
    store.close()
    store = opened(folder)
    assert store.names() == ["x"]
    store.close()
