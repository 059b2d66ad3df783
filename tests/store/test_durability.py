"""What the disk refuses at any step, what it says it has written and has not, and keys through all of it."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.errors import GatherError
from app.store import LocalStore, Quota, StoreRefused, idempotency
from app.store.files import disk_writes, file_system_check
from app.store.files.file_system_check import file_system_of
from app.store.processes import memory_barrier
from app.store.processes.directory_lock import StateWord
from app.store.scatters import writable_tensor as scatters
from app.tensors.shape_limits import Limits
from tests.store.helpers import answered, files, opened, put, read, scatter

DAY_NS = 24 * 3600 * 10**9


def test_a_record_that_a_dead_process_left_is_durable_before_it_is_applied(
    store: LocalStore, other: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, "x", np.arange(6))
    scatter(store, "x", [[5]], np.array([50]))

    def die(*_: Any) -> None:
        raise SystemError("died")

    # It dies after the record was written, and before it was durable.
    with monkeypatch.context() as patch:
        patch.setattr(disk_writes, "fsync", die)
        patch.setattr(disk_writes, "truncate", die)
        with pytest.raises(SystemError):
            scatter(store, "x", [[0]], np.array([7]))
    steps: list[str] = []
    real_fsync, real_write = disk_writes.fsync, scatters.WritableTensor._write_rows

    def fsync(fd: int) -> None:
        steps.append(str(Path(f"/proc/self/fd/{fd}").readlink()))
        real_fsync(fd)

    def write(self: Any, record: Any) -> None:
        steps.append("apply")
        real_write(self, record)

    monkeypatch.setattr(disk_writes, "fsync", fsync)
    monkeypatch.setattr(scatters.WritableTensor, "_write_rows", write)
    scatter(other, "x", [[1]], np.array([8]))
    first = steps.index("apply")
    assert any("/logs/" in step for step in steps[:first])
    assert read(other, "x").tolist() == [7, 8, 2, 3, 4, 50]


@pytest.mark.parametrize("left", [16, 200])
def test_a_log_of_which_a_dead_process_wrote_no_whole_record_is_durable_before_the_next_change_is_seen(
    store: LocalStore, other: LocalStore, folder: Path, monkeypatch: pytest.MonkeyPatch, left: int
) -> None:
    """Its name is not durable then: the process died before it came to that."""
    put(store, "x", np.arange(60))

    def write_part(fd: int, content: Any, offset: int) -> None:
        os.pwrite(fd, content[:left], offset)
        raise SystemError("died")

    with monkeypatch.context() as patch:
        patch.setattr(disk_writes, "write_at", write_part)
        with pytest.raises(SystemError):
            scatter(store, "x", [[0]], np.array([7]))
    (log,) = (folder / "logs").iterdir()
    assert log.stat().st_size == left
    steps: list[str] = []
    real_folder, real_write = disk_writes.fsync_folder, scatters.WritableTensor._write_rows

    def fsync_folder(path: Path) -> None:
        steps.append(path.name)
        real_folder(path)

    def write(self: Any, record: Any) -> None:
        steps.append("apply")
        real_write(self, record)

    monkeypatch.setattr(disk_writes, "fsync_folder", fsync_folder)
    monkeypatch.setattr(scatters.WritableTensor, "_write_rows", write)
    scatter(other, "x", [[1]], np.array([8]))
    assert steps == ["logs", "apply"]
    scatter(other, "x", [[2]], np.array([9]))
    assert steps == ["logs", "apply", "apply"]
    assert read(store, "x")[:4].tolist() == [0, 8, 9, 3]


# Idempotency-Keys


def test_keys_age_by_a_clock_that_no_change_of_the_time_of_day_moves(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    boot, since = ["a boot"], [5 * DAY_NS]
    monkeypatch.setattr(idempotency, "boot_id", lambda: boot[0])
    monkeypatch.setattr(idempotency, "_since_boot", lambda: since[0])
    day = [1_800_000_000_000_000_000]
    monkeypatch.setattr(time, "time_ns", lambda: day[0])
    store = opened(folder)
    put(store, "x", np.zeros(2, np.int64))
    etag = scatter(store, "x", [[0]], np.array([1]), "add", key="k")
    for hours in (400, -800):  # the time of day is set forwards, then backwards
        day[0] += hours * DAY_NS // 24
        assert answered(store, "x", "k", "digest") == etag
    since[0] += DAY_NS // 2
    store.close()
    since[0] += DAY_NS // 4  # the service stands still
    store = opened(folder)
    assert answered(store, "x", "k", "digest") == etag
    store.close()
    boot[0], since[0] = "another boot", 1  # as does the machine, however long
    store = opened(folder)
    assert answered(store, "x", "k", "digest") == etag
    since[0] += DAY_NS // 4 - 10**9
    assert answered(store, "x", "k", "digest") == etag
    since[0] += 2 * 10**9
    assert answered(store, "x", "k", "digest") is None
    scatter(store, "x", [[0]], np.array([1]), "add", key="k")
    assert read(store, "x").tolist() == [2, 0]
    store.close()


def test_a_key_too_many_is_refused_before_anything_changes_and_old_ones_make_room(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(folder, Quota(keys=3))
    put(store, "x", np.zeros(2, np.int64))
    for number in range(3):
        scatter(store, "x", [[0]], np.array([1]), "add", key=f"k{number}")
        with store._replayed_logs.open(store._index.rows()[0]) as writable:
            store._checkpoints.checkpoint(writable)
    assert store.group.state[StateWord.KEYS] == 3
    before = files(folder)
    for _ in range(2):
        with pytest.raises(GatherError, match="insufficient_storage") as caught:
            scatter(store, "x", [[0]], np.array([1]), "add", key="k3")
        assert caught.value.facts == {"limit": "idempotency_keys", "maximum": 3}
        assert scatter(store, "x", [[0]], np.array([1]), "add", key="k0").endswith('-1"')
    assert (read(store, "x")[0], files(folder)) == (3, before)
    scatter(store, "x", [[0]], np.array([1]), "add")  # without a key there is room
    monkeypatch.setattr(idempotency, "LIFETIME_NS", 0)
    assert scatter(store, "x", [[0]], np.array([1]), "add", key="k3").endswith('-5"')
    assert store.group.state[StateWord.KEYS] == 0
    store.close()


# What newer versions may write, and where a store cannot be


@pytest.mark.parametrize(
    ("kind", "refused"),
    [("nfs4", True), ("fuse.sshfs", True), ("overlay", False)],
)
def test_a_folder_on_a_network_file_system_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, kind: str, refused: bool
) -> None:
    place = str(folder.parent).replace(" ", "\\040")
    table = folder.parent / "mountinfo"
    table.write_text(
        f"22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n30 22 0:44 / {place} rw - {kind} server:/export rw\n"
        f"31 22 0:45 / {place}-other rw - tmpfs tmpfs rw\n"
    )
    monkeypatch.setattr(file_system_check, "MOUNTS", table)
    assert file_system_of(folder) == kind
    if refused:
        with pytest.raises(StoreRefused, match=kind):
            opened(folder)
        assert not folder.exists()
    else:
        opened(folder).close()


@pytest.mark.parametrize(
    ("machine", "fenced", "processes", "refused"),
    [
        ("aarch64", False, 2, True),
        ("aarch64", True, 2, False),
        ("aarch64", False, 1, False),
        ("x86_64", False, 2, False),
    ],
)
def test_workers_are_refused_where_they_could_not_see_changes_in_order(
    folder: Path, monkeypatch: pytest.MonkeyPatch, machine: str, fenced: bool, processes: int, refused: bool
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(memory_barrier, "register", lambda: fenced)
    store = LocalStore(folder, Limits(), processes=processes)
    if refused:
        with pytest.raises(StoreRefused, match="GATHERND_WORKERS=1"):
            store.open()
    else:
        store.open()
        store.close()
