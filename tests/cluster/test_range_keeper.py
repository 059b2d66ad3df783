"""What a shard does by itself for a replica in sync that waits to be told what is committed."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any, cast

import pytest

from app.cluster.catalogue.listed_segments import Listed
from app.cluster.catalogue.records import RangeRecord, Segment, Version
from app.cluster.replication.primary import JoinAnswer
from app.cluster.shard.range_keeper import LOOK_S, RangeKeeper
from app.cluster.shard.range_log import Words
from app.tensors.dtypes import DTYPES

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
