"""Replicated contents: what their logs have, what readers see, and how copies become equal, against a model."""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.errors import GatherError
from app.store import LocalStore, idempotency
from app.store.maintenance import backup
from app.store.maintenance.backup import back_up
from app.store.maintenance.check_store import check
from app.store.maintenance.restore import restore
from app.store.scatters import replicated_copy
from app.store.scatters.replicated_contents import Batch
from app.store.store_errors import storage_errors
from tests.conftest import samples
from tests.store.crash import MEMORY
from tests.store.helpers import opened, put, read, reopened, scatter
from tests.store.replicated import (
    ROWS,
    TENSOR,
    WIDTH,
    Alone,
    Made,
    adopt,
    content_after,
    digest,
    frame,
    read_frames,
    told,
    values_of,
)


class Copy:
    """A store, and what it is to have."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.epoch, self.applied = 1, 0
        self.records: list[Made] = []
        self.store = self.open()
        put(self.store, TENSOR, np.zeros((ROWS, WIDTH), np.float32))
        with self.store.replicated.open(TENSOR) as content:
            content.set_epoch(1)

    def open(self) -> LocalStore:
        store = opened(self.folder)
        store._checkpoints.checkpoint_bytes = 2000
        return store

    def reopen(self) -> None:
        self.store.close()
        self.store = self.open()

    def append(self, records: list[Made]) -> None:
        """Records that follow, at this epoch or a later one."""
        with self.store.replicated.open(TENSOR) as content:
            self.epoch = max(self.epoch, records[-1].epoch)
            content.set_epoch(self.epoch)
            content.append_frames(frame(records))
        self.records += records

    def follow(self, other: Copy) -> None:
        """Take the log of another copy, as a replica does with that of its primary."""
        with other.store.replicated.open(TENSOR) as source:
            frames = source.frames_after(self.applied)
        if other.epoch < self.epoch or len(other.records) < self.applied:
            return
        if frames is None:
            adopt(self.store, other.records[: other.applied], other.epoch)
            self.records, self.applied, self.epoch = other.records[: other.applied], other.applied, other.epoch
            return
        assert read_frames(frames) == told(other.records[self.applied :])
        same = self.applied
        while same < min(len(self.records), len(other.records)) and self.records[same] == other.records[same]:
            same += 1
        with self.store.replicated.open(TENSOR) as content:
            content.set_epoch(other.epoch)
            content.drop_tail(same)
            content.append_frames(frames)
            content.commit_to(other.applied)
        self.records, self.epoch = [*other.records], other.epoch
        self.applied = max(self.applied, other.applied)

    def check(self) -> None:
        with self.store.replicated.open(TENSOR) as content:
            state = content.state()
        keys = self.store.replicated.keys(TENSOR)
        tail = tuple(one.epoch for one in self.records[self.applied :])
        assert (state.epoch, state.applied, state.tail) == (self.epoch, self.applied, tail)
        known = self.records[: self.applied]
        assert np.array_equal(values_of(self.store), content_after(known))
        assert {one.key: (one.digest, one.sequence) for one in keys} == {
            one.key: (digest(one.key), one.sequence) for one in known
        }


STEPS = st.lists(
    st.tuples(
        st.sampled_from(("append", "append", "append", "commit", "follow", "follow", "drop", "reopen", "epoch")),
        st.integers(0, 2),
        st.integers(0, 5),
    ),
    max_size=30,
)


@settings(max_examples=samples(80), deadline=None)
@given(steps=STEPS)
def test_copies_are_what_their_records_make_them_whatever_happens_in_between(steps: list[tuple[str, int, int]]) -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY) as room:
        copies = [Copy(Path(room) / str(number)) for number in range(3)]
        committed: list[Made] = []
        for number, (what, which, size) in enumerate(steps):
            one, other = copies[which], copies[(which + 1 + size % 2) % 3]
            if what == "append" and one.records[: len(committed)] == committed:
                first = len(one.records) + 1
                epoch, row = max(one.epoch, number + 2), (7 * number) % ROWS
                one.append([
                    Made(first + each, epoch, (each, row), number + 1.5, f"{number}.{each}")
                    for each in range(size + 1)
                ])  # fmt: skip
            elif what == "commit" and one.records[: len(committed)] == committed and one.epoch == max(
                each.epoch for each in copies
            ):  # fmt: skip
                sequence = min(len(one.records), one.applied + size)
                with one.store.replicated.open(TENSOR) as content:
                    content.commit_to(sequence)
                one.applied = max(one.applied, sequence)
                committed = one.records[: max(len(committed), one.applied)]
            elif what == "follow" and other.records[: len(committed)] == committed:
                one.follow(other)
            elif what == "drop":
                after = max(one.applied, len(one.records) - size)
                with one.store.replicated.open(TENSOR) as content:
                    content.drop_tail(after)
                one.records = one.records[:after]
            elif what == "reopen":
                one.reopen()
            elif what == "epoch":
                one.epoch += size
                with one.store.replicated.open(TENSOR) as content:
                    content.set_epoch(one.epoch)
            one.check()
        for one in copies:
            one.store.close()
            assert [finding for finding in check(one.folder) if finding.level == "damage"] == []


def replicated(store: LocalStore, *records: Made) -> None:
    put(store, TENSOR, np.zeros((ROWS, WIDTH), np.float32))
    with store.replicated.open(TENSOR) as content:
        content.set_epoch(1)
        content.append_frames(frame(records))


ONE, TWO = Made(1, 1, (1,), 5.0, "one"), Made(2, 1, (2,), 6.0, "two")


def test_a_batch_that_is_not_known_to_be_committed_stays_a_tail_and_its_key_is_not_answered(store: LocalStore) -> None:
    replicated(store)

    class Cut(Alone):
        def replicate(self, tensor: str, batch: Batch) -> None:
            raise GatherError("shard_unavailable", "not known", retry_after=1)

    store.replicated.replication = Cut(store)
    with pytest.raises(GatherError, match="not known"):
        scatter(store, TENSOR, [[3]], np.ones((1, WIDTH), np.float32), key="k")
    assert store.find_answer(TENSOR, "k", "digest") is None
    assert not read(store, TENSOR).any()
    store.replicated.replication = Alone(store)
    assert scatter(store, TENSOR, [[3]], np.ones((1, WIDTH), np.float32), "add", key="k").endswith('-1"')
    assert read(store, TENSOR)[3, 0] == 1


@pytest.mark.parametrize("place", ["lead", "replicate", "commit"])
def test_a_disk_that_fails_once_a_scatter_may_be_made_does_not_say_that_it_is_not(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    replicated(store)
    full = OSError(errno.ENFILE, "too many open files")

    class Failing(Alone):
        def lead(self, tensor: str) -> int:
            with storage_errors():
                if place == "lead":
                    raise full
            return super().lead(tensor)

        def replicate(self, tensor: str, batch: Batch) -> None:
            with storage_errors():
                if place == "replicate":
                    raise full
            monkeypatch.setattr(replicated_copy, "tail_records", failing)

    def failing(*_: object) -> None:
        raise full

    store.replicated.replication = Failing(store)
    with pytest.raises(GatherError, match="too many open files") as raised:
        scatter(store, TENSOR, [[3]], np.ones((1, WIDTH), np.float32), key="k")
    assert raised.value.code == "shard_unavailable"


def test_a_key_that_a_router_drew_is_forgotten_after_an_hour(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    replicated(store)
    store.replicated.replication = Alone(store)
    ones = np.ones((1, WIDTH), np.float32)

    def add_to_both() -> list[float]:
        for row, key in ((3, "/drawn"), (4, "items/the-caller's")):
            scatter(store, TENSOR, [[row]], ones, "add", key=key)
        found: list[float] = read(store, TENSOR)[3:5, 0].tolist()
        return found

    assert [add_to_both() for _ in range(2)] == [[1, 1], [1, 1]]
    all_but_an_hour = idempotency.LIFETIME_NS - idempotency.DRAWN_LIFETIME_NS
    monkeypatch.setattr(idempotency, "LIFETIME_NS", all_but_an_hour)
    assert add_to_both() == [2, 1]


def test_workers_see_that_a_tail_was_replaced_by_one_as_long(store: LocalStore, other: LocalStore) -> None:
    replicated(store, ONE, TWO)
    with other.replicated.open(TENSOR) as content:
        assert content.state().tail == (1, 1)
    with store.replicated.open(TENSOR) as content:
        content.set_epoch(2)
        content.drop_tail(0)
        content.append_frames(frame([Made(1, 2, (3,), 7.0, "one"), Made(2, 2, (4,), 8.0, "two")]))
    with other.replicated.open(TENSOR) as content:
        assert content.state().tail == (2, 2)
        content.commit_to(2)
    assert read(store, TENSOR)[:5, 0].tolist() == [0, 0, 0, 7, 8]


def test_after_a_start_a_tail_keeps_downloads_away_until_it_is_settled(folder: Path, tmp_path: Path) -> None:
    store = opened(folder)
    replicated(store, ONE, TWO)
    with store.replicated.open(TENSOR) as content:
        content.commit_to(1)
    back_up(folder, tmp_path / "backup")
    store.close()
    store = opened(folder)
    with store.replicated.open(TENSOR) as content:
        assert not content.state().settled
    with pytest.raises(GatherError, match="overloaded"):
        store.snapshot(store.content(TENSOR))
    with store.replicated.open(TENSOR) as content:
        content.drop_tail(1)
        assert content.state().settled
    store.snapshot(store.content(TENSOR)).close()
    store.close()
    restore(tmp_path / "backup", tmp_path / "restored")
    again = opened(tmp_path / "restored")
    assert read(again, TENSOR)[:3, 0].tolist() == [0, 5, 0]
    assert scatter(again, TENSOR, [[0]], np.ones((1, WIDTH), np.float32)).endswith('-1"')  # a plain content
    again.close()


@pytest.fixture
def unsettled(folder: Path, tmp_path: Path) -> Iterator[LocalStore]:
    """A store with a content that is unsettled, and whole in the backup, and with another one that is not there."""
    store = opened(folder)
    replicated(store, ONE, TWO)
    with store.replicated.open(TENSOR) as content:
        content.commit_to(1)
    back_up(folder, tmp_path / "backup")
    put(store, "other", np.arange(3.0))
    store = reopened(store, folder)
    yield store
    store.close()


def restored(tmp_path: Path) -> LocalStore:
    restore(tmp_path / "backup", tmp_path / "restored")
    return opened(tmp_path / "restored")


def test_a_backup_goes_on_without_a_content_that_stays_unsettled(
    unsettled: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backup, "PATIENCE_S", 0)
    done = back_up(unsettled.folder, tmp_path / "new")
    assert (done.versions, list(done.left_out), done.kept) == (1, [f"{TENSOR}@1"], {})
    done = back_up(unsettled.folder, tmp_path / "backup")
    assert (done.versions, done.left_out, list(done.kept)) == (2, {}, [f"{TENSOR}@1"])
    again = restored(tmp_path)
    assert read(again, TENSOR)[:3, 0].tolist() == [0, ONE.value, 0]
    assert read(again, "other").tolist() == [0, 1, 2]
    again.close()
