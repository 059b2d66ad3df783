from __future__ import annotations

import errno
import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest

from app.errors import GatherError
from app.store import LocalStore
from app.store.files import disk_writes
from tests.store.helpers import files, flip, opened, put, read, reopened, scatter, strings


def test_the_hash_is_that_of_the_content_and_the_etag_is_of_this_upload_alone(store: LocalStore) -> None:
    items = np.arange(6, dtype=np.float32).reshape(2, 3)
    first = put(store, "x", items)[0]
    assert first.sha256 == hashlib.sha256(b"float32[2,3]" + bytes((10,)) + items.tobytes()).hexdigest()
    assert re.fullmatch('"[0-9a-f]{32}-0"', first.etag)
    again = [put(store, name, items)[0] for name in ("x", "y", "x")]
    assert {about.sha256 for about in again} == {first.sha256}
    assert len({first.etag, *(about.etag for about in again)}) == 4
    others = [items.reshape(3, 2), items.view(np.int32), items + 1]
    assert len({first.sha256, *(put(store, "y", other)[0].sha256 for other in others)}) == 4


def test_no_name_reaches_the_file_system(store: LocalStore, folder: Path) -> None:
    for name in ("a", "A", "a.b", "CON", "x" * 128):
        put(store, name, np.arange(3))
    assert all(re.fullmatch("tensors/[0-9a-f]{32}", path) for path in files(folder))
    assert store.names() == sorted(["a", "A", "a.b", "CON", "x" * 128])


def test_a_tensor_whose_name_has_been_reserved_since_stays_and_is_not_replaced(
    store: LocalStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as before:
        before.setattr("app.tensors.tensor_name.RESERVED", ())
        put(store, "gather", np.arange(3))
    store = reopened(store, folder)
    assert store.names() == ["gather"]
    assert read(store, "gather").tolist() == [0, 1, 2]
    assert store.metadata("gather").shape == store.content("gather").description.shape == (3,)
    scatter(store, "gather", [[0]], np.array([7]))
    assert read(store, "gather").tolist() == [7, 1, 2]
    with pytest.raises(GatherError, match="invalid_field: the name 'gather' is reserved"):
        put(store, "gather", np.arange(4))
    store.delete("gather")
    with pytest.raises(GatherError, match="invalid_field: the name 'gather' is reserved"):
        store.metadata("gather")
    store.close()


@pytest.mark.parametrize(
    "call", ["create", "truncate", "write", "write_at", "fsync", "fsync_folder", "rename", "commit"]
)
def test_a_disk_that_refuses_leaves_the_old_content_and_no_litter(
    store: LocalStore, other: LocalStore, folder: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    put(store, "x", np.arange(3))
    before = files(folder)

    def refuse(*_: Any) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(disk_writes, call, refuse)
        with pytest.raises((GatherError, OSError)) as caught:
            put(store, "x", np.arange(1000))
        assert not isinstance(caught.value, GatherError) or caught.value.code == "insufficient_storage"
        assert read(store, "x").tolist() == read(other, "x").tolist() == [0, 1, 2]
    if call == "commit":
        # What the disk has refused to commit may be in the catalogue after a crash: its file must be there.
        assert files(folder) > before
        store.remove_leftovers(at_once=True)
    assert files(folder) == before
    put(store, "x", np.arange(4))
    assert read(other, "x").tolist() == [0, 1, 2, 3]


def path_of(folder: Path) -> Path:
    (path,) = (folder / "tensors").iterdir()
    return path


@pytest.mark.parametrize("at", [4096, 4096 + 70_000, -1])
def test_checksums_find_a_flipped_bit_in_the_background(
    store: LocalStore, other: LocalStore, folder: Path, at: int
) -> None:
    put(store, "x", np.arange(20_000))
    path = path_of(folder)
    put(store, "y", np.arange(20_000))
    put(store, "s", strings("a", "b"))
    scatter(store, "y", [[3]], np.array([33]))
    other.get("x")
    flip(path, at)
    store.verify(Event(), 0)
    for worker in (store, other):
        with pytest.raises(GatherError, match="tensor_damaged"):
            worker.get("x")
        assert read(worker, "y")[3] == 33
        assert read(worker, "s").tolist() == ["a", "b"]
    flip(path, at)
    store.verify(Event(), 0)  # once in a life of the group
    with pytest.raises(GatherError, match="tensor_damaged"):
        other.get("x")
    store.delete("x")


def test_checking_stops_when_it_is_told_to(store: LocalStore) -> None:
    put(store, "x", np.zeros(2**22, np.uint8))
    stop = Event()
    stop.set()
    store.verify(stop, 1)
    assert not store.group.state[1]


def test_a_content_larger_than_memory_is_told_to_be_cold(folder: Path) -> None:
    store = opened(folder, memory=20_000)
    put(store, "small", np.arange(100))
    put(store, "large", np.arange(3000))
    assert [getattr(store.get(name), "cold", None) for name in ("small", "large")] == [False, True]
    assert read(store, "large").tolist() == list(range(3000))
    store.close()


PREFAULT = """
import sys, numpy as np
from pathlib import Path
sys.path.insert(0, {root!r})
from app.tensors.string_tensor import PackedStrings
from tests.strings import items
from tests.store.helpers import put, read
from app.store import LocalStore
from app.tensors.shape_limits import Limits
store = LocalStore(Path({folder!r}), Limits()); store.open()
about, _ = put(store, "x", np.zeros(2**22, np.uint8), prefault=True, lock=True)
assert about.prefault and about.lock
store.get("x")
import time
for _ in range(3000):
    locked = [line.split()[1] for line in open("/proc/self/smaps") if line.startswith("Locked:")]
    if any(int(size) >= 4096 for size in locked): break
    time.sleep(0.02)
else:
    raise SystemExit("nothing is locked")
assert read(store, "x").sum() == 0
store.close()
"""


def test_prefault_and_lock_are_done_aside_and_recorded(folder: Path) -> None:
    import resource

    if resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] < 2**23 and os.geteuid():
        pytest.skip("the limit on locked memory is too low here")
    root = str(Path(__file__).parents[2])
    program = PREFAULT.format(root=root, folder=str(folder))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
