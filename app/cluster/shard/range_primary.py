"""The primary of ranges: ships each record to the in-sync replicas before the store applies it.

This module carries out the rules in `app.cluster.replication.primary`. The store combines a range's waiting scatters
into records in one frame of the range's log, and then calls `replicate` (see `replicated_contents.Replication`).
"""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from time import monotonic
from typing import Final

from app.cluster.catalogue import ranges
from app.cluster.catalogue.listed_segments import Listed
from app.cluster.catalogue.records import RangeRecord
from app.cluster.replication.primary import (
    FIRST_TERM,
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
from app.cluster.replication.replica import Append, Appended, CopyOrder, ReplicaState, Why
from app.cluster.shard.catalogue_follower import CatalogueFollower
from app.cluster.shard.peers import Peers
from app.cluster.shard.range_errors import not_primary, unavailable
from app.cluster.shard.range_log import RangeLog
from app.cluster.shard.range_messages import Admission
from app.cluster.shard.range_metrics import Left, RangeCounts
from app.cluster.shard.range_shipping import SLOWEST, Shipping, send
from app.errors import GatherError
from app.store.scatters.replicated_contents import Batch, Replication

logger = logging.getLogger("gathernd")
_LOOKS: Final = 16
"""Maximum number of steps that a primary takes before it gives up. Each step does one thing."""
_PUSHED: Final = 1 << 20
"""Maximum bytes of records that are sent to a joining replica while scatters are waiting."""
_NOTICES: Final = 8


class Primaries(Replication):
    """All ranges whose primary is the shard `node`. Methods block.

    They may raise precondition_failed if the shard is not the primary, and shard_unavailable, tensor_not_found,
    tensor_damaged and insufficient_storage.
    """

    def __init__(
        self, node: str, log: RangeLog, follower: CatalogueFollower, peers: Peers, counts: RangeCounts
    ) -> None:
        self._node = node
        self._counts = counts
        self._log = log
        self._follower = follower
        self._peers = peers
        self._resolved: dict[str, int] = {}
        """For each range, the epoch at which this process last committed its tail."""
        self._shipped: dict[str, int] = {}
        """For each range, the sequence of the last record that this process has shipped."""
        self._notices = ThreadPoolExecutor(_NOTICES, "commit-notice")

    # Called by the store while it holds the range's lock

    def lead(self, tensor: str) -> int:
        """See `Replication`. Also raises shard_unavailable if fewer replicas are in sync than a scatter requires."""
        one, state = self._ready(tensor)
        _check_acknowledges(one)
        return state.epoch

    def replicate(self, tensor: str, batch: Batch) -> None:
        """See `Replication`."""
        one = self._follower.open_ranges().get(tensor)
        if one is None or _record(one).primary != self._node:
            raise unavailable(f"{self._node} is no longer the primary of {tensor}", is_known=False)
        if _record(one).epoch != batch.epoch:  # a round does not count responses from an earlier epoch
            raise unavailable(f"the replicas of {tensor} have just changed", is_known=False)
        state = ReplicaState(batch.epoch, batch.after, (batch.epoch,) * (batch.last - batch.after))
        going = self._round(one, state, batch.after, batch.frame)
        _check_acknowledges(self._follower.open_ranges().get(tensor, one), is_known=False)
        self._notify_replicas(tensor, going, ReplicaState(going.epoch, going.end, (), batch.epoch))

    def keeps_log(self, tensor: str) -> bool:
        """See `Replication`."""
        one = self._follower.open_ranges().get(tensor)
        return one is not None and not set(one.segment.nodes) <= set(_record(one).in_sync)

    # State of the primary

    def _ready(self, tensor: str) -> tuple[Listed, ReplicaState]:
        """Take all steps that are necessary before records may be created. Returns the range and its log's state.

        Call this while holding the range's lock.
        """
        for _ in range(_LOOKS):
            one = self._follower.open_ranges().get(tensor)
            state = self._log.quick_state(tensor)
            record = None if one is None else one.opened
            stands = standing(record, self._node, state, self._resolved.get(tensor, 0))
            if stands is Standing.NOT_PRIMARY or one is None or record is None:
                raise not_primary(self._node, tensor)
            if stands is Standing.NO_ROWS or state is None:
                raise unavailable(f"the primary of {tensor} has lost its rows")
            if stands is Standing.READY:
                return one, state
            if stands is Standing.RAISE_RECORD:
                self._raise_record(tensor, state.epoch)
            elif stands is Standing.RAISE_OWN:
                self._log.raise_epoch(tensor, record.epoch)
            elif stands is Standing.BEGIN:
                self._log.raise_epoch(tensor, FIRST_TERM)
            else:
                self._resolve(one, state)
        raise unavailable(f"the primary of {tensor} changes repeatedly")

    def _raise_record(self, tensor: str, epoch: int) -> None:
        """Raise the epoch in the range's catalogue record to the one that this shard has seen."""
        self._follower.client.transact(lambda at: ranges.raise_epoch(at, tensor, self._node, epoch))

    def _resolve(self, one: Listed, state: ReplicaState) -> None:
        """Commit the tail and apply it. If there is no tail, only report the epoch to the replicas."""
        frames, epochs = self._log.records_after(one.tensor, state.applied)
        if frames is None or len(epochs) != len(state.tail):
            frames = None  # the tail is long, so it is sent in several parts
        going = self._round(one, state, state.applied if frames is not None else state.last, frames or b"")
        found = self._log.commit(one.tensor, going.epoch, going.end)
        if found is None:
            raise unavailable(f"another shard has become the primary of {one.tensor}", is_known=False)
        if one.tensor not in self._resolved:
            self._counts.count_takeover()
        self._resolved[one.tensor] = going.epoch
        self._notify_replicas(one.tensor, going, found)

    def begin(self, tensor: str) -> None:
        """Prepare for scatters: take over the range and commit its tail, unless that is already done."""
        with self._log.exclusive(tensor):
            self._ready(tensor)

    def confirm(self, tensor: str) -> None:
        """Return if this shard is the primary and all in-sync replicas confirm that it is.

        The shard's applied state is then the newest.
        """
        with self._log.exclusive(tensor):
            one, state = self._ready(tensor)
            self._round(one, state, state.last, b"")

    def forget(self) -> None:
        """Discard what is known about ranges that were closed because their versions were removed."""
        found = self._follower.open_ranges()
        for tensor in {*self._resolved.copy(), *self._shipped.copy()} - found.keys():
            self._resolved.pop(tensor, None)
            self._shipped.pop(tensor, None)

    def is_resolved(self, tensor: str, epoch: int) -> bool:
        """Return whether this process has committed the tail of a range at this epoch."""
        return self._resolved.get(tensor) == epoch

    # Rounds

    def _round(self, one: Listed, state: ReplicaState, after: int, frames: bytes) -> Round:
        """Ship the records after the sequence `after`, and return the round once they are committed.

        `frames` holds these records. `state` is the state of this shard's log, which contains them. Raises
        shard_unavailable if the outcome is unknown.
        """
        tensor = one.tensor
        self._shipped[tensor] = state.last
        shipping = Shipping(self._peers, self._log, tensor, state, after, frames)
        going = begin_round(_record(one), state, monotonic() + len(frames) / SLOWEST)
        while True:
            now = monotonic()
            step = going.step(now)
            if step is Step.COMMITTED:
                return going
            if step is Step.STOP:
                with suppress(OSError):
                    self._follower.refresh()
                raise unavailable(f"{self._node} is no longer the primary of {tensor}", is_known=False)
            if step is Step.BEHIND:
                logger.error("%s: the rows on this shard are older than a replica's and count as lost", tensor)
                self._follower.client.transact(lambda at: ranges.lose_rows(at, tensor, self._node))
                raise unavailable(f"the rows of {tensor} on {self._node} are an older copy", is_known=False)
            going = (
                self._remove_unresponsive(tensor, going, going.replicas_to_remove(now))
                if step is Step.LEAVE
                else shipping.ship(going)
            )

    def _remove_unresponsive(self, tensor: str, going: Round, nodes: frozenset[str]) -> Round:
        """Remove unresponsive replicas from the in-sync set, or find out that this shard is no longer the primary."""
        logger.warning("%s: the replicas on %s fell behind and leave the in-sync set", tensor, ", ".join(sorted(nodes)))
        try:
            self.dismiss(tensor, going.epoch, nodes, "silent")
        except GatherError as problem:
            if problem.code != "precondition_failed":
                raise unavailable(problem.detail, is_known=False) from None
        one = self._follower.open_ranges().get(tensor)
        return going.with_members(None if one is None else one.opened)

    def dismiss(self, tensor: str, epoch: int, nodes: frozenset[str], why: Left) -> None:
        """Remove replicas from the in-sync set of a range whose primary is this shard."""
        self._follower.client.transact(lambda at: ranges.leave_in_sync(at, tensor, epoch, nodes))
        for _ in nodes:
            self._counts.count_leave(why)

    def _notify_replicas(self, tensor: str, going: Round, state: ReplicaState) -> None:
        """Tell the replicas what is committed, without waiting for their responses."""
        for node in going.in_sync:
            if node != self._node:
                self._notices.submit(self._notice_unless_shipped, tensor, node, state)

    def _notice_unless_shipped(self, tensor: str, node: str, state: ReplicaState) -> None:
        """Tell a replica what is committed, unless later records have been shipped; they include the same notice."""
        if self._shipped.get(tensor, 0) <= state.last:
            self.notice(tensor, node, state)

    def notice(self, tensor: str, node: str, state: ReplicaState) -> bool:
        """Tell a replica that everything in this shard's log is committed; the log has no tail.

        Returns whether the replica has applied everything.
        """
        answer = send(self._peers, tensor, node, append_of(state, state.last, ()))
        return isinstance(answer, Appended) and answer.applied >= state.applied

    def close(self) -> None:
        """Send no more notices."""
        self._notices.shutdown(wait=False, cancel_futures=True)

    # Joins

    def join(self, tensor: str, join: Join) -> Admission:
        """Decide on a replica's request to join, and admit the replica if it has everything."""
        try:
            with self._log.exclusive(tensor):
                return self._admission(tensor, join)
        except GatherError as problem:
            logger.info("%s: the replica on %s cannot join yet: %s", tensor, join.node, problem.detail)
            return Admission(JoinAnswer.NOT_READY)

    def _admission(self, tensor: str, join: Join) -> Admission:
        one, state = self._ready(tensor)
        if join.node in _record(one).in_sync:
            # The replica's state may be outdated. The replica requests to join because it does not know what is
            # committed, so tell it.
            told = send(self._peers, tensor, join.node, append_of(state, state.last, ()))
            if isinstance(told, Appended):
                return Admission(JoinAnswer.JOINED if told.applied == state.applied else JoinAnswer.NOT_READY)
            if told is None or told.why is Why.STALE:
                return Admission(JoinAnswer.NOT_READY)
        verdict, records = self._decide(one, state, join)
        if verdict is JoinAnswer.RECORDS and records is not None:
            message, frames = records
            if len(frames) > _PUSHED or message.end < state.last:
                return Admission(verdict, records=records[0], frames=frames)
            answer = send(self._peers, tensor, join.node, message, frames)
            if not isinstance(answer, Appended):
                return Admission(JoinAnswer.NOT_READY)
            verdict, _ = self._decide(one, state, Join(join.node, ReplicaState(answer.epoch, answer.applied)))
        if verdict is JoinAnswer.LOST:
            self.dismiss(tensor, state.epoch, frozenset({join.node}), "lost")
        elif verdict is JoinAnswer.ADMIT:
            self._admit(tensor, state, join.node)
            verdict = JoinAnswer.JOINED
        copy = CopyOrder(state.epoch, state.applied) if verdict is JoinAnswer.COPY else None
        return Admission(verdict, copy)

    def _decide(self, one: Listed, state: ReplicaState, join: Join) -> tuple[JoinAnswer, tuple[Append, bytes] | None]:
        """Return the response to a request to join, and the log's frames after the replica's applied sequence."""
        applied = 0 if join.state is None else join.state.applied
        frames, epochs = self._log.records_after(one.tensor, applied)
        log_start = applied + 1 if frames is None else applied
        verdict = on_join(_record(one), Standing.READY, state, join, log_start)
        return verdict, None if frames is None else (append_of(state, applied, epochs), frames)

    def _admit(self, tensor: str, state: ReplicaState, node: str) -> None:
        """Admit a replica that has everything. Raises GatherError if admission fails or its outcome is unknown."""
        epoch = state.epoch + 1
        self._log.raise_epoch(tensor, epoch)
        self._follower.client.transact(lambda at: ranges.join_in_sync(at, tensor, state.epoch, node))
        self._resolved[tensor] = epoch
        self._counts.count_join()
        logger.info("%s: the replica on %s is in sync", tensor, node)


def _check_acknowledges(one: Listed, *, is_known: bool = True) -> None:
    record, least = _record(one), ranges.min_in_sync(one.replicas)
    if not may_acknowledge(record, least):
        detail = f"{len(record.in_sync)} replicas of {one.tensor} are in sync, and a scatter needs {least}"
        raise unavailable(detail, is_known=is_known)


def _record(one: Listed) -> RangeRecord:
    assert one.opened is not None, "these are open ranges"
    return one.opened
