"""A simulated shard, with a disk whose writes take time and are lost in a crash until they are synced."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

from app.cluster.catalogue.listed_segments import find_listed
from app.cluster.catalogue.records import Catalogue, Change, Mark, Node
from app.cluster.reconciler.cluster_view import HeldSegment
from tests.cluster.simulation.checks import Checks
from tests.cluster.simulation.database import Database, DatabaseClient
from tests.cluster.simulation.range_copy import RangeCopy
from tests.cluster.simulation.service_calls import (
    Answer,
    Asked,
    DropSegment,
    ListSegments,
    PullSegment,
    Read,
    Sent,
    Write,
)
from tests.cluster.simulation.truth import Items, digest_of, rows_of
from tests.cluster.simulation.world import Process, World

if TYPE_CHECKING:
    from tests.cluster.simulation.primaries import Primaries

COPY_TIMEOUT = 2.0
ROW_BYTES = 4


@dataclass(frozen=True, slots=True)
class Stored:
    """A segment on a disk: its rows, and what a list says of it."""

    rows: Items
    listed: HeldSegment


@dataclass
class Disk:
    """What a machine's disk has, whole and synced, and how often the shard has started."""

    segments: dict[str, Stored] = field(default_factory=dict)
    ranges: dict[str, RangeCopy] = field(default_factory=dict)
    """Of segments that take scatters: what is not as it was uploaded."""
    fence: int = 0
    started: int = 0
    slow: float = 0.05
    """The share of writes that take seconds."""

    def delay(self, random: Random) -> float:
        """Seconds until a write is synced."""
        return random.random() * (5.0 if random.random() < self.slow else 0.02)

    @property
    def used(self) -> int:
        """Bytes of all segments."""
        return sum(one.listed.size for one in self.segments.values())


class Shard(Process):
    """The shard of a machine, from one start to its crash; `ranges` makes what it does with open ranges."""

    def __init__(
        self,
        world: World,
        name: str,
        zone: str,
        capacity: int,
        disk: Disk,
        database: Database,
        checks: Checks,
        ranges: type[Primaries],
    ) -> None:
        disk.started += 1
        super().__init__(world, name, f"{name}:{8000 + disk.started % 2}")
        self.disk = disk
        self._node = Node(self.address, capacity, zone)
        self.checks = checks
        self._waiting: list[asyncio.Future[None]] = []
        """What waits until the disk has what is written before it, in order."""
        self._registering = False
        self.client = DatabaseClient(database, self, self._take)
        self.ranges = ranges(self)
        self.every(1.0, self._register)

    def _take(self, catalogue: Catalogue) -> None:
        self.ranges.taken(catalogue)

    def _register(self) -> None:
        async def register() -> None:
            await self.client.transact(self._registration)
            self._registering = False

        if not self._registering and self._registration(self.client.catalogue) is not None:
            self._registering = True
            self.start(register)

    def _registration(self, catalogue: Catalogue) -> Change | None:
        name = self.machine
        if catalogue.nodes.get(name) == self._node and name in catalogue.alive and self.client.lease is not None:
            return None
        return Change({f"nodes/{name}": self._node, f"alive/{name}": Mark()}, leased=frozenset({f"alive/{name}"}))

    def receive(self, sender: str, message: Sent) -> None:
        """A request or an answer has come."""
        if isinstance(message, Answer):
            self.take_answer(message)
        else:
            self.start(self._receive, sender, message)

    async def _receive(self, sender: str, message: Asked) -> None:
        answer = await self._answer(message)
        if answer is not None:
            self.world.send(self, sender, answer)

    async def _answer(self, message: Asked) -> Answer | None:
        """The answer to a request, None if it gets none."""
        match message:
            case Read(tensor=tensor, least=least) if least or self._is_open(tensor):
                return await self.ranges.read(message)
            case Read(request_id, tensor, rows):
                found = self.disk.segments.get(tensor)
                items = None if found is None else found.rows
                if items is not None and rows is not None:
                    items = tuple(items[row] for row in rows)
                return Answer(request_id, found is not None, items)
            case Write():
                return Answer(message.request_id, await self._store(message.tensor, message.rows))
            case ListSegments():
                held = {tensor: one.listed for tensor, one in self.disk.segments.items()}
                is_due = self.check_fence(message.fence)
                return Answer(message.request_id, is_due, segments=held if is_due else None)
            case DropSegment():
                await self.sync()
                return Answer(message.request_id, self._drop(message))
            case PullSegment(request_id, _, order):
                is_due = order.fence is None or self.check_fence(order.fence)
                return Answer(request_id, is_due and await self._pull(message))
            case _:
                return await self.ranges.answer(message)

    def _is_open(self, tensor: str) -> bool:
        """Whether this shard knows that a range takes scatters."""
        copy = self.disk.ranges.get(tensor)
        return tensor in self.client.catalogue.ranges or (copy is not None and copy.epoch > 0)

    def replicas_of(self, tensor: str) -> int:
        """How many replicas a range is to have."""
        listed = find_listed(self.client.catalogue, tensor)
        return 1 if listed is None else listed.replicas

    def crash(self) -> None:
        """It is gone; with power lost, so is what the disk did not have to keep."""
        super().crash()
        if self.world.random.random() < 0.5:
            for copy in self.disk.ranges.values():
                copy.lose_power(self.world.random)

    def check_fence(self, fence: int) -> bool:
        """Whether an order may be carried out. No lower fence is taken from then on."""
        if fence < self.disk.fence:
            return False
        self.disk.fence = fence
        return True

    def _drop(self, asked: DropSegment) -> bool:
        is_due = self.check_fence(asked.fence)
        if is_due and self.disk.segments.pop(asked.tensor, None) is not None:
            self.disk.ranges.pop(asked.tensor, None)
            self.checks.removed(self.machine, asked.tensor)
        return is_due

    async def _pull(self, asked: PullSegment) -> bool:
        """Pull a segment. Nobody cancels it here, so it may end late."""
        tensor, order = asked.tensor, asked.order

        def is_there() -> bool:
            found = self.disk.segments.get(tensor)
            return found is not None and order.sha256 in ("", found.listed.sha256)

        for source in order.sources:
            if is_there():
                return True
            rows = None if source.rows is None else tuple(range(*source.rows))
            read = Read(next(self.world.ids), source.tensor, rows)
            answer = await self.ask(source.address, read, COPY_TIMEOUT)
            if answer is not None and answer.rows is not None and order.sha256 in ("", digest_of(answer.rows)):
                return await self._store(tensor, answer.rows)
        if is_there():
            return True
        if order.origin and self.world.random.random() < 0.8:
            await asyncio.sleep(0.5)
            return await self._store(tensor, rows_of(tensor))
        return False

    # The disk

    async def _store(self, tensor: str, rows: Items) -> bool:
        await self.sync()
        return self.keep(tensor, rows)

    def keep(self, tensor: str, rows: Items) -> bool:
        """Have a segment, unless there is no room for it."""
        if tensor not in self.disk.segments:
            size = ROW_BYTES * len(rows)
            if self.disk.used + size > self._node.capacity:
                return False
            self.disk.segments[tensor] = Stored(rows, HeldSegment(size, digest_of(rows)))
            self.checks.written(self.machine, tensor, rows)
        return True

    async def sync(self) -> None:
        """Wait until the disk has all that was written before."""
        done = self.loop.create_future()
        self._waiting.append(done)
        self.after(self.disk.delay(self.world.random), self._sync_next)
        await done

    def _sync_next(self) -> None:
        self._waiting.pop(0).set_result(None)
