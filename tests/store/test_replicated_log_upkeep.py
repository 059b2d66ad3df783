"""What deaths, checkpoints and replicas that join do to the log of a replicated content."""

from __future__ import annotations

import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from threading import Thread

import numpy as np
import pytest

from app.errors import GatherError
from app.store import LocalStore
from app.store.catalogue.catalogue_database import Catalogue
from app.store.catalogue.catalogue_rows import AnsweredKey
from app.store.files import disk_writes
from app.store.scatters import scatter_checkpoints
from tests.store.helpers import opened, put, read, scatter
from tests.store.replicated import ROWS, TENSOR, WIDTH, Alone, Made, frame, read_frames, told

ONE, TWO, THREE = (Made(number, 1, (number,), 4.0 + number, f"k{number}") for number in (1, 2, 3))
ONES = np.ones((1, WIDTH), np.float32)


def replicated(store: LocalStore, *records: Made) -> None:
    put(store, TENSOR, np.zeros((ROWS, WIDTH), np.float32))
    with store.replicated.open(TENSOR) as content:
        content.set_epoch(1)
        for record in records:
            content.append_frames(frame([record]))


def test_a_tail_is_dropped_alone_though_the_log_was_being_set_aside(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    replicated(store, ONE, TWO, THREE)
    with store.replicated.open(TENSOR) as content:
        content.commit_to(1)
    real = disk_writes.rename

    def refused(source: Path, target: Path) -> None:
        if source.parent.name == "logs":
            raise OSError
        real(source, target)

    with monkeypatch.context() as patched:  # the log has two names then, as after a death at this moment
        patched.setattr(disk_writes, "rename", refused)
        store._checkpoints.checkpoint_bytes = 300
        with store.replicated.open(TENSOR):
            pass
    store._checkpoints.checkpoint_bytes = 1 << 26
    with store.replicated.open(TENSOR) as content:
        content.drop_tail(2)
        assert (content.state().applied, content.state().last) == (1, 2)
        frames = content.frames_after(0)
        assert frames is not None
        assert read_frames(frames) == told([ONE, TWO])


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


def test_a_log_that_the_disk_has_no_room_to_write_anew_leaves_no_part_of_it(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    replicated(store)
    with store.replicated.open(TENSOR) as content:
        content.append_frames(frame([ONE, TWO]))
    before = sorted(path.name for path in (store.folder / "logs").iterdir())

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(disk_writes, "fsync", full)
        with pytest.raises(GatherError, match="insufficient_storage"), store.replicated.open(TENSOR) as content:
            content.drop_tail(1)
    assert sorted(path.name for path in (store.folder / "logs").iterdir()) == before
    with store.replicated.open(TENSOR) as content:
        assert content.state().last == 2


def test_a_process_reads_a_long_log_without_having_all_of_it_in_memory(store: LocalStore, other: LocalStore) -> None:
    replicated(store)
    rows = tuple(range(ROWS))
    with store.replicated.open(TENSOR) as content:
        for sequence in range(1, 101):
            content.append_frames(frame([Made(sequence, 1, rows, float(sequence), f"k{sequence}")]))
        content.commit_to(99)
        size = content.writable.log.end
    tracemalloc.start()
    try:
        with other.replicated.open(TENSOR) as content:
            assert content.state().last == 100
        assert tracemalloc.get_traced_memory()[1] < size / 4
    finally:
        tracemalloc.stop()


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


def test_keys_are_read_from_the_catalogue_without_the_lock_of_the_tensor(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    replicated(store, ONE)
    real = Catalogue.keys_of

    def commit() -> None:
        with store.replicated.open(TENSOR) as content:
            content.commit_to(1)

    def keys_of(self: Catalogue, scope: str, expired: int) -> list[AnsweredKey]:
        thread = Thread(target=commit, daemon=True)
        thread.start()
        thread.join(10)
        assert not thread.is_alive()
        return real(self, scope, expired)

    monkeypatch.setattr(Catalogue, "keys_of", keys_of)
    store.replicated.keys(TENSOR)
    assert [one.key for one in store.replicated.keys(TENSOR)] == [ONE.key]


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
