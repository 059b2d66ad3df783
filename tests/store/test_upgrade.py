"""A store that the service wrote before it had a catalogue: `data/format_1.zip`, byte for byte as it was left.

It has scatters in its logs, some whose process died before it applied them, keys kept by a checkpoint and by a new
content, a torn and a damaged log, a damaged first page, a file that was cut, and half an upload.
"""

from __future__ import annotations

import time
import zipfile
from pathlib import Path
from threading import Event

import numpy as np
import pytest

from app.errors import GatherError
from app.store import LocalStore, idempotency
from app.tensors.shape_limits import Limits
from tests.conftest import SOAK, TEST_ALL, slow_but_for
from tests.store.cut_short import MODES, die_at_each_step
from tests.store.helpers import answered, files, put, read, scatter

WRITTEN_NS = 1795315581_000_000_000
DAY_NS = 24 * 3600 * 10**9
CONTENTS = {
    "behind": [10, 11, 2, 3, 4, 15],
    "plain": np.arange(12, dtype=np.complex64).reshape(3, 4).tolist(),
    "replaced": [0, 2, 4, 6],
    "torn": [0, 9, 2, 3],
    "words": ["a", "bé", "", "short"],
}
DAMAGED = ("broken-log", "flipped", "cut")
ANSWERED = {
    ("table", "k-1"): '"44d3aa3fe85f2f78627b65603d5b7fc95528cb599953b428a2040e8c74e75d34-1"',
    ("table", "k-2"): '"44d3aa3fe85f2f78627b65603d5b7fc95528cb599953b428a2040e8c74e75d34-2"',
    ("behind", "b-1"): '"2ee9f5d9caf5f856afd5d5ccb10bd33db4153396fb2afeb707b3ee88424b1256-1"',
    ("behind", "b-2"): '"2ee9f5d9caf5f856afd5d5ccb10bd33db4153396fb2afeb707b3ee88424b1256-2"',
    ("checkpointed", "c-1"): '"766c69c44e8bc039b0877b029784b08aac0e7d537ce95b20965b2ea0b4782d00-1"',
    ("checkpointed", "c-2"): '"766c69c44e8bc039b0877b029784b08aac0e7d537ce95b20965b2ea0b4782d00-2"',
    ("words", "w-1"): '"e7a439d28f2f2bd86c348bf7f5cc2e7a2d6d636ab95d1a0c54a65753556df3f1-1"',
    ("replaced", "r-1"): '"7a876f6f94bd3c1c6957e2aecc10d9e56e1521e7831ce27b4801fc9e0df50ca8-1"',
    ("torn", "t-1"): '"0b5a540f562103c3dc18c43cb04b525e7fd2a91e8de2ae1128c92b8e4c9bd568-1"',
}
CREATED = {"plain": 1795315581529504255, "replaced": 1795315581375154137, "words": 1795315581341548692}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with zipfile.ZipFile(Path(__file__).parent / "data" / "format_1.zip") as archive:
        archive.extractall(tmp_path / "store")
    return tmp_path / "store"


@pytest.fixture
def an_hour_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: WRITTEN_NS + 3600 * 10**9)


def opened(folder: Path) -> LocalStore:
    store = LocalStore(folder, Limits())
    store.open()
    return store


def check(store: LocalStore) -> None:
    assert store.names() == sorted([*CONTENTS, "broken-log", "checkpointed", "table"])
    for name, content in CONTENTS.items():
        assert read(store, name).tolist() == content
    table = np.arange(80, dtype=np.float32).reshape(20, 4)
    table[[0, 19]] = -1
    table[0] += 5
    assert (read(store, "table") == table).all()
    assert read(store, "checkpointed")[3:5].tolist() == [[1] * 8] * 2
    for name in DAMAGED:
        for work in (store.get, store.metadata, store.content):
            with pytest.raises(GatherError, match="tensor_damaged"):
                work(name)
    for (name, key), etag in ANSWERED.items():
        assert answered(store, name, key, "digest") == etag
    assert {name: store.metadata(name).created for name in CREATED} == CREATED
    assert store.metadata("table").sha256 == "44d3aa3fe85f2f78627b65603d5b7fc95528cb599953b428a2040e8c74e75d34"
    assert store.metadata("table").etag.endswith('-2"')
    assert store.metadata("words").prefault


@pytest.mark.usefixtures("an_hour_later")
def test_everything_that_was_acknowledged_is_there_and_what_was_damaged_is_still(folder: Path) -> None:
    for _ in range(2):
        store = opened(folder)
        check(store)
        store.verify(Event(), 0)
        check(store)
        assert {path.split("/")[0] for path in files(folder)} == {"tensors", "logs"}
        assert len(files(folder)) == 11  # the damaged log stays with its tensor
        store.close()


@pytest.mark.usefixtures("an_hour_later")
def test_tensors_are_changed_replaced_and_removed_as_ever(folder: Path) -> None:
    store = opened(folder)
    for name in ("table", "words", *DAMAGED):
        put(store, name, np.arange(3))
        assert read(store, name).tolist() == [0, 1, 2]
    assert answered(store, "table", "k-1", "digest") == ANSWERED["table", "k-1"]
    assert scatter(store, "replaced", [[0]], np.array([7])).endswith('-1"')
    for name in store.names():
        store.delete(name)
    assert files(folder) == set()
    store.close()
    store = opened(folder)
    assert store.usage() == (0, 0)
    assert answered(store, "torn", "t-1", "digest") == ANSWERED["torn", "t-1"]
    store.close()


@pytest.mark.usefixtures("an_hour_later")
def test_a_damaged_tensor_of_unknown_name_can_be_removed_by_who_knows_it(folder: Path) -> None:
    store = opened(folder)
    count = store.usage()[0]
    for name in ("cut", "flipped"):
        store.delete(name)
        assert store.get(name) is None
    assert store.usage()[0] == count - 2
    store.close()


@pytest.mark.parametrize("hours", [23, 25])
def test_keys_are_as_old_as_their_time_of_day_says(folder: Path, monkeypatch: pytest.MonkeyPatch, hours: int) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: WRITTEN_NS + hours * DAY_NS // 24)
    store = opened(folder)
    assert (answered(store, "table", "k-1", "digest") is not None) == (hours < 24)
    monkeypatch.setattr(time, "time_ns", lambda: WRITTEN_NS)
    monkeypatch.setattr(idempotency, "LIFETIME_NS", DAY_NS // 24)
    assert answered(store, "table", "k-1", "digest") is None
    store.close()


@pytest.mark.usefixtures("an_hour_later")
@pytest.mark.parametrize("mode", slow_but_for(("half",), MODES))
def test_an_upgrade_that_is_cut_short_at_any_step_is_done_again(folder: Path, tmp_path: Path, mode: str) -> None:
    stride = 1 if SOAK else 4 if TEST_ALL else 14
    first = 1 + MODES.index(mode) % stride
    assert die_at_each_step(folder, tmp_path, mode, opened, check, stride=stride, first=first) >= 70 // stride
