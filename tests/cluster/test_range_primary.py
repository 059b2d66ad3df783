"""What a primary does when the record of its range changes under it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from app.cluster.catalogue.listed_segments import Listed
from app.cluster.catalogue.records import RangeRecord, Segment, Version
from app.cluster.shard.range_primary import Primaries
from app.errors import GatherError
from app.store.scatters.replicated_contents import Batch
from app.tensors.dtypes import DTYPES

SEGMENT = Segment(0, 4, 16, ("s0", "s1"), "0" * 64)
VERSION = Version(1, "c1", DTYPES["float32"], (4,), (SEGMENT,), 1, "0" * 64, 16)


def test_records_of_an_epoch_before_the_ranges_are_not_shipped() -> None:
    """A replica that left while a batch was written: the others would not answer to it, and would all have to leave."""
    listed = Listed("items", VERSION, SEGMENT, 2, RangeRecord(3, "s0", ("s0", "s1")))
    follower: Any = SimpleNamespace(open_ranges=lambda: {listed.tensor: listed})
    nobody: Any = SimpleNamespace()
    primaries = Primaries("s0", nobody, follower, nobody, nobody)
    with pytest.raises(GatherError) as raised:
        primaries.replicate(listed.tensor, Batch(2, 0, 0, 1, b""))
    assert raised.value.code == "shard_unavailable"
    assert "the same Idempotency-Key" in cast("str", raised.value.hint)
