"""A simulated shard, with a disk whose writes take time and are lost in a crash until they are synced."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from app.cluster.catalogue.listed_segments import find_listed
from app.cluster.catalogue.records import Catalogue, Change, Mark, Node
from app.cluster.reconciler.cluster_view import HeldSegment
from app.cluster.shard.pull_order import PullSource
from tests.cluster.simulation.checks import Checks
from tests.cluster.simulation.database import Database, DatabaseClient
from tests.cluster.simulation.range_copy import RangeCopy
from tests.cluster.simulation.service_calls import (
    Answer,
    DropSegment,
    ListSegments,
    PullSegment,
    Read,
    Sent,
    ToRange,
    Write,
)
from tests.cluster.simulation.truth import Items, digest_of, rows_of
from tests.cluster.simulation.world import Process, World

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


class RangesOfShard(Protocol):
    """What a shard does with ranges that take scatters."""

    def receive(self, sender: str, message: ToRange) -> None: ...
    def answered(self, answer: Answer) -> None: ...
    def taken(self, catalogue: Catalogue) -> None: ...
    def read(self, sender: str, asked: Read) -> None: ...


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
        ranges: Callable[[Shard], RangesOfShard],
    ) -> None:
        disk.started += 1
        super().__init__(world, name, f"{name}:{8000 + disk.started % 2}")
        self.disk = disk
        self._node = Node(self.address, capacity, zone)
        self.checks = checks
        self._waiting: list[Callable[[], None]] = []
        """What is to be done when the disk has what is written before it, in order."""
        self._pulls: dict[int, tuple[str, PullSegment, list[PullSource]]] = {}
        self._registering = False
        self.client = DatabaseClient(database, self, self._take)
        self.ranges = ranges(self)
        self.every(1.0, self._register)

    def _take(self, catalogue: Catalogue) -> None:
        self.ranges.taken(catalogue)

    def _register(self) -> None:
        def over(_: str) -> None:
            self._registering = False

        if not self._registering and self._registration(self.client.catalogue) is not None:
            self._registering = True
            self.client.transact(self._registration, over)

    def _registration(self, catalogue: Catalogue) -> Change | None:
        name = self.machine
        if catalogue.nodes.get(name) == self._node and name in catalogue.alive and self.client.lease is not None:
            return None
        return Change({f"nodes/{name}": self._node, f"alive/{name}": Mark()}, leased=frozenset({f"alive/{name}"}))

    def receive(self, sender: str, message: Sent) -> None:
        """A request has come, or the rows that a pull has asked for."""
        match message:
            case Read(tensor=tensor, least=least) if least or self._is_open(tensor):
                self.ranges.read(sender, message)
            case Read(request_id, tensor, rows):
                found = self.disk.segments.get(tensor)
                items = None if found is None else found.rows
                if items is not None and rows is not None:
                    items = tuple(items[row] for row in rows)
                self.world.send(self, sender, Answer(request_id, found is not None, items))
            case Write():
                self.sync(lambda: self._answer(sender, message.request_id, self.keep(message.tensor, message.rows)))
            case ListSegments():
                self._list(sender, message)
            case DropSegment():
                self.sync(lambda: self._drop(sender, message))
            case PullSegment(request_id, _, order):
                if order.fence is None or self.check_fence(order.fence):
                    self._pull(sender, message, list(order.sources))
                else:
                    self._answer(sender, request_id, is_done=False)
            case Answer(request_id, _, rows):
                if request_id in self._pulls:
                    self._pulled(request_id, rows)
                else:
                    self.ranges.answered(message)
            case _:
                self.ranges.receive(sender, message)

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

    def _answer(self, to: str, request_id: int, is_done: bool) -> None:
        self.world.send(self, to, Answer(request_id, is_done))

    def check_fence(self, fence: int) -> bool:
        """Whether an order may be carried out. No lower fence is taken from then on."""
        if fence < self.disk.fence:
            return False
        self.disk.fence = fence
        return True

    def _list(self, sender: str, asked: ListSegments) -> None:
        if self.check_fence(asked.fence):
            held = {tensor: one.listed for tensor, one in self.disk.segments.items()}
            self.world.send(self, sender, Answer(asked.request_id, is_done=True, segments=held))
        else:
            self._answer(sender, asked.request_id, is_done=False)

    def _drop(self, sender: str, asked: DropSegment) -> None:
        is_due = self.check_fence(asked.fence)
        if is_due and self.disk.segments.pop(asked.tensor, None) is not None:
            self.disk.ranges.pop(asked.tensor, None)
            self.checks.removed(self.machine, asked.tensor)
        self._answer(sender, asked.request_id, is_due)

    # Pulls: nobody cancels them here, so that each of them may end late

    def _pull(self, sender: str, asked: PullSegment, sources: list[PullSource]) -> None:
        order = asked.order
        found = self.disk.segments.get(asked.tensor)
        if found is not None and order.sha256 in ("", found.listed.sha256):
            self._answer(sender, asked.request_id, is_done=True)
        elif sources:
            request_id = next(self.world.ids)
            source = sources.pop(0)
            self._pulls[request_id] = sender, asked, sources
            rows = None if source.rows is None else tuple(range(*source.rows))
            self.world.send(self, source.address, Read(request_id, source.tensor, rows))
            self.after(COPY_TIMEOUT, self._pulled, request_id, None)
        elif order.origin and self.world.random.random() < 0.8:
            self.after(0.5, self._store, sender, asked, rows_of(asked.tensor))
        else:
            self._answer(sender, asked.request_id, is_done=False)

    def _pulled(self, request_id: int, rows: Items | None) -> None:
        if (pull := self._pulls.pop(request_id, None)) is not None:
            sender, asked, sources = pull
            if rows is None or asked.order.sha256 not in ("", digest_of(rows)):
                self._pull(sender, asked, sources)
            else:
                self._store(sender, asked, rows)

    def _store(self, sender: str, asked: PullSegment, rows: Items) -> None:
        self.sync(lambda: self._answer(sender, asked.request_id, self.keep(asked.tensor, rows)))

    # The disk

    def keep(self, tensor: str, rows: Items) -> bool:
        """Have a segment, unless there is no room for it."""
        if tensor not in self.disk.segments:
            size = ROW_BYTES * len(rows)
            if self.disk.used + size > self._node.capacity:
                return False
            self.disk.segments[tensor] = Stored(rows, HeldSegment(size, digest_of(rows)))
            self.checks.written(self.machine, tensor, rows)
        return True

    def sync(self, do: Callable[[], None]) -> None:
        """Do something when the disk has all that was written before it."""
        self._waiting.append(do)
        self.after(self.disk.delay(self.world.random), self._sync_next)

    def _sync_next(self) -> None:
        self._waiting.pop(0)()
