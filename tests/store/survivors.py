"""A program in which one worker of a group dies at a step that it takes on the disk, and another one goes on.

    python -m tests.store.survivors replace|remove|checkpoint|upload

It prints how many times a worker died.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from app.store import LocalStore
from app.store.files import disk_writes
from app.store.files.write_uploaded_tensor import UploadSpec
from app.tensors.dtypes import DTYPES
from app.tensors.shape_limits import Limits
from tests.store.helpers import files, put, read, scatter

STEPS = (
    "create", "open_or_create", "write", "write_at", "store_words", "fsync", "fsync_folder", "truncate", "rename",
    "unlink", "commit",
)  # fmt: skip
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None


def opened(folder: Path, token: str | None = None) -> LocalStore:
    store = LocalStore(folder, Limits(), token=token)
    store.open()
    return store


def die_after(last: int) -> None:
    """End this process once it has taken `last` steps."""
    count = 0

    def wrapped(real: Callable[..., Any]) -> Callable[..., Any]:
        def step(*arguments: Any) -> Any:
            nonlocal count
            result = real(*arguments)
            count += 1
            if count == last:
                os._exit(137)
            return result

        return step

    for name in STEPS:
        if hasattr(disk_writes, name):
            setattr(disk_writes, name, wrapped(getattr(disk_writes, name)))


def in_worker(store: LocalStore, work: Callable[[LocalStore], object], last: int) -> bool:
    """Whether another worker dies after `last` steps of `work`."""
    if hasattr(store, "_catalogue"):
        store._catalogue.close()  # SQLite's connections must not be there in two processes
    child = os.fork()
    if child == 0:
        worker = opened(store.folder, store.group.token)
        die_after(last)
        work(worker)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 137


def check_replaced(store: LocalStore) -> None:
    """What lookups, metadata and scatters say of x is one content, and it can be replaced."""
    resident = store.get("x")
    assert resident is not None
    content = resident.tensor.array.copy()
    assert resident.etag == store.metadata("x").etag
    scatter(store, "x", [[0]], np.array([-1]))
    content[0] = -1
    assert read(store, "x").tolist() == content.tolist()
    assert read(store, "kept").tolist() == [1, 2, 3]
    put(store, "x", np.arange(5))
    assert read(store, "x").tolist() == [0, 1, 2, 3, 4]


def replace(folder: Path) -> int:
    """Die while a tensor is replaced."""
    store, deaths = opened(folder), 0
    put(store, "kept", np.array([1, 2, 3]))
    put(store, "x", np.arange(5))
    while True:
        read(store, "x")
        if not in_worker(store, lambda worker: put(worker, "x", np.arange(5) + 10), deaths + 1):
            return deaths
        check_replaced(store)
        deaths += 1


def remove(folder: Path) -> int:
    """Die while a tensor is removed."""
    store, deaths = opened(folder), 0
    while True:
        put(store, "x", np.arange(5))
        read(store, "x")
        if not in_worker(store, lambda worker: worker.delete("x"), deaths + 1):
            assert store.get("x") is None
            return deaths
        assert (store.get("x") is None) == (store.etag_to_replace("x") is None) == (store.names() == [])
        deaths += 1


def checkpoint(folder: Path) -> int:
    """Die while scatters with keys are logged and the log is emptied."""
    store, deaths = opened(folder), 0
    put(store, "x", np.zeros(4, np.int64))
    total = 0

    def work(worker: LocalStore) -> None:
        worker._checkpoints.checkpoint_bytes = 300
        for number in range(4):
            scatter(worker, "x", [[0]], np.array([1]), "add", key=f"{deaths}.{number}")

    while True:
        dead = in_worker(store, work, deaths + 1)
        for number in range(4):
            scatter(store, "x", [[0]], np.array([1]), "add", key=f"{deaths}.{number}")
        total += 4
        assert read(store, "x").tolist() == [total, 0, 0, 0]
        store._checkpoints.checkpoint_bytes = 300
        for number in range(3):
            scatter(store, "x", [[1]], np.array([number]), key=f"more-{deaths}.{number}")
        assert sum(path.stat().st_size for path in (folder / "logs").iterdir()) < 1000
        scatter(store, "x", [[1]], np.array([0]))
        if not dead:
            return deaths
        deaths += 1


def upload(folder: Path) -> int:
    """Die while a content is received."""
    store, deaths = opened(folder), 0
    mine = store.upload(UploadSpec("mine", DTYPES["int64"], (100_000,)))
    mine.write(bytes(1000))

    def work(worker: LocalStore) -> None:
        content = worker.upload(UploadSpec("x", DTYPES["int32"], (300, 300), fortran=True))
        for _ in range(3):
            content.write(bytes(120_000))
        content.finish()
        os._exit(0)

    while in_worker(store, work, deaths + 1):
        deaths += 1
    assert len(files(folder)) > 1
    store.remove_leftovers(at_once=True)
    assert files(folder) == {f"incoming/{mine.id}"}
    mine.write(bytes(799_000))
    mine.finish()
    store.put(mine)
    assert files(folder) == {f"tensors/{mine.id}"}
    return deaths


def main() -> None:
    works: dict[str, Callable[[Path], int]] = {
        "replace": replace, "remove": remove, "checkpoint": checkpoint, "upload": upload,
    }  # fmt: skip
    with tempfile.TemporaryDirectory(dir=MEMORY) as room:
        sys.stdout.write(f"{works[sys.argv[1]](Path(room) / 'store')}\n")


if __name__ == "__main__":
    main()
