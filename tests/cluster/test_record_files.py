"""Records as files: a number is used once, also after the record was emptied, and what was created is there."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

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


def test_what_a_crash_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / "new-0").write_bytes(b"half")
    assert RecordFiles(tmp_path).latest() is None
    assert list(tmp_path.iterdir()) == []
