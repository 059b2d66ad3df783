"""What a planner decides of ranges that take scatters: additions, removals, and who has lost its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.cluster.catalogue.ranges import PROPOSED, fail_over, join_in_sync, lose_rows, open_ranges
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
from app.cluster.reconciler.cluster_status import status_of
from app.cluster.reconciler.cluster_view import ClusterView, HeldSegment, Holding
from app.cluster.reconciler.moves import apply_moves
from app.cluster.reconciler.open_moves import JOIN_S
from app.cluster.reconciler.plan import Plan, Planner
from app.tensors.dtypes import DTYPES
from tests.cluster.catalogue.applying import applied, stands
from tests.conftest import samples

TENSOR = "x.0-10"
NODES = "abcde"


def catalogue_of(
    nodes: str = "ab",
    opened: RangeRecord | None = RangeRecord(4, "a", ("a", "b")),  # noqa: B008  (it is immutable)
    *,
    alive: str = NODES,
    drained: str = "",
    replicas: int = 2,
    zones: Mapping[str, str] | None = None,
    options: Options | None = None,
    capacity: int = 1000,
) -> Catalogue:
    """Shards a to e, and the only segment of the table items on some of them, whose range is open."""
    segment = Segment(0, 10, 40, tuple(nodes), "d")
    version = Version(1, "x", DTYPES["float32"], (10,), (segment,), 1, "", 40)
    records: dict[str, Record | None] = {
        f"nodes/{node}": Node(f"{node}:80", capacity, (zones or {}).get(node, "")) for node in NODES
    }
    records |= {f"alive/{node}": Mark() for node in alive} | {f"drained/{node}": Mark() for node in drained}
    records |= {"options": options or Options(), "reconciler": Mark("me")}
    records |= {"tables/items": Table((version,), 1, 1, replicas)}
    if opened is not None:
        records[f"ranges/{TENSOR}"] = opened
    return applied(Catalogue(), Change(records))


@dataclass
class Cluster:
    """A planner and a catalogue. Shards hold what `held` says, changed by scatters, so with digests of their own."""

    catalogue: Catalogue
    held: set[str] = field(default_factory=lambda: set("ab"))
    planner: Planner = field(default_factory=Planner)
    now: float = 0.0

    @property
    def nodes(self) -> str:
        return "".join(self.catalogue.tables["items"].versions[0].segments[0].nodes)

    @property
    def record(self) -> RangeRecord:
        return self.catalogue.ranges[TENSOR]

    def view(self, unlisted: Sequence[str] = ()) -> ClusterView:
        fence, revision = self.catalogue.revisions["reconciler"], self.catalogue.revision
        holdings = {
            node: Holding(fence, revision, {TENSOR: HeldSegment(40, node)} if node in self.held else {})
            for node in self.catalogue.alive
            if node not in unlisted
        }
        return ClusterView(self.catalogue, holdings)

    def plan(self, unlisted: Sequence[str] = ()) -> Plan:
        return self.planner.plan(self.view(unlisted), self.now)

    def round(self) -> Plan:
        """One round: flips are made, and so are the losses of rows."""
        plan = self.plan()
        self.put(apply_moves(self.catalogue, plan.flips))
        for tensor, node in plan.lost_rows.items():
            self.put(lose_rows(self.catalogue, tensor, node))
        return plan

    def put(self, change: Change | None) -> None:
        self.catalogue = applied(self.catalogue, change)

    def join(self, node: str) -> None:
        self.held.add(node)
        self.put(join_in_sync(self.catalogue, TENSOR, self.record.epoch, node))


@pytest.mark.parametrize("copies_at_once", [1, 4])
def test_a_shard_that_does_not_join_in_time_is_replaced(copies_at_once: int) -> None:
    cluster = Cluster(catalogue_of(alive="acde"), planner=Planner(copies_at_once=copies_at_once))
    cluster.round()
    assert cluster.nodes == "abc"
    cluster.round()
    cluster.now = JOIN_S - 1
    assert cluster.round().flips == ()
    cluster.now = JOIN_S + 60
    cluster.round()
    assert cluster.nodes == "abcd"
    cluster.join("d")
    for _ in range(2):
        cluster.round()
    assert cluster.nodes == "ad"


def test_nobody_is_late_while_there_is_no_primary_to_copy_from() -> None:
    cluster = Cluster(catalogue_of("ab", RangeRecord(5, "a", ("a",)), alive="bc"))
    for now in (0.0, 10 * JOIN_S):
        cluster.now = now
        cluster.round()
        assert cluster.nodes == "abc"


def test_rows_that_are_lost_before_a_primary_has_begun_come_from_where_uploaded_rows_come_from() -> None:
    cluster = Cluster(catalogue_of("a", RangeRecord(PROPOSED, "a", ("a",)), replicas=1), held=set())
    (pull,) = cluster.round().pulls
    assert (pull.node, pull.tensor, pull.order.sha256) == ("a", TENSOR, "d")
    assert cluster.record == RangeRecord(PROPOSED, "a", ("a",))
    cluster.held.add("a")
    assert cluster.round() == Plan()


def test_a_list_from_before_a_shard_joined_does_not_say_that_it_has_lost_its_rows() -> None:
    cluster = Cluster(catalogue_of("abc"), held={"a", "b"})
    old = cluster.view().holdings
    cluster.join("c")
    assert Planner().plan(ClusterView(cluster.catalogue, old), 0.0).lost_rows == {}


def test_the_last_replica_in_sync_is_kept_though_its_rows_are_lost_and_what_others_have_is_not_dropped() -> None:
    cluster = Cluster(catalogue_of(opened=RangeRecord(4, "a", ("a",))), held={"b", "e"})
    cluster.planner.drop_after = 0.0
    assert cluster.round().drops == ()
    assert cluster.record == RangeRecord(4, "a", ("a",))


def test_a_move_of_a_closed_range_is_given_up_when_it_opens() -> None:
    catalogue = catalogue_of(opened=None, alive="acde")
    fence, revision = catalogue.revisions["reconciler"], catalogue.revision
    holdings = {node: Holding(fence, revision, {TENSOR: HeldSegment(40, "d")}) for node in "ac"}
    found = Planner().plan(ClusterView(catalogue, holdings), 0.0).flips
    change = apply_moves(catalogue, found)
    assert change is not None
    opened = applied(catalogue, open_ranges(catalogue, "items", 1))
    assert not stands(catalogue, change, opened)
    assert apply_moves(opened, found) is None


def test_a_removal_is_for_the_epoch_that_it_was_made_for() -> None:
    cluster = Cluster(catalogue_of("abc", RangeRecord(4, "a", ("a", "b", "c")), drained="a"), held=set("abc"))
    (move,) = cluster.plan().flips
    change = apply_moves(cluster.catalogue, (move,))
    assert change is not None
    later = applied(cluster.catalogue, Change({f"ranges/{TENSOR}": RangeRecord(5, "a", ("a", "b"))}))
    assert not stands(cluster.catalogue, change, later)
    assert apply_moves(later, (move,)) is None


def test_an_open_range_is_not_cut_in_two() -> None:
    assert Cluster(catalogue_of(options=Options(segment_bytes=39))).plan() == Plan()


def test_two_replicas_in_one_zone_are_parted() -> None:
    cluster = Cluster(catalogue_of(zones={"a": "1", "b": "1", "c": "2", "d": "1", "e": "1"}))
    cluster.round()
    assert cluster.nodes == "abc"
    assert cluster.round().flips == ()
    cluster.join("c")
    cluster.round()
    assert len({cluster.nodes} & {"ac", "bc"}) == 1
    assert cluster.round() == Plan()


def test_the_status_says_who_is_primary_and_who_is_in_sync() -> None:
    cluster = Cluster(catalogue_of("abc", RangeRecord(4, "b", ("a", "b"))))
    (table,) = status_of(cluster.catalogue, {})["tables"]
    (one,) = table["ranges"]
    assert (one["primary"], one["in_sync"], one["epoch"]) == ("b", ["a", "b"], 4)
    (table,) = status_of(catalogue_of(opened=None), {})["tables"]
    assert "primary" not in table["ranges"][0]


# Any order


@given(st.data())
@settings(max_examples=samples(240), deadline=None)
def test_whatever_happens_rows_in_sync_are_never_given_up_and_the_range_becomes_well(data: st.DataObject) -> None:
    draw = data.draw
    cluster = Cluster(catalogue_of("abc", RangeRecord(2, "a", ("a", "b", "c")), replicas=3), held=set("abc"))
    cluster.planner.drop_after = 0.0
    for _ in range(draw(st.integers(1, 20))):
        node = draw(st.sampled_from(NODES))
        before = cluster.record
        match draw(st.integers(0, 5)):
            case 0:
                cluster.put(Change({f"alive/{node}": None if node in cluster.catalogue.alive else Mark()}))
            case 1:
                cluster.put(Change({f"drained/{node}": None if node in cluster.catalogue.drained else Mark()}))
            case 2:
                cluster.put(fail_over(cluster.catalogue))
            case 3 if node in cluster.nodes and cluster.record.primary in cluster.catalogue.alive:
                cluster.join(node)
            case _:
                plan = cluster.round()
                for drop in plan.drops:
                    assert drop.node not in cluster.record.in_sync
                    assert drop.node not in cluster.nodes
                    cluster.held.discard(drop.node)
        assert cluster.record.primary in cluster.record.in_sync
        assert set(cluster.record.in_sync) <= set(cluster.nodes)
        assert set(cluster.record.in_sync) <= cluster.held
        assert cluster.record == before or cluster.record.epoch == before.epoch + 1
    cluster.put(Change({f"alive/{node}": Mark() for node in NODES} | {f"drained/{node}": None for node in NODES}))
    for _ in range(20):
        cluster.now += 10
        cluster.round()
        for node in cluster.nodes:
            cluster.join(node)
    assert len(cluster.nodes) == len(cluster.record.in_sync) == 3
    assert cluster.plan().flips == ()
