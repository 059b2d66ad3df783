"""What a router knows of how far ranges are: it only rises, and ETags have the sum."""

from __future__ import annotations

import pytest

from app.cluster.router.row_sinks import BadAnswer
from app.cluster.router.sequences import Sequences, reading
from app.cluster.shard_map import Primary, RowRange, ShardedTable, ShardedVersion, ShardMap
from app.tensors.dtypes import DTYPES


def version(*bounds: tuple[int, int], is_open: bool = True) -> ShardedVersion:
    primary = Primary("a", "a:1", 1) if is_open else None
    ranges = tuple(RowRange(start, stop, f"x.{start}-{stop}", (), primary) for start, stop in bounds)
    return ShardedVersion(1, "x", DTYPES["int8"], (bounds[-1][1],), ranges)


def test_a_range_goes_on_and_never_back() -> None:
    known, two = Sequences(), version((0, 4), (4, 9))
    known.told("x.0-4", 3)
    known.told("x.0-4", 2)
    assert known.least("x.0-4") == 3
    assert known.etag(two) == '"x-3"'
    assert known.etag(two, {"x.0-4": 1, "x.4-9": 5}) == '"x-6"'


def test_an_answer_that_is_behind_is_refused() -> None:
    known, one = Sequences(), version((0, 4)).ranges[0]
    read: dict[str, int] = {}
    reading(known, one, read)('"abc-7"')
    assert (read, known.least("x.0-4")) == ({"x.0-4": 7}, 7)
    check = reading(known, one, read)
    with pytest.raises(BadAnswer) as found:
        check('"abc-6"')
    assert found.value.stale
    for etag in (None, "", '"abc"', '"abc-x"'):
        with pytest.raises(BadAnswer):
            reading(known, one, read)(etag)


def test_ranges_that_are_gone_are_forgotten() -> None:
    known = Sequences()
    known.told("x.0-4", 3)
    known.told("y.0-4", 5)
    known.keep_only(ShardMap(1, {"t": ShardedTable((version((0, 4)),))}))
    assert [known.least(one) for one in ("x.0-4", "y.0-4")] == [3, 0]
    assert [known.knows(one) for one in ("x", "y")] == [True, False]
    known.keep_only(ShardMap(2))
    assert (known.least("x.0-4"), known.knows("x")) == (0, False)


def test_a_map_that_does_not_know_of_scatters_yet_makes_nothing_forgotten() -> None:
    known = Sequences()
    known.told("x.0-4", 3)
    known.keep_only(ShardMap(1, {"t": ShardedTable((version((0, 4), is_open=False),))}))
    assert known.least("x.0-4") == 3
