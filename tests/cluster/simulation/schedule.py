"""One schedule: a cluster, its clients and faults, drawn from one seed; then the faults stop, and it must settle."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Final

from app.cluster.catalogue.records import Catalogue, Change, Options
from app.cluster.shard_map import shard_tensor
from tests.cluster.simulation.checks import Checks
from tests.cluster.simulation.clients import Clients
from tests.cluster.simulation.database import MACHINE, Database
from tests.cluster.simulation.primaries import Primaries
from tests.cluster.simulation.range_copy import RangeCopy
from tests.cluster.simulation.reconciler import ReconcilerProcess
from tests.cluster.simulation.router import Lookup, Router
from tests.cluster.simulation.scatter_truth import LogRecord
from tests.cluster.simulation.shard import Disk, Shard
from tests.cluster.simulation.truth import Violation
from tests.cluster.simulation.world import Network, Process, World

FAULTS_UNTIL: Final = 60.0
SETTLED_AT: Final = (85.0, 240.0)
"""When a schedule may have settled, and when it must have. Before the first, messages still come late."""
LOOK_EVERY: Final = 5.0
"""How often that is looked at."""
READ_WITHIN: Final = 10.0
"""How long everything that was asked for then may take."""


class Schedule:
    """A cluster of 3 to 5 machines; `run` raises Violation where something does not hold."""

    def __init__(self, seed: int) -> None:
        self.world = World(seed)
        self.checks = Checks(has_record=self._has_record)
        random = self.world.random
        self.is_calm = random.random() < 0.15
        """Whether one shard at most is at fault at any time, and nothing else: no lookup may fail then."""
        self.replicas = 2 if self.is_calm or random.random() < 0.8 else 1
        self.drop_after = random.choice((0.0, 2.0, 6.0)) if not self.is_calm else 6.0
        self.copies_at_once = random.choice((1, 4))
        self.capacity = random.choice((10**6, 10**6, 900, 300))
        segment_bytes = random.choice((None, None, 60, 20))
        self.options = Options(random.randrange(1, 5), self.replicas, None, segment_bytes)
        self._zones = random.choice((("",), ("east", "west"), ("east", "west", "north"), ("east", "west", "")))
        self.nodes = [f"n{number}" for number in range(random.randrange(3, 5))]
        self.gone: set[str] = set()
        self.disks = {node: Disk() for node in self.nodes}
        self.database = Database(self.world, self.checks, random.choice((4.0, 8.0)))
        self.database.commit(Change({"options": self.options}), Catalogue(), None)
        self.shards = {node: self._start_shard(node) for node in self.nodes}
        self.reconcilers: list[ReconcilerProcess] = []
        self._start_reconciler()
        self.routers = [Router(self.world, f"r{number}", self.database, self.checks) for number in range(2)]
        self.all_urls = random.random() < 0.2
        share = 1.0 if self.all_urls else random.choice((0.0, 0.3))
        self.clients = Clients(self.world, self.checks, self._living_routers, share, self.options.ranges)
        self.takes_scatters = not self.is_calm and random.random() < 0.6
        self._may_lose_disk = (self.replicas > 1 or self.all_urls) and not self.is_calm
        self._faulty_shard = ""
        self._faulty_until = 0.0
        self._unread: set[str] = set()

    def _has_record(self, node: str, tensor: str, record: LogRecord) -> bool:
        """Whether a disk has a record of an open range, or has lost its rows."""
        disk = self.disks[node]
        if tensor not in disk.segments:
            return True
        copy = disk.ranges.get(tensor)
        return copy is not None and copy.has(record)

    def _living_routers(self) -> list[Router]:
        return [router for router in self.routers if router.alive]

    def _start_shard(self, node: str) -> Shard:
        zone = self._zones[int(node[1:]) % len(self._zones)]
        disk = self.disks[node]
        return Shard(self.world, node, zone, self.capacity, disk, self.database, self.checks, Primaries)

    def run(self) -> None:
        """Run it. Until it is over no garbage is looked for, which would take a tenth of the time."""
        gc.disable()
        try:
            self._run()
        finally:
            gc.enable()

    def _run(self) -> None:
        """Faults for a minute, then none until all has settled."""
        world, random = self.world, self.world.random
        world.after(7.0, self._watch_reconciler)
        self._often(0.25, self.clients.lookup)
        for at in (3.0, 4.0, 5.0):
            world.after(at, self.clients.publish)
        self._often(5.0, self.clients.publish)
        if self.takes_scatters:
            self._often(random.choice((0.3, 1.0, 4.0)), self.clients.scatter)
        self._often(15.0, self.clients.remove_version)
        self._often(random.choice((3.0, 12.0)), lambda: self.clients.drain(self.nodes))
        if not self.is_calm and self.replicas > 1:
            self._often(random.choice((10.0, 1000.0)), self.clients.set_replicas)
        world.after(5.0 + 40.0 * random.random(), self._add_node)
        if self.is_calm:
            self.clients.must_answer = True
            self._often(8.0, self._disturb_one_shard)
        else:
            if random.random() < 0.8:
                share, late = random.choice((0.0, 0.02, 0.2)), random.choice((0.0, 0.02, 0.1, 0.3))
                world.network = Network(share, late, random.choice((3.0, 8.0, 20.0)))
                slow = random.choice((0.05, 0.5))
                for disk in self.disks.values():
                    disk.slow = slow
            self.database.loss = random.choice((0.0, 0.0, 0.1))
            for fault in (
                self._crash_shard, self._pause_shard, self._crash_reconciler, self._pause_reconciler,
                self._second_reconciler, self._cut, self._cut_but_for_routers, self._crash_router, self._pause_router,
            ):  # fmt: skip
                if random.random() < 0.6:
                    self._often(random.choice((6.0, 15.0, 30.0)), fault)
            if random.random() < 0.3:
                world.after(60.0 * random.random(), self._lose_disk)
        world.run(FAULTS_UNTIL)
        self._heal()
        world.run(SETTLED_AT[0])
        while not self._is_over():
            if world.now >= SETTLED_AT[1]:
                self._check_settled()
                raise Violation(f"not served, though the faults are over: {sorted(self._unread)}")
            world.run(world.now + LOOK_EVERY)

    def _is_over(self) -> bool:
        """Whether all has settled, is served, and is settled still."""
        return self._has_settled() and not self._read_everything() and self._has_settled()

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
        """Only where all shards are well, and the catalogue lists nothing that is not whole."""
        if self._faulty_shard and self.world.now < self._faulty_until:
            return
        node = self._faulty_shard = self.world.random.choice(self.nodes)
        seconds = self.world.random.choice((0.2, 2.0, 12.0))
        self._faulty_until = self.world.now + seconds + 1.0
        if self.world.random.random() < 0.5:
            self._crash_and_restart(node, seconds)
        else:
            self.shards[node].paused_until = self.world.now + seconds

    def _crash_reconciler(self) -> None:
        living = [one for one in self.reconcilers if one.alive]
        if living:
            living[-1].crash()
            self.world.after(self._duration() / 4, self._start_reconciler)

    def _pause_reconciler(self) -> None:
        """It goes on when its lease may have expired."""
        self._pause(self.world.random.choice(self.reconcilers[-2:]))

    def _second_reconciler(self) -> None:
        """It waits until the one in office crashes, or is silent for too long."""
        if self.world.random.random() < 0.5:
            self._pause(self.reconcilers[-1])
        if sum(one.alive for one in self.reconcilers) < 3:
            self._start_reconciler()

    def _start_reconciler(self) -> None:
        number = len(self.reconcilers) + 1
        self.reconcilers.append(
            ReconcilerProcess(self.world, number, self.database, self.drop_after, self.copies_at_once)
        )

    def _cut(self) -> None:
        """A machine is cut off from some others, or from all."""
        random = self.world.random
        living = [one.machine for one in self.reconcilers if one.alive]
        machines = [*self.nodes, *(one.machine for one in self.routers), *living, MACHINE]
        one = random.choice(machines)
        others = [other for other in machines if other != one]
        some = random.sample(others, random.randrange(1, len(others) + 1))
        self._cut_for_a_while({frozenset((one, other)) for other in some})

    def _cut_but_for_routers(self) -> None:
        """A shard reaches routers alone, one of which goes on with the catalogue that it knows."""
        one = self.world.random.choice(self.nodes)
        pairs = {frozenset((one, other)) for other in (*self.nodes, MACHINE) if other != one}
        self._cut_for_a_while(pairs | {frozenset((self.world.random.choice(self.routers).machine, MACHINE))})

    def _cut_for_a_while(self, pairs: set[frozenset[str]]) -> None:
        self.world.network.cut |= pairs
        self.world.after(self._duration(), self.world.network.cut.difference_update, pairs)

    def _crash_router(self) -> None:
        number = self.world.random.randrange(len(self.routers))
        if self.routers[number].alive:
            self.routers[number].crash()
            self.world.after(self._duration() / 4, self._restart_router, number)

    def _restart_router(self, number: int) -> None:
        if not self.routers[number].alive:
            self.routers[number] = Router(self.world, f"r{number}", self.database, self.checks)

    def _pause_router(self) -> None:
        self._pause(self.world.random.choice(self.routers))

    def _lose_disk(self) -> None:
        """Once, and only what another machine or a URL has: the disk of one machine, or all of the machine."""
        if not self._may_lose_disk:
            return
        node = self.world.random.choice(self.nodes)
        if not self._can_spare(node):
            self.world.after(3.0, self._lose_disk)
            return
        self._may_lose_disk = False
        self.shards[node].crash()
        self.checks.disk_lost(node)
        self.disks[node].segments.clear()
        self.disks[node].ranges.clear()
        self.disks[node].fence = 0
        if self.world.random.random() < 0.4 and len(self.nodes) - 1 > self.replicas:
            self.gone.add(node)
        else:
            self.world.after(self._duration(), self._restart_shard, node)

    def _can_spare(self, node: str) -> bool:
        """Whether other machines, or a URL, have whatever this one has; a range that takes scatters is at no URL."""
        if any(node in one.in_sync for one in self.checks.latest.ranges.values()):
            return False
        latest = self.checks.latest
        held = [
            (one, version.tensor(one))
            for table in latest.tables.values()
            for version in table.versions
            for one in version.segments
            if not version.origin or version.tensor(one) in latest.ranges
        ]
        for content_id, upload in latest.uploads.items():
            held += [(one, shard_tensor(content_id, one.start, one.stop)) for one in upload.segments]
        return all(
            any(self.checks.has(other, tensor) for other in one.nodes if other != node)
            for one, tensor in held
            if node in one.nodes
        )

    # The end

    def _heal(self) -> None:
        """No more faults: what is down starts, what is stopped goes on."""
        world = self.world
        world.network = Network()
        self.database.loss = 0.0
        for disk in self.disks.values():
            disk.slow = 0.05
        for process in [*self.shards.values(), *self.routers, *self.reconcilers]:
            process.paused_until = min(process.paused_until, world.now)
        for node in self.nodes:
            self._restart_shard(node)
        for number in range(len(self.routers)):
            self._restart_router(number)
        for node in sorted(self.nodes)[1:]:
            # Where too few machines are left no segment can move: all but one of those that are drained come back.
            world.after(20.0, self._take_back, node)

    def _take_back(self, node: str) -> None:
        if node in self.checks.latest.drained:
            self.clients.undrain(node)
            self.world.after(8.0, self._take_back, node)

    def _watch_reconciler(self) -> None:
        """As Ray and systemd do: where none runs, another one is started."""
        if not any(one.alive for one in self.reconcilers):
            self._start_reconciler()
        self.world.after(7.0, self._watch_reconciler)

    def _has_settled(self) -> bool:
        try:
            self._check_settled()
        except Violation:
            return False
        return True

    def _check_settled(self) -> None:
        latest = self.checks.latest
        usable = [node for node in self.nodes if node not in latest.drained and node not in self.gone]
        most = max((table.replicas or self.replicas for table in latest.tables.values()), default=self.replicas)
        is_roomy = len(usable) >= most and self.capacity > 1000
        if is_roomy or not self.gone:
            self.checks.settled(is_roomy, self.gone)
            self._check_open_ranges()
        for router in self.routers:
            if router.served.generation < latest.revision:
                raise Violation(f"{router.address} is at map {router.served.generation} of {latest.revision}")

    def _check_open_ranges(self) -> None:
        """Every replica in sync has every record that was committed, so all that were acknowledged."""
        for tensor, record in self.checks.latest.ranges.items():
            for node in record.in_sync:
                copy = self.disks[node].ranges.get(tensor, RangeCopy())
                self.checks.scatters.settled(node, tensor, copy.applied, copy.state.last, copy.values)

    def _read_everything(self) -> set[str]:
        """Read every row of every version by every router: what was not answered."""
        self._unread.clear()
        for router in self.routers:
            for name, table in self.checks.latest.tables.items():
                for version in table.versions:
                    self._read_all(router, f"{name}@{version.number}", version.shape[0])
        end = self.world.now + READ_WITHIN
        while self._unread and self.world.now < end:
            self.world.run(self.world.now + 1.0)
        return self._unread

    def _read_all(self, router: Router, reference: str, rows: int) -> None:
        """Every row through every router."""
        fractions = [(row + 0.5) / rows for row in range(rows)]
        since = self.checks.latest.revision
        self._unread.add(f"{reference} by {router.address}")

        async def read() -> None:
            outcome, answer = await Lookup(router, reference, fractions, {}).run()
            if outcome == "done":
                self._unread.discard(f"{reference} by {router.address}")
                self.checks.answered(reference, since, fractions, answer)

        router.start(read)
