"""What a shard does by itself for a replica in sync that waits to be told what is committed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any, cast

import pytest

from app.cluster.catalogue.listed_segments import Listed
from app.cluster.catalogue.records import RangeRecord, Segment, Version
from app.cluster.replication.primary import JoinAnswer
from app.cluster.replication.replica import ReplicaState
from app.cluster.shard.range_keeper import LOOK_S, RangeKeeper
from app.cluster.shard.range_log import Words
from app.errors import GatherError
from app.tensors.dtypes import DTYPES
from tests.cluster.waiting import until

SEGMENT = Segment(0, 5, 20, ("a", "b"), "d")
VERSION = Version(1, "x", DTYPES["float32"], (5,), (SEGMENT,), 1, "all", 20)
RANGE = Listed("t", VERSION, SEGMENT, 2, RangeRecord(3, "a", ("a", "b")))


@dataclass
class Primary:
    """Notes when it is asked."""

    asked: Event = field(default_factory=Event)

    def join(self, _: Listed) -> JoinAnswer:
        self.asked.set()
        return JoinAnswer.RECORDS


def is_asked(words: Words, folder: Path) -> bool:
    """Whether the replica b asks the primary within three looks."""
    primary, stop = Primary(), Event()
    log = SimpleNamespace(words=lambda _: words)
    follower = SimpleNamespace(open_ranges=lambda: {RANGE.tensor: RANGE})
    keeper = RangeKeeper("b", folder / "lock", *cast(Any, (log, follower, None, primary)))
    thread = Thread(target=keeper.run, args=(lambda: True, stop))
    thread.start()
    try:
        return primary.asked.wait(3 * LOOK_S)
    finally:
        stop.set()
        keeper.changed.set()
        thread.join()
        keeper.close()


@pytest.mark.parametrize(
    "words",
    [Words(3, 7, 8), Words(3, 7, 7, is_settled=False), Words(3, 7, 7, is_confirmed=False)],
    ids=["a tail", "unsettled", "after a start"],
)
def test_a_replica_in_sync_asks_its_primary_what_is_committed(words: Words, tmp_path: Path) -> None:
    """After a loss of power it has applied less than the primary was told, which then sends no notice."""
    assert is_asked(words, tmp_path)


def test_a_replica_that_knows_does_not_ask(tmp_path: Path) -> None:
    assert not is_asked(Words(3, 7, 7), tmp_path)


def test_a_replica_that_has_left_is_not_late_any_more(tmp_path: Path) -> None:
    stop, found = Event(), {RANGE.tensor: RANGE}
    log = SimpleNamespace(words=lambda _: Words(3, 7, 7), state=lambda _: ReplicaState(3, 7))
    primaries = SimpleNamespace(is_resolved=lambda *_: True, notice=lambda *_: False, dismiss=lambda *_: None)
    follower = SimpleNamespace(open_ranges=lambda: found)
    keeper = RangeKeeper("a", tmp_path / "lock", *cast(Any, (log, follower, primaries, None)))
    thread = Thread(target=keeper.run, args=(lambda: True, stop))
    thread.start()
    try:
        until(lambda: keeper.lag() > 0, "the replica b is late", 20)
        found.clear()  # its version was removed
        until(lambda: keeper.lag() == 0, "nobody is late", 20)
    finally:
        stop.set()
        keeper.changed.set()
        thread.join()
        keeper.close()


def test_a_replica_that_has_no_room_for_a_copy_says_so_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    asked: list[Listed] = []

    def join(one: Listed) -> JoinAnswer:
        asked.append(one)
        raise GatherError("insufficient_storage", "the disk is full")

    stop = Event()
    joins = SimpleNamespace(join=join, is_stopping=stop.is_set)
    follower = SimpleNamespace(open_ranges=lambda: {RANGE.tensor: replace(RANGE, opened=RangeRecord(3, "a", ("a",)))})
    keeper = RangeKeeper("b", tmp_path / "lock", *cast(Any, (None, follower, None, joins)))
    thread = Thread(target=keeper.run, args=(lambda: True, stop))
    thread.start()
    try:
        until(lambda: len(asked) > 2, "it has tried three times", 20)
    finally:
        stop.set()
        keeper.changed.set()
        thread.join()
        keeper.close()
    assert [one.message for one in caplog.records] == [f"join of {RANGE.tensor}: the disk is full"]
