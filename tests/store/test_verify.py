"""What happens in the background holds the lock of a tensor for moments only."""

from __future__ import annotations

import fcntl
import zlib
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest

from app.errors import GatherError
from app.store import LocalStore, disk_operations
from app.store.directory_lock import stripe
from app.store.tensor_file import BLOCK, PAGE
from tests.store.helpers import put, read, scatter

BLOCKS = 100


def is_locked(store: LocalStore, name: str) -> bool:
    with (store.folder / "locks" / f"{stripe(name):02d}").open("a+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_a_tensor_that_scatters_change_is_verified_with_its_lock_held_for_single_blocks(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, "x", np.zeros((BLOCKS, BLOCK), np.uint8))
    scatter(store, "x", [[3], [50]], np.ones((2, BLOCK), np.uint8))
    real = zlib.crc32
    held: list[bool] = []

    def counted(content: Any, start: int = 0) -> int:
        if len(content) == BLOCK:
            held.append(is_locked(store, "x"))
        return real(content, start)

    monkeypatch.setattr(zlib, "crc32", counted)
    store.group.state[1] = 0
    store.verify(Event(), 0)
    assert len(held) >= BLOCKS
    assert held.count(True) <= 2
    assert read(store, "x")[50, 0] == 1


def test_damage_behind_blocks_that_scatters_have_changed_is_found(store: LocalStore) -> None:
    put(store, "x", np.zeros((BLOCKS, BLOCK), np.uint8))
    scatter(store, "x", [[3], [50]], np.ones((2, BLOCK), np.uint8))
    with store.content("x").path.open("r+b") as file:
        file.seek(PAGE + 70 * BLOCK)
        file.write(b"damage")
    store.group.state[1] = 0
    store.verify(Event(), 0)
    with pytest.raises(GatherError, match="tensor_damaged"):
        store.metadata("x")


def test_a_checkpoint_lets_the_system_write_before_it_takes_the_lock(
    store: LocalStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, "x", np.zeros((100, 1000), np.float32))
    store._changes.checkpoint_bytes = 100_000
    calls: list[tuple[str, bool]] = []
    content = store.content("x").path
    fsync, start_writing = disk_operations.fsync, disk_operations.start_writing

    def noting(name: str, real: Any) -> Any:
        def call(fd: int) -> None:
            if Path(f"/proc/self/fd/{fd}").readlink() == content:
                calls.append((name, is_locked(store, "x")))
            real(fd)

        return call

    monkeypatch.setattr(disk_operations, "fsync", noting("fsync", fsync))
    monkeypatch.setattr(disk_operations, "start_writing", noting("start", start_writing))
    for turn in range(40):
        scatter(store, "x", [[turn]], np.ones((1, 1000), np.float32), key=f"key-{turn}")
    assert calls[:2] == [("start", False), ("fsync", True)]
    assert sum(path.stat().st_size for path in (folder / "logs").iterdir()) < 110_000
    assert read(store, "x")[:40].sum() == 40_000
