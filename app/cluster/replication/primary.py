"""What a primary may do, and when its records are committed. All decisions are made while holding the tensor's lock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, Protocol

from app.cluster.replication.replica import Append, AppendAnswer, Appended, ReplicaState, Why

SHIP_S: Final = 2.0
"""Seconds without a response after which a replica leaves the in-sync set."""
FIRST_TERM: Final = 2
"""The epoch of a range's first primary. At lower epochs, the catalogue has only proposed a primary (see `ranges`)."""
NOTICE_S: Final = 5.0
"""Seconds after which a replica that has not applied committed records leaves the in-sync set."""


class Members(Protocol):
    """The record of a range in the catalogue."""

    @property
    def epoch(self) -> int: ...
    @property
    def primary(self) -> str: ...
    @property
    def in_sync(self) -> tuple[str, ...]: ...


class Standing(StrEnum):
    """What a shard may do with a range, according to the newest catalogue known to it."""

    NOT_PRIMARY = "not_primary"
    """Another shard is the primary, or the range is not open, so this shard refuses scatters."""
    NO_ROWS = "no_rows"
    """This shard is the primary but has lost its rows. It asks the catalogue for another primary (`lose_rows`)."""
    RAISE_RECORD = "raise_record"
    """This shard's own epoch is higher than the catalogue's.

    It raises the epoch in the catalogue (`raise_epoch`) and checks again.
    """
    BEGIN = "begin"
    """The range is open but has had no primary yet. This shard durably sets its own epoch to FIRST_TERM and checks
    again.
    """
    RAISE_OWN = "raise_own"
    """The catalogue's epoch is higher. This shard durably sets its own epoch to the catalogue's and checks again."""
    RESOLVE = "resolve"
    """This shard must first ship its tail, or an empty message if it has no tail."""
    READY = "ready"
    """This shard may create records, let replicas join, and respond to callers."""


def standing(members: Members | None, node: str, state: ReplicaState | None, resolved: int) -> Standing:
    """Return what `node` may do.

    `resolved` is the epoch at which the shard last committed its whole tail, or 0 if it has not done so since its
    startup.

    `resolved` need not be durable or shared between processes, because resolving again is harmless.
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
    """Return whether a committed scatter may be acknowledged. This also applies to a repeated scatter.

    This is checked before a record is created and again after it is committed, each time with the range's current
    record in the catalogue.
    """
    return len(members.in_sync) >= min_in_sync


def append_of(state: ReplicaState, after: int, epochs: tuple[int, ...]) -> Append:
    """Return the message with the records of a primary's log after the sequence `after`; `epochs` are their epochs.

    `state` is the primary's state, read while holding the lock. `after` is its `applied`, or the last sequence that the
    receiver has.
    """
    return Append(state.epoch, after, state.epoch_of(after), state.applied, state.last, epochs)


# Rounds


class Step(StrEnum):
    """The next step of a primary in a round."""

    COMMITTED = "committed"
    """Every in-sync replica has the records. Apply them, then respond to the callers and notify the replicas."""
    WAIT = "wait"
    """Continue when a response arrives, or at the latest SHIP_S after the round began."""
    LEAVE = "leave"
    """Remove `Round.replicas_to_remove` from `in_sync` in the catalogue (`leave_in_sync`), and pass the new record to
    `with_members`.

    Until that is done, the removed nodes still count. If the outcome is unknown, read the catalogue and pass on its
    record.
    """
    STOP = "stop"
    """This shard is no longer the primary, or no longer at this epoch.

    The records stay in the tail, and the outcome is reported to their callers as unknown.
    """
    BEHIND = "behind"
    """A replica has applied records that the primary does not have: the primary's rows come from an older copy.

    The primary's rows count as lost (`lose_rows`). Otherwise the primary would reuse the sequences for new records, and
    replicas would mistake the new records for the ones they already have.
    """


@dataclass(frozen=True, slots=True)
class Round:
    """The shipping of all records up to `end` from the primary `node` to the in-sync replicas; see `begin_round`.

    `first_epoch` is the epoch at which the round began, and `epoch` is the epoch of the newest known catalogue record.
    The primary sets its own epoch to `epoch`, durably, before it sends more. For each replica, `matched` is the
    sequence up to which it has reported that its log equals the primary's.
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

    def with_answer(self, replica: str, answer: AppendAnswer) -> Round:
        """Return the round after a replica's response.

        If the replica refused because of a gap, send it the records after its `applied`.
        """
        if isinstance(answer, Appended) and answer.epoch < self.first_epoch:
            return self  # a response to an earlier message, from a time when the replica may not have been in sync
        if isinstance(answer, Appended) and answer.applied > self.end:
            return replace(self, is_behind=True)
        if isinstance(answer, Appended):
            return replace(self, matched={**self.matched, replica: max(answer.matched, self.matched.get(replica, 0))})
        if answer.why is Why.STALE:
            return replace(self, is_over=True)
        return self if answer.why is Why.GAP else self.with_failure(replica)

    def with_failure(self, replica: str) -> Round:
        """Return the round after a replica has failed.

        The replica is unreachable, or needs records that are no longer in the log.
        """
        return replace(self, failed=self.failed | {replica})

    def with_members(self, members: Members | None) -> Round:
        """Return the round after the catalogue's record of the range has changed.

        `members` is None if the record was removed. Replicas that have left no longer count. If a replica has joined
        through another process, the round is over, because that replica may not have the round's records.
        """
        if members is not None and members.epoch <= self.epoch:
            return self
        if members is None or members.primary != self.node or not set(members.in_sync) <= set(self.in_sync):
            return replace(self, is_over=True)
        return replace(self, epoch=members.epoch, in_sync=members.in_sync)

    def step(self, now: float) -> Step:
        """Return the primary's next step."""
        if self.is_over:
            return Step.STOP
        if self.is_behind:
            return Step.BEHIND
        if not self.pending_replicas:
            return Step.COMMITTED
        return Step.LEAVE if self.replicas_to_remove(now) else Step.WAIT

    @property
    def pending_replicas(self) -> frozenset[str]:
        """The in-sync replicas that have not reported having everything."""
        return frozenset(one for one in self.in_sync if one != self.node and self.matched.get(one, -1) < self.end)

    def replicas_to_remove(self, now: float) -> frozenset[str]:
        """Return the replicas that must leave the in-sync set.

        These are the pending replicas that have failed. Once SHIP_S has passed, all pending replicas must leave.
        """
        return self.pending_replicas if now >= self.began + SHIP_S else self.pending_replicas & self.failed


