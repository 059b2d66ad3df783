"""A pipe, a folder or a symbolic link in the place of a file of a store or of a backup.

Nobody waits for it, nothing behind a link is read or changed, `store check` says where it is, and a start serves
everything else or is refused with its path.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Event

import numpy as np
import pytest

from app.errors import GatherError
from app.store import LocalStore, StoreRefused
from app.store.catalogue.catalogue_database import FILE
from app.store.import_records import ImportRecord
from app.store.maintenance.backup import DamagedVersions, back_up
from app.store.maintenance.check_store import check
from app.store.maintenance.restore import restore
from tests.store.helpers import opened, put, put_alias, read, scatter
from tests.store.test_check import file_of, log_of

pytestmark = pytest.mark.timeout(60)  # for who waits for a pipe
RECORD = "a" * 32
IN_STORE = (
    ("pipe", "format"), ("pipe", FILE), ("pipe", "content"), ("pipe", "log"), ("pipe", "locks/07"),
    ("folder", f"{FILE}-wal"), ("folder", "state"), ("folder", f"imports/{RECORD}.run"),
    ("link to a file", "content"), ("link to a file", "log"), ("link to a file", "incoming/stray"),
    ("link to nothing", "lock"), ("link to nothing", "format.new"), ("link to nothing", "snapshots/stray.1"),
)  # fmt: skip
NEEDED = ("format", FILE, "content", "log")
"""What a store is not whole without."""


def put_in_place(kind: str, path: Path, outside: Path) -> None:
    """Put it there. A link to a file leads to what has stood in the place."""
    outside.mkdir()
    (outside / "file").write_bytes(path.read_bytes() if path.is_file() else b"of somebody")
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
        (path / "kept").write_text("of somebody")
    else:
        path.symlink_to(outside / ("file" if kind == "link to a file" else "new"))


def left_outside(outside: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in outside.iterdir()}


def place_of(folder: Path, name: str) -> Path:
    """The path of a file of the store."""
    places = {"content": file_of, "log": log_of}
    return places[name](folder, "table@1") if name in places else folder / name


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a store that was stopped, with a log and the record of an import."""
    folder = tmp_path_factory.mktemp("sound") / "store"
    store = opened(folder)
    put(store, "beside", np.full(100, 5))
    put(store, "table", np.zeros((100, 1), np.float32))
    scatter(store, "table", [[0]], np.full((1, 1), 5, np.float32), key="k")
    store.imports.write(ImportRecord(RECORD, "table", "https://x/a.npy", None, "", 5, 1, "cancelled", 0, 2))
    store.close()
    assert list(check(folder)) == []
    return folder


@pytest.fixture
def folder(sound: Path, tmp_path: Path) -> Path:
    """A copy of that folder."""
    return shutil.copytree(sound, tmp_path / "store")


def use(store: LocalStore) -> list[str]:
    """Read and change the store in every way; what is refused. Nothing happens to the tensor `beside`."""
    errors: list[GatherError | OSError] = []

    def tried(work: Callable[[], object]) -> None:
        try:
            work()
        except (GatherError, OSError) as error:
            errors.append(error)

    row = np.full((1, 1), 6, np.float32)
    assert read(store, "beside").tolist() == [5] * 100
    for work in (
        lambda: store.get("table"),
        lambda: store.metadata("table"),
        lambda: store.snapshot(store.content("table")).close(),
        lambda: scatter(store, "table", [[1]], row, key="l"),
        lambda: scatter(store, "beside", [[1]], np.array([5])),
        lambda: store.find_answer("table", "k", "digest"),
        lambda: store.verify(Event(), 0),
        lambda: store.imports.page(10, None),
        lambda: store.imports.cancel(RECORD),
        lambda: put_alias(store, "live", "beside@1"),
        lambda: store.remove_leftovers(at_once=True),
        lambda: put(store, "table", np.ones((100, 1), np.float32)),
        lambda: store.delete("table"),
        lambda: put(store, "table", np.ones((100, 1), np.float32)),
    ):
        tried(work)
    assert read(store, "beside").tolist() == [5] * 100
    codes = {error.code for error in errors if isinstance(error, GatherError)}
    # A removal finds nothing if what was to be removed could not be made.
    assert codes <= {"tensor_damaged", "insufficient_storage", "tensor_not_found"}
    return [str(error) for error in errors]


def checked(folder: Path) -> list[str]:
    """What a check tells."""
    try:
        return [f"{found.subject}: {found.problem}: {found.advice}" for found in check(folder)]
    except StoreRefused as error:
        return [str(error)]


def back_it_up(folder: Path) -> None:
    """A backup is made and restored, or refused."""
    backup, new = folder.with_name("backup"), folder.with_name("new")
    try:
        with suppress(DamagedVersions):
            back_up(folder, backup)
        back_up(folder, backup, skip_damaged=True)
    except (StoreRefused, OSError):
        return
    restore(backup, new)
    store = opened(new)
    assert read(store, "beside").tolist() == [5] * 100
    store.close()


def served(folder: Path) -> list[str] | str:
    """What a service refuses that uses the store, or why it does not start."""
    try:
        store = opened(folder)
    except StoreRefused as error:
        return str(error)
    told = use(store)
    store.close()
    return told


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@pytest.mark.parametrize(("kind", "place"), IN_STORE)
def test_what_stands_in_the_place_of_a_file_of_the_store(kind: str, place: str, folder: Path, tmp_path: Path) -> None:
    path, outside = place_of(folder, place), tmp_path / "outside"
    put_in_place(kind, path, outside)
    before = left_outside(outside)
    names = (path.name, "table@1") if place in ("content", "log") else (path.name,)
    told = checked(folder)
    assert any(name in line for line in told for name in names), told
    assert path.is_symlink() or path.exists()
    back_it_up(folder)
    found = served(folder)
    assert not isinstance(found, str) or str(path) in found
    assert left_outside(outside) == before
    remove(path)
    if place not in NEEDED:
        assert served(folder) == []
        assert checked(folder) == []
