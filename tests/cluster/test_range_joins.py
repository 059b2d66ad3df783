"""A replica that copies a range: what goes wrong on its own disk is told as that."""

from __future__ import annotations

import errno
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from app.cluster.catalogue.listed_segments import Listed
from app.cluster.catalogue.records import RangeRecord, Segment, Version
from app.cluster.replication.primary import JoinAnswer
from app.cluster.replication.replica import CopyOrder
from app.cluster.shard.peers import PeerAnswer
from app.cluster.shard.range_joins import Joins
from app.cluster.shard.range_messages import Admission
from app.errors import GatherError
from app.tensors.dtypes import DTYPES

SEGMENT = Segment(0, 5, 20, ("a", "b"), "d")
VERSION = Version(1, "x", DTYPES["float32"], (5,), (SEGMENT,), 1, "all", 20)
RANGE = Listed("t", VERSION, SEGMENT, 2, RangeRecord(3, "a", ("a",)))


class Connection:
    """A connection to the shard that is copied from."""

    status = 200
    headers: dict[str, str] = {"ETag": '"y-7"', "Content-Length": "20"}  # noqa: RUF012
    sock: Any = SimpleNamespace(settimeout=lambda _: None)

    def connect(self) -> None:
        """It is open."""

    def close(self) -> None:
        """It stays."""

    def request(self, *_: object, **options: object) -> None:
        """Any will do."""

    def getresponse(self) -> Connection:
        return self

    def readinto(self, piece: memoryview) -> int:
        return len(piece)


def test_a_disk_that_is_full_is_told_as_that_and_not_as_a_failure_of_the_other_shard() -> None:
    def write(_: object) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device")

    counted: list[str] = []
    answer = b"".join(map(bytes, Admission(JoinAnswer.COPY, CopyOrder(3, 7)).pieces()))
    peers: Any = SimpleNamespace(
        ask=lambda *_: PeerAnswer(200, answer),
        address_of=lambda _: "127.0.0.1:1",
        headers_for=lambda _: {},
        take=lambda _: Connection(),
    )
    store: Any = SimpleNamespace(upload=lambda _: SimpleNamespace(write=write, abandon=lambda: counted.append("gone")))
    log: Any = SimpleNamespace(state=lambda _: None)
    counts: Any = SimpleNamespace(count_copy=counted.append)
    with pytest.raises(GatherError) as raised:
        Joins("b", store, log, peers, counts, lambda: False).join(RANGE)
    assert raised.value.code == "insufficient_storage"
    assert counted == ["gone", "failed"]
