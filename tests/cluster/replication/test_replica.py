"""What a replica does with records from a primary: by the attacks that the rules stand against."""

from __future__ import annotations

from app.cluster.replication.replica import (
    Append,
    Appended,
    CopyOrder,
    Refused,
    ReplicaState,
    Why,
    may_adopt,
    on_append,
)


def after(state: ReplicaState, *messages: Append) -> ReplicaState:
    """The state when messages have come."""
    for message in messages:
        state = on_append(state, message).state_after(state)
    return state


def test_a_stale_primary_is_refused_and_changes_nothing() -> None:
    state = ReplicaState(3, 5, (2,))
    plan = on_append(state, Append(2, 5, 2, commit=6, last=7, epochs=(2, 2)))
    assert plan.answer == Refused(Why.STALE, 3, 5)
    assert plan.state_after(state) == state


def test_a_gap_is_refused_and_fences_earlier_primaries_all_the_same() -> None:
    state = ReplicaState(1, 5, (1,))
    plan = on_append(state, Append(2, 7, 2, commit=7, last=8, epochs=(2,)))
    assert plan.answer == Refused(Why.GAP, 2, 5)
    assert plan.state_after(state) == ReplicaState(2, 5, (1,))


def test_another_record_with_the_sequence_before_counts_as_a_gap() -> None:
    answer = on_append(ReplicaState(2, 5, (1,)), Append(3, 6, 2, commit=5, last=7, epochs=(3,))).answer
    assert answer == Refused(Why.GAP, 3, 5)


def test_a_record_of_the_primarys_own_epoch_is_known_to_be_its_own() -> None:
    plan = on_append(ReplicaState(2, 5, (2,)), Append(2, 6, 0, commit=6, last=7, epochs=(2,)))
    assert plan.answer == Appended(2, 6, 7)


def test_a_tail_that_differs_is_replaced_from_the_first_difference_on() -> None:
    state = ReplicaState(1, 5, (1, 1, 1))
    plan = on_append(state, Append(2, 5, 1, commit=5, last=7, epochs=(1, 2)))
    assert (plan.truncate_after, plan.skip, plan.new) == (6, 1, (2,))
    assert plan.state_after(state) == ReplicaState(2, 5, (1, 2))


def test_what_is_applied_is_never_cut() -> None:
    state = ReplicaState(2, 7)
    assert after(state, Append(2, 5, 1, commit=5, last=8, epochs=(1, 1, 2))) == ReplicaState(2, 7, (2,))


def test_a_short_message_that_comes_late_cuts_nothing() -> None:
    state = after(ReplicaState(1, 5), Append(1, 5, 1, commit=5, last=7, epochs=(1, 1)))
    assert after(state, Append(1, 5, 1, commit=5, last=6, epochs=(1,))) == state


def test_a_record_of_a_deposed_primary_is_not_applied_by_the_notice_of_another_record() -> None:
    """Record 7 of epoch 1 is here; the primary of epoch 2 has committed another record 7, and says so in a message
    that ends with record 6."""
    state = ReplicaState(1, 5, (1, 1))
    assert after(state, Append(2, 5, 1, commit=7, last=7, epochs=(1,))).applied == 6


def test_records_behind_the_end_of_a_new_primarys_log_go() -> None:
    assert after(ReplicaState(1, 5, (1, 1)), Append(2, 6, 1, commit=5, last=6)) == ReplicaState(2, 5, (1,))


def test_a_copy_does_not_replace_what_may_have_been_acknowledged_meanwhile() -> None:
    order = CopyOrder(epoch=4, least=10)
    assert may_adopt(None, 10, order)
    assert may_adopt(ReplicaState(4, 5, (1,) * 20), 10, order)
    assert not may_adopt(ReplicaState(5, 5, (5,) * 20), 10, order)  # it has joined since
    assert not may_adopt(ReplicaState(4, 10), 10, order)
    assert not may_adopt(None, 9, order)  # copied from a replica that was behind
