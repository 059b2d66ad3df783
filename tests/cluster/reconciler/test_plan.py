"""What a planner decides, of catalogues and lists that are made up: which moves, pulls, drops and flips."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from app.cluster.catalogue.records import Catalogue, Mark, Node, Options, Segment, Table, UploadRecord, Version
from app.cluster.key_placement import KeyPlacement
from app.cluster.reconciler.cluster_status import status_of
from app.cluster.reconciler.cluster_view import ClusterView, HeldSegment, Holding
from app.cluster.reconciler.moves import apply_moves
from app.cluster.reconciler.plan import AGAIN_AFTER_S, DROP_AFTER_S, Drop, Plan, Planner
from app.cluster.shard.pull_order import PullOrder, PullSource
from app.tensors.dtypes import DTYPES
from tests.cluster.catalogue.applying import applied, stands

FENCE = 7
TENSOR = "x.0-10"
WHOLE = HeldSegment(40, "d")
ALL = Segment(0, 10, 40, ("a", "b"), "d")


def catalogue_of(
    *segments: Segment,
    alive: str = "abc",
    drained: str = "",
    replicas: int | None = None,
    zones: Mapping[str, str] | None = None,
    capacity: int = 1000,
    options: Options | None = None,
) -> Catalogue:
    """A cluster of four shards with one table of ten rows."""
    version = Version(1, "x", DTYPES["float32"], (10,), segments or (ALL,), 1, "", 40, "https://host/items")
    nodes = {name: Node(f"{name}:80", capacity, (zones or {}).get(name, "")) for name in "abcd"}
    return Catalogue(
        revision=9,
        options=options or Options(),
        tables={"items": Table((version,), 1, 1, replicas)},
        nodes=nodes,
        alive=frozenset(alive),
        drained=frozenset(drained),
        reconciler=Mark("me"),
        revisions={"reconciler": FENCE, "tables/items": 3},
    )


def view_of(catalogue: Catalogue, fence: int = FENCE, revision: int = 9, **held: Sequence[str]) -> ClusterView:
    """Lists of the shards that are named, with the segments that they have whole."""
    return ClusterView(
        catalogue,
        {node: Holding(fence, revision, dict.fromkeys(tensors, WHOLE)) for node, tensors in held.items()},
    )


def planned(catalogue: Catalogue, planner: Planner | None = None, now: float = 0.0, **held: Sequence[str]) -> Plan:
    return (planner or Planner()).plan(view_of(catalogue, FENCE, 9, **held), now)


def flipped(catalogue: Catalogue, plan: Plan) -> tuple[Segment, ...]:
    """The segments of the table after the flips of a plan."""
    change = apply_moves(catalogue, plan.flips)
    assert change is not None
    assert "reconciler" in change.unchanged
    return applied(catalogue, change).tables["items"].versions[0].segments


def test_a_lost_shard_is_replaced_once_the_copy_is_whole() -> None:
    planner, catalogue = Planner(), catalogue_of(alive="bcd")
    plan = planned(catalogue, planner, b=[TENSOR], c=[], d=[])
    (pull,) = plan.pulls
    assert (pull.node, pull.tensor, plan.flips) == ("c", TENSOR, ())
    assert pull.order.sources == (PullSource("b:80", TENSOR, node="b"),)
    assert (pull.order.sha256, pull.order.size, pull.order.shape) == ("d", 40, (10,))
    assert (pull.order.origin, pull.order.origin_rows) == ("https://host/items", (0, 10))
    assert planned(catalogue, planner, b=[TENSOR], c=[], d=[]) == plan
    done = planned(catalogue, planner, b=[TENSOR], c=[TENSOR], d=[])
    assert (done.pulls, flipped(catalogue, done)) == ((), (replace(ALL, nodes=("c", "b")),))


def test_only_lists_that_showed_this_fence_count() -> None:
    catalogue = catalogue_of(alive="bcd")
    view = view_of(catalogue, fence=FENCE - 1, b=[TENSOR], c=[TENSOR], d=["y.0-1"])
    assert Planner(drop_after=0).plan(view, 0.0) == Plan()


def test_a_copy_with_another_digest_is_not_whole() -> None:
    catalogue = catalogue_of(alive="bc")
    held = {"b": {TENSOR: WHOLE}, "c": {TENSOR: HeldSegment(40, "other")}}
    view = ClusterView(catalogue, {node: Holding(FENCE, 9, own) for node, own in held.items()})
    plan = Planner().plan(view, 0.0)
    assert ([pull.node for pull in plan.pulls], plan.flips) == (["c"], ())


def test_a_list_from_before_a_publishing_does_not_say_that_a_shard_has_lost_it() -> None:
    assert Planner().plan(view_of(catalogue_of(), revision=2, a=[], b=[]), 0.0) == Plan()


def test_a_failed_copy_goes_to_another_shard_and_later_to_the_same() -> None:
    planner, catalogue = Planner(), catalogue_of(alive="bcd")

    def targets(now: float) -> list[str]:
        return [pull.node for pull in planned(catalogue, planner, now, b=[TENSOR], c=[], d=[]).pulls]

    assert targets(0.0) == ["c"]
    planner.pull_failed("c", TENSOR, 1.0)
    assert targets(2.0) == ["d"]
    planner.pull_failed("d", TENSOR, 3.0)
    assert targets(4.0) == []
    assert targets(1.0 + AGAIN_AFTER_S) == ["c"]


def test_a_copy_is_given_up_when_its_shard_is_lost_or_the_old_one_is_back() -> None:
    planner = Planner()

    def targets(alive: str) -> list[str]:
        plan = planned(catalogue_of(alive=alive), planner, a=[TENSOR], b=[TENSOR], c=[], d=[])
        return [pull.node for pull in plan.pulls]

    assert targets("bcd") == ["c"]
    assert targets("bd") == ["d"]
    assert targets("abcd") == []


def test_a_replica_that_only_shares_its_zone_moves_to_another_zone() -> None:
    zones = {"a": "east", "b": "east", "c": "west"}
    (pull,) = planned(catalogue_of(zones=zones), a=[TENSOR], b=[TENSOR], c=[]).pulls
    assert pull.node == "c"
    assert planned(catalogue_of(zones=dict.fromkeys("abc", "east")), a=[TENSOR], b=[TENSOR], c=[]) == Plan()


def test_a_large_segment_is_cut_in_two_where_both_halves_are_whole_everywhere() -> None:
    planner, catalogue = Planner(), catalogue_of(options=Options(segment_bytes=39))
    halves = [(node, tensor) for tensor in ("x.0-5", "x.5-10") for node in "ab"]
    plan = planned(catalogue, planner, a=[TENSOR], b=[TENSOR], c=[])
    assert [(pull.node, pull.tensor) for pull in plan.pulls] == halves
    assert {pull.order.sources[0].rows for pull in plan.pulls} == {(0, 5), (5, 10)}
    assert {(pull.order.size, pull.order.sha256) for pull in plan.pulls} == {(20, "")}
    partly = planned(catalogue, planner, a=[TENSOR, "x.0-5", "x.5-10"], b=[TENSOR, "x.0-5"], c=[])
    assert ([(pull.node, pull.tensor) for pull in partly.pulls], partly.flips) == ([("b", "x.5-10")], ())
    assert partly.pulls[0].order.sha256 == "d", "the other replicas are to have what the first one has"
    both = [TENSOR, "x.0-5", "x.5-10"]
    done = planned(catalogue, planner, a=both, b=both, c=[])
    assert flipped(catalogue, done) == (Segment(0, 5, 40, ("a", "b"), "d"), Segment(5, 10, 40, ("a", "b"), "d"))


def test_a_segment_of_keys_is_copied_with_them_and_not_cut() -> None:
    hashed = "x.0-18446744073709551616"

    def keyed(alive: str) -> Catalogue:
        part = Segment(0, 1 << 64, 240, ("a", "b"), "d", 10)
        made = catalogue_of(part, alive=alive, options=Options(segment_bytes=100))
        version = replace(made.tables["items"].versions[0], keys=KeyPlacement("string", "00" * 16), origin="")
        return replace(made, tables={"items": Table((version,), 1, 1)})

    assert planned(keyed("abc"), a=[hashed], b=[hashed], c=[]) == Plan()
    (pull,) = planned(keyed("bcd"), b=[hashed], c=[], d=[]).pulls
    assert (pull.tensor, pull.order.shape, pull.order.size, pull.order.keys) == (hashed, (10,), 240, "string")
    assert PullOrder.from_json(pull.order.to_json()) == pull.order


def test_a_segment_without_room_for_its_halves_stays_whole() -> None:
    assert planned(catalogue_of(options=Options(segment_bytes=39), capacity=50), a=[TENSOR], b=[TENSOR]) == Plan()


def test_what_nobody_wants_is_dropped_after_a_while() -> None:
    planner, catalogue = Planner(), catalogue_of()
    catalogue = replace(catalogue, uploads={"y": UploadRecord("items", (Segment(0, 1, 4, ("c",)),))})

    def due(now: float) -> tuple[Drop, ...]:
        return planned(catalogue, planner, now, a=[TENSOR, "old.0-1"], b=[TENSOR], c=["y.0-1", TENSOR]).drops

    assert due(0.0) == due(DROP_AFTER_S - 0.1) == ()
    assert due(DROP_AFTER_S) == (Drop("a", "old.0-1"), Drop("c", TENSOR))


def test_as_many_copies_as_are_allowed_are_under_way_at_once() -> None:
    parts = tuple(Segment(row, row + 1, 4, ("a", "b"), "d") for row in range(10))
    held = [f"x.{row}-{row + 1}" for row in range(10)]
    assert len(planned(catalogue_of(*parts, alive="bc"), Planner(3), b=held, c=[]).pulls) == 3


def test_a_flip_is_for_the_segment_and_the_office_that_it_was_made_for() -> None:
    catalogue = catalogue_of(alive="bcd")
    planner = Planner()
    planned(catalogue, planner, b=[TENSOR], c=[], d=[])
    moves = planned(catalogue, planner, b=[TENSOR], c=[TENSOR], d=[]).flips
    assert apply_moves(catalogue_of(replace(ALL, nodes=("b", "d"))), moves) is None
    change = apply_moves(catalogue, moves)
    assert change is not None
    later = replace(catalogue, revisions={**catalogue.revisions, "reconciler": FENCE + 1})
    assert stands(catalogue, change, catalogue)
    assert not stands(catalogue, change, later)


def test_parts_that_lose_a_row_are_not_flipped() -> None:
    planner, catalogue = Planner(), catalogue_of(options=Options(segment_bytes=39))
    both = [TENSOR, "x.0-5", "x.5-10"]
    planned(catalogue, planner, a=[TENSOR], b=[TENSOR])
    (move,) = planned(catalogue, planner, a=both, b=both).flips
    with pytest.raises(ValueError, match="do not have the rows"):
        apply_moves(catalogue, (replace(move, parts=(move.parts[0], replace(move.parts[1], start=6))),))


def test_the_status_says_who_has_what() -> None:
    found = status_of(catalogue_of(alive="ab", drained="b"), {"a": {TENSOR: WHOLE}, "b": {}})
    assert [(one["node"], one["state"], one["bytes"]) for one in found["nodes"]] == [
        ("a", "serving", 40),
        ("b", "draining", 40),
        ("c", "lost", 0),
        ("d", "lost", 0),
    ]
    assert (found["short"], found["reconciler"]) == (1, "me")
    assert found["tables"][0]["ranges"] == [
        {"start": 0, "stop": 10, "bytes": 40, "replicas": [{"node": "a", "whole": True}, {"node": "b", "whole": False}]}
    ]


@pytest.mark.parametrize("alive", ["abc", "c"], ids=["shards that have lost it", "shards that do not run"])
def test_the_last_whole_replica_is_kept_though_the_catalogue_lists_only_other_shards(alive: str) -> None:
    """Shard c had the segment before it moved to a and b. No copy may be begun yet: others are under way."""
    planner, catalogue = Planner(copies_at_once=0, drop_after=0), catalogue_of(alive=alive)
    assert planned(catalogue, planner, a=[], b=[], c=[TENSOR]).drops == ()
    assert planned(catalogue_of(), planner, a=[], b=[TENSOR], c=[TENSOR]).drops == (Drop("c", TENSOR),)
