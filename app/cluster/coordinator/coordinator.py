"""The coordinator's side of the protocol, without I/O: the map, and the orders that make it true.

The driver calls `start`, then `receive` for each message and `tick` every second. Each call returns actions; the driver
performs them and reports what became of the records with `created`, `exists` and `latest`. The coordinator sends no
message before the record behind it is durable. If two coordinators run at once, only the one that began last can
create records; the other one stops.

    ReadLatest      read the record with the highest number, report it with `latest`
    CreateRecord    create a record, report `created`; if one with its number exists, report that one with `exists`
    FindRecord      look for the record with this number, report it with `exists` if it is there
    Send            send a message

`now` is in seconds since an arbitrary moment: the coordinator compares it only with earlier values of its own clock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeAlias

from app import __version__
from app.cluster.coordinator import cluster_state
from app.cluster.coordinator.cluster_options import ClusterOptions
from app.cluster.coordinator.cluster_state import ChangeRefused, ClusterState, find_content
from app.cluster.coordinator.messages import (
    Change,
    Changed,
    Drop,
    Held,
    Inventory,
    MapAnswer,
    MapRequest,
    Message,
    NotHeld,
    Publish,
    Published,
    RangeKey,
    Refused,
    Send,
    Stamp,
)
from app.cluster.coordinator.node_views import NodeViews
from app.cluster.coordinator.publications import Publications
from app.cluster.coordinator.releases import MISMATCH, mismatch
from app.cluster.coordinator.replica_copies import ReplicaCopies
from app.cluster.shard_map import BadShardMap, Replica


@dataclass(frozen=True, slots=True)
class ReadLatest:
    """Read the record with the highest number."""


@dataclass(frozen=True, slots=True)
class CreateRecord:
    """Create this record durably, unless there is one with its number."""

    state: ClusterState


@dataclass(frozen=True, slots=True)
class FindRecord:
    """Look whether there is a record with this number."""

    generation: int


CoordinatorAction: TypeAlias = Send | ReadLatest | CreateRecord | FindRecord


@dataclass(frozen=True, slots=True)
class _Operation:
    """One change of the state, and what to send when it is durable."""

    apply: Callable[[ClusterState], ClusterState]
    answer: Callable[[ClusterState], list[Send]] = lambda _: []
    refuse: Callable[[ChangeRefused], list[Send]] = lambda _: []


_NO_STATE: Final = ClusterState()


class Coordinator:
    """One coordinator; `identity` is unique among all coordinators, earlier ones included."""

    def __init__(self, identity: str, options: ClusterOptions, release: str = __version__) -> None:
        """`release` is the version of the service that it is of."""
        self.options = options
        self._release = release
        self.stopped = False
        """Whether another coordinator has taken over: this one does nothing any more."""
        self.state = _NO_STATE
        """The last record that is durable."""
        self._identity = identity
        self._term = 0
        self._count = 0
        self._pending: ClusterState | None = None
        self._answers: list[tuple[_Operation, ChangeRefused | None]] = []
        self._operations: list[_Operation] = []
        self.nodes = NodeViews(options)
        self.publications = Publications(options)
        self.copies = ReplicaCopies(options)

    # Records

    def start(self) -> list[CoordinatorAction]:
        """What to do first."""
        return [ReadLatest()]

    def latest(self, found: ClusterState | None, now: float) -> list[CoordinatorAction]:
        """The record with the highest number, None where there is none: take over with the one after it."""
        if self._term or self._pending is not None or self.stopped:
            return []
        self.state = found if found is not None else _NO_STATE
        self.nodes.begin(now)
        return self._create(self.state)

    def created(self, generation: int, now: float) -> list[CoordinatorAction]:
        """A record is durable: what follows from it may be said."""
        if self._pending is None or self._pending.generation != generation or self.stopped:
            return []
        self.state, self._pending = self._pending, None
        if not self._term:
            self._term = generation
            return []
        answers, self._answers = self._answers, []
        sent: list[CoordinatorAction] = []
        for operation, refused in answers:
            sent += operation.answer(self.state) if refused is None else operation.refuse(refused)
        return sent + self._commit()

    def exists(self, record: ClusterState, now: float) -> list[CoordinatorAction]:
        """Take a record whose number this coordinator wanted or looked for; it or another coordinator made it."""
        if self.stopped or record.generation <= self.state.generation:
            return []
        if record.coordinator == self._identity:
            return self.created(record.generation, now)
        if self._term:
            self.stopped = True
            return []
        self._pending = None
        return [ReadLatest()]

    def _create(self, changed: ClusterState) -> list[CoordinatorAction]:
        generation = self.state.generation + 1
        self._pending = replace(
            changed,
            map=replace(changed.map, generation=generation),
            term=self._term or generation,
            coordinator=self._identity,
        )
        return [CreateRecord(self._pending)]

    def _commit(self) -> list[CoordinatorAction]:
        """One record of all changes that wait, unless one is being created."""
        self._queue_ready()
        if self._pending is not None or not self._operations:
            return []
        operations, self._operations = self._operations, []
        changed = self.state
        done: list[tuple[_Operation, ChangeRefused | None]] = []
        for operation in operations:
            try:
                changed = operation.apply(changed)
            except ChangeRefused as refused:
                done.append((operation, refused))
            except BadShardMap as problem:  # two shards that say that they answer at one address, say
                done.append((operation, ChangeRefused("internal", f"that would be no map: {problem}")))
            else:
                done.append((operation, None))
        if changed is not self.state:
            self._answers = done
            return self._create(changed)
        sent: list[CoordinatorAction] = []
        for operation, refusal in done:
            sent += operation.answer(self.state) if refusal is None else operation.refuse(refusal)
        return sent

    # Messages

    def receive(self, sender: str, message: Message, now: float) -> list[CoordinatorAction]:
        """What to do about a message."""
        if self.stopped or not self._term:
            return []
        match message:
            case Inventory() if why := mismatch(self._release, message.release):
                return [Send(sender, Refused(message.node, MISMATCH, why))]
            case Inventory():
                self.nodes.heard(message, now)
            case Held():
                self._held(message)
            case NotHeld():
                self.copies.failed(message)
                self.publications.failed(message)
            case MapRequest(_, release) if why := mismatch(self._release, release):
                return [Send(sender, Refused("", MISMATCH, why))]
            case MapRequest(known):
                if known < self.state.generation:
                    return [Send(sender, MapAnswer(self.state.map))]
            case Publish():
                return [*self._publish(sender, message, now), *self._commit()]
            case Change():
                self._operations.append(
                    _Operation(
                        partial(cluster_state.change, asked=message),
                        lambda state: [Send(sender, Changed(message.request_id, state.map))],
                        lambda refused: [Send(sender, Refused(message.request_id, refused.code, refused.detail))],
                    )
                )
            case _:
                return []
        return self._commit()

    def _publish(self, sender: str, asked: Publish, now: float) -> list[CoordinatorAction]:
        if (found := find_content(self.state.map, asked.content_id)) is not None:
            return [Send(sender, Published(asked.content_id, found[1].number, self.state.map))]
        free, leaving = self._free(), self.nodes.leaving(self._wanted())
        return list(self.publications.asked(sender, asked, self.state, self.nodes, free, leaving, self._stamp, now))

    def _held(self, message: Held) -> None:
        """A shard has what it was told to have: what was waiting for that is done."""
        self.nodes.told_whole(message)
        copy = self.copies.held(message)
        if copy is not None:
            new = Replica(self.nodes.address(copy.target), copy.target)
            self._operations.append(
                _Operation(
                    lambda state: cluster_state.move_replica(state, copy.key, copy.replaces, new),
                    lambda _: self.copies.moved(copy),
                    lambda _: self.copies.moved(copy),
                )
            )
        self.publications.held(message)

    def _queue_ready(self) -> None:
        for one in self.publications.ready():
            self._operations.append(
                _Operation(
                    partial(one.apply, address=self.nodes.address),
                    partial(self.publications.published, one),
                    partial(self.publications.refused, one),
                )
            )

    # What is done by itself

    def tick(self, now: float) -> list[CoordinatorAction]:
        """What is due: orders again that have no answer, copies for what is lost or draining, drops."""
        if self.stopped:
            return []
        self.nodes.pass_time(now)
        if self._pending is not None:
            return [CreateRecord(self._pending)]
        if not self._term:
            return [ReadLatest()]
        for node, address in self.nodes.new_addresses(self.state):
            self._operations.append(_Operation(partial(cluster_state.set_address, node=node, address=address)))
        if started := self._commit():
            return started
        actions: list[CoordinatorAction] = [FindRecord(self.state.generation + 1)]
        actions += self.publications.tick(self.nodes, now)
        self.copies.plan(self.state, self.nodes, self._free(), self._stamp)
        actions += self.copies.orders(self.state, self.nodes)
        return actions + self._drops(now)

    def _drops(self, now: float) -> list[CoordinatorAction]:
        """Ranges that nobody wants: not those of the map, nor those that are being made for it."""
        return [
            Send(self.nodes.address(node), Drop(key, self._stamp()))
            for node, key in self.nodes.unwanted(self._wanted(), now, self.options.drop_after)
        ]

    def _wanted(self) -> set[tuple[str, RangeKey]]:
        """Return (machine, range) pairs: those in the map, and those being copied or written for it."""
        wanted = self.copies.wanted() | self.publications.wanted()
        for one in self.state.listed:
            wanted.update((node, one.key) for node in one.nodes)
        return wanted

    def _free(self) -> dict[str, int]:
        """Bytes that each machine may be given: its capacity less what it has or is to have; none that is draining."""
        free = {node: self.nodes.capacity(node) for node in self.nodes.living if node not in self.state.draining}
        for one in self.state.listed:
            for node in one.nodes:
                if node in free:
                    free[node] -= one.size
        for node, size in [*self.copies.sizes(), *self.publications.sizes()]:
            if node in free:
                free[node] -= size
        return free

    def _stamp(self) -> Stamp:
        self._count += 1
        return Stamp(self._term, self._count)
