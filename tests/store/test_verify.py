"""What happens in the background holds the lock of a tensor for moments only."""

from __future__ import annotations

import fcntl
import zlib
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest

from app.errors import GatherError
from app.store import LocalStore
from app.store.files import disk_writes
from app.store.files.tensor_file import BLOCK, PAGE
from app.store.processes.directory_lock import StateWord
from app.store.processes.store_locks import stripe
from tests.store.helpers import answered, put, read, scatter

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


def watch_syncs(store: LocalStore, monkeypatch: pytest.MonkeyPatch, work: Callable[[bool], None]) -> None:
    """Call `work` at each fsync of the content of x, before it, with whether the lock of x is held."""
    content = store.content("x").path
    real = disk_writes.fsync

    def fsync(fd: int) -> None:
        if Path(f"/proc/self/fd/{fd}").readlink() == content:
            work(is_locked(store, "x"))
        real(fd)

    monkeypatch.setattr(disk_writes, "fsync", fsync)


def log_size(folder: Path) -> int:
    return sum(path.stat().st_size for path in (folder / "logs").iterdir())


def test_a_checkpoint_waits_for_the_disk_without_the_lock(
    store: LocalStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, "x", np.zeros((100, 1000), np.float32))
    store._checkpoints.checkpoint_bytes = 100_000
    held: list[bool] = []
    watch_syncs(store, monkeypatch, held.append)
    for turn in range(40):
        scatter(store, "x", [[turn]], np.ones((1, 1000), np.float32), key=f"key-{turn}")
    assert held
    assert not any(held)
    assert log_size(folder) < 110_000
    assert read(store, "x")[:40].sum() == 40_000


def test_scatters_go_on_while_a_checkpoint_reads_sums_and_waits(
    store: LocalStore, other: LocalStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, "x", np.zeros((BLOCKS, 1 << 14), np.float32))
    store._checkpoints.checkpoint_bytes = 150_000
    made: list[bool] = []

    def scatter_meanwhile(locked: bool) -> None:
        if not made:
            # Of another process, to rows whose blocks were summed, and others.
            made.append(locked)
            for row in (1, 2, 50):
                scatter(other, "x", [[row]], np.ones((1, 1 << 14), np.float32), "add", key=f"meanwhile-{row}")

    watch_syncs(store, monkeypatch, scatter_meanwhile)
    for turn in range(3):
        scatter(store, "x", [[turn]], np.ones((1, 1 << 14), np.float32), key=f"key-{turn}")
    assert made == [False]
    assert 190_000 < log_size(folder) < 200_000  # what came meanwhile
    expected = [1.0, 2.0, 2.0] + [0.0] * (BLOCKS - 3)
    expected[50] = 1.0
    for _ in range(2):
        assert read(other, "x")[:, 77].tolist() == expected
        store.group.state[StateWord.VERIFIED] = 0
        store.verify(Event(), 0)
        assert read(store, "x")[:, 5].tolist() == expected
        for key in ("key-0", "key-2", "meanwhile-1", "meanwhile-50"):
            assert answered(other, "x", key, "digest") is not None
        with store._replayed_logs.open(store._index.rows()[0]) as writable:
            store._checkpoints.checkpoint(writable)
        assert log_size(folder) == 0  # from now on every checksum counts, and the catalogue has the keys


@pytest.mark.parametrize("replaced", [True, False])
def test_a_checkpoint_whose_content_is_replaced_or_removed_meanwhile_leaves_what_is_there_alone(
    store: LocalStore, other: LocalStore, folder: Path, monkeypatch: pytest.MonkeyPatch, replaced: bool
) -> None:
    put(store, "x", np.zeros((100, 1000), np.float32))
    store._checkpoints.checkpoint_bytes = 10_000
    held: list[bool] = []

    def replace(locked: bool) -> None:
        held.append(locked)
        if replaced:
            put(other, "x", np.zeros((3, 4), np.float32))
            scatter(other, "x", [[1]], np.ones((1, 4), np.float32))
        else:
            other.delete("x")

    with monkeypatch.context() as patch:
        watch_syncs(store, patch, replace)
        for turn in range(3):
            scatter(store, "x", [[turn]], np.ones((1, 1000), np.float32), key=f"key-{turn}")
    assert held == [False]
    if replaced:
        assert read(store, "x")[:, 0].tolist() == [0, 1, 0]
        assert log_size(folder) > 0
    else:
        assert store.get("x") is None
        assert log_size(folder) == 0
    assert answered(store, "x", "key-2", "digest") is not None
