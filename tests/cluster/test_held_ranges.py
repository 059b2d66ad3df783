"""A shard's side of the protocol, order by order."""

from __future__ import annotations

import pytest

from app.cluster.coordinator.messages import Drop, Held, Hold, NotHeld, RangeKey, Stamp
from app.cluster.shard.held_ranges import Copy, HeldRanges, Remove, SetStamp, StoredRange

KEY = RangeKey("c1", 0, 10)
STORED = StoredRange(KEY, 40, "d")
SOURCES = ("b:1", "c:1")


def order(number: int, *, sources: tuple[str, ...] = SOURCES, url: str = "", digest: str = "d") -> Hold:
    return Hold(KEY, Stamp(1, number), 40, sources, url, digest)


def shard(*stamps: Stamp, capacity: int = 100, digest: str = "d") -> HeldRanges:
    """A shard that has the range on its disk with the stamp that is given, or does not have it."""
    one = HeldRanges("a", "a:1", 1, capacity)
    for stamp in stamps:
        one.appeared(StoredRange(KEY, 40, digest), stamp)
    return one


def held(number: int) -> Held:
    return Held("a", KEY, Stamp(1, number), "d")


def test_a_range_is_copied_and_told_only_when_it_is_durable() -> None:
    one = shard()
    (copy,) = one.hold(order(1))
    assert isinstance(copy, Copy)
    assert (copy.source, copy.url, copy.digest) == ("b:1", "", "d")
    assert one.hold(order(1)) == []
    assert KEY not in one.whole
    assert one.copied(copy, "d") == []
    assert KEY in one.whole
    assert one.hold(order(1)) == [held(1)]


def test_a_copy_that_fails_is_made_from_the_next_source_and_then_the_url() -> None:
    one = shard()
    ways = []
    for _ in range(4):
        (copy,) = one.hold(order(1, url="https://host/x"))
        assert isinstance(copy, Copy)
        ways.append(copy.source or copy.url)
        one.not_copied(copy)
    assert ways == ["b:1", "c:1", "https://host/x", "b:1"]


def test_a_later_order_for_a_range_that_is_there_is_told_only_when_its_stamp_is_durable() -> None:
    one = shard(Stamp(1, 1))
    assert one.hold(order(5)) == [SetStamp(KEY, Stamp(1, 5))]
    assert one.hold(order(5)) == [SetStamp(KEY, Stamp(1, 5))]
    one.stamped(KEY, Stamp(1, 5))
    assert one.hold(order(5)) == [held(5)]


def test_an_order_to_drop_is_not_heeded_after_a_later_one_to_hold() -> None:
    one = shard(Stamp(1, 1))
    one.hold(order(5))
    assert one.drop(Drop(KEY, Stamp(1, 4))) == []
    assert KEY in one.whole
    assert one.drop(Drop(KEY, Stamp(1, 6))) == [Remove(KEY)]
    assert KEY not in one.whole


def test_terms_count_before_numbers() -> None:
    one = shard(Stamp(2, 1))
    assert one.drop(Drop(KEY, Stamp(1, 99))) == []
    assert one.drop(Drop(KEY, Stamp(3, 1))) == [Remove(KEY)]


def test_an_old_order_to_hold_is_not_heeded() -> None:
    one = shard(Stamp(1, 5))
    assert one.hold(order(4)) == []


def test_what_arrives_after_a_drop_is_removed() -> None:
    one = shard()
    (copy,) = one.hold(order(1))
    assert isinstance(copy, Copy)
    assert one.drop(Drop(KEY, Stamp(1, 2))) == [Remove(KEY)]
    assert one.copied(copy, "d") == [Remove(KEY)]
    assert KEY not in one.whole


def test_a_copy_from_before_a_drop_does_not_make_the_range_whole_again() -> None:
    """Between the two a Remove is on its way to the disk."""
    one = shard()
    (old,) = one.hold(order(1))
    one.drop(Drop(KEY, Stamp(1, 2)))
    (new,) = one.hold(order(3))
    assert isinstance(old, Copy)
    assert isinstance(new, Copy)
    assert one.copied(old, "d") == []
    assert KEY not in one.whole
    one.copied(new, "d")
    assert one.hold(order(3)) == [held(3)]


def test_a_range_with_other_rows_than_ordered_is_removed_and_copied() -> None:
    one = shard(Stamp(1, 1), digest="damaged")
    removed, copy = one.hold(order(2))
    assert removed == Remove(KEY)
    assert isinstance(copy, Copy)
    assert KEY not in one.whole


def test_without_room_it_says_so() -> None:
    one = shard(capacity=39)
    assert one.hold(order(1)) == [NotHeld("a", KEY, Stamp(1, 1))]
    assert one.inventory().held == ()


def test_an_order_without_a_source_waits_for_the_router() -> None:
    one = shard()
    assert one.hold(order(1, sources=(), digest="")) == []
    assert [(found.key, found.whole) for found in one.inventory().held] == [(KEY, False)]


@pytest.mark.parametrize("times", [1, 3])
def test_each_inventory_is_later_than_the_one_before(times: int) -> None:
    one = shard(Stamp(1, 1))
    counts = [one.inventory().count for _ in range(times)]
    assert counts == sorted(set(counts))
    assert one.inventory().held[0].whole


def test_rows_that_a_router_put_are_found_in_the_list_and_told_once_they_are_ordered() -> None:
    one = shard()
    assert one.hold(Hold(KEY, Stamp(1, 1), 40)) == []
    assert one.awaits_rows
    assert one.appeared(STORED) == [SetStamp(KEY, Stamp(1, 1))]
    assert one.answer(KEY) is None
    one.stamped(KEY, Stamp(1, 1))
    assert one.answer(KEY) == Held("a", KEY, Stamp(1, 1), "d")
    assert not one.awaits_rows
    assert one.appeared(STORED) == []


def test_rows_that_nobody_ordered_are_told_of_and_dropped_by_any_order() -> None:
    one = shard()
    assert one.appeared(STORED) == []
    assert one.whole == {KEY}
    assert [held.stamp for held in one.inventory().held] == [Stamp(0, 0)]
    assert one.drop(Drop(KEY, Stamp(1, 1))) == [Remove(KEY)]


def test_rows_that_are_gone_from_the_list_are_asked_for_again() -> None:
    one = shard()
    one.appeared(STORED)
    one.disappeared(KEY)
    assert KEY not in one.whole
    (copy,) = one.hold(Hold(KEY, Stamp(1, 1), 40, ("b:1",)))
    assert isinstance(copy, Copy)
    assert one.appeared(STORED) == []  # the copy itself will say so
