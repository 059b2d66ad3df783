"""A program that uses a store on a file system of its own, on which not one byte and not one file more has room.

Tensors are served and removed there, and an alias is moved from one version to the other and back.

    python -m tests.store.full_disk running|stopped|killed|backup|stopped-backup|restore|import FOLDER

`running`: the disk fills up while the store is open; `stopped`: after it was closed; `killed`: after its process was
killed. Whatever a removal gives back is filled again before the next one. `backup`: the store is backed up to another
disk all the same, and a backup on this one is refused and stays as it was; `stopped-backup`: the same of a store that
was closed, that was killed, and that lost the file `-shm` of its database; `restore`: as well for a restore; `import`:
the disk fills up at each step of imports, whose records tell all the same how they ended.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from app.errors import GatherError
from app.store import LocalStore, StoreRefused
from app.store.catalogue.catalogue import FILE
from app.store.files.disk_reserve import FULL
from app.store.maintenance.backup import back_up
from app.store.maintenance.check_store import check as check_store
from app.store.maintenance.restore import restore
from tests.conftest import TEST_ALL
from tests.store.crash import carry_out_import
from tests.store.filler import Filler
from tests.store.full_disk_imports import import_on_full_disk
from tests.store.helpers import opened, put, read, scatter

COUNT = 300 if TEST_ALL else 100
ROLLED = "rolled"
"""A tensor of two versions, between which an alias moves."""
ENDINGS = (0, *FULL)


def prepare(store: LocalStore) -> None:
    """Many small tensors, some changed and some replaced, with Idempotency-Keys."""
    for number in range(COUNT):
        put(store, f"n{number}", np.full(100, number, np.int64))
    for number in range(0, COUNT, 2):
        scatter(store, f"n{number}", [[0]], np.array([-1]), key=f"key{number}")
    for number in range(0, COUNT, 3):
        put(store, f"n{number}", np.full(100, number + COUNT, np.int64))
    for number in (1, 2):
        put(store, ROLLED, np.full(100, number, np.int64), keep=2)
    store.put_alias("live", f"{ROLLED}@2")
    scatter(store, "live", [[0]], np.array([2]), key="key")
    for kind in ("import failed", "import ended"):
        carry_out_import(store, kind, "more", np.zeros(10_000))


def kill_after_preparation(place: Path) -> None:
    """The store of a process that was killed once it had carried out `prepare`."""
    child = os.fork()
    if child == 0:
        prepare(opened(place))
        os.kill(os.getpid(), signal.SIGKILL)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL


def wanted(number: int) -> list[int]:
    """The content of a tensor."""
    if number % 3 == 0:
        return [number + COUNT] * 100
    return [-1 if number % 2 == 0 else number] + [number] * 99


def refused(store: LocalStore, name: str) -> None:
    """An upload meets a full disk."""
    with pytest.raises(GatherError, match=r"insufficient_storage.*No space left on device"):
        put(store, name, np.zeros(10_000))


def refused_import(store: LocalStore) -> None:
    """An import meets a full disk, and leaves nothing; the records of earlier ones are read."""
    with pytest.raises(GatherError, match=r"insufficient_storage"):
        carry_out_import(store, "import", "more", (1, np.zeros(10_000)))
    assert "more" not in store.names()
    assert [record.state for record in store.imports.page(1000, None)[0]] == ["failed", "cancelled"]


def forget_imports(store: LocalStore) -> None:
    """Records of imports are forgotten on a full disk as well."""
    for record in store.imports.page(1000, None)[0]:
        assert store.imports.cancel(record.id)
        assert store.imports.find(record.id) is None
    assert list((store.folder / "imports").iterdir()) == []


def check(store: LocalStore, numbers: range) -> None:
    """These tensors are there as they were, and no others."""
    assert store.names() == sorted([*(f"n{number}" for number in numbers), ROLLED])
    for number in numbers:
        assert read(store, f"n{number}").tolist() == wanted(number)
        assert store.metadata(f"n{number}").shape == (100,)


def check_copy(backup: Path) -> None:
    """A backup is whole, and a store can be made of it on another disk."""
    assert list(check_store(backup)) == []
    with tempfile.TemporaryDirectory() as room:
        restore(backup, Path(room) / "store")
        store = opened(Path(room))
        check(store, range(COUNT))
        assert read(store, "live").tolist() == [2] * 100
        store.close()


def back_up_on_full_disk(place: Path, filler: Filler) -> None:
    """Backups from a full disk, to another one, and to a full disk."""
    store = opened(place)
    prepare(store)
    here = place / "backup"
    back_up(place / "store", here)
    with tempfile.TemporaryDirectory() as room:
        there = Path(room) / "backup"
        filler.fill()
        back_up(place / "store", there)
        check_copy(there)
        store.put_alias("live", f"{ROLLED}@1")
        filler.fill()
        with pytest.raises(OSError, match="No space left on device"):
            back_up(place / "store", here)
        check_copy(here)
        filler.empty()
        store.put_alias("live", f"{ROLLED}@2")
        back_up(place / "store", here)
        check_copy(here)
    store.close()


def back_up_stopped_store(place: Path, filler: Filler) -> None:
    """Backups and checks of a store that no service has open; it starts afterwards."""
    for how in ("closed", "killed", "without -shm"):
        if how == "closed":
            store = opened(place)
            prepare(store)
            store.close()
        else:
            kill_after_preparation(place)
        if how == "without -shm":
            (place / "store" / f"{FILE}-shm").unlink()
        for _ in range(2):
            filler.fill()
            with tempfile.TemporaryDirectory() as room:
                back_up(place / "store", Path(room) / "backup")
                check_copy(Path(room) / "backup")
            assert list(check_store(place / "store")) == [], how
        filler.fill()
        store = opened(place)
        check(store, range(COUNT))
        store.close()
        filler.empty()
        shutil.rmtree(place / "store")


def restore_on_full_disk(place: Path, filler: Filler) -> None:
    """A restore for which there is not room enough, and again once there is."""
    with tempfile.TemporaryDirectory() as room:
        store, backup = opened(Path(room)), Path(room) / "backup"
        prepare(store)
        back_up(Path(room) / "store", backup)
        store.close()
        for room_for in (0, 200_000, COUNT * 20_000 // 3):
            filler.give(room_for)
            with pytest.raises(OSError, match="No space left on device"):
                restore(backup, place / "store")
            with suppress(StoreRefused, OSError):
                opened(place).close()
                raise AssertionError("a service starts on half a restore")
        filler.empty()
        restore(backup, place / "store")
        assert list(check_store(place / "store")) == []
        store = opened(place)
        check(store, range(COUNT))
        store.close()


OTHERS = {
    "import": import_on_full_disk,
    "backup": back_up_on_full_disk,
    "stopped-backup": back_up_stopped_store,
    "restore": restore_on_full_disk,
}


def main(what: str, place: Path) -> None:
    filler = Filler(place / "filler")
    if what in OTHERS:
        OTHERS[what](place, filler)
        return
    if what == "killed":
        kill_after_preparation(place)
    else:
        store = opened(place)
        prepare(store)
        if what == "stopped":
            store.close()
    filler.fill()
    if what != "running":
        store = opened(place)
    check(store, range(COUNT))
    filler.fill()
    for name in ("more", "n1"):
        refused(store, name)
    refused_import(store)
    filler.fill()
    for number in (1, 2, 1):
        store.put_alias("live", f"{ROLLED}@{number}")
        assert read(store, "live").tolist() == [number] * 100
        filler.fill()
    assert store.find_answer("live", "key", "digest") is not None
    forget_imports(store)
    filler.fill()
    for number in range(COUNT):
        store.delete(f"n{number}")
        if number % 50 == 0:
            check(store, range(number + 1, COUNT))
        filler.fill()
    store.close()
    filler.fill()
    store = opened(place)
    check(store, range(0))
    assert read(store, "live").tolist() == [1] * 100
    store.delete_alias("live")
    store.delete(f"{ROLLED}@2")
    filler.empty()
    put(store, "n1", np.full(100, 1, np.int64))
    check(store, range(1, 2))
    store.close()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
