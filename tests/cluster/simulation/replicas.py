"""What a replica does with open ranges on a simulated shard, by the rules of `app.cluster.replication`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from app.cluster.catalogue.listed_segments import find_listed
from app.cluster.catalogue.ranges import PROPOSED, join_unled_range
from app.cluster.catalogue.records import Catalogue
from app.cluster.replication.primary import Join, JoinAnswer
from app.cluster.replication.reads import WAIT_S, Read, Readable, judge_read
from app.cluster.replication.replica import CopyOrder, Refused, ReplicaState, Why, is_stale, may_adopt, on_append
from tests.cluster.simulation import service_calls
from tests.cluster.simulation.range_copy import RangeCopy
from tests.cluster.simulation.service_calls import (
    Answer,
    CopiedKeys,
    CopiedRows,
    CopyRange,
    JoinRange,
    JoinReply,
    ShipRecords,
    ToRange,
)
from tests.cluster.simulation.truth import rows_of

if TYPE_CHECKING:
    from tests.cluster.simulation.shard import Shard

ANSWER_AFTER = 2.0
"""How long a replica waits for an answer of another shard."""
Release: TypeAlias = Callable[[], None]


class Replicas:
    """What is in memory is lost when the shard crashes; each range has a lock, as a tensor of a store has."""

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self.checks = shard.checks.scatters
        self._waiting: dict[str, deque[Callable[[Release], None]]] = {}
        self._came: dict[str, dict[int, float]] = {}
        """When each record of a tail came. Those that were there before the start are not in it."""
        self._joining: dict[str, float] = {}
        self._asked: dict[int, Callable[[Answer], None]] = {}

    # Parts

    @property
    def catalogue(self) -> Catalogue:
        """The newest one known."""
        return self.shard.client.catalogue

    @property
    def node(self) -> str:
        return self.shard.machine

    @property
    def now(self) -> float:
        return self.shard.world.now

    def copy_of(self, tensor: str) -> RangeCopy | None:
        """What is on the disk, None if there are no rows."""
        disk = self.shard.disk
        if tensor not in disk.segments:
            return None
        return disk.ranges.setdefault(tensor, RangeCopy())

    def state_of(self, tensor: str) -> ReplicaState | None:
        """As the rules see what is on the disk."""
        copy = self.copy_of(tensor)
        return None if copy is None else copy.state

    def locked(self, tensor: str, work: Callable[[Release], None]) -> None:
        """Do `work` within the lock of a range; it calls what it is given when it is over."""
        waiting = self._waiting.get(tensor)
        if waiting is not None:
            waiting.append(work)
            return
        self._waiting[tensor] = deque()
        work(partial(self._release, tensor))

    def _release(self, tensor: str) -> None:
        waiting = self._waiting[tensor]
        if waiting:
            self.shard.after(0.0, waiting.popleft(), partial(self._release, tensor))
        else:
            del self._waiting[tensor]

    def ask(self, address: str, asked: ToRange, done: Callable[[Answer], None]) -> None:
        """Ask another shard; answers that come late are not heeded."""
        self._asked[asked.request_id] = done
        self.shard.world.send(self.shard, address, asked)
        self.shard.after(ANSWER_AFTER, self._give_up, asked.request_id)

    def _give_up(self, request_id: int) -> None:
        self._asked.pop(request_id, None)

    def answered(self, answer: Answer) -> None:
        """Another shard has answered."""
        if (done := self._asked.pop(answer.request_id, None)) is not None:
            done(answer)

    def reply(self, to: str, request_id: int, reply: service_calls.Reply, sequence: int = 0) -> None:
        """Answer another shard."""
        self.shard.world.send(self.shard, to, Answer(request_id, reply is not None, reply=reply, sequence=sequence))

    # Records

    def ship(self, sender: str, message: ShipRecords) -> None:
        """Records have come from a primary."""
        copy = self.copy_of(message.tensor)
        if copy is not None and is_stale(copy.epoch, message.append.epoch):
            self.reply(sender, message.request_id, Refused(Why.STALE, copy.epoch, copy.applied))
        else:
            answer = partial(self.reply, sender, message.request_id)
            self.locked(message.tensor, lambda release: self._append(message, answer, release))

    def _append(self, message: ShipRecords, answer: Callable[[service_calls.Reply], None], release: Release) -> None:
        tensor, copy = message.tensor, self.copy_of(message.tensor)
        plan = on_append(self.state_of(tensor), message.append)

        def durable() -> None:
            if copy is not None and self.copy_of(tensor) is copy:
                copy.carry_out(plan, message.records)
                self.note_tail(tensor, copy)
                if plan.commit_to is not None:
                    self.apply(tensor, copy, plan.commit_to)
                answer(plan.answer)
            release()

        if copy is None:
            answer(plan.answer)
            release()
        elif plan.epoch is None and plan.truncate_after is None and not plan.new:
            durable()
        else:
            self.shard.sync(durable)

    def note_tail(self, tensor: str, copy: RangeCopy) -> None:
        """Note when the records of the tail came."""
        came, state = self._came.get(tensor, {}), copy.state
        known = len(state.tail) - sum(record.sequence not in came for record in copy.after(copy.applied))
        if known != len(state.tail) or len(came) != known:
            mine = copy.after(copy.applied)
            self._came[tensor] = {one.sequence: came.get(one.sequence, self.now) for one in mine}

    def apply(self, tensor: str, copy: RangeCopy, commit_to: int) -> None:
        """Apply what is committed."""
        while copy.applied < commit_to:
            record = copy.apply_next()
            self.checks.applied(self.node, tensor, record)
            self._came.get(tensor, {}).pop(record.sequence, None)
        copy.checkpoint(copy.applied - self.shard.world.random.randrange(8))

    # Reads

    def read(self, sender: str, asked: service_calls.Read, may_wait: bool = True) -> None:
        """A router reads rows of an open range."""
        tensor, copy, record = asked.tensor, self.copy_of(asked.tensor), self.catalogue.ranges.get(asked.tensor)
        if copy is None or asked.rows is None:
            self.shard.world.send(self.shard, sender, Answer(asked.request_id, is_done=False))
            return
        is_in_sync = record is not None and self.node in record.in_sync
        known = Readable(is_in_sync, self.shard.client.confirmed, copy.applied, self.tail_since(tensor, copy))
        judged = judge_read(known, self.now, asked.least)
        if judged is Read.BEHIND and may_wait:
            self.shard.after(WAIT_S, self.read, sender, asked, False)
            return
        if judged is not Read.SERVED:
            self.shard.world.send(self.shard, sender, Answer(asked.request_id, is_done=False))
            return
        sequence, values = self.visible(copy)
        self.checks.read(self.node, tensor, sequence, asked.rows, [values.get(row, 0) for row in asked.rows])
        self.checks.check_fresh(self.node, tensor, sequence, self.now)
        items = tuple(self.shard.disk.segments[tensor].rows[row] for row in asked.rows)
        self.shard.world.send(self.shard, sender, Answer(asked.request_id, is_done=True, rows=items, sequence=sequence))

    def visible(self, copy: RangeCopy) -> tuple[int, Mapping[int, int]]:
        """What readers see: a sequence, and the values of rows."""
        return copy.applied, copy.values

    def tail_since(self, tensor: str, copy: RangeCopy) -> float | None:
        """When the oldest record of the tail came; -inf if it was there before the start, None if there is no tail."""
        if not copy.state.tail:
            return None
        return self._came.get(tensor, {}).get(copy.applied + 1, float("-inf"))

    # Joining

    def join_ranges(self) -> None:
        """Ask to join wherever this shard is listed and is not in sync, has lost its rows, or has an old tail."""
        for tensor, record in self.catalogue.ranges.items():
            copy = self.copy_of(tensor)
            since = None if copy is None else self.tail_since(tensor, copy)
            if self.node in record.in_sync and copy is not None and (since is None or self.now < since + 1.0):
                continue
            listed = find_listed(self.catalogue, tensor)
            is_listed = listed is not None and self.node in listed.segment.nodes
            if is_listed and record.epoch == PROPOSED and copy is not None:
                self.shard.client.transact(partial(join_unled_range, tensor=tensor, node=self.node), lambda _: None)
            elif is_listed and record.primary != self.node and self.now >= self._joining.get(tensor, 0.0):
                self._join(tensor, record.primary)

    def _join(self, tensor: str, primary: str) -> None:
        self._joining[tensor] = self.now + 2 * ANSWER_AFTER
        if primary in self.catalogue.nodes:
            join = JoinRange(next(self.shard.world.ids), tensor, Join(self.node, self.state_of(tensor)))
            self.ask(self.catalogue.nodes[primary].address, join, partial(self._join_answered, tensor, primary))

    def _join_answered(self, tensor: str, primary: str, answer: Answer) -> None:
        reply = answer.reply
        assert isinstance(reply, JoinReply)
        if reply.judged is JoinAnswer.RECORDS and reply.append is not None:
            message = ShipRecords(0, tensor, reply.append, reply.records)

            def appended(answer: service_calls.Reply) -> None:
                if not isinstance(answer, Refused):
                    self._join(tensor, primary)

            self.locked(tensor, lambda release: self._append(message, appended, release))
        elif reply.judged is JoinAnswer.COPY and reply.order is not None:
            self._begin_copy(tensor, reply.order)
        else:
            self._joining[tensor] = self.now + 0.5

    def _begin_copy(self, tensor: str, order: CopyOrder) -> None:
        """Make the epoch of the order durable; then copy from any replica in sync."""
        self._joining[tensor] = self.now + 4 * ANSWER_AFTER

        def raise_epoch(release: Release) -> None:
            def durable() -> None:
                copy = self.copy_of(tensor)
                if copy is not None:
                    copy.epoch = max(copy.epoch, order.epoch)
                release()
                self._copy(tensor, order)

            self.shard.sync(durable)

        self.locked(tensor, raise_epoch)

    def _copy(self, tensor: str, order: CopyOrder) -> None:
        record = self.catalogue.ranges.get(tensor)
        sources = [] if record is None else [one for one in record.in_sync if one in self.catalogue.nodes]
        if not sources:
            return
        address = self.catalogue.nodes[self.shard.world.random.choice(sources)].address

        def rows_came(rows: Answer) -> None:
            def keys_came(keys: Answer) -> None:
                if isinstance(rows.reply, CopiedRows) and isinstance(keys.reply, CopiedKeys):
                    kept = {key: one for key, one in keys.reply.keys.items() if one <= rows.sequence}
                    self._adopt(tensor, order, rows.sequence, rows.reply.values, kept)

            if isinstance(rows.reply, CopiedRows):
                self.ask(address, CopyRange(next(self.shard.world.ids), tensor, "keys"), keys_came)

        self.ask(address, CopyRange(next(self.shard.world.ids), tensor, "rows"), rows_came)

    def give_copy(self, sender: str, asked: CopyRange) -> None:
        """Another replica copies: what is committed, and not what the disk may have in parts."""
        copy = self.copy_of(asked.tensor)
        if copy is None or self.tail_since(asked.tensor, copy) == float("-inf"):
            self.reply(sender, asked.request_id, None)
        else:
            is_rows = asked.what == "rows"
            reply = CopiedRows(dict(copy.values)) if is_rows else CopiedKeys({**copy.keys, **_tail_keys(copy)})
            self.reply(sender, asked.request_id, reply, copy.applied)

    def _adopt(
        self, tensor: str, order: CopyOrder, sequence: int, values: Mapping[int, int], keys: dict[str, int]
    ) -> None:
        def replace(release: Release) -> None:
            def durable() -> None:
                if may_adopt(self.state_of(tensor), sequence, order) and self.shard.keep(tensor, rows_of(tensor)):
                    copy = RangeCopy(order.epoch, sequence, [], sequence, dict(values), dict(values), keys)
                    self.shard.disk.ranges[tensor] = copy
                    self._came.pop(tensor, None)
                    self._joining[tensor] = self.now
                release()

            self.shard.sync(durable)

        self.locked(tensor, replace)


def _tail_keys(copy: RangeCopy) -> dict[str, int]:
    return {record.scatter.key: record.sequence for record in copy.after(copy.applied)}
