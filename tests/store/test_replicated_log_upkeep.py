"""What deaths, checkpoints and replicas that join do to the log of a replicated content."""

from __future__ import annotations

import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from app.errors import GatherError
from app.store import LocalStore
from app.store.scatters import scatter_checkpoints
from tests.store.helpers import opened, put, read, scatter
from tests.store.replicated import ROWS, TENSOR, WIDTH, Alone, Made, frame, read_frames

ONE, TWO, THREE = (Made(number, 1, (number,), 4.0 + number, f"k{number}") for number in (1, 2, 3))
ONES = np.ones((1, WIDTH), np.float32)


def replicated(store: LocalStore, *records: Made) -> None:
    put(store, TENSOR, np.zeros((ROWS, WIDTH), np.float32))
    with store.replicated.open(TENSOR) as content:
        content.set_epoch(1)
        for record in records:
            content.append_frames(frame([record]))


def test_a_log_that_was_kept_for_a_replica_is_checkpointed_without_the_lock_once_that_has_joined(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scatter_checkpoints, "KEPT_BYTES", 100_000)
    replicated(store)
    primary = store.replicated.replication = Alone(store)
    work: list[Callable[[], None]] = []
    store.run_in_background = work.append
    store._checkpoints.checkpoint_bytes, primary.kept = 2000, True
    for row in range(40):
        scatter(store, TENSOR, [[row]], ONES)
    assert not work
    primary.kept = False
    scatter(store, TENSOR, [[40]], ONES)
    assert len(work) == 1
    work[0]()
    assert read(store, TENSOR)[:42, 0].tolist() == [1.0] * 41 + [0]
    with store.replicated.open(TENSOR) as content:
        assert content.frames_after(40) is None


def test_a_log_that_is_kept_for_a_replica_stays_though_it_has_many_keys(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scatter_checkpoints, "CHECKPOINT_KEYS", 5)
    replicated(store)
    primary = store.replicated.replication = Alone(store)
    primary.kept = True
    for row in range(20):
        scatter(store, TENSOR, [[row]], ONES, "add", key=f"key {row}")
    for row in range(20):
        scatter(store, TENSOR, [[row]], ONES, "add", key=f"key {row}")
    assert read(store, TENSOR)[:20, 0].tolist() == [1.0] * 20
    with store.replicated.open(TENSOR) as content:
        frames = content.frames_after(0)
        assert frames is not None
        assert len(read_frames(frames)) == 20
        assert len(content.writable.log.keys) <= 6
    assert {one.key for one in store.replicated.keys(TENSOR)} == {f"key {row}" for row in range(20)}


@pytest.mark.parametrize("is_replicated", [False, True])
def test_a_start_replays_a_long_log_without_having_all_of_it_in_memory(folder: Path, *, is_replicated: bool) -> None:
    store = opened(folder)
    put(store, TENSOR, np.zeros((ROWS, WIDTH), np.float32))
    if is_replicated:
        store.replicated.replication = Alone(store)
        with store.replicated.open(TENSOR) as content:
            content.set_epoch(1)
    for number in range(1, 101):
        scatter(store, TENSOR, [[row] for row in range(ROWS)], np.full((ROWS, WIDTH), number, np.float32))
    size = sum(path.stat().st_size for path in (folder / "logs").iterdir())
    left = folder.with_name("left")
    shutil.copytree(folder, left)  # as a process that dies now leaves it
    store.close()
    tracemalloc.start()
    try:
        store = opened(left)
        assert tracemalloc.get_traced_memory()[1] < size / 4
    finally:
        tracemalloc.stop()
    assert read(store, TENSOR)[ROWS - 1, 0] == 100
    store.close()


def test_an_upload_that_ends_late_does_not_replace_a_replicated_content_unless_it_is_damaged(store: LocalStore) -> None:
    replicated(store, ONE)
    with store.replicated.open(TENSOR) as content:
        content.commit_to(1)
    zeros = np.zeros((ROWS, WIDTH), np.float32)
    with pytest.raises(GatherError, match="precondition_failed"):
        put(store, TENSOR, zeros)
    assert read(store, TENSOR)[1, 0] == ONE.value
    with store.replicated.open(TENSOR) as content:
        content.writable.mark_damaged()
    put(store, TENSOR, zeros)
    assert not read(store, TENSOR).any()
