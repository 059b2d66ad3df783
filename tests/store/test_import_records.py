"""Records of imports: bounded, readable by all, and settled when their process has died."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from app.errors import GatherError
from app.store import LocalStore, import_records
from tests.store.helpers import put


def refuse(*_: object) -> None:
    """What a disk answers that is full."""
    raise OSError(28, os.strerror(28))


def names(store: LocalStore) -> list[str]:
    return sorted(path.name for path in (store.folder / "imports").iterdir())


def test_the_oldest_that_have_ended_are_forgotten(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_records, "REMEMBERED", 3)
    running = store.imports.begin("first", "https://a.example/x", None, "c", 5)
    made = []
    for number in range(5):
        one = store.imports.begin(f"t{number}", "https://a.example/x", None, "c", 5)
        made.append(one.end(state="cancelled").id)
    found, _ = store.imports.page(1000, None)
    assert [record.name for record in found if record.state != "running"] == ["t2", "t3", "t4"]
    assert [record.name for record in found if record.state == "running"] == ["first"]
    running.end(state="cancelled")
    assert [record.id for record in store.imports.page(1000, None)[0]] == [running.record.id, *made[-3:]]
    assert names(store) == []


def test_how_far_it_is_is_read_by_any_process(store: LocalStore) -> None:
    running = store.imports.begin("t", "https://a.example/x", "w", "c", 100)
    assert running.record_progress(40)
    found = store.imports.find(running.record.id)
    assert found is not None
    assert (found.state, found.done, found.total, found.tensor) == ("running", 40, 100, "w")
    assert store.imports.cancel(running.record.id)
    assert not running.record_progress(50)
    running.end(state="cancelled", done=50)
    found = store.imports.find(running.record.id)
    assert found is not None
    assert (found.state, found.done) == ("cancelled", 50)
    assert names(store) == []


@pytest.mark.parametrize("how", ["ended", "end refused", "withdrawn"])
def test_how_far_it_was_is_written_to_no_file_once_it_has_ended(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Another file has its descriptor then."""
    running = store.imports.begin("t", "https://a.example/x", None, "c", 100)
    fd = running._fd
    if how == "withdrawn":
        running.undo()
    else:
        if how == "end refused":
            monkeypatch.setattr(store.imports, "write", refuse)
        running.end(state="cancelled")
    other = os.open(tmp_path / "other", os.O_RDWR | os.O_CREAT)
    if other != fd:
        os.dup2(other, fd)
        os.close(other)
    running.record_progress(40)
    assert os.fstat(fd).st_size == 0
    os.close(fd)


def test_one_whose_process_died_is_done_if_its_content_is_there_and_has_failed_otherwise(store: LocalStore) -> None:
    metadata, _ = put(store, "t", np.arange(3))
    content = metadata.etag.strip('"').rpartition("-")[0]
    states = {}
    for name, one in (("t", content), ("t", "0" * 32), ("u", content)):
        running = store.imports.begin(name, "https://a.example/x", None, one, 24)
        os.close(running._fd)  # what the end of a process does
        found = store.imports.find(running.record.id)
        assert found is not None
        states[name, one] = found.state
        assert (found.metadata is None) == (found.state == "failed")
        assert found == store.imports.find(running.record.id)
    assert states == {("t", content): "done", ("t", "0" * 32): "failed", ("u", content): "failed"}
    store.close()


def test_of_one_into_a_cluster_whose_process_died_it_is_said_that_its_end_is_not_known(store: LocalStore) -> None:
    running = store.imports.begin("t", "https://a.example/x", None, "", 24)
    os.close(running._fd)
    found = store.imports.find(running.record.id)
    assert found is not None
    assert found.error is not None
    assert "it is not known whether its version was published" in found.error.detail
    assert "'t' has a new version" in str(found.error.hint)
    store.close()


@pytest.mark.parametrize("number", ["", ".", "..", "../format", "x" * 32, "A" * 32, "0" * 31, "0" * 32 + "\n"])
def test_an_id_that_is_none_finds_nothing(store: LocalStore, number: str) -> None:
    assert store.imports.find(number) is None
    assert not store.imports.cancel(number)


def test_a_disk_that_refuses_leaves_no_record(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.store.files.disk_writes.commit", refuse)
    with pytest.raises(GatherError, match="insufficient_storage"):
        store.imports.begin("t", "https://a.example/x", None, "c", 5)
    assert store.imports.page(10, None) == ([], None)
    assert names(store) == []
