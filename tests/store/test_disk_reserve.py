from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from app.store.files import disk_writes
from app.store.files.disk_reserve import SIZES, DiskReserve


def lengths(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in folder.iterdir()}


def test_on_a_full_disk_both_names_are_kept_and_grow_once_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = 1000

    def write_at(fd: int, content: bytes, offset: int) -> None:
        nonlocal room
        taken = min(room, len(content))
        os.pwrite(fd, content[:taken], offset)
        room -= taken
        if taken < len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(disk_writes, "write_at", write_at)
    reserve = DiskReserve(tmp_path)
    reserve.fill()
    assert lengths(tmp_path) == {"reserve.0": 1000, "reserve.1": 0}
    reserve.refill()  # not yet
    assert lengths(tmp_path) == {"reserve.0": 1000, "reserve.1": 0}
    monkeypatch.undo()
    reserve.refill()
    assert lengths(tmp_path) == SIZES
    assert not any((tmp_path / "reserve.0").read_bytes())


def test_each_file_is_given_up_once_and_made_again(tmp_path: Path) -> None:
    reserve = DiskReserve(tmp_path)
    reserve.fill()
    left = []

    def work() -> None:
        left.append(lengths(tmp_path))
        if left[-1]:
            raise OSError(errno.ENOSPC, "full")

    reserve.retry_with(work)
    assert left == [SIZES, {"reserve.1": SIZES["reserve.1"]}, {}]
    with pytest.raises(OSError, match="still full"):
        reserve.retry_with(lambda: (_ for _ in ()).throw(OSError(errno.ENOSPC, "still full")))
    reserve.refill()
    assert lengths(tmp_path) == SIZES
