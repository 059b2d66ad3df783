"""A snapshot is of one content, the one that its ETag names, whatever scatters do meanwhile."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from app.errors import GatherError
from app.store import LocalStore
from app.store.files import disk_writes, download_snapshots
from app.store.files.download_snapshots import FOLDER, Snapshot
from app.store.files.tensor_file import HeaderWord
from tests.store.helpers import put, read, scatter

ROWS, WIDTH = 3000, 300  # rows of 1200 bytes lie across pages


def table(number: int = 0) -> NDArray[np.float32]:
    return np.full((ROWS, WIDTH), number, np.float32)


def taken(store: LocalStore, name: str = "x") -> Snapshot:
    return store.snapshot(store.content(name))


def content_of(snapshot: Snapshot, step: int = 100_000) -> NDArray[np.float32]:
    size = ROWS * WIDTH * 4
    raw = b"".join(snapshot.read(begin, min(begin + step, size)) for begin in range(0, size, step))
    return np.frombuffer(raw, np.float32).reshape(ROWS, WIDTH)


def left(folder: Path) -> list[str]:
    return [path.name for path in (folder / FOLDER).iterdir()]


def leave_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on the disk has no room for a page of a snapshot."""
    real = disk_writes.write_at

    def full(fd: int, content: Any, offset: int) -> None:
        if FOLDER in str(Path(f"/proc/self/fd/{fd}").readlink()):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(fd, content, offset)

    monkeypatch.setattr(disk_writes, "write_at", full)


def test_a_snapshot_keeps_what_scatters_of_every_worker_change(store: LocalStore, other: LocalStore) -> None:
    etag = put(store, "x", table())[0].etag
    snapshot = taken(store)
    rng = np.random.default_rng(0)
    expected = table()
    for turn in range(1, 30):
        rows = rng.integers(0, ROWS, rng.choice([1, 2, 400]))
        scatter((store, other)[turn % 2], "x", rows[:, None], np.full((len(rows), WIDTH), turn, np.float32))
        expected[rows] = turn
        if turn == 10:
            later = taken(other)
            kept = expected.copy()
    assert snapshot.etag == etag
    assert (content_of(snapshot) == 0).all()
    np.testing.assert_array_equal(content_of(later, 4097), kept)
    np.testing.assert_array_equal(read(store, "x"), expected)
    snapshot.close()
    later.close()


def test_a_snapshot_of_a_content_that_is_replaced_or_removed_stays(store: LocalStore) -> None:
    put(store, "x", table(3))
    snapshot, content = taken(store), store.content("x")
    put(store, "x", table(4))
    scatter(store, "x", [[0]], table(5)[:1])
    late = store.snapshot(content)
    store.delete("x")
    assert (content_of(snapshot) == 3).all()
    assert (content_of(late) == 3).all()
    assert late.etag == snapshot.etag
    snapshot.close()
    late.close()


def test_files_go_with_their_readers_and_scatters_look_for_none(store: LocalStore, folder: Path) -> None:
    put(store, "x", table())
    snapshot = taken(store)
    assert len(left(folder)) == 1
    snapshot.close()
    assert left(folder) == []
    words = store.content("x").words
    assert words[HeaderWord.SNAPSHOTS] == 1
    scatter(store, "x", [[0]], table(1)[:1])
    assert words[HeaderWord.SNAPSHOTS] == 0


def test_the_file_of_a_reader_that_died_is_removed_by_the_next_scatter_or_reader(
    store: LocalStore, folder: Path
) -> None:
    put(store, "x", table())
    for turn in range(2):
        dead = taken(store)
        os.close(dead._fd)  # as the end of its process does
        assert len(left(folder)) == 1
        if turn:
            taken(store).close()
        else:
            scatter(store, "x", [[0]], table(1)[:1])
        assert left(folder) == []


def test_a_start_removes_what_is_left(store: LocalStore, folder: Path) -> None:
    put(store, "x", table())
    dead = taken(store)
    os.close(dead._fd)  # as the end of its process does
    (folder / FOLDER / "1").touch()
    store.close()
    store.open()
    assert left(folder) == []


def test_a_disk_without_room_for_a_page_ends_the_reader_and_not_the_scatter(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, "x", table())
    snapshot = taken(store)
    leave_no_room(monkeypatch)
    scatter(store, "x", [[5]], table(1)[:1])
    assert read(store, "x")[5, 0] == 1
    with pytest.raises(GatherError, match="insufficient_storage"):
        content_of(snapshot)
    snapshot.close()
    monkeypatch.undo()
    again = taken(store)
    assert content_of(again)[5, 0] == 1
    again.close()


def test_a_scatter_that_cannot_look_for_snapshots_changes_nothing(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, "x", table())
    snapshot = taken(store)

    def no_descriptors(path: Path, flags: int = 0) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patch:
        patch.setattr(download_snapshots, "open_regular", no_descriptors)
        with pytest.raises(GatherError, match="insufficient_storage"):
            scatter(store, "x", [[5]], table(1)[:1], "add")
    assert scatter(store, "x", [[5]], table(10)[:1], "add").endswith('-1"')
    assert read(store, "x")[5, 0] == 10
    assert (content_of(snapshot) == 0).all()
    snapshot.close()


def test_readers_beside_steady_scatters_read_one_content_each(store: LocalStore, other: LocalStore) -> None:
    etags = {put(store, "x", table())[0].etag: 0}
    stop = threading.Event()
    known = threading.Lock()

    def change() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            with known:
                etags[scatter(other, "x", np.arange(ROWS)[:, None], table(number))] = number

    thread = threading.Thread(target=change)
    thread.start()
    try:
        seen: set[str] = set()
        end, snapshots = monotonic() + 60, 0
        # However slow the other thread is: until some of what it has written was seen.
        while snapshots < 20 or (len(seen) <= 5 and monotonic() < end):
            snapshots += 1
            snapshot = taken(store)
            values = np.unique(content_of(snapshot))
            snapshot.close()
            assert len(values) == 1
            with known:
                assert etags[snapshot.etag] == values[0]
            seen.add(snapshot.etag)
    finally:
        stop.set()
        thread.join()
    assert len(seen) > 5
