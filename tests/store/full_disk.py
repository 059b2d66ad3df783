"""A program that uses a store on a file system of its own, on which not one byte and not one file more has room.

Tensors are served and removed there, an alias is moved from one version to the other and back, and the store is backed
up to another disk.

    python -m tests.store.full_disk FOLDER
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

from app.errors import GatherError
from app.store import LocalStore
from app.store.maintenance.backup import back_up
from app.store.maintenance.check_store import check as check_store
from app.store.maintenance.restore import restore
from tests.conftest import SOAK
from tests.store.crash import carry_out_import
from tests.store.filler import Filler
from tests.store.helpers import opened, put, put_alias, read, scatter

COUNT = 300 if SOAK else 100
ROLLED = "rolled"
"""A tensor of two versions, between which an alias moves."""


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
    put_alias(store, "live", f"{ROLLED}@2")
    scatter(store, "live", [[0]], np.array([2]), key="key")
    for kind in ("import failed", "import ended"):
        carry_out_import(store, kind, "more", np.zeros(10_000))


def wanted(number: int) -> list[int]:
    """The content of a tensor."""
    if number % 3 == 0:
        return [number + COUNT] * 100
    return [-1 if number % 2 == 0 else number] + [number] * 99


def refused(store: LocalStore, name: str) -> None:
    """An upload meets a full disk."""
    with pytest.raises(GatherError, match=r"insufficient_storage.*No space left on device"):
        put(store, name, np.zeros(10_000))


def refused_scatter(store: LocalStore) -> None:
    """A scatter meets a full disk and changes nothing: its log needs room, the rows that it would change do not."""
    with pytest.raises(GatherError, match=r"insufficient_storage"):
        scatter(store, "n1", [[0]], np.array([5]), key="of a full disk")
    assert read(store, "n1").tolist() == wanted(1)


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
        store = opened(Path(room) / "store")
        check(store, range(COUNT))
        assert read(store, "live").tolist() == [2] * 100
        store.close()


def back_up_from_full_disk(place: Path, filler: Filler) -> None:
    """A backup from a full disk to another one is whole: it takes an empty file there; one on that disk is refused."""
    filler.fill()
    filler.give_back_a_file()
    with tempfile.TemporaryDirectory() as room:
        there = Path(room) / "backup"
        back_up(place / "store", there)
        check_copy(there)
    with pytest.raises(OSError, match="No space left on device"):
        back_up(place / "store", place / "backup")


def main(place: Path) -> None:
    filler = Filler(place / "filler")
    store = opened(place / "store")
    prepare(store)
    back_up_from_full_disk(place, filler)
    filler.fill()
    check(store, range(COUNT))
    for name in ("more", "n1"):
        refused(store, name)
    refused_scatter(store)
    refused_import(store)
    filler.fill()
    for number in (1, 2, 1):
        put_alias(store, "live", f"{ROLLED}@{number}")
        assert read(store, "live").tolist() == [number] * 100
    assert store.find_answer("live", "key", "digest") is not None
    forget_imports(store)
    filler.fill()
    for number in range(COUNT):
        store.delete(f"n{number}")
        if number % 50 == 0:
            check(store, range(number + 1, COUNT))
    store.close()
    store = opened(place / "store")
    check(store, range(0))
    assert read(store, "live").tolist() == [1] * 100
    filler.empty()
    put(store, "n1", np.full(100, 1, np.int64))
    check(store, range(1, 2))
    store.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
