"""When a primary may act, what is committed, and who joins."""

from __future__ import annotations

from app.cluster.catalogue.records import RangeRecord
from app.cluster.replication.primary import (
    SHIP_S,
    Join,
    JoinAnswer,
    Round,
    Standing,
    Step,
    append_of,
    begin_round,
    may_acknowledge,
    on_join,
    standing,
)
from app.cluster.replication.replica import Append, Appended, Refused, ReplicaState, Why

RANGE = RangeRecord(3, "a", ("a", "b", "c"))


def begun(tail: tuple[int, ...] = (3,)) -> Round:
    return begin_round(RANGE, ReplicaState(3, 5, tail), now=100.0)


def test_a_shard_creates_records_only_as_primary_at_the_epoch_of_the_catalogue() -> None:
    assert standing(None, "a", ReplicaState(3, 5), 3) is Standing.NOT_PRIMARY
    assert standing(RANGE, "b", ReplicaState(3, 5), 3) is Standing.NOT_PRIMARY
    assert standing(RANGE, "a", None, 3) is Standing.NO_ROWS
    assert standing(RANGE, "a", ReplicaState(2, 5), 3) is Standing.RAISE_OWN
    assert standing(RANGE, "a", ReplicaState(4, 5), 3) is Standing.RAISE_RECORD
    assert standing(RANGE, "a", ReplicaState(3, 5), 3) is Standing.READY


def test_a_primary_that_begins_or_has_a_tail_resolves_first() -> None:
    assert standing(RANGE, "a", ReplicaState(3, 5), 0) is Standing.RESOLVE
    assert standing(RANGE, "a", ReplicaState(3, 5), 2) is Standing.RESOLVE
    assert standing(RANGE, "a", ReplicaState(3, 5, (2,)), 3) is Standing.RESOLVE


def test_committed_is_what_every_replica_in_sync_has() -> None:
    some = begun().with_answer("b", Appended(3, 5, 6))
    assert some.step(100.1) is Step.WAIT
    assert some.with_answer("c", Appended(3, 5, 5)).step(100.1) is Step.WAIT
    assert some.with_answer("c", Appended(3, 5, 6)).step(100.1) is Step.COMMITTED


def test_a_primary_alone_in_sync_commits_at_once() -> None:
    alone = begin_round(RangeRecord(3, "a", ("a",)), ReplicaState(3, 5, (3,)), now=0.0)
    assert alone.step(0.0) is Step.COMMITTED


def test_a_replica_that_is_late_or_lost_counts_until_the_catalogue_has_let_it_go() -> None:
    some = begun().with_answer("b", Appended(3, 5, 6))
    assert (some.step(100.0 + SHIP_S), some.replicas_to_remove(100.0 + SHIP_S)) == (Step.LEAVE, frozenset("c"))
    lost = some.with_failure("c")
    for one in (lost, lost.with_members(RANGE)):
        assert (one.step(100.1), one.replicas_to_remove(100.1)) == (Step.LEAVE, frozenset("c"))
    assert lost.with_members(RangeRecord(4, "a", ("a", "b"))).step(100.1) is Step.COMMITTED


def test_a_gap_is_filled_and_other_refusals_lose_the_replica() -> None:
    assert begun().with_answer("b", Refused(Why.GAP, 3, 4)).failed == frozenset()
    assert begun().with_answer("b", Refused(Why.NO_ROWS, 0, 0)).failed == {"b"}


def test_a_round_ends_without_a_commit_once_another_shard_is_primary() -> None:
    whole = begun().with_answer("b", Appended(3, 5, 6)).with_answer("c", Appended(3, 5, 6))
    assert begun().with_answer("b", Refused(Why.STALE, 4, 5)).step(100.0) is Step.STOP
    assert whole.with_members(RangeRecord(4, "b", ("b", "c"))).step(100.0) is Step.STOP
    assert whole.with_members(None).step(100.0) is Step.STOP


def test_a_round_ends_if_a_replica_has_joined_that_it_does_not_ship_to() -> None:
    whole = begun().with_answer("b", Appended(3, 5, 6)).with_answer("c", Appended(3, 5, 6))
    assert whole.with_members(RangeRecord(4, "a", ("a", "b", "c", "d"))).step(100.0) is Step.STOP


def test_a_record_of_an_older_catalogue_changes_nothing() -> None:
    assert begun().with_members(RangeRecord(2, "b", ("b", "d"))) == begun()


def test_a_primary_whose_rows_were_restored_from_an_older_copy_does_not_lead() -> None:
    """Replicas have applied a record 7: they would take the primary's next records for those that they have."""
    behind = begun().with_answer("b", Appended(3, 7, 7)).with_answer("c", Appended(3, 7, 7))
    assert behind.step(100.0) is Step.BEHIND


def test_answers_from_before_the_round_do_not_count() -> None:
    alone = begin_round(RangeRecord(3, "a", ("a", "b")), ReplicaState(3, 5, (3,)), now=0.0)
    assert alone.with_answer("b", Appended(2, 5, 6)).step(0.0) is Step.WAIT


def test_below_min_in_sync_nobody_is_answered() -> None:
    assert may_acknowledge(RANGE, 2)
    assert not may_acknowledge(RangeRecord(4, "a", ("a",)), 2)


def test_a_message_says_which_record_comes_before() -> None:
    state = ReplicaState(3, 5, (2, 3), applied_epoch=1)
    assert append_of(state, 5, (2, 3)) == Append(3, 5, 1, 5, 7, (2, 3))
    assert append_of(state, 6, (3,)) == Append(3, 6, 2, 5, 7, (3,))


def judged(join: ReplicaState | None, node: str = "d", stands: Standing = Standing.READY) -> JoinAnswer:
    return on_join(RANGE, stands, ReplicaState(3, 9), Join(node, join), log_start=4)


def test_a_replica_joins_with_all_that_is_committed() -> None:
    assert judged(ReplicaState(2, 9)) is JoinAnswer.ADMIT
    assert judged(ReplicaState(2, 8, (2,))) is JoinAnswer.RECORDS
    assert judged(ReplicaState(2, 3)) is JoinAnswer.COPY
    assert judged(None) is JoinAnswer.COPY


def test_nobody_joins_a_primary_that_is_not_ready_or_was_deposed() -> None:
    assert judged(ReplicaState(2, 9), stands=Standing.RESOLVE) is JoinAnswer.NOT_READY
    assert judged(ReplicaState(4, 9)) is JoinAnswer.NOT_READY
    assert judged(ReplicaState(2, 10)) is JoinAnswer.NOT_READY


def test_a_replica_in_sync_that_has_lost_records_leaves() -> None:
    assert judged(ReplicaState(3, 9), node="b") is JoinAnswer.JOINED
    assert judged(ReplicaState(3, 7, (3, 3)), node="b") is JoinAnswer.RECORDS
    assert judged(ReplicaState(3, 3, (3,) * 6), node="b") is JoinAnswer.LOST, "a copy would replace its tail"
    assert judged(ReplicaState(3, 7, (3,)), node="b") is JoinAnswer.LOST
    assert judged(None, node="b") is JoinAnswer.LOST
