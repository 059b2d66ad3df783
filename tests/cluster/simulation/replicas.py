"""What a replica does with open ranges on a simulated shard, by the rules of `app.cluster.replication`."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING

from app.cluster.catalogue.listed_segments import find_listed
from app.cluster.catalogue.ranges import PROPOSED, join_unled_range
from app.cluster.catalogue.records import Catalogue
from app.cluster.replication.primary import Join, JoinAnswer
from app.cluster.replication.reads import WAIT_S, Read, Readable, judge_read
from app.cluster.replication.replica import (
    AppendAnswer,
    CopyOrder,
    Refused,
    ReplicaState,
    Why,
    is_stale,
    may_adopt,
    on_append,
)
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


class Replicas:
    """What is in memory is lost when the shard crashes; each range has a lock, as a tensor of a store has."""

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self.checks = shard.checks.scatters
        self.locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._came: dict[str, dict[int, float]] = {}
        """When each record of a tail came. Those that were there before the start are not in it."""
        self._joining: dict[str, float] = {}

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

    async def ask(self, node: str, asked: ToRange) -> service_calls.Reply:
        """What another shard says of a range, None if it says nothing."""
        answer = await self.shard.ask(self.catalogue.nodes[node].address, asked, ANSWER_AFTER)
        return None if answer is None else answer.reply

    # Records

    async def ship(self, message: ShipRecords) -> AppendAnswer | None:
        """Records have come from a primary."""
        copy = self.copy_of(message.tensor)
        if copy is not None and is_stale(copy.epoch, message.append.epoch):
            return Refused(Why.STALE, copy.epoch, copy.applied)
        async with self.locks[message.tensor]:
            return await self._append(message)

    async def _append(self, message: ShipRecords) -> AppendAnswer | None:
        """Carry out what the rules say, with the lock held. Returns None if the rows were replaced meanwhile."""
        tensor, copy = message.tensor, self.copy_of(message.tensor)
        plan = on_append(self.state_of(tensor), message.append)
        if copy is None:
            return plan.answer
        if plan.epoch is not None or plan.truncate_after is not None or plan.new:
            await self.shard.sync()
        if self.copy_of(tensor) is not copy:
            return None
        copy.carry_out(plan, message.records)
        self.note_tail(tensor, copy)
        if plan.commit_to is not None:
            self.apply(tensor, copy, plan.commit_to)
        return plan.answer

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

    async def read(self, asked: service_calls.Read) -> Answer:
        """A router reads rows of an open range."""
        judged = self._judged(asked)
        if judged is Read.BEHIND:
            await asyncio.sleep(WAIT_S)
            judged = self._judged(asked)
        tensor, copy = asked.tensor, self.copy_of(asked.tensor)
        if copy is None or asked.rows is None or judged is not Read.SERVED:
            return Answer(asked.request_id, is_done=False)
        sequence = copy.applied
        self.checks.read(self.node, tensor, sequence, asked.rows, [copy.values.get(row, 0) for row in asked.rows])
        self.checks.check_fresh(self.node, tensor, sequence, self.now)
        items = tuple(self.shard.disk.segments[tensor].rows[row] for row in asked.rows)
        return Answer(asked.request_id, is_done=True, rows=items, sequence=sequence)

    def _judged(self, asked: service_calls.Read) -> Read:
        copy, record = self.copy_of(asked.tensor), self.catalogue.ranges.get(asked.tensor)
        if copy is None:
            return Read.NOT_IN_SYNC
        is_in_sync = record is not None and self.node in record.in_sync
        known = Readable(is_in_sync, self.shard.client.confirmed, copy.applied, self.tail_since(asked.tensor, copy))
        return judge_read(known, self.now, asked.least)

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
                change = partial(join_unled_range, tensor=tensor, node=self.node)
                self.shard.start(self.shard.client.transact, change)
            elif is_listed and record.primary != self.node and self.now >= self._joining.get(tensor, 0.0):
                self._joining[tensor] = self.now + 2 * ANSWER_AFTER
                self.shard.start(self._join, tensor, record.primary)

    async def _join(self, tensor: str, primary: str) -> None:
        while primary in self.catalogue.nodes:
            self._joining[tensor] = self.now + 2 * ANSWER_AFTER
            join = Join(self.node, self.state_of(tensor))
            reply = await self.ask(primary, JoinRange(next(self.shard.world.ids), tensor, join))
            if not isinstance(reply, JoinReply):
                return
            if reply.judged is JoinAnswer.COPY and reply.order is not None:
                await self._copy(tensor, reply.order)
                return
            if reply.judged is not JoinAnswer.RECORDS or reply.append is None:
                self._joining[tensor] = self.now + 0.5
                return
            async with self.locks[tensor]:
                appended = await self._append(ShipRecords(0, tensor, reply.append, reply.records))
            if appended is None or isinstance(appended, Refused):
                return

    async def _copy(self, tensor: str, order: CopyOrder) -> None:
        """Make the epoch of the order durable; then copy from any replica in sync."""
        self._joining[tensor] = self.now + 4 * ANSWER_AFTER
        async with self.locks[tensor]:
            await self.shard.sync()
            if (copy := self.copy_of(tensor)) is not None:
                copy.epoch = max(copy.epoch, order.epoch)
        record = self.catalogue.ranges.get(tensor)
        sources = [] if record is None else [one for one in record.in_sync if one in self.catalogue.nodes]
        if not sources:
            return
        source = self.shard.world.random.choice(sources)
        rows = await self.ask(source, CopyRange(next(self.shard.world.ids), tensor, "rows"))
        if not isinstance(rows, CopiedRows) or source not in self.catalogue.nodes:
            return
        keys = await self.ask(source, CopyRange(next(self.shard.world.ids), tensor, "keys"))
        if not isinstance(keys, CopiedKeys):
            return
        sequence, values = rows.sequence, rows.values
        kept = {key: one for key, one in keys.keys.items() if one <= sequence}
        async with self.locks[tensor]:
            await self.shard.sync()
            if may_adopt(self.state_of(tensor), sequence, order) and self.shard.keep(tensor, rows_of(tensor)):
                adopted = RangeCopy(order.epoch, sequence, [], sequence, dict(values), dict(values), kept)
                self.shard.disk.ranges[tensor] = adopted
                self._came.pop(tensor, None)
                self._joining[tensor] = self.now

    def given_copy(self, asked: CopyRange) -> service_calls.Reply:
        """Another replica copies: what is committed, and not what the disk may have in parts."""
        copy = self.copy_of(asked.tensor)
        if copy is None or self.tail_since(asked.tensor, copy) == float("-inf"):
            return None
        if asked.what == "rows":
            return CopiedRows(copy.applied, dict(copy.values))
        in_tail = {record.scatter.key: record.sequence for record in copy.after(copy.applied)}
        return CopiedKeys({**copy.keys, **in_tail})
