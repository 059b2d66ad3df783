"""What the primary of a range does on a simulated shard, by the rules of `app.cluster.replication`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from app.cluster.catalogue.ranges import join_in_sync, leave_in_sync, min_in_sync, raise_epoch
from app.cluster.catalogue.records import Catalogue, RangeRecord
from app.cluster.replication.primary import (
    FIRST_TERM,
    NOTICE_S,
    JoinAnswer,
    Members,
    Round,
    Standing,
    Step,
    append_of,
    begin_round,
    may_acknowledge,
    on_join,
    standing,
)
from app.cluster.replication.replica import Appended, CopyOrder, Refused, Why
from tests.cluster.simulation.range_copy import RangeCopy
from tests.cluster.simulation.replicas import Release, Replicas
from tests.cluster.simulation.scatter_truth import record_of
from tests.cluster.simulation.service_calls import (
    Answer,
    CopyRange,
    JoinRange,
    JoinReply,
    ScatterRange,
    ShipRecords,
    ToRange,
)
from tests.cluster.simulation.shard import Shard

AGAIN_S = 0.6
"""How soon a primary sends again what was not answered."""
TRIES = 8
Ready = Callable[[Members], None]
Failed = Callable[[], None]


class Primaries(Replicas):
    """All of a shard. Its second worker knows an older catalogue."""

    def __init__(self, shard: Shard) -> None:
        super().__init__(shard)
        self._resolved: dict[str, int] = {}
        self._pending: set[str] = set()
        self._told: dict[tuple[str, str], int] = {}
        """What each replica has said to have applied."""
        self._late_since: dict[tuple[str, str], float] = {}
        self._older = Catalogue()
        shard.every(1.0, self._sweep)
        shard.every(2.0, self._second_worker_looks)

    def receive(self, sender: str, message: ToRange) -> None:
        """A message about an open range has come."""
        match message:
            case ScatterRange():
                self.locked(message.tensor, lambda release: self._scatter(sender, message, release))
            case ShipRecords():
                self.ship(sender, message)
            case JoinRange():
                self.locked(message.tensor, lambda release: self._judge_join(sender, message, release))
            case CopyRange():
                self.give_copy(sender, message)

    def _second_worker_looks(self) -> None:
        self._older = self.catalogue

    def view(self) -> Catalogue:
        """The catalogue that the worker knows which has got a request."""
        return self.catalogue if self.shard.world.random.random() < 0.7 else self._older

    # Becoming ready

    def taken(self, catalogue: Catalogue) -> None:
        """The catalogue has changed: a primary that begins commits its tail at once."""
        for tensor, record in catalogue.ranges.items():
            if record.primary == self.node:
                self._resolve(tensor, record)

    def _resolve(self, tensor: str, record: RangeRecord) -> None:
        state = self.state_of(tensor)
        if state is None or tensor in self._pending or (self._resolved.get(tensor) == record.epoch and not state.tail):
            return
        self._pending.add(tensor)

        def begin(release: Release) -> None:
            def over(_: Members | None = None) -> None:
                self._pending.discard(tensor)
                release()

            self.get_ready(tensor, self.catalogue.ranges.get(tensor), over, over)

        self.locked(tensor, begin)

    def get_ready(self, tensor: str, members: Members | None, then: Ready, fail: Failed, tries: int = TRIES) -> None:
        """Do, within the lock, what a primary has to do before anything else; `then` gets the record of the range."""
        copy = self.copy_of(tensor)

        def again(now: Members | None) -> None:
            self.get_ready(tensor, now, then, fail, tries - 1)

        stands = standing(members, self.node, self.state_of(tensor), self._resolved.get(tensor, 0))
        if members is None or copy is None or tries == 0:
            fail()
        elif stands is Standing.READY:
            then(members)
        elif stands is Standing.RAISE_OWN:
            self.raise_own(tensor, copy, members.epoch, partial(again, members), fail)
        elif stands is Standing.BEGIN:
            self.raise_own(tensor, copy, FIRST_TERM, partial(again, members), fail)
        elif stands is Standing.RAISE_RECORD:
            change = partial(raise_epoch, tensor=tensor, node=self.node, epoch=copy.epoch)
            self.shard.client.transact(
                change, lambda code: fail() if code else again(self.catalogue.ranges.get(tensor))
            )
        elif stands is Standing.RESOLVE:
            Shipping(self, tensor, copy, members, again, fail).begin()
        else:
            fail()

    def raise_own(self, tensor: str, copy: RangeCopy, epoch: int, then: Callable[[], None], fail: Failed) -> None:
        """Make an epoch this replica's own, durably."""

        def durable() -> None:
            if self.copy_of(tensor) is not copy:
                fail()
                return
            copy.epoch = max(copy.epoch, epoch)
            then()

        self.shard.sync(durable)

    # Scatters

    def _scatter(self, sender: str, asked: ScatterRange, release: Release) -> None:
        tensor, scatter = asked.tensor, asked.scatter

        def over(sequence: int) -> None:
            self.shard.world.send(self.shard, sender, Answer(asked.request_id, sequence > 0, sequence=sequence))
            release()

        def fail() -> None:
            over(0)

        def committed(members: Members) -> None:
            over(self._known(tensor, scatter.key) if self._may_acknowledge(tensor, members) else 0)

        def ready(members: Members) -> None:
            copy = self.copy_of(tensor)
            assert copy is not None
            if not self._may_acknowledge(tensor, members) or self._known(tensor, scatter.key):
                committed(members)
                return
            record = record_of(scatter, copy.applied + 1, copy.epoch, copy.values)

            def durable() -> None:
                if self.copy_of(tensor) is not copy:
                    fail()
                    return
                copy.log.append(record)
                self.note_tail(tensor, copy)
                Shipping(self, tensor, copy, members, committed, fail).begin()

            self.shard.sync(durable)

        self.get_ready(tensor, self.view().ranges.get(tensor), ready, fail)

    def _known(self, tensor: str, key: str) -> int:
        copy = self.copy_of(tensor)
        return 0 if copy is None else copy.keys.get(key, 0)

    def _may_acknowledge(self, tensor: str, members: Members) -> bool:
        return may_acknowledge(members, min_in_sync(self.shard.replicas_of(tensor)))

    def step(self, shipped: Round) -> Step:
        """What a round does next."""
        return shipped.step(self.now)

    def committed(self, tensor: str, copy: RangeCopy, shipped: Round) -> Members:
        """Apply what a round has committed, and tell the replicas. Returns the record of the range at its end."""
        self.apply(tensor, copy, shipped.end)
        self._resolved[tensor] = shipped.epoch
        record = RangeRecord(shipped.epoch, self.node, shipped.in_sync)
        for replica in record.in_sync:
            self.notify(tensor, copy, replica, copy.applied)
        return record

    # Notices

    def notify(self, tensor: str, copy: RangeCopy, replica: str, after: int) -> None:
        """Tell a replica what is committed; with the records after `after`, if they are in the log."""
        if replica == self.node or replica not in self.catalogue.nodes or after < copy.start:
            return
        records = tuple(copy.after(after))
        append = append_of(copy.state, after, tuple(record.epoch for record in records))

        def answered(answer: Answer) -> None:
            if isinstance(answer.reply, Appended):
                key = tensor, replica
                self._told[key] = max(self._told.get(key, 0), answer.reply.applied)
            elif isinstance(answer.reply, Refused) and answer.reply.why is Why.GAP and answer.reply.applied < after:
                self.notify(tensor, copy, replica, answer.reply.applied)

        message = ShipRecords(next(self.shard.world.ids), tensor, append, records)
        self.ask(self.catalogue.nodes[replica].address, message, answered)

    def _sweep(self) -> None:
        self.join_ranges()
        for tensor, record in self.catalogue.ranges.items():
            copy = self.copy_of(tensor) if record.primary == self.node else None
            if copy is None:
                continue
            self._resolve(tensor, record)
            if copy.epoch != record.epoch:
                continue
            for replica in record.in_sync:
                key = tensor, replica
                if replica == self.node or self._told.get(key, -1) >= copy.applied:
                    self._late_since.pop(key, None)
                    continue
                self.notify(tensor, copy, replica, copy.applied)
                if self.now > self._late_since.setdefault(key, self.now) + NOTICE_S:
                    self._late_since.pop(key)
                    self._leave(tensor, record.epoch, replica)

    def _leave(self, tensor: str, epoch: int, replica: str) -> None:
        gone = partial(leave_in_sync, tensor=tensor, epoch=epoch, gone=frozenset({replica}))
        self.shard.client.transact(gone, lambda _: None)

    # Joins

    def _judge_join(self, sender: str, asked: JoinRange, release: Release) -> None:
        tensor, node = asked.tensor, asked.join.node

        def over(reply: JoinReply) -> None:
            self.reply(sender, asked.request_id, reply)
            release()

        def refuse() -> None:
            over(JoinReply(JoinAnswer.NOT_READY))

        def ready(members: Members) -> None:
            copy = self.copy_of(tensor)
            assert copy is not None
            judged = on_join(members, Standing.READY, copy.state, asked.join, copy.start)
            if judged is JoinAnswer.RECORDS and asked.join.state is not None:
                after = asked.join.state.applied
                records = tuple(copy.after(after))
                append = append_of(copy.state, after, tuple(record.epoch for record in records))
                over(JoinReply(judged, append, records))
            elif judged is JoinAnswer.COPY:
                over(JoinReply(judged, order=CopyOrder(copy.epoch, copy.applied)))
            elif judged is JoinAnswer.LOST:
                self._leave(tensor, members.epoch, node)
                refuse()
            elif judged is JoinAnswer.ADMIT:
                self._admit(tensor, copy, members, node, lambda: over(JoinReply(JoinAnswer.JOINED)), refuse)
            else:
                over(JoinReply(judged))

        self.get_ready(tensor, self.view().ranges.get(tensor), ready, refuse)

    def _admit(
        self, tensor: str, copy: RangeCopy, members: Members, node: str, done: Callable[[], None], fail: Failed
    ) -> None:
        def raised() -> None:
            change = partial(join_in_sync, tensor=tensor, epoch=members.epoch, node=node)
            self.shard.client.transact(change, made)

        def made(_: str) -> None:
            self.get_ready(tensor, self.catalogue.ranges.get(tensor), lambda _: done(), fail)

        self.raise_own(tensor, copy, members.epoch + 1, raised, fail)


