"""Numbers of versions are never given twice, though only so many names without a tensor are remembered."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import numpy as np
import pytest

from app.store import LocalStore
from app.store.catalogue import catalogue_transaction
from app.store.catalogue.catalogue_database import FILE
from tests.store.helpers import put


def remembered(folder: Path) -> dict[str, int]:
    connection = sqlite3.connect(folder / FILE)
    try:
        return dict(connection.execute("SELECT name, version FROM last_versions").fetchall())
    finally:
        connection.close()


def test_names_of_removed_tensors_are_forgotten_oldest_first_and_their_numbers_are_not(
    store: LocalStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalogue_transaction, "REMEMBERED", 3)
    put(store, "kept", np.arange(2))
    for number in range(8):
        for _ in range(8 - number):
            put(store, f"n{number}", np.arange(2))
    for number in range(8):
        store.delete(f"n{number}")
    assert remembered(folder) == {"kept": 1, "n5": 3, "n6": 2, "n7": 1}
    assert put(store, "n6", np.arange(2))[0].version == 3
    store.delete("n6")  # which is now the one that was removed last
    for name in ("more", "most"):
        assert put(store, name, np.arange(2))[0].version == 9
        store.delete(name)
    assert remembered(folder) == {"kept": 1, "n6": 3, "more": 9, "most": 9}
    assert put(store, "n0", np.arange(2))[0].version == 9
    assert put(store, "n7", np.arange(2))[0].version == 9
    assert put(store, "kept", np.arange(2))[0].version == 2
