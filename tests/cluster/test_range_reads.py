"""Which shard the router asks when: by turns, the next one at once, the map when all have failed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.cluster.router.range_reads import AskReplica, FetchMap, RangeReads, Wake
from app.cluster.router.replica_choice import SAVED_HEDGES, ReplicaChoice
from app.cluster.shard_map import Primary, Replica, RowRange, ShardedTable, ShardedVersion, ShardMap
from app.tensors.dtypes import DTYPES
from tests.for_each import for_each


def version(nodes: str = "ab", content_id: str = "c1", number: int = 1) -> ShardedVersion:
    """Two ranges of ten rows, each on all `nodes`."""
    ranges = tuple(
        RowRange(start, start + 10, f"{content_id}.{start}", tuple(Replica(f"{node}:80", node) for node in nodes))
        for start in (0, 10)
    )
    return ShardedVersion(number, content_id, DTYPES["float32"], (20,), ranges)


def shard_map(generation: int, *versions: ShardedVersion) -> ShardMap:
    return ShardMap(generation, {"items": ShardedTable(versions, versions[-1].number)})


def reads(found: ShardMap, choice: ReplicaChoice | None = None) -> RangeReads:
    return RangeReads(found, found.tables["items"].current, choice or ReplicaChoice(), deadline=10.0, late_after=1.0)


def asks(actions: list[AskReplica | FetchMap | Wake]) -> list[AskReplica]:
    return [one for one in actions if isinstance(one, AskReplica)]


@for_each("replicas", ["ab", "abc", "abcdefgh"])
@for_each("ranges", range(1, 9))
def test_each_replica_of_each_range_is_asked_first_equally_often(replicas: str, ranges: int) -> None:
    choice, own = ReplicaChoice(), version(replicas).ranges[0].replicas
    asked = [[choice.order(own, 0.0)[0].node for _ in range(ranges)] for _ in range(400)]
    for first in zip(*asked, strict=True):
        for node in replicas:
            assert abs(first.count(node) - 400 / len(replicas)) < 12


def test_one_read_in_each_pause_tries_a_replica_that_failed() -> None:
    choice = ReplicaChoice()
    replicas = version("ab").ranges[0].replicas
    choice.record_failure("b:80", 0.0)
    tries = [at / 100 for at in range(3000) if choice.order(replicas, at / 100)[0].node == "b"]
    pauses = [after - before for before, after in zip([0.0, *tries], tries, strict=False)]
    assert 0.5 <= pauses[0] < 0.6
    assert 1 <= pauses[1] < 1.1
    assert all(4 <= pause < 4.1 for pause in pauses[3:])
    assert len(pauses) > 6


def test_few_reads_are_hedged_also_when_all_are_slow() -> None:
    choice = ReplicaChoice()
    replicas = version("ab").ranges[0].replicas
    hedged = 0
    for _ in range(1000):
        asked, other = choice.order(replicas, 0.0)
        hedged += choice.may_hedge(asked.address, other.address)
    assert 0.03 * 1000 < hedged < 0.05 * 1000 + SAVED_HEDGES


@pytest.mark.parametrize(("is_stale", "is_over"), [(True, False), (False, True)])
def test_an_open_range_is_asked_again_while_its_replicas_say_that_they_are_behind(
    is_stale: bool, is_over: bool
) -> None:
    """Until the shard that has become primary has committed what the last one left."""
    closed = version()
    ranges = tuple(replace(one, primary=Primary("a", "a:80", 1)) for one in closed.ranges)
    known = shard_map(1, replace(closed, ranges=ranges))
    one = RangeReads(known, known.tables["items"].current, ReplicaChoice(), deadline=30.0, late_after=1.0)
    now, waiting = 0.0, asks(one.start([0], 0.0))
    while one.outcome is None and now < 19.0:
        while waiting:
            waiting += asks(one.on_missing_range(0, waiting.pop().replica, now, is_stale=is_stale))
        now += 0.5
        waiting = asks(one.on_map_fetched(known, now))
    assert (one.outcome == "shard_unavailable") == is_over
    if not is_over:
        assert one.on_rows(0, waiting[0].replica)


def test_rounds_go_on_however_many_there_are() -> None:
    """Each newer map begins one at once, and a range that takes scatters may be refused for many seconds."""
    found = version("a")
    opened = replace(found, ranges=tuple(replace(one, primary=Primary("a", "a:80", 2)) for one in found.ranges))
    one = reads(shard_map(1, opened))
    asked = asks(one.start([0], 0.0))
    for generation in range(2, 1500):
        wake, _ = one.on_missing_range(0, asked[0].replica, 0.0, is_stale=True)
        assert isinstance(wake, Wake)
        assert wake.at <= 0.5
        asked = asks(one.on_map_fetched(shard_map(generation, opened), 0.0))
    assert one.outcome is None
