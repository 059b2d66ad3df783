"""Which shard the router asks when: by turns, the next one at once, the map when all have failed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from app.cluster.router.range_reads import AskReplica, FetchMap, RangeReads, Wake
from app.cluster.router.replica_choice import FIRST_P95, FIRST_PAUSE, LEAST_P95, SAVED_HEDGES, ReplicaChoice
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


def test_a_shard_without_the_range_is_passed_over_and_does_not_count_as_failing() -> None:
    choice = ReplicaChoice()
    one = reads(shard_map(1, version()), choice)
    (first,) = asks(one.start([0], 0.0))
    (second,) = asks(one.on_missing_range(0, first.replica, 0.0))
    assert second.replica.node != first.replica.node
    orders = {tuple(found.node for found in choice.order(version().ranges[0].replicas, 0.0)) for _ in range(4)}
    assert orders == {("a", "b"), ("b", "a")}


def test_without_a_newer_map_it_is_tried_three_times_and_then_unavailable() -> None:
    found = shard_map(1, version("a"))
    one = reads(found)
    actions = one.start([0, 1], 0.0)
    now, rounds = 0.0, 0
    while one.outcome is None:
        rounds += 1
        assert len(asks(actions)) == 2
        for ask in asks(actions):
            one.on_failure(ask.number, ask.replica, now)
        if one.outcome is None:
            one.on_map_fetched(found, now)
            now += 1.0
            actions = one.on_wake(now)
    assert rounds == 3
    assert one.outcome == "shard_unavailable"
    assert one.unavailable == (0, 1)


def test_a_range_without_a_shard_is_read_where_a_newer_map_has_one() -> None:
    """The catalogue may have a table before the shard that it names has registered itself."""
    choice = ReplicaChoice()
    choice.record_failure("b:80", 0.0)
    nowhere = shard_map(1, version(""))
    one = reads(nowhere, choice)
    wake, read = one.start([0], 0.0)
    assert (type(wake), type(read)) == (Wake, FetchMap)
    (first,) = asks(one.on_map_fetched(shard_map(2, version("a")), 0.01))
    assert one.on_rows(0, first.replica)
    assert one.outcome == "done"
    one = reads(nowhere, choice)
    one.start([0, 1], 0.0)
    for now in (1.0, 2.0, 3.0):
        one.on_map_fetched(nowhere, now)
        one.on_wake(now)
    assert one.outcome == "shard_unavailable"
    assert one.unavailable == (0, 1)


def test_a_version_that_is_not_the_current_one_any_more_is_read_to_its_end() -> None:
    one = reads(shard_map(1, version("a")))
    (first,) = asks(one.start([0], 0.0))
    one.on_missing_range(0, first.replica, 0.0)
    (second,) = asks(one.on_map_fetched(shard_map(2, version("b"), version("a", "c2", 2)), 0.0))
    assert (one.version.content_id, second.replica.node) == ("c1", "b")


def test_a_content_that_is_cut_anew_is_another_one_to_a_request_under_way() -> None:
    """A file may name the same content in other ranges: the numbers of ranges say nothing then."""
    old, halves = shard_map(1, version("a")), version("b")
    whole = replace(halves, ranges=(replace(halves.ranges[0], stop=20),))
    one = reads(old)
    (first,) = asks(one.start([1], 0.0))
    one.on_missing_range(1, first.replica, 0.0)
    assert one.on_map_fetched(shard_map(2, whole), 0.0) == []
    assert one.outcome == "version_gone"


@for_each("replicas", ["ab", "abc", "abcdefgh"])
@for_each("ranges", range(1, 9))
def test_each_replica_of_each_range_is_asked_first_equally_often(replicas: str, ranges: int) -> None:
    choice, own = ReplicaChoice(), version(replicas).ranges[0].replicas
    asked = [[choice.order(own, 0.0)[0].node for _ in range(ranges)] for _ in range(400)]
    for first in zip(*asked, strict=True):
        for node in replicas:
            assert abs(first.count(node) - 400 / len(replicas)) < 12


def test_replicas_take_turns_and_those_that_failed_come_last_for_a_while() -> None:
    choice = ReplicaChoice()
    replicas = version("abc").ranges[0].replicas
    assert sorted(choice.order(replicas, 0.0)[0].node for _ in range(3)) == ["a", "b", "c"]
    choice.record_failure("b:80", 0.0)
    assert {choice.order(replicas, 0.1)[-1].node for _ in range(9)} == {"b"}
    assert {choice.order(replicas, FIRST_PAUSE)[0].node for _ in range(9)} == {"a", "b", "c"}
    choice.record_failure("b:80", 1.0)
    assert {choice.order(replicas, 0.9 + FIRST_PAUSE)[-1].node for _ in range(9)} == {"b"}
    choice.record_answer("b:80")
    assert {choice.order(replicas, 1.0)[0].node for _ in range(9)} == {"a", "b", "c"}


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


def test_a_read_is_slow_when_it_takes_longer_than_95_of_100() -> None:
    choice, rng = ReplicaChoice(), np.random.default_rng(1)
    for scale in (0.01, 0.1, 0.02):
        took = rng.exponential(scale, 4000).tolist()
        for seconds in took:
            choice.record_duration("a:80", seconds)
        slow = sum(seconds > choice.hedge_after("a:80") for seconds in took)
        assert 80 < slow < 400, "200 of 4000"
    for _ in range(2000):
        choice.record_duration("a:80", 0.0001)
    assert choice.hedge_after("a:80") == LEAST_P95, "less is noise"
    assert choice.hedge_after("b:80") == FIRST_P95, "nothing is known of it"


def test_a_shard_that_leaves_reads_unanswered_until_they_are_given_up_has_failed() -> None:
    replicas = version("ab").ranges[0].replicas

    def is_passed_over(choice: ReplicaChoice, now: float) -> bool:
        return {choice.order(replicas, now)[0].node for _ in range(4)} == {"b"}

    choice = ReplicaChoice()
    for now in (1.0, 1.1, 1.2):
        choice.record_drop("a:80", 0.01, now)
    assert not is_passed_over(choice, 1.2), "that is too soon"
    choice.record_drop("a:80", 0.01, 1.3)
    assert is_passed_over(choice, 1.3)
    choice = ReplicaChoice()
    for now in range(1, 9):
        choice.record_drop("a:80", LEAST_P95 / 2, now)
        choice.record_drop("a:80", 1.0, now)
        choice.record_drop("a:80", 1.0, now + 0.2)
        choice.record_answer("a:80")
    assert not is_passed_over(choice, 9.0), "it answers now and then"


def test_few_reads_are_hedged_also_when_all_are_slow() -> None:
    choice = ReplicaChoice()
    replicas = version("ab").ranges[0].replicas
    hedged = 0
    for _ in range(1000):
        asked, other = choice.order(replicas, 0.0)
        hedged += choice.may_hedge(asked.address, other.address)
    assert 0.03 * 1000 < hedged < 0.05 * 1000 + SAVED_HEDGES


def test_a_read_is_hedged_only_by_a_replica_that_does_not_fail() -> None:
    choice = ReplicaChoice()
    one = reads(shard_map(1, version()), choice)
    (first,) = asks(one.start([0], 0.0))
    (other,) = (replica for replica in version().ranges[0].replicas if replica != first.replica)
    choice.record_failure(other.address, 0.0)
    assert one.hedge(0, 0.1) is None
    choice.record_answer(other.address)
    assert one.hedge(0, 0.1) is not None


def test_a_replica_at_a_new_address_counts_as_another_one() -> None:
    moved = replace(version("a").ranges[0].replicas[0], address="a:81")
    choice = ReplicaChoice()
    choice.record_failure("a:80", 0.0)
    assert choice.order((version("a").ranges[0].replicas[0], moved), 0.0)[0] == moved


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
