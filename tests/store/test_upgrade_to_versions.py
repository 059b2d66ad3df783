"""A store that the service wrote before tensors had versions: `data/format_2.zip`, as a killed process left it.

Its catalogue has schema 1; of the scatters of `table` one is in the log alone, and one key belongs to a tensor that was
removed.
"""

from __future__ import annotations

import sqlite3
import zipfile
from pathlib import Path

import numpy as np
import pytest

from app.errors import GatherError
from app.store import LocalStore, StoreRefused
from app.store.catalogue.catalogue import FILE
from app.store.files import disk_writes
from app.tensors.shape_limits import Limits
from tests.conftest import SOAK, TEST_ALL, slow_but_for
from tests.store.cut_short import MODES, die_at_each_step
from tests.store.helpers import answered, put, read, scatter

ETAGS = {
    "plain": '"a21f4044f0dc4518b0e14e1626282e8a-0"',
    "replaced": '"1bbd1eb8f84949c6bf7905b1bea1452b-0"',
    "table": '"d4da9799bc424253948bc9f83c68cd89-2"',
    "words": '"595315e335664a338bbf09aca52f95e4-1"',
}
ANSWERED = {
    ("table", "k-1"): '"d4da9799bc424253948bc9f83c68cd89-1"',
    ("table", "k-2"): '"d4da9799bc424253948bc9f83c68cd89-2"',
    ("words", "w-1"): '"595315e335664a338bbf09aca52f95e4-1"',
    ("replaced", "r-1"): '"ea928a9f1568412594405e5bf9ed0f76-1"',
    ("gone", "g-1"): '"ad8e6fe8ec3b4e1a8714380b56f2ea3d-1"',
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with zipfile.ZipFile(Path(__file__).parent / "data" / "format_2.zip") as archive:
        archive.extractall(tmp_path / "store")
    return tmp_path / "store"


def opened(folder: Path) -> LocalStore:
    store = LocalStore(folder, Limits())
    store.open()
    return store


def check(store: LocalStore) -> None:
    assert store.names() == ["cut", *ETAGS]
    assert store.alias_names() == []
    table = np.arange(80, dtype=np.float32).reshape(20, 4)
    table[[0, 19]] = -1
    table[0] += 5
    assert (read(store, "table") == table).all()
    assert (read(store, "plain") == np.arange(12, dtype=np.complex64).reshape(3, 4)).all()
    assert read(store, "words").tolist() == ["longer", "bé", "", "short"]
    assert read(store, "replaced").tolist() == [0, 2, 4, 6]
    for name, etag in ETAGS.items():
        metadata = store.metadata(f"{name}@1")
        assert metadata == store.metadata(name)
        assert (metadata.etag, metadata.version, metadata.versions) == (etag, 1, (1,))
    assert store.metadata("words").prefault
    with pytest.raises(GatherError, match="tensor_damaged"):
        store.get("cut")
    for (name, key), etag in ANSWERED.items():
        assert answered(store, name, key, "digest") == etag


def test_every_tensor_becomes_version_1_of_its_name_with_its_etag_and_keys(folder: Path) -> None:
    for _ in range(2):
        store = opened(folder)
        check(store)
        store.close()
    store = opened(folder)
    for name, version in (("table", 2), ("cut", 2), ("gone", 1), ("new", 1)):
        assert put(store, name, np.arange(3), keep=2)[0].version == version
    assert (read(store, "table@1")[1] == np.arange(4, 8)).all()
    store.put_alias("old", "table@1")
    assert scatter(store, "old", [[1]], np.zeros((1, 4), np.float32)).endswith('-3"')
    assert read(store, "table").tolist() == [0, 1, 2]
    assert answered(store, "table", "k-2", "digest") == ANSWERED["table", "k-2"]
    store.close()


@pytest.mark.parametrize("mode", slow_but_for(("kill",), MODES))
def test_an_upgrade_that_is_cut_short_at_any_step_is_done_again(folder: Path, tmp_path: Path, mode: str) -> None:
    stride = 1 if SOAK else 4 if TEST_ALL else 14
    first = 1 + MODES.index(mode) % stride
    assert die_at_each_step(folder, tmp_path, mode, opened, check, stride=stride, first=first) >= 70 // stride


def test_a_disk_that_is_full_at_the_upgrade_leaves_the_old_store_as_it_was(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(disk_writes, "commit", full)
        with pytest.raises(OSError, match="No space"):
            opened(folder)
    with sqlite3.connect(folder / FILE) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (1,)
    connection.close()
    store = opened(folder)
    check(store)
    store.close()


def test_an_old_catalogue_that_is_missing_or_damaged_is_named_at_the_start(folder: Path) -> None:
    path = folder / FILE
    whole = path.read_bytes()
    (folder / f"{FILE}-wal").unlink()
    path.write_bytes(b"junk" * 5000)
    with pytest.raises(StoreRefused, match=FILE):
        opened(folder)
    path.unlink()
    with pytest.raises(StoreRefused, match="missing"):
        opened(folder)
    path.write_bytes(whole)
