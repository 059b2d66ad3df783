"""How ranges that take scatters change: each rule by name. The simulation makes changes in any order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from app.cluster.catalogue import ranges, transitions
from app.cluster.catalogue.records import (
    Catalogue,
    Change,
    Mark,
    Node,
    Options,
    RangeRecord,
    Record,
    Segment,
    Table,
    Version,
)
from app.errors import GatherError
from app.tensors.dtypes import DTYPES
from tests.cluster.catalogue.applying import applied, stands

FIRST, SECOND = "x.0-5", "x.5-10"


def cluster(*nodes: str, alive: str = "abcd", replicas: int = 2, drained: str = "") -> Catalogue:
    """Shards a to d, and the table t, whose two segments are on the shards that are given."""
    segments = tuple(
        Segment(start, start + 5, 20, tuple(own), "d") for start, own in zip((0, 5), nodes or ("ab", "bc"), strict=True)
    )
    version = Version(1, "x", DTYPES["float32"], (10,), segments, 1, "all", 40)
    records: dict[str, Record | None] = {f"nodes/{name}": Node(f"{name}:1", 1000) for name in "abcd"}
    records |= {f"alive/{name}": Mark() for name in alive} | {f"drained/{name}": Mark() for name in drained}
    records |= {"options": Options(replicas=replicas), "tables/t": Table((version,), 1, 1)}
    return applied(Catalogue(), Change(records))


def opened(catalogue: Catalogue) -> Catalogue:
    return applied(catalogue, ranges.open_ranges(catalogue, "t", 1))


def put(catalogue: Catalogue, tensor: str, record: RangeRecord) -> Catalogue:
    return applied(catalogue, Change({f"ranges/{tensor}": record}))


def dead(catalogue: Catalogue, *nodes: str) -> Catalogue:
    return applied(catalogue, Change({f"alive/{node}": None for node in nodes}))


def with_nodes(catalogue: Catalogue, nodes: str) -> Catalogue:
    """The catalogue once the first segment is listed on other shards."""
    table = catalogue.tables["t"]
    (version,) = table.versions
    first, second = version.segments
    version = replace(version, segments=(replace(first, nodes=tuple(nodes)), second))
    return applied(catalogue, Change({"tables/t": replace(table, versions=(version,))}))


def refused(code: str, make: Callable[[], object]) -> None:
    with pytest.raises(GatherError) as refusal:
        make()
    assert refusal.value.code == code


# Opening


def test_the_first_scatter_opens_all_ranges_with_the_shards_that_run() -> None:
    catalogue = opened(cluster("abc", "bcd", alive="abd"))
    assert {tensor: (one.epoch, one.in_sync) for tensor, one in catalogue.ranges.items()} == {
        FIRST: (1, ("a", "b")),
        SECOND: (1, ("b", "d")),
    }
    assert all(one.primary in one.in_sync for one in catalogue.ranges.values())
    assert ranges.open_ranges(catalogue, "t", 1) is None


def test_a_drained_shard_is_primary_only_if_no_other_runs() -> None:
    for drained, alive, primaries in (("a", "abcd", "b"), ("b", "abcd", "a"), ("a", "ac", "a"), ("ab", "ab", "ab")):
        assert opened(cluster(drained=drained, alive=alive)).ranges[FIRST].primary in primaries


def test_a_range_without_a_shard_that_runs_stays_closed_and_opens_later() -> None:
    catalogue = opened(cluster("ab", "cd", alive="cd"))
    assert set(catalogue.ranges) == {SECOND}
    assert ranges.open_ranges(catalogue, "t", 1) is None
    later = opened(applied(catalogue, Change({"alive/b": Mark()})))
    assert later.ranges == {**catalogue.ranges, FIRST: RangeRecord(1, "b", ("b",))}


def test_ranges_do_not_open_beside_a_move_or_a_removal() -> None:
    catalogue = cluster()
    change = ranges.open_ranges(catalogue, "t", 1)
    assert change is not None
    assert stands(catalogue, change, catalogue)
    assert not stands(catalogue, change, with_nodes(catalogue, "bc"))
    gone = applied(catalogue, transitions.remove_versions(catalogue, "t"))
    assert not stands(catalogue, change, gone)
    refused("tensor_not_found", lambda: ranges.open_ranges(gone, "t", 1))
    refused("tensor_not_found", lambda: ranges.open_ranges(catalogue, "t", 2))


def test_many_ranges_open_in_several_changes_and_their_primaries_are_spread_over_shards() -> None:
    segments = tuple(Segment(row, row + 1, 4, ("a", "b", "c"), "d") for row in range(250))
    catalogue = cluster()
    version = replace(catalogue.tables["t"].versions[0], shape=(250,), segments=segments)
    catalogue = applied(catalogue, Change({"tables/t": Table((version,), 1, 1)}))
    sizes = []
    while change := ranges.open_ranges(catalogue, "t", 1):
        sizes.append(len(change.puts))
        catalogue = applied(catalogue, change)
    assert sizes == [100, 100, 50]
    assert min(sum(one.primary == node for one in catalogue.ranges.values()) for node in "abc") >= 50


# Leaving and joining


def test_a_replica_leaves_by_the_epoch_of_the_primary() -> None:
    catalogue = put(cluster("abc", "bc"), FIRST, RangeRecord(4, "b", ("a", "b", "c")))
    left = applied(catalogue, ranges.leave_in_sync(catalogue, FIRST, 4, frozenset("ac")))
    assert left.ranges[FIRST] == RangeRecord(5, "b", ("b",))
    assert ranges.leave_in_sync(left, FIRST, 4, frozenset("a")) is None, "it is asked again after a lost answer"
    refused("precondition_failed", lambda: ranges.leave_in_sync(catalogue, FIRST, 3, frozenset("a")))
    refused("precondition_failed", lambda: ranges.leave_in_sync(catalogue, FIRST, 4, frozenset("b")))
    refused("precondition_failed", lambda: ranges.leave_in_sync(catalogue, SECOND, 4, frozenset("a")))


def test_a_primary_that_was_replaced_takes_no_replica_out() -> None:
    catalogue = put(cluster("abc", "bc"), FIRST, RangeRecord(4, "b", ("a", "b", "c")))
    change = ranges.leave_in_sync(catalogue, FIRST, 4, frozenset("a"))
    assert change is not None
    after = dead(catalogue, "b")
    after = applied(after, ranges.fail_over(after))
    assert after.ranges[FIRST] == RangeRecord(5, "a", ("a", "b", "c"))
    assert not stands(catalogue, change, after)
    refused("precondition_failed", lambda: ranges.leave_in_sync(after, FIRST, 4, frozenset("a")))


def test_a_primary_raises_the_epoch_of_the_record_to_its_own() -> None:
    catalogue = put(cluster("abc", "bc"), FIRST, RangeRecord(4, "b", ("a", "b")))
    raised = applied(catalogue, ranges.raise_epoch(catalogue, FIRST, "b", 5))
    assert raised.ranges[FIRST] == RangeRecord(5, "b", ("a", "b"))
    assert ranges.raise_epoch(raised, FIRST, "b", 5) is None
    assert ranges.raise_epoch(raised, FIRST, "a", 6) is None, "it is not the primary"
    assert ranges.raise_epoch(raised, SECOND, "b", 6) is None, "it is closed"


def test_a_replica_joins_by_the_epoch_of_the_primary_if_the_segment_is_listed_on_it() -> None:
    catalogue = put(cluster("ab", "bc"), FIRST, RangeRecord(4, "b", ("b",)))
    joined = applied(catalogue, ranges.join_in_sync(catalogue, FIRST, 4, "a"))
    assert joined.ranges[FIRST] == RangeRecord(5, "b", ("b", "a"))
    assert ranges.join_in_sync(joined, FIRST, 4, "a") is None
    refused("precondition_failed", lambda: ranges.join_in_sync(catalogue, FIRST, 4, "c"))
    refused("precondition_failed", lambda: ranges.join_in_sync(catalogue, FIRST, 3, "a"))
    change = ranges.join_in_sync(catalogue, FIRST, 4, "a")
    assert change is not None
    assert not stands(catalogue, change, with_nodes(catalogue, "bc")), "it is taken off the list meanwhile"


def test_a_replica_without_its_rows_leaves_and_another_one_is_primary() -> None:
    catalogue = put(cluster("abc", "bc"), FIRST, RangeRecord(4, "b", ("a", "b", "c")))
    assert applied(catalogue, ranges.lose_rows(catalogue, FIRST, "c")).ranges[FIRST] == RangeRecord(5, "b", ("a", "b"))
    assert applied(catalogue, ranges.lose_rows(catalogue, FIRST, "b")).ranges[FIRST] == RangeRecord(5, "a", ("a", "c"))
    catalogue = dead(catalogue, "a")
    assert applied(catalogue, ranges.lose_rows(catalogue, FIRST, "b")).ranges[FIRST] == RangeRecord(5, "c", ("a", "c"))
    catalogue = dead(catalogue, "c")
    lost = applied(catalogue, ranges.lose_rows(catalogue, FIRST, "b"))
    assert lost.ranges[FIRST] == RangeRecord(5, "a", ("a", "c")), "it waits for one that has all scatters"
    assert ranges.lose_rows(lost, FIRST, "b") is None


def test_before_a_primary_has_begun_each_shard_of_the_segment_with_its_rows_may_be_it() -> None:
    catalogue = put(cluster("abc", "bc"), FIRST, RangeRecord(ranges.PROPOSED, "b", ("b",)))
    assert ranges.join_unled_range(catalogue, FIRST, "b") is None
    assert ranges.join_unled_range(catalogue, FIRST, "d") is None, "the segment is not listed on it"
    assert ranges.join_unled_range(catalogue, SECOND, "c") is None, "it is closed"
    change = ranges.join_unled_range(catalogue, FIRST, "c")
    assert change is not None
    assert not stands(catalogue, change, with_nodes(catalogue, "ab")), "it is taken off the list meanwhile"
    joined = applied(catalogue, change)
    assert joined.ranges[FIRST] == RangeRecord(1, "b", ("b", "c"))
    lost = applied(joined, ranges.lose_rows(joined, FIRST, "b"))
    assert lost.ranges[FIRST] == RangeRecord(1, "c", ("c",))
    failed = applied(dead(joined, "b"), ranges.fail_over(dead(joined, "b")))
    assert failed.ranges[FIRST] == RangeRecord(1, "c", ("b", "c"))
    begun = put(catalogue, FIRST, RangeRecord(2, "b", ("b",)))
    assert ranges.join_unled_range(begun, FIRST, "c") is None, "it has to ask the primary"


def test_a_proposed_range_whose_shards_have_all_lost_their_rows_comes_to_rest() -> None:
    catalogue = put(cluster("abc", "bc"), FIRST, RangeRecord(ranges.PROPOSED, "b", ("a", "b", "c")))
    changes = 0
    for _ in range(4):
        for node in "abc":
            for change in (ranges.lose_rows(catalogue, FIRST, node), ranges.fail_over(catalogue)):
                changes += change is not None
                catalogue = applied(catalogue, change)
    assert changes == 2
    back = applied(catalogue, ranges.join_unled_range(catalogue, FIRST, "a"))
    back = applied(back, ranges.lose_rows(back, FIRST, back.ranges[FIRST].primary))
    assert back.ranges[FIRST] == RangeRecord(1, "a", ("a",))


# Failover


def test_a_lost_primary_is_replaced_by_a_replica_in_sync_that_runs() -> None:
    catalogue = dead(put(cluster("abcd", "bc"), FIRST, RangeRecord(4, "a", ("a", "b", "c"))), "a", "b")
    catalogue = applied(catalogue, ranges.fail_over(catalogue))
    assert catalogue.ranges[FIRST] == RangeRecord(5, "c", ("a", "b", "c")), "the primary has those leave that are lost"
    assert ranges.fail_over(catalogue) is None


def test_a_shard_that_is_drained_comes_last() -> None:
    catalogue = put(cluster("abc", "bc", drained="b"), FIRST, RangeRecord(4, "a", ("a", "b", "c")))
    catalogue = dead(catalogue, "a")
    assert applied(catalogue, ranges.fail_over(catalogue)).ranges[FIRST] == RangeRecord(5, "c", ("a", "b", "c"))


# Removal


def test_ranges_of_versions_that_are_removed_are_closed() -> None:
    catalogue = opened(cluster())
    assert ranges.close_ranges(catalogue) is None
    leaving = ranges.leave_in_sync(catalogue, FIRST, 1, frozenset("ab") - {catalogue.ranges[FIRST].primary})
    assert leaving is not None
    gone = applied(catalogue, transitions.remove_versions(catalogue, "t"))
    closed = applied(gone, ranges.close_ranges(gone))
    assert closed.ranges == {}
    assert not stands(catalogue, leaving, closed)
    refused("precondition_failed", lambda: ranges.leave_in_sync(closed, FIRST, 1, frozenset("a")))
    refused("precondition_failed", lambda: ranges.join_in_sync(closed, FIRST, 1, "a"))


def test_a_shard_is_forgotten_only_if_another_one_in_sync_runs() -> None:
    catalogue = dead(put(cluster("abc", "bc"), FIRST, RangeRecord(4, "b", ("a", "b"))), "a")
    change = transitions.forget_node(catalogue, "a")
    assert change is not None
    later = put(catalogue, FIRST, RangeRecord(5, "a", ("a",)))
    assert not stands(catalogue, change, later)
    refused("tensor_in_use", lambda: transitions.forget_node(later, "a"))
