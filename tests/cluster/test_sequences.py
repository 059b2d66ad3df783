"""What a router knows of how far ranges are: it only rises, and ETags have the sum."""

from __future__ import annotations

from app.cluster.router.sequences import Sequences
from app.cluster.shard_map import Primary, RowRange, ShardedTable, ShardedVersion, ShardMap
from app.tensors.dtypes import DTYPES


def version(*bounds: tuple[int, int], is_open: bool = True) -> ShardedVersion:
    primary = Primary("a", "a:1", 1) if is_open else None
    ranges = tuple(RowRange(start, stop, f"x.{start}-{stop}", (), primary) for start, stop in bounds)
    return ShardedVersion(1, "x", DTYPES["int8"], (bounds[-1][1],), ranges)


def test_ranges_that_are_gone_are_forgotten() -> None:
    known = Sequences()
    known.record("x.0-4", 3)
    known.record("y.0-4", 5)
    known.keep_only(ShardMap(1, {"t": ShardedTable((version((0, 4)),))}))
    assert [known.lowest_accepted(one) for one in ("x.0-4", "y.0-4")] == [3, 0]
    assert [known.knows(one) for one in ("x", "y")] == [True, False]
    known.keep_only(ShardMap(2))
    assert (known.lowest_accepted("x.0-4"), known.knows("x")) == (0, False)


def test_a_map_that_does_not_know_of_scatters_yet_makes_nothing_forgotten() -> None:
    known = Sequences()
    known.record("x.0-4", 3)
    known.keep_only(ShardMap(1, {"t": ShardedTable((version((0, 4), is_open=False),))}))
    assert known.lowest_accepted("x.0-4") == 3
