"""Tables with keys in a store: upload, find, restart, damage, backup."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from app.errors import GatherError
from app.store import LocalStore, Quota
from app.store.files.remove_leftovers import file_names
from app.store.files.tensor_file import PAGE
from app.store.files.write_uploaded_tensor import UploadSpec
from app.store.maintenance.backup import back_up
from app.store.maintenance.backup_manifest import MANIFEST, MARKER
from app.store.maintenance.check_store import check
from app.store.maintenance.restore import restore
from app.store.processes.directory_lock import StateWord
from app.tensors.dtypes import DTYPES
from app.tensors.keys_spec import KeysSpec
from tests.store.helpers import flip, opened, put, read, uploaded
from tests.store.keyed import Keys, put_keyed, rows_of

ROWS = np.arange(12, dtype=np.float32).reshape(4, 3)
INTEGERS = np.array([7, -1, 3, 2**62])


def in_folder(folder: Path) -> list[str]:
    """The files of contents and of uploads under way."""
    return sorted(file_names(folder / "tensors") + file_names(folder / "incoming"))


def key_file(folder: Path, suffix: str = ".keys") -> Path:
    (path,) = (folder / "tensors").glob(f"*{suffix}")
    return path


def refused(work: Callable[[], Any], code: str) -> GatherError:
    with pytest.raises(GatherError) as caught:
        work()
    assert caught.value.code == code
    return caught.value


@pytest.mark.parametrize("keys", [np.empty(0, np.int64), np.empty(0, np.uint64), []], ids=["int64", "uint64", "string"])
def test_a_table_without_rows_has_keys(store: LocalStore, keys: Keys) -> None:
    put_keyed(store, "x", keys, ROWS[:0])
    wanted: Keys = ["a"] if isinstance(keys, list) else np.ones(1, keys.dtype)  # type: ignore[union-attr]
    assert rows_of(store, "x", wanted) == [-1]
    assert rows_of(store, "x", wanted[:0]) == []


def test_only_ten_of_many_equal_keys_are_told(store: LocalStore) -> None:
    rows = np.zeros((100, 1), np.float32)
    error = refused(lambda: put_keyed(store, "x", np.zeros(100, np.int64), rows), "keys_not_unique")
    assert [place.position for place in error.places] == [(row,) for row in range(1, 11)]
    assert error.total == 99


@pytest.mark.parametrize(
    ("offsets", "text", "code", "position"),
    [
        ([0, 2, 1, 3, 4], b"abcd", "invalid_field", (2,)),
        ([0, -1, 1, 3, 4], b"abcd", "invalid_field", (1,)),
        ([0, 1, 2, 3, 3], b"abcd", "invalid_field", None),
        ([0, 1, 2, 4, 5], b"ab\xff\xfed", "value_not_representable", (2,)),
        ([0, 1, 2, 3, 5], "abcé".encode(), None, None),
        ([0, 1, 2, 4, 5], "abcé".encode(), "value_not_representable", (2,)),
    ],
)  # fmt: skip
def test_string_keys_are_cut_out_of_utf8_by_their_offsets(
    store: LocalStore, offsets: list[int], text: bytes, code: str | None, position: tuple[int, ...] | None
) -> None:
    spec = UploadSpec("x", DTYPES["float32"], ROWS.shape, keys=KeysSpec("string", 4, len(text)))
    raw = np.array(offsets).tobytes() + text + ROWS.tobytes()
    if code is None:
        uploaded(store, spec, raw, 7).abandon()
        return
    error = refused(lambda: uploaded(store, spec, raw, 7), code)
    assert error.places[0].position == position


def test_the_quota_counts_all_files(folder: Path, tmp_path: Path) -> None:
    store = opened(tmp_path / "first")
    put_keyed(store, "x", INTEGERS, ROWS)
    _, size = store.usage()
    store.close()
    assert size == sum(path.stat().st_size for path in (tmp_path / "first" / "tensors").iterdir())
    store = opened(folder, Quota(total=size))
    put_keyed(store, "x", INTEGERS, ROWS)
    put_keyed(store, "x", INTEGERS, ROWS)
    refused(lambda: put_keyed(store, "y", INTEGERS, ROWS), "insufficient_storage")
    store.close()
    store = opened(tmp_path / "third", Quota(total=size - 1))
    refused(lambda: put_keyed(store, "x", INTEGERS, ROWS), "insufficient_storage")
    assert in_folder(tmp_path / "third") == []
    store.close()


def test_keys_that_the_disk_has_no_room_for_are_refused_before_they_are_sent(
    store: LocalStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=16, f_frsize=4096))
    spec = UploadSpec("x", DTYPES["float32"], (6000, 1), keys=KeysSpec("int64", 6000))
    refused(lambda: store.upload(spec), "insufficient_storage")
    assert list((folder / "incoming").iterdir()) == []
    put_keyed(store, "x", INTEGERS, ROWS)


@pytest.mark.parametrize("damage", ["cut", "missing", "header", "index cut", "index missing", "of another"])
def test_a_damaged_file_of_keys_answers_tensor_damaged(store: LocalStore, folder: Path, damage: str) -> None:
    put_keyed(store, "x", INTEGERS, ROWS)
    path = key_file(folder, ".index" if damage.startswith("index") else ".keys")
    if damage == "header":
        flip(path, 100)
    elif damage.endswith("missing"):
        path.unlink()
    elif damage == "of another":
        put_keyed(store, "y", INTEGERS, ROWS)
        path.write_bytes(next(one for one in (folder / "tensors").glob("*.keys") if one != path).read_bytes())
        store.delete("y")
    else:
        os.truncate(path, path.stat().st_size - 1)
    refused(lambda: store.get("x"), "tensor_damaged")
    assert [finding.level for finding in check(folder)] == ["damage"]
    if not damage.startswith("index"):
        refused(lambda: store.metadata("x"), "tensor_damaged")
        assert [one.damaged for one in store.page(10, None)[0]] == [True]


@pytest.mark.parametrize(("suffix", "place"), [(".keys", PAGE + 9), (".index", 64 + 8)])
def test_a_key_or_an_entry_that_changed_on_the_disk_is_found(
    store: LocalStore, folder: Path, suffix: str, place: int
) -> None:
    put_keyed(store, "x", INTEGERS, ROWS)
    path = key_file(folder, suffix)
    for at in range(place, place + (56 if suffix == ".index" else 1)):
        flip(path, at)
    (finding,) = check(folder)
    assert (finding.level, finding.subject) == ("damage", "x@1")
    store.group.state[StateWord.VERIFIED] = 0
    store.verify(Event(), 0)
    refused(lambda: store.get("x"), "tensor_damaged")


@pytest.mark.parametrize("damage", ["missing", "cut", "of other keys"])
def test_a_start_makes_an_index_that_is_no_index_again(store: LocalStore, folder: Path, damage: str) -> None:
    put_keyed(store, "x", INTEGERS, ROWS)
    store.close()
    path = key_file(folder, ".index")
    if damage == "missing":
        path.unlink()
    elif damage == "cut":
        os.truncate(path, 64)
    else:
        flip(path, 8)
    again = opened(folder)
    assert rows_of(again, "x", INTEGERS) == [0, 1, 2, 3]
    assert list(check(folder)) == []
    again.close()


def test_keys_that_changed_in_a_backup_are_found(store: LocalStore, folder: Path, tmp_path: Path) -> None:
    put_keyed(store, "x", INTEGERS, ROWS)
    back_up(folder, tmp_path / "backup")
    (path,) = (tmp_path / "backup" / "contents").glob("*.keys")
    flip(path, PAGE + 9)
    assert [finding.level for finding in check(tmp_path / "backup")] == ["damage"]
    path.unlink()
    assert [finding.level for finding in check(tmp_path / "backup")] == ["damage"]
    assert back_up(folder, tmp_path / "backup").copied == 1
    assert list(check(tmp_path / "backup")) == []


def test_a_backup_of_a_time_before_keys_is_restored(store: LocalStore, folder: Path, tmp_path: Path) -> None:
    put(store, "x", ROWS)
    target = tmp_path / "backup"
    back_up(folder, target)
    manifest = json.loads((target / MANIFEST).read_bytes().partition(b"\n")[2])
    for row in manifest["catalogue"]["rows"]:
        assert row.pop("keys") is None
    body = json.dumps(manifest).encode()
    head = json.dumps({"format": 1, "sha256": hashlib.sha256(body).hexdigest()}).encode()
    (target / MANIFEST).write_bytes(head + b"\n" + body)
    (target / MARKER).write_text('{"format": 1}')
    restore(target, tmp_path / "restored")
    again = opened(tmp_path / "restored")
    np.testing.assert_array_equal(read(again, "x"), ROWS)
    again.close()