class Shipping:
    """One round: all of a primary's tail on its way to the replicas in sync, within the lock of the range."""

    def __init__(
        self, own: Primaries, tensor: str, copy: RangeCopy, members: Members, then: Ready, fail: Failed
    ) -> None:
        self._own = own
        self._tensor = tensor
        self._copy = copy
        self._round = begin_round(members, copy.state, own.now)
        self._then = then
        self._fail = fail
        self._after: dict[str, int] = {}
        self._is_over = self._is_leaving = False

    def begin(self) -> None:
        """Send, again and again, until it is over."""
        if self._is_over:
            return
        for replica in self._round.in_sync:
            if replica != self._own.node and self._round.matched.get(replica, -1) < self._round.end:
                self._send(replica)
        self._own.shard.after(AGAIN_S, self.begin)
        self._step()

    def _send(self, replica: str) -> None:
        copy, own = self._copy, self._own
        after = self._after.get(replica, copy.applied)
        node = own.catalogue.nodes.get(replica)
        if after < copy.start:
            self._round = self._round.with_failure(replica)
        elif node is not None:
            records = tuple(copy.after(after))
            append = append_of(copy.state, after, tuple(record.epoch for record in records))
            message = ShipRecords(next(own.shard.world.ids), self._tensor, append, records)
            own.ask(node.address, message, partial(self._answered, replica))

    def _answered(self, replica: str, answer: Answer) -> None:
        reply = answer.reply
        if self._is_over or not isinstance(reply, Appended | Refused):
            return
        self._round = self._round.with_answer(replica, reply)
        if isinstance(reply, Refused) and reply.why is Why.GAP and self._after.get(replica) != reply.applied:
            self._after[replica] = reply.applied
            self._send(replica)
        self._step()

    def _step(self) -> None:
        if self._is_over:
            return
        own = self._own
        step = own.step(self._round)
        if own.copy_of(self._tensor) is not self._copy or step in (Step.STOP, Step.BEHIND):
            self._end(self._fail)
        elif step is Step.COMMITTED:
            self._end(lambda: self._then(own.committed(self._tensor, self._copy, self._round)))
        elif step is Step.LEAVE and not self._is_leaving:
            self._is_leaving = True
            change = partial(
                leave_in_sync,
                tensor=self._tensor,
                epoch=self._round.epoch,
                gone=self._round.replicas_to_remove(own.now),
            )
            own.shard.client.transact(change, self._left)

    def _left(self, code: str) -> None:
        self._is_leaving = False
        if self._is_over:
            return
        before = self._round
        self._round = before.with_members(self._own.catalogue.ranges.get(self._tensor))
        if self._round == before and code:
            self._end(self._fail)
        else:
            self._own.raise_own(self._tensor, self._copy, self._round.epoch, self._step, lambda: self._end(self._fail))

    def _end(self, do: Callable[[], None]) -> None:
        if not self._is_over:
            self._is_over = True
            do()
