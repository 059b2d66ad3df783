"""One schedule: a cluster, its clients and faults, drawn from one seed; then the faults stop, and it must settle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from app.cluster.coordinator.cluster_options import ClusterOptions
from tests.cluster.simulation.checks import Checks, Violation
from tests.cluster.simulation.clients import Clients
from tests.cluster.simulation.records import CoordinatorProcess, Records
from tests.cluster.simulation.router import Router
from tests.cluster.simulation.shard import Disk, Shard
from tests.cluster.simulation.truth import Items
from tests.cluster.simulation.world import Network, Process, World

FAULTS_UNTIL: Final = 60.0
SETTLED_AT: Final = (105.0, 240.0)
"""What has not settled by the first of these has to by the second."""


@dataclass(frozen=True)
class Parts:
    """What a cluster is made of; a planted fault takes the place of one of them."""

    shard: type[Shard] = Shard
    router: type[Router] = Router
    coordinator: type[CoordinatorProcess] = CoordinatorProcess


class Schedule:
    """A cluster of 3 to 5 machines; `run` raises Violation where something does not hold."""

    def __init__(self, seed: int, parts: Parts | None = None) -> None:
        self.world = World(seed)
        self.parts = parts or Parts()
        self.checks = Checks()
        random = self.world.random
        self.is_calm = random.random() < 0.15
        """Whether one shard at most is at fault at any time, and nothing else: no lookup may fail then."""
        self.replicas = 2 if self.is_calm or random.random() < 0.8 else 1
        self.options = ClusterOptions(
            ranges=random.randrange(1, 5),
            replicas=self.replicas,
            lost_after=random.choice((4.0, 8.0)),
            drop_after=random.choice((0.0, 2.0, 6.0)) if not self.is_calm else 6.0,
            publish_timeout=10.0,
            copies_at_once=random.choice((1, 4)),
        )
        self.capacity = random.choice((10**6, 10**6, 900, 300))
        self.nodes = [f"n{number}" for number in range(random.randrange(3, 5))]
        self.gone: set[str] = set()
        self.disks = {node: Disk() for node in self.nodes}
        self.records = Records(self.world, self.checks)
        self.shards = {node: self._start_shard(node) for node in self.nodes}
        self.coordinators = [self.parts.coordinator(self.world, 1, self.options, self.records)]
        self.routers = [self.parts.router(self.world, f"r{number}", self.checks) for number in range(2)]
        self.all_urls = random.random() < 0.2
        share = 1.0 if self.all_urls else random.choice((0.0, 0.3))
        self.clients = Clients(self.world, self.checks, self._living_routers, share)
        self._may_lose_disk = (self.replicas > 1 or self.all_urls) and not self.is_calm
        self._faulty_shard = ""
        self._faulty_until = 0.0
        self._unread: set[str] = set()

    def _living_routers(self) -> list[Router]:
        return [router for router in self.routers if router.alive]

    def _start_shard(self, node: str) -> Shard:
        return self.parts.shard(self.world, node, self.capacity, self.disks[node], self.checks)

    def run(self) -> None:
        """Faults for a minute, then none until all has settled."""
        world, random = self.world, self.world.random
        world.after(7.0, self._watch_coordinator)
        self._often(0.25, self.clients.lookup)
        for at in (3.0, 4.0, 5.0):
            world.after(at, self.clients.publish)
        self._often(5.0, self.clients.publish)
        self._often(6.0, self.clients.move_alias)
        self._often(15.0, self.clients.remove_version)
        self._often(random.choice((3.0, 12.0)), lambda: self.clients.drain(self.nodes))
        world.after(5.0 + 40.0 * random.random(), self._add_node)
        if self.is_calm:
            self.clients.must_answer = True
            self._often(8.0, self._disturb_one_shard)
        else:
            if random.random() < 0.8:
                share = random.choice((0.0, 0.02, 0.2))
                repeat, late = random.choice((0.0, 0.05, 0.3)), random.choice((0.0, 0.02, 0.1, 0.3))
                world.network = Network(share, repeat, late, random.choice((3.0, 8.0, 20.0)))
                slow = random.choice((0.05, 0.5))
                for disk in self.disks.values():
                    disk.slow = slow
            self.records.loss = random.choice((0.0, 0.0, 0.1))
            for fault in (
                self._crash_shard, self._pause_shard, self._crash_coordinator, self._pause_coordinator,
                self._second_coordinator, self._cut, self._crash_router, self._pause_router,
            ):  # fmt: skip
                if random.random() < 0.6:
                    self._often(random.choice((6.0, 15.0, 30.0)), fault)
            if random.random() < 0.3:
                world.after(60.0 * random.random(), self._lose_disk)
        world.run(FAULTS_UNTIL)
        self._heal()
        world.run(SETTLED_AT[0])
        if not self._has_settled() or self._read_everything():
            world.run(SETTLED_AT[1])
            self._check_settled()
            if unread := self._read_everything():
                raise Violation(f"not served, though the faults are over: {sorted(unread)}")

    def _often(self, seconds: float, do: Callable[[], None]) -> None:
        """Do something about every so many seconds, while faults last."""

        def again() -> None:
            if self.world.now < FAULTS_UNTIL:
                do()
                self.world.after(self.world.random.expovariate(1 / seconds), again)

        self.world.after(self.world.random.expovariate(1 / seconds), again)

    def _add_node(self) -> None:
        node = f"n{len(self.nodes)}"
        self.nodes.append(node)
        self.disks[node] = Disk()
        self.shards[node] = self._start_shard(node)

    # Faults

    def _duration(self) -> float:
        random = self.world.random
        return random.choice((0.2, 2.0, 12.0, 25.0)) * (0.5 + random.random())

    def _crash_shard(self) -> None:
        node = self.world.random.choice(self.nodes)
        self._crash_and_restart(node, self._duration())

    def _crash_and_restart(self, node: str, seconds: float) -> None:
        if self.shards[node].alive and node not in self.gone:
            self.shards[node].crash()
            self.world.after(seconds, self._restart_shard, node)

    def _restart_shard(self, node: str) -> None:
        if not self.shards[node].alive and node not in self.gone:
            self.shards[node] = self._start_shard(node)

    def _pause_shard(self) -> None:
        self._pause(self.shards[self.world.random.choice(self.nodes)])

    def _pause(self, process: Process) -> None:
        process.paused_until = self.world.now + self._duration()

    def _disturb_one_shard(self) -> None:
        """Only where all shards are well, and the map lists nothing that is not whole."""
        if self._faulty_shard and self.world.now < self._faulty_until:
            return
        node = self._faulty_shard = self.world.random.choice(self.nodes)
        seconds = self.world.random.choice((0.2, 2.0, 12.0))
        self._faulty_until = self.world.now + seconds + 1.0
        if self.world.random.random() < 0.5:
            self._crash_and_restart(node, seconds)
        else:
            self.shards[node].paused_until = self.world.now + seconds

    def _crash_coordinator(self) -> None:
        living = [one for one in self.coordinators if one.alive]
        if living:
            living[-1].crash()
            self.world.after(self._duration() / 4, self._start_coordinator)

    def _pause_coordinator(self) -> None:
        self._pause(self.coordinators[-1])

    def _second_coordinator(self) -> None:
        """The old one does not know: it may be stopped meanwhile, and go on later."""
        if self.world.random.random() < 0.5:
            self._pause(self.coordinators[-1])
        self._start_coordinator()

    def _start_coordinator(self) -> None:
        number = len(self.coordinators) + 1
        self.coordinators.append(self.parts.coordinator(self.world, number, self.options, self.records))

    def _cut(self) -> None:
        """A machine is cut off from some others, or from all."""
        random = self.world.random
        machines = [*self.nodes, *(one.machine for one in (*self.routers, *self.coordinators[-2:]))]
        one = random.choice(machines)
        others = [other for other in machines if other != one]
        cut = {frozenset((one, other)) for other in random.sample(others, random.randrange(1, len(others) + 1))}
        self.world.network.cut |= cut
        self.world.after(self._duration(), self.world.network.cut.difference_update, cut)

    def _crash_router(self) -> None:
        number = self.world.random.randrange(len(self.routers))
        if self.routers[number].alive:
            self.routers[number].crash()
            self.world.after(self._duration() / 4, self._restart_router, number)

    def _restart_router(self, number: int) -> None:
        if not self.routers[number].alive:
            self.routers[number] = self.parts.router(self.world, f"r{number}", self.checks)

    def _pause_router(self) -> None:
        self._pause(self.world.random.choice(self.routers))

    def _lose_disk(self) -> None:
        """Once, and only what another machine or a URL has: the disk of one machine, or all of the machine."""
        if not self._may_lose_disk:
            return
        node = self.world.random.choice(self.nodes)
        for one in self.checks.latest.listed:
            if not all(self.checks.has(other, one.key) for other in one.nodes):
                self.world.after(3.0, self._lose_disk)
                return
        self._may_lose_disk = False
        self.shards[node].crash()
        self.checks.disk_lost(node)
        self.disks[node].ranges.clear()
        self.disks[node].stamps.clear()
        if self.world.random.random() < 0.4 and len(self.nodes) - 1 > self.replicas:
            self.gone.add(node)
        else:
            self.world.after(self._duration(), self._restart_shard, node)

    # The end

    def _heal(self) -> None:
        """No more faults: what is down starts, what is stopped goes on."""
        world = self.world
        world.network = Network()
        self.records.loss = 0.0
        for process in [*self.shards.values(), *self.routers, *self.coordinators]:
            process.paused_until = min(process.paused_until, world.now)
        for node in self.nodes:
            self._restart_shard(node)
        for number in range(len(self.routers)):
            self._restart_router(number)
        for node, may_be in self.clients.draining.items():
            # Where too few machines are left no range can move: all but one of those that are drained come back.
            if may_be != {False} and node != min(self.clients.draining):
                world.after(25.0, self._take_back, node)

    def _take_back(self, node: str) -> None:
        if self.clients.draining[node] != {False}:
            self.clients.undrain(node)
            self.world.after(8.0, self._take_back, node)

    def _watch_coordinator(self) -> None:
        """As Ray does: where the name leads to no process, another one is started."""
        if "coordinator" not in self.world.processes:
            self._start_coordinator()
        self.world.after(7.0, self._watch_coordinator)

    def _has_settled(self) -> bool:
        try:
            self._check_settled()
        except Violation:
            return False
        return True

    def _check_settled(self) -> None:
        latest = self.checks.latest
        draining = [node for node in self.nodes if node in latest.draining or node in self.gone]
        draining_ends = len(self.nodes) - len(draining) >= self.replicas and self.capacity > 1000
        if draining_ends or not self.gone:
            self.checks.settled(draining_ends, self.clients.aliases, self.clients.draining, self.gone)
        for router in self.routers:
            if router.newest.current.generation != latest.generation:
                raise Violation(f"{router.address} is at map {router.newest.current.generation} of {latest.generation}")

    def _read_everything(self) -> set[str]:
        """Read every row of every version by every router: what was not answered."""
        self._unread.clear()
        latest = self.checks.latest
        for router in self.routers:
            for name, table in latest.map.tables.items():
                for version in table.versions:
                    self._read_all(router, f"{name}@{version.number}", version.rows)
        self.world.run(self.world.now + 10.0)
        return self._unread

    def _read_all(self, router: Router, reference: str, rows: int) -> None:
        """Every row through every router."""
        fractions = [(row + 0.5) / rows for row in range(rows)]
        since = self.checks.latest.generation
        self._unread.add(f"{reference} by {router.address}")

        def done(outcome: str, answer: Items) -> None:
            if outcome == "done":
                self._unread.discard(f"{reference} by {router.address}")
                self.checks.answered(reference, since, fractions, answer)

        router.lookup(reference, fractions, done)
