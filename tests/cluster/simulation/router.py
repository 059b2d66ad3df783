"""A simulated router: reads by `RangeReads`, publishes by `PublishRequest`, keeps the newest map."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from app.cluster.coordinator.messages import (
    Change,
    Changed,
    MapAnswer,
    MapRequest,
    Placed,
    Publish,
    Published,
    RangeKey,
    Refused,
    Stamp,
    Target,
)
from app.cluster.coordinator.publish_request import PublishRequest
from app.cluster.router.newest_map import NewestMap
from app.cluster.router.range_reads import AskReplica, FetchMap, RangeReads, ReadAction, Wake
from app.cluster.router.replica_choice import ReplicaChoice
from app.cluster.shard_map import ShardMap
from app.tensors.tensor_name import split_reference
from tests.cluster.simulation.checks import Checks
from tests.cluster.simulation.service_calls import Read, Rows, Sent, Write, Written
from tests.cluster.simulation.shard import COORDINATOR
from tests.cluster.simulation.truth import Items, rows_of
from tests.cluster.simulation.world import Process, World

LATE_AFTER = 0.5
LOOKUP_DEADLINE = 5.0
PUBLISH_DEADLINE = 15.0
Answered = Callable[[str, Items], None]


@dataclass
class Publishing:
    """A version on its way; `done` is called with the outcome and the number."""

    request: PublishRequest
    deadline: float
    done: Callable[[str, int], None]
    written: set[tuple[str, RangeKey]] = field(default_factory=set)
    stamps: set[Stamp] = field(default_factory=set)

    def to_write(self) -> list[Target]:
        """The shards that are to get rows and have not said that they have them; none if they read a URL."""
        targets = self.request.targets
        stamps = {one.stamp for one in targets}
        if stamps != self.stamps:
            self.written.clear()  # placed anew, by another coordinator: what was written may be gone
            self.stamps = stamps
        return [one for one in targets if not self.request.asked.url and (one.node, one.key) not in self.written]


class Router(Process):
    """A router, from one start to its crash. It has nothing on a disk."""

    def __init__(self, world: World, name: str, checks: Checks) -> None:
        super().__init__(world, name, f"{name}:8000")
        self._checks = checks
        self.newest = self.make_newest()
        self.choice = ReplicaChoice()
        self._asks: dict[int, tuple[Lookup, RangeReads, AskReplica]] = {}
        self._fetching: list[Lookup] = []
        self._publishing: dict[str, Publishing] = {}
        self._changing: dict[str, tuple[Change, float, Callable[[str], None]]] = {}
        self.every(1.0, self._tick)

    def make_newest(self) -> NewestMap:
        """The map that is served: what is tested."""
        return NewestMap(ShardMap())

    def _tick(self) -> None:
        self.world.send(self, COORDINATOR, MapRequest(self.newest.current.generation))
        for content_id in list(self._publishing):
            self._publish_next(content_id)
        for asked, deadline, done in list(self._changing.values()):
            if self.world.now >= deadline:
                del self._changing[asked.request_id]
                done("deadline_exceeded")
            else:
                self.world.send(self, COORDINATOR, asked)

    def receive(self, sender: str, message: Sent) -> None:
        """A message has come."""
        match message:
            case MapAnswer(found):
                self._offer(found)
                fetching, self._fetching = self._fetching, []
                for lookup in fetching:
                    lookup.fetched()
            case Rows(request_id, rows) if request_id in self._asks:
                lookup, reads, asked = self._asks.pop(request_id)
                if rows is None:
                    lookup.no_range(reads, asked)
                else:
                    lookup.answered(reads, asked, rows)
            case Written(key, node):
                if key.content_id in self._publishing:
                    self._publishing[key.content_id].written.add((node, key))
            case Placed(content_id):
                self._answer_publishing(content_id, message)
                if content_id in self._publishing:
                    self._write(content_id)
            case Published(content_id, _, found):
                self._offer(found)
                if content_id in self._publishing:
                    self._checks.acknowledged(self.newest.current, found)
                self._answer_publishing(content_id, message)
            case Refused(request_id, code):
                self._answer_publishing(request_id, message)
                if request_id in self._changing:
                    self._changing.pop(request_id)[2](code)
            case Changed(change_id, found):
                self._offer(found)
                if change_id in self._changing:
                    self._checks.acknowledged(self.newest.current, found)
                    self._changing.pop(change_id)[2]("done")
            case _:
                pass

    def _offer(self, found: ShardMap) -> None:
        before = self.newest.current
        self.newest.offer(found)
        self._checks.served(self.address, before, self.newest.current)

    # Lookups

    def lookup(self, reference: str, rows: Sequence[float], done: Answered) -> None:
        """Rows of a table, each as a fraction of its size; `done` is called with the outcome."""
        Lookup(self, reference, rows, done).begin()

    def ask(self, lookup: Lookup, reads: RangeReads, action: AskReplica, key: RangeKey, rows: tuple[int, ...]) -> None:
        """Ask a shard."""
        request_id = next(self.world.ids)
        self._asks[request_id] = (lookup, reads, action)
        address = action.replica.address
        if not self.world.answers(address, self.machine) and self.world.random.random() < 0.8:
            self.after(0.002, self._ask_failed, request_id)  # refused, or no way to it
            return
        self.world.send(self, address, Read(request_id, key, rows))
        self.after(action.late_at - self.world.now, self._ask_failed, request_id)

    def _ask_failed(self, request_id: int) -> None:
        if request_id in self._asks:
            lookup, reads, asked = self._asks.pop(request_id)
            lookup.failed(reads, asked)

    def fetch_map(self, lookup: Lookup) -> None:
        """Fetch the map for a lookup."""
        self._fetching.append(lookup)
        # A coordinator that has no newer map says nothing, in the simulation: half a second is waited for one.
        self.world.send(self, COORDINATOR, MapRequest(self.newest.current.generation))
        self.after(0.5, self._fetch_failed, lookup)

    def _fetch_failed(self, lookup: Lookup) -> None:
        if lookup in self._fetching:
            self._fetching.remove(lookup)
            lookup.fetched()

    # Publishing and changes

    def publish(self, asked: Publish, done: Callable[[str, int], None]) -> None:
        """Publish a version; `done` is called with the outcome and the number."""
        deadline = self.world.now + PUBLISH_DEADLINE
        self._publishing[asked.content_id] = Publishing(PublishRequest(asked), deadline, done)
        self._publish_next(asked.content_id)

    def _publish_next(self, content_id: str) -> None:
        one = self._publishing[content_id]
        if self.world.now >= one.deadline:
            del self._publishing[content_id]
            one.done("deadline_exceeded", 0)
        else:
            self.world.send(self, COORDINATOR, one.request.asked)
            self._write(content_id)

    def _write(self, content_id: str) -> None:
        one = self._publishing[content_id]
        for target in one.to_write():
            size = (target.key.stop - target.key.start) * one.request.asked.row_bytes
            self.world.send(self, target.address, Write(target.key, size, rows_of(target.key)))

    def _answer_publishing(self, content_id: str, message: Placed | Published | Refused) -> None:
        one = self._publishing.get(content_id)
        if one is None:
            return
        one.request.receive(message)
        if one.request.outcome is not None:
            del self._publishing[content_id]
            number = one.request.published[0] if one.request.published else 0
            one.done(one.request.refusal[0] or one.request.outcome, number)

    def change(self, asked: Change, done: Callable[[str], None]) -> None:
        """Make a change; `done` is called with the outcome."""
        self._changing[asked.request_id] = (asked, self.world.now + LOOKUP_DEADLINE, done)
        self.world.send(self, COORDINATOR, asked)


class Lookup:
    """One lookup: `RangeReads`, anew where the version went away."""

    def __init__(self, router: Router, reference: str, rows: Sequence[float], done: Answered) -> None:
        self._router = router
        self._reference = reference
        self._fractions = rows
        self._done = done
        self._world = router.world
        self._deadline = router.world.now + LOOKUP_DEADLINE
        self._is_done = False

    def begin(self) -> None:
        """Ask for all rows, of the version that the name stands for now."""
        found = self._router.newest.current
        named = found.find(self._reference)
        if named is None:
            self._finish("tensor_not_found", ())
            return
        version = named[1]
        self._rows = [int(fraction * version.rows) for fraction in self._fractions] if version.rows else []
        self._by_range: dict[int, list[int]] = {}
        self._answers: dict[int, tuple[str, int]] = {}
        for row in self._rows:
            number = next(number for number, one in enumerate(version.ranges) if row < one.stop)
            self._by_range.setdefault(number, []).append(row)
        self._reads = RangeReads(found, version, self._router.choice, self._deadline, LATE_AFTER)
        self._do(self._reads, self._reads.start(self._by_range, self._world.now))

    def answered(self, reads: RangeReads, asked: AskReplica, rows: Items) -> None:
        """A shard has answered."""
        if reads is self._reads and reads.answered(asked.number, asked.replica):
            self._answers.update(zip(self._by_range[asked.number], rows, strict=True))
            self._do(reads, [])

    def no_range(self, reads: RangeReads, asked: AskReplica) -> None:
        """A shard does not have the range."""
        if reads is self._reads:
            self._do(reads, reads.no_range(asked.number, asked.replica, self._world.now))

    def failed(self, reads: RangeReads, asked: AskReplica) -> None:
        """A shard refused or was late."""
        if reads is self._reads:
            self._do(reads, reads.failed(asked.number, asked.replica, self._world.now))

    def fetched(self) -> None:
        """The map was fetched, or not."""
        self._do(self._reads, self._reads.fetched(self._router.newest.current, self._world.now))

    def _woken(self, reads: RangeReads) -> None:
        if reads is self._reads:
            self._do(reads, reads.woken(self._world.now))

    def _do(self, reads: RangeReads, actions: list[ReadAction]) -> None:
        for action in actions:
            match action:
                case AskReplica(number):
                    one = reads.version.ranges[number]
                    key = RangeKey(reads.version.content_id, one.start, one.stop)
                    self._router.ask(self, reads, action, key, tuple(self._by_range[number]))
                case FetchMap():
                    self._router.fetch_map(self)
                case Wake(at):
                    self._router.after(at - self._world.now, self._woken, reads)
        if reads.outcome == "version_gone":
            if split_reference(self._reference)[1] is None:
                self.begin()
            else:
                self._finish("tensor_not_found", ())
        elif reads.outcome == "done":
            self._finish("done", tuple(self._answers[row] for row in self._rows))
        elif reads.outcome is not None:
            self._finish(reads.outcome, ())

    def _finish(self, outcome: str, rows: Items) -> None:
        if not self._is_done:
            self._is_done = True
            self._done(outcome, rows)
