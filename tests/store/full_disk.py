"""A program that uses a store on a file system of its own, on which not one byte and not one file more has room.

Tensors are served and removed there, and an alias is moved from one version to the other and back.

    python -m tests.store.full_disk running|stopped|killed FOLDER

`running`: the disk fills up while the store is open; `stopped`: after it was closed; `killed`: after its process was
killed. Whatever a removal gives back is filled again before the next one.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from app.errors import GatherError
from app.store import LocalStore
from app.tensors.shape_limits import Limits
from tests.store.helpers import put, read, scatter

COUNT = 300
ROLLED = "rolled"
"""A tensor of two versions, between which an alias moves."""
FEW_FILES = 20_000
SIZES = (1 << 20, 4096, 1)


class Filler:
    """Files of somebody else, which take all the room there is."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._number = 0

    def fill(self) -> None:
        """Take what is free."""
        self._folder.mkdir(exist_ok=True)
        with suppress(OSError):
            while os.statvfs(self._folder).f_ffree <= FEW_FILES:
                self._new()
        with suppress(OSError):
            self._new()
        for size in SIZES:
            with suppress(OSError):
                while True:
                    with (self._folder / "all").open("ab", buffering=0) as file:
                        os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, size)
                        os.fsync(file.fileno())

    def _new(self) -> None:
        (self._folder / str(self._number)).touch(exist_ok=False)
        self._number += 1


def opened(folder: Path) -> LocalStore:
    store = LocalStore(folder / "store", Limits())
    store.open()
    return store


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


def wanted(number: int) -> list[int]:
    """The content of a tensor."""
    if number % 3 == 0:
        return [number + COUNT] * 100
    return [-1 if number % 2 == 0 else number] + [number] * 99


def refused(store: LocalStore, name: str) -> None:
    """An upload meets a full disk."""
    with pytest.raises(GatherError, match=r"insufficient_storage.*No space left on device"):
        put(store, name, np.zeros(10_000))


def check(store: LocalStore, numbers: range) -> None:
    """These tensors are there as they were, and no others."""
    assert store.names() == sorted([*(f"n{number}" for number in numbers), ROLLED])
    for number in numbers:
        assert read(store, f"n{number}").tolist() == wanted(number)
        assert store.metadata(f"n{number}").shape == (100,)


def main(what: str, place: Path) -> None:
    filler = Filler(place / "filler")
    if what == "killed":
        child = os.fork()
        if child == 0:
            prepare(opened(place))
            os.kill(os.getpid(), signal.SIGKILL)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL
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
    for number in (1, 2, 1):
        store.put_alias("live", f"{ROLLED}@{number}")
        assert read(store, "live").tolist() == [number] * 100
        filler.fill()
    assert store.find_answer("live", "key", "digest") is not None
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
    for path in (place / "filler").iterdir():
        path.unlink()
    put(store, "n1", np.full(100, 1, np.int64))
    check(store, range(1, 2))
    store.close()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
