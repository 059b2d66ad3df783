"""A primary that begins, and one replica: what both have after that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace, TracebackType
from typing import Any, Self, cast

import pytest

from app.cluster.catalogue.client import Transition
from app.cluster.catalogue.listed_segments import Listed
from app.cluster.catalogue.records import Catalogue, RangeRecord, Segment, Version
from app.cluster.replication.replica import Append
from app.cluster.shard import range_shipping
from app.cluster.shard.peers import PeerAnswer
from app.cluster.shard.range_log import RangeLog
from app.cluster.shard.range_messages import append_answer_json, read_append
from app.cluster.shard.range_metrics import RangeCounts
from app.cluster.shard.range_primary import Primaries
from app.cluster.shard.read_gate import GatedStore
from app.errors import GatherError
from app.tensors.dtypes import DTYPES
from app.tensors.shape_limits import Limits
from tests.store.replicated import ROWS, TENSOR, WIDTH, Made, adopt, frame

SEGMENT = Segment(0, ROWS, 4 * ROWS * WIDTH, ("a", "b"), "0" * 64)
VERSION = Version(1, "c", DTYPES["float32"], (ROWS, WIDTH), (SEGMENT,), 1, "0" * 64, SEGMENT.size)
RECORDS = [Made(number, 1, (number,), float(number), f"k{number}") for number in (1, 2, 3)]


@dataclass
class Follower:
    """A catalogue of one range, at which the primary makes its changes."""

    record: RangeRecord = field(default=RangeRecord(2, "a", ("a", "b")))

    @property
    def client(self) -> Self:
        return self

    def open_ranges(self) -> dict[str, Listed]:
        return {TENSOR: Listed("t", VERSION, SEGMENT, 2, self.record)}

    def transact(self, transition: Transition) -> None:
        change = transition(Catalogue(ranges={TENSOR: self.record}, alive=frozenset("ab")))
        assert change is not None
        self.record = cast("RangeRecord", change.puts[f"ranges/{TENSOR}"])


def log_of(folder: Path, records: Sequence[Made]) -> RangeLog:
    store = GatedStore(folder, Limits())
    store.open()
    adopt(store, records, 1)
    return RangeLog(store)


@pytest.fixture
def replica(tmp_path: Path) -> RangeLog:
    return log_of(tmp_path / "b", RECORDS[:1])


@pytest.fixture
def ask(replica: RangeLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have all that is sent come to the replica."""

    class Asked:
        def __init__(self, *asked: Any) -> None:
            self.body = b"".join(asked[4])

        def __enter__(self) -> Self:
            return self

        def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
            pass

        def answer(self) -> PeerAnswer:
            return PeerAnswer(200, append_answer_json(replica.append(TENSOR, *read_append(self.body))))

    monkeypatch.setattr(range_shipping, "PeerRequest", Asked)


def primaries_of(log: RangeLog, follower: Follower) -> Primaries:
    return Primaries("a", log, cast(Any, follower), cast(Any, SimpleNamespace()), RangeCounts())


@pytest.mark.usefixtures("ask")
def test_a_primary_that_lost_what_its_replica_has_acknowledged_does_not_lead(tmp_path: Path, replica: RangeLog) -> None:
    """Its store was restored from an older copy: the replica would take its next scatter for the one that it has."""
    replica.append(TENSOR, Append(1, 1, 1, 3, 3, (1, 1)), frame(RECORDS[1:]))
    follower = Follower()
    primaries = primaries_of(log_of(tmp_path / "a", RECORDS[:1]), follower)
    with pytest.raises(GatherError) as raised:
        primaries.begin(TENSOR)
    primaries.close()
    assert raised.value.code == "shard_unavailable"
    assert follower.record == RangeRecord(3, "b", ("b",))
