"""What a primary may do, and when its shipped records are committed. Every decision is made within
the tensor's lock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, Protocol, TypeAlias

from app.cluster.replication.replica import Append, AppendAnswer, Appended, ReplicaState, Why

SHIP_S: Final = 2.0
"""Seconds that a replica has to answer before it leaves the range."""
FIRST_TERM: Final = 2
"""The epoch at which a range has its first primary. Before, the catalogue has only proposed one (see `ranges`)."""
NOTICE_S: Final = 5.0
"""Seconds that a replica has to apply committed records before it leaves the range."""


class Members(Protocol):
    """The record of a range in the catalogue."""

    @property
    def epoch(self) -> int: ...
    @property
    def primary(self) -> str: ...
    @property
    def in_sync(self) -> tuple[str, ...]: ...


class Standing(StrEnum):
    """What a shard may do with a range, by the catalogue that it knows."""

    NOT_PRIMARY = "not_primary"
    """It refuses scatters: another shard is the primary, or it has seen a higher epoch than that of its own term."""
    NO_ROWS = "no_rows"
    """It is the primary and has lost its rows. It asks the catalogue for another primary (`lose_rows`)."""
    RAISE_RECORD = "raise_record"
    """Its own epoch is ahead. It raises the record in the catalogue to it (`raise_epoch`), and checks again."""
    BEGIN = "begin"
    """The range was opened and has had no primary yet. It makes epoch FIRST_TERM its own, durably, and checks again."""
    RAISE_OWN = "raise_own"
    """The record is ahead: it makes that epoch its own, durably, and checks again."""
    RESOLVE = "resolve"
    """It ships its tail, or an empty message if it has none, before anything else."""
    READY = "ready"
    """It may create records, let replicas join, and answer callers."""


def standing(members: Members | None, node: str, state: ReplicaState | None, resolved: int) -> Standing:
    """What `node` may do. `resolved` is the epoch at which it last committed all of its tail, 0 since its start.

    It need not be durable or shared by processes: resolving again is harmless.
    """
    if members is None or members.primary != node:
        return Standing.NOT_PRIMARY
    if state is None:
        return Standing.NO_ROWS
    if max(state.epoch, members.epoch) < FIRST_TERM:
        return Standing.BEGIN
    if state.epoch != members.epoch:
        return Standing.RAISE_RECORD if state.epoch > members.epoch else Standing.RAISE_OWN
    return Standing.READY if resolved == members.epoch and not state.tail else Standing.RESOLVE


def may_acknowledge(members: Members, min_in_sync: int) -> bool:
    """Whether a committed scatter may be acknowledged, also a repeated one.

    Checked before a record is created, and again when it is committed, by the record of the range at that moment.
    """
    return len(members.in_sync) >= min_in_sync


def append_of(state: ReplicaState, after: int, epochs: tuple[int, ...]) -> Append:
    """The message with the records after the sequence `after`, whose epochs are `epochs`, from a primary's log.

    `state` is that of the primary within the lock. `after` is its `applied`, or what the receiver has.
    """
    return Append(state.epoch, after, state.epoch_of(after), state.applied, state.last, epochs)


# Rounds


@dataclass(frozen=True, slots=True)
class Committed:
    """Every in-sync replica has the records: apply them, then answer and tell the replicas."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Continue when an answer arrives, at `until` at the latest."""

    until: float


@dataclass(frozen=True, slots=True)
class Leave:
    """Take these nodes out of `in_sync` in the catalogue (`leave_in_sync`), and pass the new record to `changed`.

    Until that is done they count. If the outcome is unknown, read the catalogue and pass on its record.
    """

    nodes: frozenset[str]


@dataclass(frozen=True, slots=True)
class Stop:
    """It is no longer the primary, or not at this epoch: the records stay a tail, with an unknown outcome for their
    callers.
    """


@dataclass(frozen=True, slots=True)
class Behind:
    """A replica has applied records that the primary lacks: the primary's rows are an older copy that was restored.

    They count as lost (`lose_rows`). Otherwise the primary would give new records the same numbers, and replicas would
    take them for theirs.
    """


Step: TypeAlias = Committed | Wait | Leave | Stop | Behind


