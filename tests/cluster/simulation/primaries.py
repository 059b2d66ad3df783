"""What the primary of a range does on a simulated shard, by the rules of `app.cluster.replication`."""

from __future__ import annotations

import asyncio
from contextlib import suppress
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
from tests.cluster.simulation.replicas import Replicas
from tests.cluster.simulation.scatter_truth import record_of
from tests.cluster.simulation.service_calls import (
    Answer,
    Asked,
    CopyRange,
    JoinRange,
    JoinReply,
    Reply,
    ScatterRange,
    ShipRecords,
)
from tests.cluster.simulation.shard import Shard

AGAIN_S = 0.6
"""How soon a primary sends again what was not answered."""
TRIES = 8


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

    async def answer(self, message: Asked) -> Answer | None:
        """The answer to a message about an open range, None if it gets none."""
        reply: Reply = None
        match message:
            case ScatterRange():
                async with self.locks[message.tensor]:
                    sequence = await self._scatter(message)
                return Answer(message.request_id, sequence > 0, sequence=sequence)
            case ShipRecords():
                reply = await self.ship(message)
                if reply is None:
                    return None
            case JoinRange():
                async with self.locks[message.tensor]:
                    reply = await self._judge_join(message)
            case CopyRange():
                reply = self.given_copy(message)
        return Answer(message.request_id, reply is not None, reply=reply)

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
        async def resolve() -> None:
            async with self.locks[tensor]:
                await self._get_ready(tensor, self.catalogue.ranges.get(tensor))
            self._pending.discard(tensor)

        state = self.state_of(tensor)
        if state is None or tensor in self._pending or (self._resolved.get(tensor) == record.epoch and not state.tail):
            return
        self._pending.add(tensor)
        self.shard.start(resolve)

    async def _get_ready(self, tensor: str, members: Members | None) -> Members | None:
        """Do, with the lock held, what a primary has to do before anything else.

        Returns the record of the range, None if this shard may not act as its primary.
        """
        for _ in range(TRIES):
            copy = self.copy_of(tensor)
            if members is None or copy is None:
                return None
            match standing(members, self.node, copy.state, self._resolved.get(tensor, 0)):
                case Standing.READY:
                    return members
                case Standing.RAISE_OWN:
                    goes_on = await self._raise_own(tensor, copy, members.epoch)
                case Standing.BEGIN:
                    goes_on = await self._raise_own(tensor, copy, FIRST_TERM)
                case Standing.RAISE_RECORD:
                    change = partial(raise_epoch, tensor=tensor, node=self.node, epoch=copy.epoch)
                    goes_on = not await self.shard.client.transact(change)
                    members = self.catalogue.ranges.get(tensor)
                case Standing.RESOLVE:
                    members = await self._ship_tail(tensor, copy, members)
                    goes_on = members is not None
                case _:
                    goes_on = False
            if not goes_on:
                return None
        return None

    async def _raise_own(self, tensor: str, copy: RangeCopy, epoch: int) -> bool:
        """Make an epoch this replica's own, durably. Returns whether its rows are still there."""
        await self.shard.sync()
        if self.copy_of(tensor) is not copy:
            return False
        copy.epoch = max(copy.epoch, epoch)
        return True

    # Scatters

    async def _scatter(self, asked: ScatterRange) -> int:
        """Scatter, with the lock held. Returns the sequence, 0 if nothing is acknowledged."""
        tensor, scatter = asked.tensor, asked.scatter
        members = await self._get_ready(tensor, self.view().ranges.get(tensor))
        copy = self.copy_of(tensor)
        if members is None or copy is None:
            return 0
        if self._may_acknowledge(tensor, members) and scatter.key not in copy.keys:
            record = record_of(scatter, copy.applied + 1, copy.epoch, copy.values)
            await self.shard.sync()
            if self.copy_of(tensor) is not copy:
                return 0
            copy.log.append(record)
            self.note_tail(tensor, copy)
            members = await self._ship_tail(tensor, copy, members)
        known = members is not None and self._may_acknowledge(tensor, members)
        return copy.keys.get(scatter.key, 0) if known else 0

    def _may_acknowledge(self, tensor: str, members: Members) -> bool:
        return may_acknowledge(members, min_in_sync(self.shard.replicas_of(tensor)))

    async def _ship_tail(self, tensor: str, copy: RangeCopy, members: Members) -> Members | None:
        """One round: ship the tail to the replicas in sync, with the lock held, until it is committed and applied.

        Returns the record of the range at its end, None if the round ends without a commit.
        """
        shipped, behind = begin_round(members, copy.state, self.now), dict[str, int]()
        news, again_at = asyncio.Event(), self.now
        is_over = False

        async def send(replica: str) -> None:
            nonlocal shipped
            after = behind.get(replica, copy.applied)
            if after < copy.start:
                shipped = shipped.with_failure(replica)
                news.set()
            elif replica in self.catalogue.nodes:
                reply = await self.ask(replica, self._records(tensor, copy, after))
                if is_over or not isinstance(reply, Appended | Refused):
                    return
                shipped = shipped.with_answer(replica, reply)
                news.set()
                if isinstance(reply, Refused) and reply.why is Why.GAP and behind.get(replica) != reply.applied:
                    behind[replica] = reply.applied
                    await send(replica)

        try:
            while self.copy_of(tensor) is copy:
                match shipped.step(self.now):
                    case Step.COMMITTED:
                        return self._committed(tensor, copy, shipped)
                    case Step.STOP | Step.BEHIND:
                        return None
                    case Step.LEAVE:
                        gone = shipped.replicas_to_remove(self.now)
                        change = partial(leave_in_sync, tensor=tensor, epoch=shipped.epoch, gone=gone)
                        code, before = await self.shard.client.transact(change), shipped
                        shipped = shipped.with_members(self.catalogue.ranges.get(tensor))
                        if (shipped == before and code) or not await self._raise_own(tensor, copy, shipped.epoch):
                            return None
                    case Step.WAIT:
                        if self.now >= again_at:
                            again_at = self.now + AGAIN_S
                            for replica in sorted(shipped.pending_replicas):
                                self.shard.start(send, replica)
                        news.clear()
                        with suppress(TimeoutError):
                            await asyncio.wait_for(news.wait(), again_at - self.now)
            return None
        finally:
            is_over = True

    def _committed(self, tensor: str, copy: RangeCopy, shipped: Round) -> Members:
        """Apply what a round has committed, and tell the replicas. Returns the record of the range."""
        self.apply(tensor, copy, shipped.end)
        self._resolved[tensor] = shipped.epoch
        record = RangeRecord(shipped.epoch, self.node, shipped.in_sync)
        for replica in record.in_sync:
            self.shard.start(self._notify, tensor, copy, replica, copy.applied)
        return record

    def _records(self, tensor: str, copy: RangeCopy, after: int) -> ShipRecords:
        """The message with the records after a sequence."""
        records = tuple(copy.after(after))
        append = append_of(copy.state, after, tuple(record.epoch for record in records))
        return ShipRecords(next(self.shard.world.ids), tensor, append, records)

    # Notices

    async def _notify(self, tensor: str, copy: RangeCopy, replica: str, after: int) -> None:
        """Tell a replica what is committed; with the records after `after`, if they are in the log."""
        while replica != self.node and replica in self.catalogue.nodes and after >= copy.start:
            reply = await self.ask(replica, self._records(tensor, copy, after))
            if isinstance(reply, Appended):
                key = tensor, replica
                self._told[key] = max(self._told.get(key, 0), reply.applied)
            if not isinstance(reply, Refused) or reply.why is not Why.GAP or reply.applied >= after:
                return
            after = reply.applied

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
                self.shard.start(self._notify, tensor, copy, replica, copy.applied)
                if self.now > self._late_since.setdefault(key, self.now) + NOTICE_S:
                    self._late_since.pop(key)
                    self._leave(tensor, record.epoch, replica)

    def _leave(self, tensor: str, epoch: int, replica: str) -> None:
        gone = partial(leave_in_sync, tensor=tensor, epoch=epoch, gone=frozenset({replica}))
        self.shard.start(self.shard.client.transact, gone)

    # Joins

    async def _judge_join(self, asked: JoinRange) -> JoinReply:
        """Judge, with the lock held."""
        tensor, node = asked.tensor, asked.join.node
        members = await self._get_ready(tensor, self.view().ranges.get(tensor))
        copy = self.copy_of(tensor)
        if members is None or copy is None:
            return JoinReply(JoinAnswer.NOT_READY)
        judged = on_join(members, Standing.READY, copy.state, asked.join, copy.start)
        if judged is JoinAnswer.RECORDS and asked.join.state is not None:
            message = self._records(tensor, copy, asked.join.state.applied)
            return JoinReply(judged, message.append, message.records)
        if judged is JoinAnswer.COPY:
            return JoinReply(judged, order=CopyOrder(copy.epoch, copy.applied))
        if judged is JoinAnswer.LOST:
            self._leave(tensor, members.epoch, node)
            return JoinReply(JoinAnswer.NOT_READY)
        if judged is JoinAnswer.ADMIT:
            if not await self._raise_own(tensor, copy, members.epoch + 1):
                return JoinReply(JoinAnswer.NOT_READY)
            await self.shard.client.transact(partial(join_in_sync, tensor=tensor, epoch=members.epoch, node=node))
            ready = await self._get_ready(tensor, self.catalogue.ranges.get(tensor))
            return JoinReply(JoinAnswer.NOT_READY if ready is None else JoinAnswer.JOINED)
        return JoinReply(judged)
