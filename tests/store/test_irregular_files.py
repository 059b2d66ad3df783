"""A pipe, a folder or a symbolic link in the place of a file of a store or of a backup.

Nobody waits for it, nothing behind a link is read or changed, `store check` says where it is, and a start serves
everything else or is refused with its path.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import traceback
from collections.abc import Callable
from pathlib import Path
from threading import Event

import numpy as np
import pytest

from app.errors import GatherError
from app.store import LocalStore, StoreRefused
from app.store.catalogue.catalogue_database import FILE
from app.store.import_records import ImportRecord
from app.store.maintenance.backup import DamagedVersions, back_up
from app.store.maintenance.backup_manifest import CONTENTS, MANIFEST, MARKER
from app.store.maintenance.check_store import check
from app.store.maintenance.restore import restore
from tests.store.helpers import opened, put, put_alias, read, scatter
from tests.store.test_check import file_of, log_of

LONGEST_S = 30
RECORD = "a" * 32
OTHERS = {"beside": 5}
"""Tensors that nothing happens to, by the value of their items."""


def make_folder(path: Path, outside: Path) -> None:
    path.mkdir()
    (path / "kept").write_text("of somebody")


KINDS: dict[str, Callable[[Path, Path], None]] = {
    "pipe": lambda path, outside: os.mkfifo(path),
    "folder": make_folder,
    "link to a file": lambda path, outside: path.symlink_to(outside / "file"),
    "link to nothing": lambda path, outside: path.symlink_to(outside / "new"),
}


def put_in_place(kind: str, path: Path, outside: Path) -> None:
    """Put it there. A link to a file leads to what has stood in the place."""
    outside.mkdir()
    (outside / "file").write_bytes(path.read_bytes() if path.is_file() else b"of somebody")
    os.mkfifo(outside / "pipe")
    path.unlink(missing_ok=True)
    KINDS[kind](path, outside)


def left_outside(outside: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() if path.is_file() else b"" for path in outside.iterdir()}


def place_of(folder: Path, name: str) -> Path:
    """The path of a file of the store."""
    places = {"content": file_of, "log": log_of}
    return places[name](folder, "table@1") if name in places else folder / name


IN_STORE = (
    ("pipe", "format"), ("pipe", FILE), ("pipe", "content"), ("pipe", "log"), ("pipe", "locks/07"),
    ("folder", f"{FILE}-wal"), ("folder", "state"), ("folder", f"imports/{RECORD}.run"),
    ("link to a file", "content"), ("link to a file", "log"), ("link to a file", "incoming/stray"),
    ("link to nothing", "lock"), ("link to nothing", "format.new"), ("link to nothing", "snapshots/stray.1"),
)  # fmt: skip
IN_BACKUP = (("pipe", MARKER), ("link to a file", MANIFEST), ("pipe", "content"), ("folder", f"{MANIFEST}.new"))
NEEDED = ("format", FILE, "content", "log")
"""What a store is not whole without."""


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a store that was stopped, with a log and the record of an import."""
    folder = tmp_path_factory.mktemp("sound") / "store"
    store = opened(folder)
    for name, value in OTHERS.items():
        put(store, name, np.full(100, value))
    put(store, "table", np.zeros((100, 1), np.float32))
    scatter(store, "table", [[0]], np.full((1, 1), 5, np.float32), key="k")
    store.imports.write(ImportRecord(RECORD, "table", "https://x/a.npy", None, "", 5, 1, "cancelled", 0, 2))
    store.close()
    assert list(check(folder)) == []
    return folder


# What is asked of it, each in a process that may hang


def refusal(work: Callable[[], object]) -> GatherError | OSError | None:
    """The error that `work` meets, if any."""
    try:
        work()
    except (GatherError, OSError) as error:
        return error
    return None


def use(store: LocalStore, told: list[str]) -> None:
    """Every way to read and change the store; what is refused is told, and nothing else may come of it."""

    def tried(work: Callable[[], object]) -> None:
        error = refusal(work)
        if isinstance(error, GatherError) and error.code == "tensor_not_found":
            assert told, error  # what was to be made before was refused
        elif error is not None:
            assert isinstance(error, OSError) or error.code in ("tensor_damaged", "insufficient_storage"), error
            told.append(str(error))

    for name, value in OTHERS.items():
        assert read(store, name).tolist() == [value] * 100, name
    row = np.full((1, 1), 6, np.float32)
    for work in (
        lambda: store.get("table"),
        lambda: store.metadata("table"),
        lambda: store.snapshot(store.content("table")).close(),
        lambda: scatter(store, "table", [[1]], row, key="l"),
        lambda: scatter(store, "beside", [[1]], np.array([OTHERS["beside"]])),
        lambda: store.find_answer("table", "k", "digest"),
        lambda: store.verify(Event(), 0),
        lambda: store.imports.page(10, None),
        lambda: store.imports.find(RECORD),
        lambda: store.imports.cancel(RECORD),
        lambda: put_alias(store, "live", "beside@1"),
        lambda: store.remove_leftovers(at_once=True),
        lambda: put(store, "new", np.arange(3)),
        lambda: put(store, "table", np.ones((100, 1), np.float32)),
        lambda: store.delete("table"),
        lambda: put(store, "table", np.ones((100, 1), np.float32)),
    ):
        tried(work)
    for name, value in OTHERS.items():
        assert read(store, name).tolist() == [value] * 100, name