@dataclass(frozen=True, slots=True)
class Round:
    """All records up to `end` on their way from the primary `node` to the in-sync replicas. Begun with `begin_round`.

    `first_epoch` is the epoch at which it began, and `epoch` that of the newest known record of the range. The primary
    makes `epoch` its own, durably, before it sends more. `matched` is the sequence up to which each replica has
    reported the primary's log.
    """

    node: str
    first_epoch: int
    epoch: int
    in_sync: tuple[str, ...]
    end: int
    began: float
    matched: Mapping[str, int] = field(default_factory=dict)
    failed: frozenset[str] = frozenset()
    is_over: bool = False
    is_behind: bool = False

    def answered(self, replica: str, answer: AppendAnswer) -> Round:
        """A replica has answered. After a refusal for a gap, send the records after its `applied`."""
        if isinstance(answer, Appended) and answer.epoch < self.first_epoch:
            return self  # to a message from before: it may not have been in sync
        if isinstance(answer, Appended) and answer.applied > self.end:
            return replace(self, is_behind=True)
        if isinstance(answer, Appended):
            return replace(self, matched={**self.matched, replica: max(answer.matched, self.matched.get(replica, 0))})
        if answer.why is Why.STALE:
            return replace(self, is_over=True)
        return self if answer.why is Why.GAP else self.lost(replica)

    def lost(self, replica: str) -> Round:
        """A replica cannot be reached, or cannot get the records that it lacks because the log no longer has them."""
        return replace(self, failed=self.failed | {replica})

    def changed(self, members: Members | None) -> Round:
        """The catalogue has this record of the range, None if it has none.

        Replicas that have left do not count. If one has joined, by another process, the round is over: its records are
        not known to be on that replica.
        """
        if members is not None and members.epoch <= self.epoch:
            return self
        if members is None or members.primary != self.node or not set(members.in_sync) <= set(self.in_sync):
            return replace(self, is_over=True)
        return replace(self, epoch=members.epoch, in_sync=members.in_sync)

    def step(self, now: float) -> Step:
        """The primary's next action."""
        if self.is_over:
            return Stop()
        if self.is_behind:
            return Behind()
        missing = frozenset(one for one in self.in_sync if one != self.node and self.matched.get(one, -1) < self.end)
        if not missing:
            return Committed()
        if now >= self.began + SHIP_S:
            return Leave(missing)
        gone = missing & self.failed
        return Leave(gone) if gone else Wait(self.began + SHIP_S)


def begin_round(members: Members, state: ReplicaState, now: float) -> Round:
    """Ship everything up to the last record of the primary, at the epoch of both."""
    return Round(members.primary, members.epoch, members.epoch, members.in_sync, state.last, now)


# Joins


@dataclass(frozen=True, slots=True)
class Join:
    """The replica `node` wants to be in sync, or to know what is committed; `state` is None if it has no rows.

    An in-sync replica asks after its start, and if it has had a tail for a second: after a power failure it may have
    applied less than it had told the primary. The primary answers first, and uses `state` only if records are missing:
    it may be older than the last round.
    """

    node: str
    state: ReplicaState | None


class JoinAnswer(StrEnum):
    """What a primary does with a replica that wants to join."""

    NOT_READY = "not_ready"
    """It is not the primary, or has a tail: the replica asks again, by the newest catalogue."""
    JOINED = "joined"
    """It is in sync."""
    LOST = "lost"
    """It is listed as in sync and cannot catch up: it has lost records, or the log no longer has them.

    It leaves (`leave_in_sync`), and asks again.
    """
    RECORDS = "records"
    """It gets the records after its `applied`, as an Append, and asks again."""
    COPY = "copy"
    """It copies the rows, by a CopyOrder."""
    ADMIT = "admit"
    """The primary raises its own epoch by one, durably, and then lets it join in the catalogue (`join_in_sync`)."""


def on_join(members: Members, stands: Standing, state: ReplicaState, join: Join, log_start: int) -> JoinAnswer:
    """Decide on a request to join. The primary's log has all records after the sequence `log_start`."""
    theirs = join.state
    is_ahead = theirs is not None and (theirs.epoch > state.epoch or theirs.applied > state.applied)
    if stands is not Standing.READY or is_ahead:
        return JoinAnswer.NOT_READY
    if join.node in members.in_sync:
        if theirs is None or theirs.last < state.applied or theirs.applied < log_start:
            return JoinAnswer.LOST  # no copy: it would replace a tail that has been acknowledged
        return JoinAnswer.JOINED if theirs.applied == state.applied else JoinAnswer.RECORDS
    if theirs is None or theirs.applied < log_start:
        return JoinAnswer.COPY
    return JoinAnswer.ADMIT if theirs.applied == state.applied else JoinAnswer.RECORDS