def begin_round(members: Members, state: ReplicaState, now: float) -> Round:
    """Begin a round that ships everything up to the primary's last record.

    The primary and `members` share the epoch.
    """
    return Round(members.primary, members.epoch, members.epoch, members.in_sync, state.last, now)


# Joins


@dataclass(frozen=True, slots=True)
class Join:
    """The request of the replica `node` to get in sync, or to learn what is committed.

    `state` is None if the replica has no rows. An in-sync replica sends this request when it has had a tail for a
    second. It also does so after its startup, because after a power failure it may have applied less than it had
    reported. The primary first sends what is committed. It uses `state` only if records are missing, because `state`
    may be older than the last round.
    """

    node: str
    state: ReplicaState | None


class JoinAnswer(StrEnum):
    """A primary's response to a replica that wants to join."""

    NOT_READY = "not_ready"
    """The shard is not the primary, has a tail, or is behind the replica.

    The replica tries again, using the newest catalogue.
    """
    JOINED = "joined"
    """The replica is in sync."""
    LOST = "lost"
    """The replica is listed as in sync but has lost records, or needs records that are no longer in the log.

    It leaves the in-sync set (`leave_in_sync`) and tries again.
    """
    RECORDS = "records"
    """The replica receives the records after its `applied`, as an Append, and tries again."""
    COPY = "copy"
    """The replica copies the rows, as specified by a CopyOrder."""
    ADMIT = "admit"
    """The primary durably raises its own epoch by one, and then adds the replica in the catalogue (`join_in_sync`)."""


def on_join(members: Members, stands: Standing, state: ReplicaState, join: Join, log_start: int) -> JoinAnswer:
    """Decide on a request to join. The primary's log holds all records from sequence `log_start` + 1."""
    theirs = join.state
    is_ahead = theirs is not None and (theirs.epoch > state.epoch or theirs.applied > state.applied)
    if stands is not Standing.READY or is_ahead:
        return JoinAnswer.NOT_READY
    if join.node in members.in_sync:
        if theirs is None or theirs.last < state.applied or theirs.applied < log_start:
            return JoinAnswer.LOST  # not COPY, because a copy would replace a tail that may have been acknowledged
        return JoinAnswer.JOINED if theirs.applied == state.applied else JoinAnswer.RECORDS
    if theirs is None or theirs.applied < log_start:
        return JoinAnswer.COPY
    return JoinAnswer.ADMIT if theirs.applied == state.applied else JoinAnswer.RECORDS
