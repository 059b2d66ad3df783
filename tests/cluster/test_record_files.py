"""Records as files: a number is used once, also after the record was emptied, and what was created is there."""

from __future__ import annotations

import errno
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from app.cluster.coordinator.record_files import KEPT, RecordFiles


def test_the_newest_record_is_the_latest(tmp_path: Path) -> None:
    records = RecordFiles(tmp_path / "records")
    assert records.latest() is None
    for number in range(1, 12):
        assert records.create(number, b"%d" % number) is None
    assert records.latest() == b"11"
    assert RecordFiles(tmp_path / "records").latest() == b"11"


def test_a_number_is_used_once(tmp_path: Path) -> None:
    records = RecordFiles(tmp_path)
    assert records.create(1, b"mine") is None
    assert RecordFiles(tmp_path).create(1, b"yours") == b"mine"
    assert records.find(1) == b"mine"
    assert records.find(2) is None


def test_of_many_at_once_one_creates_it(tmp_path: Path) -> None:
    folders = [RecordFiles(tmp_path) for _ in range(8)]
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda one: folders[one].create(1, b"%d" % one), range(8)))
    (won,) = [number for number, answer in enumerate(answers) if answer is None]
    assert {answer for answer in answers if answer is not None} == {b"%d" % won}


def test_an_old_record_is_emptied_and_keeps_its_number(tmp_path: Path) -> None:
    records = RecordFiles(tmp_path)
    for number in range(1, KEPT + 3):
        records.create(number, b"content")
    assert records.find(1) == b""
    assert records.create(1, b"again") == b""
    assert records.latest() == b"content"
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(f"record-{one}" for one in range(1, KEPT + 3))


def test_what_cannot_be_written_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record is tried again every second while a disk is full."""
    records = RecordFiles(tmp_path)
    records.create(1, b"mine")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        for _ in range(3):
            with pytest.raises(OSError, match="no space"):
                records.create(2, b"x" * 5000)
    assert [path.name for path in tmp_path.iterdir()] == ["record-1"]
    assert records.create(2, b"mine") is None


def test_a_record_whose_folder_was_not_synced_is_synced_when_it_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = RecordFiles(tmp_path)
    synced: list[bool] = []

    def sync(descriptor: int) -> None:
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        if is_folder and not synced:
            synced.append(False)
            raise OSError(errno.EIO, "input/output error")
        synced.extend([True] * is_folder)

    monkeypatch.setattr(os, "fsync", sync)
    with pytest.raises(OSError, match="input/output"):
        records.create(1, b"mine")
    assert records.create(1, b"mine") == b"mine"
    assert synced == [False, True]


def test_what_a_crash_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / "new-0").write_bytes(b"half")
    assert RecordFiles(tmp_path).latest() is None
    assert list(tmp_path.iterdir()) == []
