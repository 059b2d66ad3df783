"""Decide what a replica does with messages from its primary, as plans that the shard executes step by step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """The log of a replica. `epoch` is the highest epoch that the replica has seen, and is durable.

    `applied` is the sequence of the replica's rows, and `tail` lists the epochs of the records after it, in order.
    `applied_epoch` is the epoch of the last applied record, or 0 if that record is no longer in the log.
    """

    epoch: int = 0
    applied: int = 0
    tail: tuple[int, ...] = ()
    applied_epoch: int = 0

    @property
    def last(self) -> int:
        """The sequence of the last record in the log, or `applied` if there is no tail."""
        return self.applied + len(self.tail)

    def epoch_of(self, sequence: int) -> int:
        """Return the epoch of a record, or 0 if unknown."""
        if sequence > self.applied:
            return self.tail[sequence - self.applied - 1]
        return self.applied_epoch if sequence == self.applied else 0


@dataclass(frozen=True, slots=True)
class Append:
    """A message from a primary at `epoch`: append records after the one at sequence `after` and epoch `after_epoch`.

    `epochs` are the epochs of the new records, in order; the records themselves are sent along with the message. All
    records up to `commit` are committed. `last` is the sequence of the last record in the primary's log.
    """

    epoch: int
    after: int
    after_epoch: int
    commit: int
    last: int
    epochs: tuple[int, ...] = ()

    @property
    def end(self) -> int:
        """The sequence of the message's last record, or `after` if it has none."""
        return self.after + len(self.epochs)


class Why(StrEnum):
    """Why a replica refuses records."""

    STALE = "stale"
    """The replica has seen a higher epoch, so the sender is no longer the primary or has an old catalogue."""
    GAP = "gap"
    """The replica does not have the record that precedes the message's records. The primary sends the records after the
    replica's `applied`.
    """
    NO_ROWS = "no_rows"
    """The replica's rows are missing or damaged."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The response of a replica that refuses records.

    `epoch` is the replica's own epoch if `why` is STALE, the message's epoch if it is GAP, and 0 if it is NO_ROWS.
    """

    why: Why
    epoch: int
    applied: int


@dataclass(frozen=True, slots=True)
class Appended:
    """The response of a replica whose log durably equals the primary's up to `matched`."""

    epoch: int
    applied: int
    matched: int


@dataclass(frozen=True, slots=True)
class AppendPlan:
    """The steps of a replica, each durable before the next one begins. None and 0 mean that a step is skipped.

    The order is: raise the epoch; truncate the tail after `truncate_after`; append the message's records, starting at
    index `skip`; apply all records up to `commit_to`; respond.
    """

    epoch: int | None
    truncate_after: int | None
    skip: int
    new: tuple[int, ...]
    commit_to: int | None
    answer: Appended | Refused

    def state_after(self, state: ReplicaState) -> ReplicaState:
        """Return the state after all steps have been carried out."""
        tail = state.tail if self.truncate_after is None else state.tail[: self.truncate_after - state.applied]
        grown = replace(state, epoch=self.epoch or state.epoch, tail=tail + self.new)
        return grown if self.commit_to is None else apply_up_to(grown, self.commit_to)


AppendAnswer: TypeAlias = Appended | Refused


def apply_up_to(state: ReplicaState, sequence: int) -> ReplicaState:
    """Return the state after the tail has been applied up to `sequence`."""
    rest = state.tail[sequence - state.applied :]
    return ReplicaState(state.epoch, sequence, rest, state.epoch_of(sequence))


def is_stale(own_epoch: int, epoch: int) -> bool:
    """Return whether to refuse a sender at `epoch`.

    This is checked before waiting for the tensor's lock, and again while holding it.
    """
    return epoch < own_epoch


def on_append(state: ReplicaState | None, message: Append) -> AppendPlan:
    """Plan the steps for records from a primary. `state` is None if the rows are missing or damaged."""
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
    truncate_after = place if new and place < state.last else _last_kept_sequence(state, message)
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
    """Return whether the log has the primary's record `message.after`. Applied records are the same everywhere.

    A record of the primary's own epoch is always in the primary's log, even if the primary no longer knows that
    record's epoch.
    """
    if message.after <= state.applied:
        return True
    if message.after > state.last:
        return False
    return state.epoch_of(message.after) in (message.after_epoch, message.epoch)


def _last_kept_sequence(state: ReplicaState, message: Append) -> int | None:
    """Return the sequence of the last record to keep, or None if nothing is to be dropped.

    The tail after that sequence holds only records of earlier primaries that the current primary does not have.

    When a primary begins, it has all records of earlier epochs that it will ever have, so this holds even for messages
    that arrive late. Records of the primary's own epoch after the end of its log came with a later message.
    """
    end = max(message.last, state.applied)
    return end if end < state.last and state.epoch_of(end + 1) < message.epoch else None


def _refusal(epoch: int | None, answer: Refused) -> AppendPlan:
    return AppendPlan(epoch, None, 0, (), None, answer)


@dataclass(frozen=True, slots=True)
class CopyOrder:
    """The response of a primary at `epoch` if its log no longer has the records that a replica needs: copy the rows.

    The replica durably sets its own epoch to `epoch` before it begins to copy. `least` is the primary's applied
    sequence; a copy from a replica that is behind this sequence is rejected.
    """

    epoch: int
    least: int


def may_adopt(state: ReplicaState | None, sequence: int, order: CopyOrder) -> bool:
    """Return whether a copy of the rows at `sequence` may replace the replica's rows. Call while holding the lock."""
    if sequence < order.least:
        return False
    return state is None or (state.epoch == order.epoch and sequence > state.applied)
