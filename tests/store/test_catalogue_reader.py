"""The catalogue without the files that SQLite makes beside it; on a real full disk: `tests.store.full_disk`."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.store import LocalStore
from app.store.catalogue.catalogue import FILE, contents_of
from app.store.catalogue.catalogue_reader import CatalogueReader, read_database
from app.store.catalogue.catalogue_rows import CatalogueContents
from app.tensors.shape_limits import Limits
from tests.store.helpers import put

real_connect = sqlite3.connect


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a store that one service has used."""
    publish(tmp_path / "store", "old")
    return tmp_path / "store"


@pytest.fixture
def no_room(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The first connection finds no room for SQLite's files; the URIs of all."""
    uris: list[str] = []

    def connect(database: str, **options: Any) -> sqlite3.Connection:
        uris.append(database)
        if len(uris) == 1:
            error = sqlite3.OperationalError("unable to open database file")
            error.sqlite_errorcode = sqlite3.SQLITE_CANTOPEN
            raise error
        connection: sqlite3.Connection = real_connect(database, **options)
        return connection

    monkeypatch.setattr(sqlite3, "connect", connect)
    return uris


def publish(folder: Path, name: str) -> None:
    """A service that starts, makes one tensor and ends."""
    store = LocalStore(folder, Limits())
    store.open()
    put(store, name, np.arange(3))
    store.close()


def names(contents: CatalogueContents) -> list[str]:
    return sorted(row.name for row in contents.rows)


def reading(meanwhile: Callable[[], None], calls: list[list[str]]) -> Callable[[sqlite3.Connection], list[str]]:
    """A reader within whose first reading something happens."""

    def read(connection: sqlite3.Connection) -> list[str]:
        calls.append(names(contents_of(connection)))
        if len(calls) == 1:
            meanwhile()
        return calls[-1]

    return read


def test_a_database_without_a_log_is_read_with_no_file_beside_it(folder: Path, no_room: list[str]) -> None:
    beside: list[str] = []
    no_room.clear()
    assert read_database(
        folder / FILE, reading(lambda: beside.extend(path.name for path in folder.glob(f"{FILE}-*")), [])
    ) == ["old"]
    assert beside == []
    assert ["immutable" in uri for uri in no_room] == [False, True]


def test_what_a_service_changes_meanwhile_is_read_again(folder: Path, no_room: list[str]) -> None:
    no_room.clear()
    calls: list[list[str]] = []
    assert read_database(folder / FILE, reading(lambda: publish(folder, "new"), calls)) == ["new", "old"]
    assert calls == [["old"], ["new", "old"]]


def test_a_log_whose_index_is_lost_is_read_under_a_lock_on_the_database(
    folder: Path, tmp_path: Path, no_room: list[str]
) -> None:
    def beside() -> None:
        assert not copy.with_name(f"{FILE}-shm").exists()
        other = real_connect(copy, timeout=0.1)
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            other.execute("SELECT * FROM tensors")
        other.close()
        locked.append(True)

    copy = tmp_path / "copy" / FILE
    locked: list[bool] = []
    copy.parent.mkdir()
    store = LocalStore(folder, Limits())
    store.open()
    put(store, "new", np.arange(3))
    for ending in ("", "-wal"):
        shutil.copy(folder / f"{FILE}{ending}", f"{copy}{ending}")
    store.close()
    no_room.clear()
    assert read_database(copy, reading(beside, [])) == ["new", "old"]
    assert locked == [True]
    assert names(CatalogueReader(copy).contents()) == ["new", "old"]
    row = CatalogueReader(copy).row("new", 1)
    assert row is not None
    assert row.reference == "new@1"
    assert CatalogueReader(copy).row("new", 2) is None


def test_other_errors_are_told(folder: Path, no_room: list[str]) -> None:
    (folder / FILE).write_bytes(b"junk" * 5000)
    with pytest.raises(OSError, match="not a database"):
        CatalogueReader(folder / FILE).contents()
    (folder / FILE).unlink()
    no_room.clear()
    with pytest.raises(OSError, match="unable to open"):
        CatalogueReader(folder / FILE).contents()
