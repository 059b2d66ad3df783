from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from app.store import LocalStore, UnknownFormat
from app.store.catalogue import store_format
from app.store.catalogue.catalogue import FILE
from app.store.maintenance.check_store import check
from app.tensors.shape_limits import Limits
from tests.store.helpers import put


def opened(folder: Path) -> LocalStore:
    store = LocalStore(folder, Limits())
    store.open()
    return store


def version(folder: Path) -> int:
    found: int = json.loads((folder / "format").read_text())["format"]
    return found


def test_a_new_folder_has_the_current_format(store: LocalStore, folder: Path) -> None:
    assert version(folder) == store_format.FORMAT
    assert store.names() == []


@pytest.mark.parametrize("text", ['{"format": 5}', '{"format": 3}', '{"format": 0}', "{}", "", "[]", '{"format": "1"}'])
def test_a_folder_of_another_format_is_left_alone(folder: Path, text: str) -> None:
    opened(folder).close()
    (folder / "format").write_text(text)
    (folder / "incoming" / "file").touch()
    with pytest.raises(UnknownFormat, match=str(folder)):
        opened(folder)
    assert (folder / "incoming" / "file").exists()


def test_a_folder_with_other_things_is_not_taken_for_a_store(folder: Path) -> None:
    folder.mkdir()
    (folder / "holiday.jpg").touch()
    with pytest.raises(UnknownFormat, match="holiday"):
        opened(folder)
    assert [path.name for path in folder.iterdir()] == ["holiday.jpg"]


def test_an_empty_volume_is_taken(folder: Path) -> None:
    (folder / "lost+found").mkdir(parents=True)
    opened(folder).close()


def test_a_store_from_before_imports_were_in_the_catalogue_is_read_on(folder: Path) -> None:
    store = opened(folder)
    put(store, "t", np.arange(3))
    store.close()
    with closing(sqlite3.connect(folder / FILE)) as catalogue:
        catalogue.execute("DROP TABLE imports")
    for name in ("reserve.0", "reserve.1", f"imports/{'a' * 32}.json"):
        (folder / name).write_bytes(b"{}")
    store = opened(folder)
    assert store.imports.page(10, None) == ([], None)
    running = store.imports.begin("u", "https://a.example/x", None, "c", 5)
    running.end(state="cancelled")
    assert [record.name for record in store.imports.page(10, None)[0]] == ["u"]
    assert store.names() == ["t"]
    store.close()
    assert list(check(folder)) == []
