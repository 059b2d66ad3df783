"""What a replica does with messages from its primary: decisions that the shard carries out in order."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """The log of a replica. `epoch` is the highest one it has seen, durably.

    `applied` is the sequence of its rows, and `tail` has the epochs of the records after it, in order. `applied_epoch`
    is that of the record `applied`, 0 if the log no longer has it.
    """

    epoch: int = 0
    applied: int = 0
    tail: tuple[int, ...] = ()
    applied_epoch: int = 0

    @property
    def last(self) -> int:
        """The sequence of the last record, or `applied`."""
        return self.applied + len(self.tail)

    def epoch_of(self, sequence: int) -> int:
        """The epoch of a record, 0 if unknown."""
        if sequence > self.applied:
            return self.tail[sequence - self.applied - 1]
        return self.applied_epoch if sequence == self.applied else 0


@dataclass(frozen=True, slots=True)
class Append:
    """From a primary at `epoch`: records to append after the record `after`, whose epoch is `after_epoch`.

    `epochs` are those of the records, in order; their content travels beside. Everything up to `commit` is committed.
    `last` is the sequence of the last record in the log of the primary.
    """

    epoch: int
    after: int
    after_epoch: int
    commit: int
    last: int
    epochs: tuple[int, ...] = ()

    @property
    def end(self) -> int:
        """The sequence of the last record in it, or `after`."""
        return self.after + len(self.epochs)


class Why(StrEnum):
    """Why a replica refuses records."""

    STALE = "stale"
    """It has seen a higher epoch: the sender is no longer the primary, or knows an old catalogue."""
    GAP = "gap"
    """It lacks the record before. The primary sends from the replica's `applied` on."""
    NO_ROWS = "no_rows"
    """It lacks the rows, or they are damaged."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The answer of a replica that refuses records. Its `epoch` counts here, too."""

    why: Why
    epoch: int
    applied: int


@dataclass(frozen=True, slots=True)
class Appended:
    """The answer of a replica that has, durably, the same log as the primary up to `matched`."""

    epoch: int
    applied: int
    matched: int


@dataclass(frozen=True, slots=True)
class AppendPlan:
    """The steps of a replica, in this order, each durable before the next one; None and 0 mean: skip the step.

    Raise the epoch; cut the tail after `truncate_after`; append the records of the message from number `skip` on; apply
    all records up to `commit_to`; answer.
    """

    epoch: int | None
    truncate_after: int | None
    skip: int
    new: tuple[int, ...]
    commit_to: int | None
    answer: Appended | Refused

    def done(self, state: ReplicaState) -> ReplicaState:
        """The state after all steps."""
        tail = state.tail if self.truncate_after is None else state.tail[: self.truncate_after - state.applied]
        grown = replace(state, epoch=self.epoch or state.epoch, tail=tail + self.new)
        return grown if self.commit_to is None else applied_to(grown, self.commit_to)


AppendAnswer: TypeAlias = Appended | Refused


def applied_to(state: ReplicaState, sequence: int) -> ReplicaState:
    """The state after the tail is applied up to `sequence`."""
    rest = state.tail[sequence - state.applied :]
    return ReplicaState(state.epoch, sequence, rest, state.epoch_of(sequence))


def is_stale(own_epoch: int, epoch: int) -> bool:
    """Whether to refuse a sender at `epoch`. It is checked before the wait for the tensor's lock,
    and within the lock.
    """
    return epoch < own_epoch


def on_append(state: ReplicaState | None, message: Append) -> AppendPlan:
    """What to do with records from a primary; `state` is None if the rows are missing or damaged."""
    if state is None:
        return _refusal(None, Refused(Why.NO_ROWS, 0, 0))
    if is_stale(state.epoch, message.epoch):
        return _refusal(None, Refused(Why.STALE, state.epoch, state.applied))
    epoch = message.epoch if message.epoch > state.epoch else None
    if not _has_record_before(state, message):
        return _refusal(epoch, Refused(Why.GAP, message.epoch, state.applied))
    place = max(message.after, state.applied)
    while place < min(message.end, state.last) and state.epoch_of(place + 1) == message.epochs[place - message.after]:
        place += 1
    new = message.epochs[place - message.after :]
    truncate_after = place if new and place < state.last else _superseded(state, message)
    matched = max(message.end, state.applied)
    commit = min(message.commit, matched)
    return AppendPlan(
        epoch=epoch,
        truncate_after=truncate_after,
        skip=len(message.epochs) - len(new),
        new=new,
        commit_to=commit if commit > state.applied else None,
        answer=Appended(message.epoch, max(state.applied, commit), matched),
    )


def _has_record_before(state: ReplicaState, message: Append) -> bool:
    """Whether the log has the record `message.after` of the primary; what is applied is the same everywhere.

    A record of the primary's own epoch is in its log, whether or not it still knows the epoch.
    """
    if message.after <= state.applied:
        return True
    if message.after > state.last:
        return False
    return state.epoch_of(message.after) in (message.after_epoch, message.epoch)


def _superseded(state: ReplicaState, message: Append) -> int | None:
    """Where the part of the tail ends that may still be the primary's: earlier primaries' records after its log's end
    go.

    When a primary begins, it has all records of earlier epochs that it will ever have. So this also holds for messages
    that arrive late. Records of its own epoch after the end came with a later message.
    """
    end = max(message.last, state.applied)
    return end if end < state.last and state.epoch_of(end + 1) < message.epoch else None


def _refusal(epoch: int | None, answer: Refused) -> AppendPlan:
    return AppendPlan(epoch, None, 0, (), None, answer)


@dataclass(frozen=True, slots=True)
class CopyOrder:
    """The answer of a primary at `epoch` whose log lacks the records that a replica needs: copy the rows.

    The replica makes the epoch its own, durably, before it begins to copy. `least` is the primary's applied sequence: a
    copy of a replica that is behind is not enough.
    """

    epoch: int
    least: int


def may_adopt(state: ReplicaState | None, sequence: int, order: CopyOrder) -> bool:
    """Whether a copy of the rows at `sequence` may replace the replica's rows; decided within the lock."""
    if sequence < order.least:
        return False
    return state is None or (state.epoch == order.epoch and sequence > state.applied)
