"""A simulated shard: `HeldRanges` with a disk whose writes take time and are lost in a crash until they are synced."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from app.cluster.coordinator.messages import Drop, Held, Hold, NotHeld, RangeKey, Stamp
from app.cluster.shard.held_ranges import UNSTAMPED, Copy, HeldRanges, Remove, SetStamp, ShardAction, StoredRange
from tests.cluster.simulation.checks import Checks
from tests.cluster.simulation.service_calls import Read, Rows, Sent, Write, Written
from tests.cluster.simulation.truth import Items, digest_of, rows_of
from tests.cluster.simulation.world import Process, World

COPY_TIMEOUT = 2.0
COORDINATOR = "coordinator"


@dataclass
class Disk:
    """What a machine's disk has, whole and synced: ranges, and how often the shard has started."""

    ranges: dict[RangeKey, tuple[StoredRange, Items]] = field(default_factory=dict)
    stamps: dict[RangeKey, Stamp] = field(default_factory=dict)
    started: int = 0
    slow: float = 0.05
    """The share of writes that take seconds."""

    def delay(self, random: Random) -> float:
        """Seconds until a write is synced."""
        return random.random() * (5.0 if random.random() < self.slow else 0.02)


class Shard(Process):
    """The shard of a machine and the service there, whose list of ranges the shard reads now and then; to its crash."""

    def __init__(self, world: World, node: str, capacity: int, disk: Disk, checks: Checks) -> None:
        disk.started += 1
        super().__init__(world, node, f"{node}:{8000 + disk.started % 2}")
        self.disk = disk
        self._checks = checks
        self._waiting: list[Callable[[], None]] = []
        """What is written and not yet synced, in order."""
        self._copies: dict[int, Copy] = {}
        self.ranges = self.make_ranges(node, capacity)
        for key, (one, _) in disk.ranges.items():
            self.ranges.appeared(one, disk.stamps.get(key, UNSTAMPED))
        self._pending: Counter[RangeKey] = Counter()
        """How many writes and removals of a range the shard has begun that are not done."""
        self.every(1.0, self._tell)
        self.every(1.0, self._look)

    def make_ranges(self, node: str, capacity: int) -> HeldRanges:
        """The side of the protocol that is tested."""
        return HeldRanges(node, self.address, self.disk.started, capacity)

    def _tell(self) -> None:
        self.world.send(self, COORDINATOR, self.ranges.inventory())

    def receive(self, sender: str, message: Sent) -> None:
        """A message has come, for the shard or for the service."""
        match message:
            case Read(request_id, key, rows):
                found = self.disk.ranges.get(key)
                if found is None:
                    self.world.send(self, sender, Rows(request_id, None))
                else:
                    answer = found[1] if rows is None else tuple(found[1][row - key.start] for row in rows)
                    self.world.send(self, sender, Rows(request_id, answer))
            case Write():
                self._sync(lambda: self._put(sender, message))
            case Rows(request_id, rows):
                copy = self._copies.pop(request_id, None)
                if copy is not None:
                    self._copied(copy, rows)
            case Hold():
                self._do(self.ranges.hold(message))
            case Drop():
                self._do(self.ranges.drop(message))
            case _:
                raise AssertionError(f"a shard got {message}")

    def _do(self, actions: list[ShardAction]) -> None:
        for action in actions:
            match action:
                case Held() | NotHeld():
                    self.world.send(self, COORDINATOR, action)
                case Copy():
                    self._copy(action)
                case SetStamp(key, stamp):
                    self._begin(key, lambda key=key, stamp=stamp: self._restamp(key, stamp))  # type: ignore[misc]
                case Remove(key):
                    self._begin(key, lambda key=key: self._remove(key))  # type: ignore[misc]

    def _copy(self, copy: Copy) -> None:
        if copy.source:
            request_id = next(self.world.ids)
            self._copies[request_id] = copy
            self.world.send(self, copy.source, Read(request_id, copy.key))
            self.after(COPY_TIMEOUT, self._copy_is_late, request_id)
        else:
            works = self.world.random.random() < 0.8
            self.after(0.5, self._copied, copy, rows_of(copy.key) if works else None)

    def _copy_is_late(self, request_id: int) -> None:
        if (copy := self._copies.pop(request_id, None)) is not None:
            self.ranges.not_copied(copy)

    def _copied(self, copy: Copy, rows: Items | None) -> None:
        if rows is None or (copy.digest and digest_of(rows) != copy.digest):
            self.ranges.not_copied(copy)
        else:
            self._begin(copy.key, lambda: self._store(copy, rows))

    # The disk

    def _store(self, copy: Copy, rows: Items) -> None:
        self._keep(StoredRange(copy.key, copy.size, digest_of(rows)), rows)
        self.disk.stamps[copy.key] = copy.stamp
        self._do(self.ranges.copied(copy, digest_of(rows)))

    def _put(self, router: str, asked: Write) -> None:
        """The service has written what a router sent it; the shard will find it in its list."""
        if asked.key not in self.disk.ranges:
            self._keep(StoredRange(asked.key, asked.size, digest_of(asked.rows)), asked.rows)
        self.world.send(self, router, Written(asked.key, self.machine))

    def _keep(self, one: StoredRange, rows: Items) -> None:
        self.disk.ranges[one.key] = one, rows
        self._checks.written(self.machine, one.key)

    def _look(self) -> None:
        """Read the list of ranges; what is being written or removed is left for the next time."""
        for key, (one, _) in self.disk.ranges.items():
            if not self._pending[key]:
                self._do(self.ranges.appeared(one))
        for key in self.ranges.whole - set(self.disk.ranges):
            if not self._pending[key]:
                self.ranges.disappeared(key)

    def _restamp(self, key: RangeKey, stamp: Stamp) -> None:
        if key in self.disk.ranges:
            self.disk.stamps[key] = max(self.disk.stamps.get(key, UNSTAMPED), stamp)
            self.ranges.stamped(key, stamp)

    def _remove(self, key: RangeKey) -> None:
        self.disk.stamps.pop(key, None)
        if self.disk.ranges.pop(key, None) is not None:
            self._checks.removed(self.machine, key)

    def _begin(self, key: RangeKey, do: Callable[[], None]) -> None:
        """The same for a range, which is in no certain state until it is done."""
        self._pending[key] += 1

        def done() -> None:
            self._pending[key] -= 1
            do()

        self._sync(done)

    def _sync(self, do: Callable[[], None]) -> None:
        """Done, in order, when the disk has it."""
        self._waiting.append(do)
        self.after(self.disk.delay(self.world.random), self._sync_next)

    def _sync_next(self) -> None:
        self._waiting.pop(0)()