def check_it(folder: Path, told: list[str]) -> None:
    try:
        told += [f"{found.subject}: {found.problem}: {found.advice}" for found in check(folder)]
    except StoreRefused as error:
        told.append(str(error))


def back_it_up(folder: Path, told: list[str]) -> None:
    try:
        back_up(folder, folder.with_name("backup"))
    except DamagedVersions as error:
        told.append(str(error.reasons))
        back_up(folder, folder.with_name("backup"), skip_damaged=True)
    except (StoreRefused, OSError) as error:
        told.append(str(error))
        return
    new = folder.with_name("new")
    restore(folder.with_name("backup"), new)
    store = opened(new)
    for name, value in OTHERS.items():
        assert read(store, name).tolist() == [value] * 100, name
    store.close()


def serve_it(folder: Path, told: list[str]) -> None:
    try:
        store = opened(folder)
    except StoreRefused as error:
        told.append(f"REFUSED {error}")
        return
    use(store, told)
    store.close()


def told_by(work: Callable[[list[str]], object]) -> list[str]:
    """What `work` tells, done in a process of its own, which has to end by itself and without an error."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # in the place of pytest's own
        signal.alarm(LONGEST_S)
        told: list[str] = []
        try:
            work(told)
        except BaseException:  # noqa: BLE001  (told in the child's name)
            traceback.print_exc()
            os._exit(1)
        os.write(writing, json.dumps(told).encode()[: 1 << 15])
        os._exit(0)
    os.close(writing)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with os.fdopen(reading, "rb") as source:
        text = source.read()
    assert code != -signal.SIGALRM, "it waits for what stands there"
    assert code == 0
    return list(json.loads(text))


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@pytest.mark.parametrize(("kind", "place"), IN_STORE)
def test_what_stands_in_the_place_of_a_file_of_the_store(kind: str, place: str, sound: Path, tmp_path: Path) -> None:
    folder, outside = tmp_path / "store", tmp_path / "outside"
    shutil.copytree(sound, folder)
    path = place_of(folder, place)
    put_in_place(kind, path, outside)
    before = left_outside(outside)
    names = (path.name, "table@1") if place in ("content", "log") else (path.name,)

    told = told_by(lambda told: check_it(folder, told))
    assert any(name in line for line in told for name in names), told
    assert path.is_symlink() or path.exists()
    told_by(lambda told: back_it_up(folder, told))
    assert left_outside(outside) == before
    told = told_by(lambda told: serve_it(folder, told))
    refused = [line for line in told if line.startswith("REFUSED")]
    assert all(str(path) in line for line in refused), told
    assert left_outside(outside) == before
    remove(path)
    if place not in NEEDED:
        assert told_by(lambda told: serve_it(folder, told)) == []
        assert told_by(lambda told: check_it(folder, told)) == []


@pytest.mark.parametrize(("kind", "name"), [("pipe", "locks"), ("folder", "tensors")])
def test_what_stands_in_the_place_of_a_folder_of_the_store(kind: str, name: str, sound: Path, tmp_path: Path) -> None:
    folder, outside = tmp_path / "store", tmp_path / "outside"
    shutil.copytree(sound, folder)
    if kind == "folder":
        # A link to a folder of somebody, whose files are not the store's to remove.
        shutil.copytree(folder / name, outside)
        (outside / "file").write_text("of somebody")
        shutil.rmtree(folder / name)
        (folder / name).symlink_to(outside)
    else:
        shutil.rmtree(folder / name)
        put_in_place(kind, folder / name, outside)
    before = left_outside(outside)
    told = told_by(lambda told: check_it(folder, told))
    assert any(line.startswith(f"{name}: ") for line in told), told
    told_by(lambda told: back_it_up(folder, told))
    told = told_by(lambda told: serve_it(folder, told))
    assert [line for line in told if line.startswith("REFUSED") and str(folder / name) in line], told
    assert left_outside(outside) == before


@pytest.mark.parametrize(("kind", "place"), IN_BACKUP)
def test_what_stands_in_the_place_of_a_file_of_a_backup(kind: str, place: str, sound: Path, tmp_path: Path) -> None:
    folder, backup, outside = tmp_path / "store", tmp_path / "backup", tmp_path / "outside"
    shutil.copytree(sound, folder)
    back_up(folder, backup)
    path = min((backup / CONTENTS).iterdir()) if place == "content" else backup / place
    put_in_place(kind, path, outside)
    before = left_outside(outside)

    told = told_by(lambda told: check_it(backup, told))
    reference = [] if place != "content" else [f"{name}@1" for name in ("table", *OTHERS)]
    assert any(name in line for line in told for name in (path.name, *reference)), told

    def restored(told: list[str]) -> None:
        try:
            restore(backup, tmp_path / "elsewhere")
        except (StoreRefused, OSError) as error:
            told.append(str(error))

    told = told_by(restored)
    assert (told == []) == (place == f"{MANIFEST}.new"), told
    assert all(name in line for line in told for name in (path.name,) if place != "content"), told
    told_by(lambda told: back_it_up(folder, told))
    assert left_outside(outside) == before
